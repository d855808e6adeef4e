"""The models of `bench/step.py`, real weights and inputs, in a size for processors and one for GPUs.

In: a size, a name, a device. Out: a module whose `forward` returns a loss, and its inputs. Never loads weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from bench import convolutions, transformers
from bench.architectures import Built, Case
from bench.recurrent import DeepNet, RecurrentLM

LARGEST_ID = 1000
"""Integer inputs are drawn below this: ids of any vocabulary here, and the classes of the image models."""

# Dropout off: with it gradients could not be compared, since a compiled step draws other numbers than an eager one.
_GPT2_RATES = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_GPT2_NAMES = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}

BFLOAT16, FLOAT32, INT64 = torch.bfloat16, torch.float32, torch.int64


class FromConfig(nn.Module):
    """A class of the `transformers` package with random weights; inputs under the names it wants, then targets."""

    def __init__(self, model: str, names: Sequence[str], **fields: Any) -> None:
        super().__init__()
        import transformers as library

        kind = getattr(library, model)
        self.model = kind(kind.config_class(**fields))
        self.names = tuple(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Mean cross-entropy, here rather than there: the package's own breaks the graph in some versions."""
        *given, targets = inputs
        logits = self.model(**dict(zip(self.names, given, strict=True))).logits
        return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def _llama(name: str, dtype: torch.dtype, batch: int, length: int, *, is_fused: bool, **sizes: int) -> Case:
    def make() -> nn.Module:
        return transformers.Llama(sizes["vocabulary"], sizes["layers"], sizes["width"], length, is_fused=is_fused)

    scores = "F.scaled_dot_product_attention" if is_fused else "scores of s x s written out"
    summary = (
        f"{sizes['layers']} blocks of width {sizes['width']}, RMSNorm, rotary positions, shared key heads, SwiGLU, "
        f"{scores}"
    )
    ids = ((batch, length), INT64)
    return Case(name, summary, dtype, make, (ids, ids), ("layers.*",))


def _gpt2(dtype: torch.dtype, batch: int, length: int, **sizes: int) -> Case:
    def make() -> nn.Module:
        fields = {**sizes, **_GPT2_RATES, **_GPT2_NAMES, "n_positions": length}
        return FromConfig("GPT2LMHeadModel", ("input_ids",), **fields)

    ids = ((batch, length), INT64)
    summary = f"GPT-2 of the transformers package: {sizes['n_layer']} blocks of width {sizes['n_embd']}"
    return Case("gpt2", summary, dtype, make, (ids, ids), ("model.transformer.h.*",))


def _t5(dtype: torch.dtype, batch: int, lengths: tuple[int, int], **sizes: int) -> Case:
    def make() -> nn.Module:
        fields = {**sizes, "d_kv": 64, "dropout_rate": 0.0, "use_cache": False, "decoder_start_token_id": 0}
        return FromConfig("T5ForConditionalGeneration", ("input_ids", "decoder_input_ids"), **fields)

    source, target = (((batch, length), INT64) for length in lengths)
    blocks = ("model.encoder.block.*", "model.decoder.block.*")
    count = sizes["num_layers"]
    summary = f"T5 of the transformers package: {count} + {count} blocks of width {sizes['d_model']}"
    return Case("t5", summary, dtype, make, (source, target, target), blocks)


def _vit(dtype: torch.dtype, batch: int, **sizes: int) -> Case:
    def make() -> nn.Module:
        return FromConfig("ViTForImageClassification", ("pixel_values",), **sizes, num_labels=LARGEST_ID)

    image = sizes["image_size"]
    inputs = (((batch, 3, image, image), None), ((batch,), INT64))
    summary = f"ViT of the transformers package: {sizes['num_hidden_layers']} blocks of width {sizes['hidden_size']}"
    return Case("vit", summary, dtype, make, inputs, ("model.vit.layers.*",))


def _images(
    name: str, summary: str, make: Callable[[], nn.Module], batch: int, image: int, blocks: tuple[str, ...]
) -> Case:
    """A convolutional network; its targets are classes, or images where it has a way up."""
    pixels = ((batch, 3, image, image), None)
    targets = pixels if "up.*" in blocks else ((batch,), INT64)
    return Case(name, summary, FLOAT32, make, (pixels, targets), blocks)


