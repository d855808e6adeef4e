"""The transformers of `bench/architectures.py`, written out in plain PyTorch.

In: sizes. Out: modules whose `forward` returns a loss. Never holds anything but the model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

HEAD_WIDTH = 64
ROTARY_BASE = 10_000.0
FEED_FACTOR = 4
EXPERTS = 4
CHOSEN = 2
BIAS_BUCKETS = 32
CLASSES = 1000


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


def split_heads(x: Tensor) -> Tensor:
    """(batch, s, heads * 64) -> (batch, heads, s, 64)."""
    return x.view(*x.shape[:2], -1, HEAD_WIDTH).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """The inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions."""
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


class LlamaAttention(nn.Module):
    """Causal attention with rotary positions; four query heads share one key head."""

    def __init__(self, width: int, *, is_fused: bool) -> None:
        super().__init__()
        self.is_fused = is_fused
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width // 4, bias=False)
        self.value = nn.Linear(width, width // 4, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, future: Tensor) -> Tensor:
        """(batch, s, width) -> (batch, s, width)."""
        query = rotate(split_heads(self.query(x)), cosine, sine)
        key = rotate(split_heads(self.key(x)), cosine, sine).repeat_interleave(4, dim=1)
        value = split_heads(self.value(x)).repeat_interleave(4, dim=1)
        if self.is_fused:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-2, -1) / math.sqrt(HEAD_WIDTH)
            weights = scores.masked_fill(future, float("-inf")).float().softmax(dim=-1).to(x.dtype)
            mixed = weights @ value
        attended: Tensor = self.out(join_heads(mixed))
        return attended


class SwiGLU(nn.Module):
    """Gated feed-forward."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        fed: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return fed


class Mixture(nn.Module):
    """Every token through all experts, weighted by a router that chooses two: dense, so that it is one graph."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(SwiGLU(width, hidden) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        logits = self.router(x).float()
        best, chosen = logits.topk(CHOSEN, dim=-1)
        shares = torch.zeros_like(logits).scatter(-1, chosen, best.softmax(dim=-1)).to(x.dtype)
        mixed = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mixed = mixed + shares[..., i : i + 1] * expert(x)
        return mixed


class LlamaBlock(nn.Module):
    """Pre-norm block."""

    def __init__(self, width: int, *, is_fused: bool, is_mixture: bool) -> None:
        super().__init__()
        hidden = width * 11 // 4
        self.norm_attention = RMSNorm(width)
        self.attention = LlamaAttention(width, is_fused=is_fused)
        self.norm_feed = RMSNorm(width)
        self.feed = Mixture(width, hidden) if is_mixture else SwiGLU(width, hidden)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, future: Tensor) -> Tensor:
        """(batch, s, width) -> (batch, s, width)."""
        x = x + self.attention(self.norm_attention(x), cosine, sine, future)
        fed: Tensor = self.feed(self.norm_feed(x))
        return x + fed


class Llama(nn.Module):
    """Decoder-only language model."""

    cosine: Tensor
    sine: Tensor
    future: Tensor

    def __init__(
        self, vocabulary: int, layers: int, width: int, length: int, *, is_fused: bool, is_mixture: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaBlock(width, is_fused=is_fused, is_mixture=is_mixture) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        angles = torch.outer(torch.arange(length), ROTARY_BASE ** (-torch.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH))
        self.register_buffer("cosine", torch.cat((angles, angles), dim=-1).cos())
        self.register_buffer("sine", torch.cat((angles, angles), dim=-1).sin())
        masked = 0 if is_fused else length  # a fused kernel masks by itself
        self.register_buffer("future", torch.ones(masked, masked, dtype=torch.bool).triu(1))

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy."""
        x = self.embedding(ids)
        length = ids.shape[1]
        cosine, sine, future = self.cosine[:length], self.sine[:length], self.future[:length, :length]
        for block in self.layers:
            x = block(x, cosine, sine, future)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


