"""Ten models in plain PyTorch whose joint graphs are planned by `bench/plan_quality.py`.

In: a name. Out: a model and its inputs, and which of its modules people would put under `torch.utils.checkpoint`.
Never runs a kernel: weights and inputs hold whatever lies in memory, since a trace reads only shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench import convolutions, transformers
from bench.recurrent import DeepNet, RecurrentLM

# Vocabularies are small (16384), so that the blocks and not the logits decide the peak.
VOCABULARY = 16384

Built = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """One model and its modules, named by globs on module paths (one glob per path component).

    Attributes:
        name: what `--cases` takes.
        summary: what it is, for the reader.
        dtype: of weights and of floating-point inputs.
        make: builds the module; called under `torch.device("meta")`.
        inputs: shape and dtype per input; None stands for `dtype`.
        blocks: the repeated blocks, in the order they run.
        attention, feed: the parts of the blocks that people checkpoint on their own; empty where there are none.
        groups: how many successive blocks people put into one region.
    """

    name: str
    summary: str
    dtype: torch.dtype
    make: Callable[[], nn.Module]
    inputs: tuple[tuple[tuple[int, ...], torch.dtype | None], ...]
    blocks: tuple[str, ...]
    attention: tuple[str, ...] = ()
    feed: tuple[str, ...] = ()
    groups: tuple[int, ...] = (1, 2, 3, 4)


def _language(name: str, summary: str, make: Callable[[], nn.Module], batch: int, length: int) -> Case:
    """A decoder-only language model: ids and targets in, the loss out."""
    ids = ((batch, length), torch.int64)
    globs = (("layers.*",), ("layers.*.attention",), ("layers.*.feed",))
    return Case(name, summary, torch.bfloat16, make, (ids, ids), *globs)


def _llama(*, is_fused: bool, layers: int = 8, width: int = 1024, is_mixture: bool = False) -> transformers.Llama:
    return transformers.Llama(VOCABULARY, layers, width, 2048, is_fused=is_fused, is_mixture=is_mixture)


_CASES = (
    _language(
        "llama_plain",
        "8 blocks of width 1024, RMSNorm, rotary positions, 4 shared key heads, SwiGLU, scores of s x s written out",
        lambda: _llama(is_fused=False),
        batch=4,
        length=2048,
    ),
    _language(
        "llama_fused",
        "the same with F.scaled_dot_product_attention",
        lambda: _llama(is_fused=True),
        batch=4,
        length=2048,
    ),
    _language(
        "gpt2",
        "12 blocks of width 768, LayerNorm, GELU, learned positions, causal F.scaled_dot_product_attention",
        lambda: transformers.GPT2(VOCABULARY, layers=12, width=768, length=1024),
        batch=8,
        length=1024,
    ),
    Case(
        "encoder_decoder",
        "4 + 4 blocks of width 512 as in T5: relative position bias, scores written out, ReLU, cross attention",
        torch.bfloat16,
        lambda: transformers.EncoderDecoder(VOCABULARY, layers=4, width=512),
        (((16, 512), torch.int64), ((16, 256), torch.int64), ((16, 256), torch.int64)),
        blocks=("encoder.*", "decoder.*"),
        attention=("encoder.*.attention", "decoder.*.attention", "decoder.*.cross"),
        feed=("encoder.*.feed", "decoder.*.feed"),
    ),
    Case(
        "vit",
        "ViT-S/16: 12 blocks of width 384 over 14 x 14 patches",
        torch.bfloat16,
        lambda: transformers.VisionTransformer(layers=12, width=384, patch=16, image=224),
        (((64, 3, 224, 224), None), ((64,), torch.int64)),
        blocks=("layers.*",),
        attention=("layers.*.attention",),
        feed=("layers.*.feed",),
    ),
    Case(
        "unet",
        "GroupNorm, SiLU and 3 x 3 convolutions on 3 scales, with skips over the whole depth",
        torch.float32,
        lambda: convolutions.UNet(width=64, factors=(1, 2, 4)),
        (((16, 3, 128, 128), None), ((16, 3, 128, 128), None)),
        blocks=("down.*", "middle.*", "up.*"),
    ),
    Case(
        "resnet",
        "ResNet-50: 16 bottlenecks with BatchNorm",
        torch.float32,
        lambda: convolutions.ResNet((3, 4, 6, 3)),
        (((32, 3, 224, 224), None), ((32,), torch.int64)),
        blocks=("layers.*",),
    ),
    Case(
        "resnet152",
        "ResNet-152: 50 bottlenecks with BatchNorm",
        torch.float32,
        lambda: convolutions.ResNet((3, 8, 36, 3)),
        (((32, 3, 224, 224), None), ((32,), torch.int64)),
        blocks=("layers.*",),
    ),
    Case(
        "densenet121",
        "DenseNet-121: 58 layers in 4 blocks, each of which reads what all before it in its block made",
        torch.float32,
        lambda: convolutions.DenseNet((6, 12, 24, 16)),
        (((32, 3, 224, 224), None), ((32,), torch.int64)),
        blocks=("blocks.*.layers.*",),
    ),
    Case(
        "vgg",
        "VGG-16: 13 convolutions with ReLU on 5 scales, max pooling between them, no norm",
        torch.float32,
        lambda: convolutions.Vgg((2, 2, 3, 3, 3)),
        (((32, 3, 224, 224), None), ((32,), torch.int64)),
        blocks=("scales.*",),
    ),
    _language(
        "moe",
        "6 blocks of width 512; every token goes through the 2 best of 4 SwiGLU experts, computed densely",
        lambda: _llama(is_fused=True, layers=6, width=512, is_mixture=True),
        batch=8,
        length=1024,
    ),
    Case(
        "lstm",
        "24 unrolled steps of a 2-layer LSTM of width 512; a block is one time step of both layers",
        torch.float32,
        lambda: RecurrentLM(VOCABULARY, width=512, layers=2, steps=24),
        (((256, 24), torch.int64), ((256,), torch.int64)),
        blocks=("steps.*",),
        groups=(1, 2, 3, 4, 6),
    ),
    Case(
        "deepnet",
        "100 layers of Linear and ReLU of width 256",
        torch.float32,
        lambda: DeepNet(layers=100, width=256),
        (((4096, 256), None), ((4096, 256), None)),
        blocks=("layers.*",),
        groups=(1, 2, 3, 4, 10),
    ),
)

CASES: dict[str, Case] = {case.name: case for case in _CASES}
"""The cases by name, in the order they are reported; read only."""


def build(case: Case) -> Built:
    """The model of a case in training mode, and its inputs; nothing is initialised."""
    with torch.device("meta"):
        model = case.make()
    model = model.to(case.dtype).to_empty(device="cpu").train()
    return model, tuple(torch.empty(shape, dtype=dtype or case.dtype) for shape, dtype in case.inputs)