def _unet(batch: int, image: int, width: int) -> Case:
    summary = f"GroupNorm, SiLU and 3 x 3 convolutions on 3 scales from {width} channels, skips over the whole depth"
    return _images(
        "unet", summary, lambda: convolutions.UNet(width, (1, 2, 4)), batch, image, ("down.*", "middle.*", "up.*")
    )


def _resnet(batch: int, image: int, counts: tuple[int, ...]) -> Case:
    summary = f"{sum(counts)} bottlenecks with BatchNorm on {len(counts)} scales"
    return _images("resnet", summary, lambda: convolutions.ResNet(counts), batch, image, ("layers.*",))


def _lstm(batch: int, width: int, steps: int) -> Case:
    def make() -> nn.Module:
        return RecurrentLM(LARGEST_ID, width=width, layers=2, steps=steps)

    summary = f"{steps} unrolled steps of a 2-layer LSTM of width {width}; a block is one time step of both layers"
    return Case("lstm", summary, FLOAT32, make, (((batch, steps), INT64), ((batch,), INT64)), ("steps.*",))


def _deepnet(batch: int, width: int, layers: int = 100) -> Case:
    rows = ((batch, width), None)
    summary = f"{layers} layers of Linear and ReLU of width {width}"
    return Case("deepnet", summary, FLOAT32, lambda: DeepNet(layers, width), (rows, rows), ("layers.*",))


_SMALL = (
    _llama("llama_plain", FLOAT32, 2, 512, is_fused=False, vocabulary=1024, layers=6, width=256),
    _llama("llama_fused", FLOAT32, 2, 512, is_fused=True, vocabulary=1024, layers=6, width=256),
    _gpt2(FLOAT32, 2, 512, vocab_size=1024, n_layer=6, n_embd=256, n_head=4),
    _t5(FLOAT32, 4, (256, 128), vocab_size=1024, num_layers=3, d_model=256, d_ff=1024, num_heads=4),
    _vit(FLOAT32, 16, image_size=64, patch_size=8, hidden_size=256, intermediate_size=1024, num_hidden_layers=6,
         num_attention_heads=4),
    _unet(batch=2, image=64, width=32),
    _resnet(batch=8, image=96, counts=(2, 2, 2)),
    _lstm(batch=128, width=256, steps=24),
    _deepnet(batch=1024, width=256),
)  # fmt: skip

_LARGE = (
    _llama("llama_plain", BFLOAT16, 1, 2048, is_fused=False, vocabulary=32_000, layers=22, width=2048),
    _llama("llama_fused", BFLOAT16, 1, 8192, is_fused=True, vocabulary=32_000, layers=22, width=2048),
    _gpt2(BFLOAT16, 8, 1024, vocab_size=50_304, n_layer=24, n_embd=1024, n_head=16),
    _t5(BFLOAT16, 16, (512, 256), vocab_size=32_128, num_layers=12, d_model=1024, d_ff=4096, num_heads=16),
    _vit(BFLOAT16, 64, image_size=224, patch_size=16, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
         num_attention_heads=16),
    _unet(batch=16, image=128, width=128),
    _resnet(batch=64, image=224, counts=(3, 4, 6, 3)),
    _lstm(batch=512, width=1024, steps=24),
    _deepnet(batch=16_384, width=1024),
)  # fmt: skip

# Compiles in seconds: for tests, and to see that everything runs.
_TINY = (_deepnet(batch=64, width=16, layers=2),)

SIZES: dict[str, dict[str, Case]] = {
    size: {case.name: case for case in cases} for size, cases in (("small", _SMALL), ("large", _LARGE), ("tiny", _TINY))
}
"""Cases by size ("small": 0.1 to 0.6 s a step on two processor cores; "large": a GPU) and name; read only."""


def build(case: Case, device: torch.device, seed: int) -> Built:
    """The model in training mode and its inputs, the same for the same seed and device."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        with device:
            model = case.make().to(case.dtype).train()
            inputs = tuple(_draw(shape, dtype or case.dtype) for shape, dtype in case.inputs)
    return model, inputs


def _draw(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(LARGEST_ID, shape, dtype=dtype)