class FusedAttention(nn.Module):
    """Self-attention with one projection for queries, keys and values."""

    def __init__(self, width: int, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, s, width) -> (batch, s, width)."""
        query, key, value = (split_heads(part) for part in self.project_in(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        attended: Tensor = self.project_out(join_heads(mixed))
        return attended


class Feed(nn.Module):
    """Feed-forward with GELU, or with ReLU and no biases as in T5."""

    def __init__(self, width: int, *, is_gelu: bool) -> None:
        super().__init__()
        self.is_gelu = is_gelu
        self.up = nn.Linear(width, FEED_FACTOR * width, bias=is_gelu)
        self.down = nn.Linear(FEED_FACTOR * width, width, bias=is_gelu)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        hidden = self.up(x)
        fed: Tensor = self.down(F.gelu(hidden) if self.is_gelu else F.relu(hidden))
        return fed


class FusedBlock(nn.Module):
    """Pre-norm block with LayerNorm."""

    def __init__(self, width: int, *, is_causal: bool) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = FusedAttention(width, is_causal=is_causal)
        self.norm_feed = nn.LayerNorm(width)
        self.feed = Feed(width, is_gelu=True)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, s, width) -> (batch, s, width)."""
        x = x + self.attention(self.norm_attention(x))
        fed: Tensor = self.feed(self.norm_feed(x))
        return x + fed


class GPT2(nn.Module):
    """Decoder-only language model with learned positions."""

    def __init__(self, vocabulary: int, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.layers = nn.ModuleList(FusedBlock(width, is_causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy."""
        x = self.embedding(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.layers:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


class VisionTransformer(nn.Module):
    """Image classifier over patches, with a class token."""

    def __init__(self, layers: int, width: int, patch: int, image: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.empty(1, 1, width))
        self.position = nn.Parameter(torch.empty((image // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(FusedBlock(width, is_causal=False) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.position
        for block in self.layers:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]).float(), targets)


class BiasedAttention(nn.Module):
    """Attention as in T5: no scale, a bias on the scores, scores written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, source: Tensor, bias: Tensor | None) -> Tensor:
        """(batch, s, width), (batch, t, width), (heads, s, t) -> (batch, s, width)."""
        query, key, value = split_heads(self.query(x)), split_heads(self.key(source)), split_heads(self.value(source))
        scores = query @ key.transpose(-2, -1)
        scores = scores if bias is None else scores + bias
        weights = scores.float().softmax(dim=-1).to(x.dtype)
        attended: Tensor = self.out(join_heads(weights @ value))
        return attended


class BiasedBlock(nn.Module):
    """Pre-norm block of T5; with `has_cross` also attends to the encoder."""

    def __init__(self, width: int, *, has_cross: bool) -> None:
        super().__init__()
        self.norm_attention = RMSNorm(width)
        self.attention = BiasedAttention(width)
        self.norm_cross = RMSNorm(width) if has_cross else None
        self.cross = BiasedAttention(width) if has_cross else None
        self.norm_feed = RMSNorm(width)
        self.feed = Feed(width, is_gelu=False)

    def forward(self, x: Tensor, bias: Tensor, source: Tensor | None = None) -> Tensor:
        """(batch, s, width) -> (batch, s, width)."""
        normed = self.norm_attention(x)
        x = x + self.attention(normed, normed, bias)
        if self.cross is not None and self.norm_cross is not None:
            x = x + self.cross(self.norm_cross(x), source, None)
        fed: Tensor = self.feed(self.norm_feed(x))
        return x + fed


class EncoderDecoder(nn.Module):
    """Sequence to sequence with shared embeddings and one bias table per side."""

    def __init__(self, vocabulary: int, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder_bias = nn.Embedding(BIAS_BUCKETS, width // HEAD_WIDTH)
        self.decoder_bias = nn.Embedding(BIAS_BUCKETS, width // HEAD_WIDTH)
        self.encoder = nn.ModuleList(BiasedBlock(width, has_cross=False) for _ in range(layers))
        self.encoder_norm = RMSNorm(width)
        self.decoder = nn.ModuleList(BiasedBlock(width, has_cross=True) for _ in range(layers))
        self.decoder_norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, source: Tensor, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of `targets` given `source` and the `ids` before them."""
        x, bias = self.embedding(source), self._bias(self.encoder_bias, source.shape[1], is_causal=False)
        for block in self.encoder:
            x = block(x, bias)
        encoded = self.encoder_norm(x)
        x, bias = self.embedding(ids), self._bias(self.decoder_bias, ids.shape[1], is_causal=True)
        for block in self.decoder:
            x = block(x, bias, encoded)
        return F.cross_entropy(self.head(self.decoder_norm(x)).flatten(0, 1).float(), targets.flatten())

    def _bias(self, table: nn.Embedding, length: int, *, is_causal: bool) -> Tensor:
        """(heads, s, s) by distance, -inf for the future where it is hidden."""
        place = torch.arange(length)
        distance = place[None, :] - place[:, None]
        bias: Tensor = table(distance.abs().clamp(max=BIAS_BUCKETS - 1)).permute(2, 0, 1)
        return bias.masked_fill(distance > 0, float("-inf")) if is_causal else bias
