"""The model that the demo trains: a byte-level transformer language model in plain PyTorch.

In: byte ids and targets. Out: the mean loss. Never uses fused attention: the scores of s * s are written out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from rematpass.errors import OptionError

VOCABULARY = 256
HEAD_WIDTH = 32


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Layers, width (a multiple of 32, the width of a head) and the longest sequence.

    Raises:
        OptionError: a size that no model can have.
    """

    layers: int = 6
    width: int = 256
    context: int = 512

    def __post_init__(self) -> None:
        if self.width < HEAD_WIDTH or self.width % HEAD_WIDTH:
            raise OptionError(f"width must be a multiple of {HEAD_WIDTH}, got {self.width}. Try: --width 256")
        if self.layers < 1 or self.context < 1:
            raise OptionError(f"layers and context must be at least 1, got {self.layers} and {self.context}")


class Attention(nn.Module):
    """Causal self-attention, (batch, s, width) -> (batch, s, width), scores of (batch, heads, s, s) in full."""

    mask: Tensor

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.project_in = nn.Linear(shape.width, 3 * shape.width)
        self.project_out = nn.Linear(shape.width, shape.width)
        future = torch.ones(shape.context, shape.context, dtype=torch.bool).triu(1)
        self.register_buffer("mask", future, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to this position and those before it."""
        batch, length, width = x.shape
        heads = self.project_in(x).view(batch, length, 3, -1, HEAD_WIDTH).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        scores = query @ key.transpose(-2, -1) / math.sqrt(HEAD_WIDTH)
        weights = scores.masked_fill(self.mask[:length, :length], float("-inf")).softmax(dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, width)
        attended: Tensor = self.project_out(mixed)
        return attended


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm_feed = nn.LayerNorm(shape.width)
        self.feed_up = nn.Linear(shape.width, 4 * shape.width)
        self.feed_down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, s, width) -> (batch, s, width)."""
        x = x + self.attention(self.norm_attention(x))
        fed: Tensor = self.feed_down(functional.gelu(self.feed_up(self.norm_feed(x))))
        return x + fed


class ByteLM(nn.Module):
    """Predicts the next byte. With `is_checkpointed`, every block runs under `torch.utils.checkpoint`."""

    def __init__(self, shape: ModelShape, *, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.position = nn.Parameter(0.02 * torch.randn(shape.context, shape.width))
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy, a scalar, of `targets` given `ids`, both int64 of shape (batch, s)."""
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        for block in self.layers:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_model(shape: ModelShape, device: torch.device, seed: int, *, is_checkpointed: bool = False) -> ByteLM:
    """A model whose first weights depend on `shape` and `seed` only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ByteLM(shape, is_checkpointed=is_checkpointed)
    return model.to(device)
