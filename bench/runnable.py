"""Models small enough to run real steps on two CPU cores, for `bench/peaks.py`.

In: a name. Out: a model with initialised weights in training mode, and its inputs. Never measures.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from bench import convolutions, recurrent, transformers, varied

VOCABULARY = 2048
Inputs = tuple[Tensor, ...]


class Labelled(nn.Module):
    """A model of the `transformers` library, called with ids and labels."""

    def __init__(self, model: nn.Module, first: str) -> None:
        super().__init__()
        self.model = model
        self.first = first

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The model's own loss."""
        loss: Tensor = self.model(**{self.first: inputs, "labels": labels}).loss
        return loss


class DropoutMlp(nn.Module):
    """Wide and narrow Linear, GELU, BatchNorm and Dropout."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 4 * width),
                nn.BatchNorm1d(4 * width),
                nn.GELU(),
                nn.Dropout(0.1),
                nn.Linear(4 * width, width),
            )
            for _ in range(layers)
        )

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error."""
        for layer in self.layers:
            x = x + layer(x)
        return F.mse_loss(x, targets)


def _ids(*shape: int) -> Tensor:
    return torch.randint(1, VOCABULARY, shape)


def _hugging_face(name: str, first: str = "input_ids", **fields: object) -> nn.Module:
    import transformers as library

    kind = getattr(library, name)
    return Labelled(kind(kind.config_class(**fields)), first)


def _small_resnet() -> nn.Module:
    return convolutions.ResNet((2, 2, 2, 2))


def _images(count: int, size: int) -> Inputs:
    return torch.randn(count, 3, size, size), torch.randint(0, 10, (count,))


def _separable() -> nn.Module:
    blocks = nn.Sequential(*(varied.SeparableBlock(32) for _ in range(4)))
    return varied.Classifier(blocks, 32, 32, stride=2)


def _branches() -> nn.Module:
    return varied.Classifier(nn.Sequential(*(varied.BranchesBlock(128) for _ in range(3))), 128, 128)


_LANGUAGE = {"vocab_size": VOCABULARY, "hidden_size": 192, "num_attention_heads": 4, "intermediate_size": 768}
_DEPTH = {"num_hidden_layers": 4}

CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Inputs]]] = {
    "llama_plain": (
        lambda: transformers.Llama(VOCABULARY, 4, 256, 256, is_fused=False),
        lambda: (_ids(4, 256), _ids(4, 256)),
    ),
    "llama_fused": (
        lambda: transformers.Llama(VOCABULARY, 4, 256, 512, is_fused=True),
        lambda: (_ids(4, 512), _ids(4, 512)),
    ),
    "gpt2": (
        lambda: transformers.GPT2(VOCABULARY, layers=4, width=192, length=256),
        lambda: (_ids(8, 256), _ids(8, 256)),
    ),
    "encoder_decoder": (
        lambda: transformers.EncoderDecoder(VOCABULARY, layers=2, width=192),
        lambda: (_ids(8, 128), _ids(8, 64), _ids(8, 64)),
    ),
    "vit": (
        lambda: transformers.VisionTransformer(layers=4, width=192, patch=8, image=96),
        lambda: (torch.randn(8, 3, 96, 96), torch.randint(0, 10, (8,))),
    ),
    "unet": (
        lambda: convolutions.UNet(width=16, factors=(1, 2, 4)),
        lambda: (torch.randn(4, 3, 64, 64), torch.randn(4, 3, 64, 64)),
    ),
    "resnet": (_small_resnet, lambda: (torch.randn(8, 3, 96, 96), torch.randint(0, 1000, (8,)))),
    "moe": (
        lambda: transformers.Llama(VOCABULARY, 2, 256, 256, is_fused=True, is_mixture=True),
        lambda: (_ids(4, 256), _ids(4, 256)),
    ),
    "lstm": (
        lambda: recurrent.RecurrentLM(VOCABULARY, width=128, layers=2, steps=16),
        lambda: (_ids(256, 16), torch.randint(0, VOCABULARY, (256,))),
    ),
    "deepnet": (
        lambda: recurrent.DeepNet(layers=40, width=128),
        lambda: (torch.randn(4096, 128), torch.randn(4096, 128)),
    ),
    "dropout_mlp": (lambda: DropoutMlp(6, 128), lambda: (torch.randn(2048, 128), torch.randn(2048, 128))),
    "bert": (
        lambda: _hugging_face("BertForMaskedLM", **_LANGUAGE, **_DEPTH, max_position_embeddings=256),
        lambda: (_ids(8, 128), _ids(8, 128)),
    ),
    "t5": (
        lambda: _hugging_face(
            "T5ForConditionalGeneration",
            vocab_size=VOCABULARY,
            d_model=192,
            d_ff=512,
            d_kv=48,
            num_heads=4,
            num_layers=2,
            decoder_start_token_id=0,
        ),
        lambda: (_ids(8, 128), _ids(8, 64)),
    ),
    "mamba": (
        lambda: _hugging_face(
            "MambaForCausalLM", vocab_size=VOCABULARY, hidden_size=96, num_hidden_layers=2, state_size=8
        ),
        lambda: (_ids(2, 48), _ids(2, 48)),
    ),
    "convnext": (
        lambda: _hugging_face(
            "ConvNextForImageClassification",
            "pixel_values",
            depths=[1, 1, 2, 1],
            hidden_sizes=[32, 64, 96, 128],
            num_labels=10,
        ),
        lambda: _images(8, 96),
    ),
    "separable": (_separable, lambda: _images(4, 48)),
    "dense_blocks": (
        lambda: varied.Classifier(varied.DenseBlock(32, 16, 6), 32, 32 + 6 * 16),
        lambda: _images(4, 32),
    ),
    "branches": (_branches, lambda: _images(4, 32)),
    "fourier": (
        lambda: varied.FourierOperator(16, 8, 3),
        lambda: (torch.randn(4, 32, 32, 1), torch.randn(4, 32, 32, 1)),
    ),
    "graph_attention": (
        lambda: varied.GraphAttention(64, 3),
        lambda: (torch.randn(2000, 64), torch.randint(0, 2000, (2, 16000)), torch.randint(0, 10, (2000,))),
    ),
    "wavenet": (
        lambda: varied.GatedConvolutions(64, 6, 64),
        lambda: (torch.randn(2, 1, 2048), torch.randint(0, 64, (2, 2048))),
    ),
    "windows": (
        lambda: varied.WindowTransformer(48, layers=3, window=4),
        lambda: (torch.randn(1, 3, 32, 32), torch.randn(1, 3, 64, 64)),
    ),
    "deberta": (
        lambda: _hugging_face(
            "DebertaV2ForMaskedLM",
            **_LANGUAGE,
            **_DEPTH,
            max_position_embeddings=256,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=64,
        ),
        lambda: (_ids(4, 256), _ids(4, 256)),
    ),
}
"""How to build each model, and its inputs."""


def build(name: str, device: str) -> tuple[nn.Module, Inputs]:
    """A model in training mode, weights initialised in a fixed way, and its inputs."""
    torch.manual_seed(0)
    make_model, make_inputs = CASES[name]
    model = make_model().train()
    with torch.no_grad():
        for parameter in model.parameters():
            if not torch.isfinite(parameter).all() or parameter.abs().max() > 10:
                parameter.normal_(std=0.02)
    return model.to(device), tuple(value.to(device) for value in make_inputs())
