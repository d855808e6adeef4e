"""Networks whose blocks none of the others have, small enough for `bench/peaks.py`, in plain PyTorch.

In: sizes. Out: modules whose `forward` returns a loss. Never holds anything but the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)


class SeparableBlock(nn.Module):
    """1 x 1, depthwise 3 x 3 and 1 x 1 convolutions with a gate per channel, around a skip (as in EfficientNet)."""

    def __init__(self, channels: int, factor: int = 4) -> None:
        super().__init__()
        wide = factor * channels
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
        self.each = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.norm = nn.BatchNorm2d(wide)
        self.gate = nn.Sequential(nn.Conv2d(wide, channels // 2, 1), nn.SiLU(), nn.Conv2d(channels // 2, wide, 1))
        self.reduce = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, h, w), in and out."""
        hidden = F.silu(self.norm(self.each(self.expand(x))))
        gate = torch.sigmoid(self.gate(hidden.mean((2, 3), keepdim=True)))
        return x + self.reduce(hidden * gate)


class DenseBlock(nn.Module):
    """Layers that each read all before them (as in DenseNet)."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels + i * growth),
                nn.ReLU(),
                nn.Conv2d(channels + i * growth, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth),
                nn.ReLU(),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for i in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, h, w) -> (batch, channels + layers * growth, h, w)."""
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


class BranchesBlock(nn.Module):
    """Kernels of three sizes and a pooling side by side, joined (as in Inception)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        part = channels // 4
        self.narrow = nn.Conv2d(channels, part, 1)
        self.middle = nn.Sequential(nn.Conv2d(channels, part, 1), nn.ReLU(), nn.Conv2d(part, part, 3, padding=1))
        self.broad = nn.Sequential(nn.Conv2d(channels, part, 1), nn.ReLU(), nn.Conv2d(part, part, 5, padding=2))
        self.pooled = nn.Conv2d(channels, part, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, h, w), in and out."""
        pooled = self.pooled(F.max_pool2d(x, 3, 1, 1))
        return F.relu(torch.cat([self.narrow(x), self.middle(x), self.broad(x), pooled], 1))


class Classifier(nn.Module):
    """A 3 x 3 convolution, blocks, and a linear layer on the mean of each channel."""

    def __init__(self, blocks: nn.Module, channels: int, channels_out: int, stride: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride, 1)
        self.blocks = blocks
        self.head = nn.Linear(channels_out, 10)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy."""
        return F.cross_entropy(self.head(self.blocks(self.stem(images)).mean((2, 3))), targets)


class FourierOperator(nn.Module):
    """Learned products of the lowest frequencies beside 1 x 1 convolutions (as in neural operators)."""

    def __init__(self, channels: int, modes: int, layers: int) -> None:
        super().__init__()
        self.modes = modes
        self.lift = nn.Linear(1, channels)
        shape = (channels, channels, modes, modes, 2)
        self.weights = nn.ParameterList(torch.randn(shape) / channels for _ in range(layers))
        self.beside = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(layers))
        self.lower = nn.Linear(channels, 1)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of (batch, h, w, 1)."""
        x = self.lift(x).permute(0, 3, 1, 2)
        for weight, beside in zip(self.weights, self.beside, strict=True):
            spectrum = torch.fft.rfft2(x)
            low = spectrum[..., : self.modes, : self.modes]
            changed = torch.zeros_like(spectrum)
            low = torch.einsum("bixy,ioxy->boxy", low, torch.view_as_complex(weight))
            changed[..., : self.modes, : self.modes] = low
            x = F.gelu(torch.fft.irfft2(changed, s=x.shape[-2:]) + beside(x))
        return F.mse_loss(self.lower(x.permute(0, 2, 3, 1)), targets)


class GraphAttention(nn.Module):
    """Every node takes a weighted mean of its neighbours."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.changes = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.scores = nn.ModuleList(nn.Linear(2 * width, 1) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor, edges: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of (nodes, width), edges (2, count)."""
        to, source = edges
        for change, score in zip(self.changes, self.scores, strict=True):
            hidden = change(x)
            pairs = torch.cat([hidden[to], hidden[source]], -1)
            weight = F.leaky_relu(score(pairs), 0.2).clamp(max=5).exp()
            total = weight.new_zeros(len(x), 1).index_add(0, to, weight)
            x = F.elu(torch.zeros_like(hidden).index_add(0, to, weight * hidden[source]) / (total + 1e-6))
        return F.cross_entropy(self.head(x), targets)


class GatedConvolutions(nn.Module):
    """Dilated convolutions in one dimension with gates, each also read at the end (as in WaveNet)."""

    def __init__(self, channels: int, layers: int, classes: int) -> None:
        super().__init__()
        self.lift = nn.Conv1d(1, channels, 1)
        dilations = [1 << i for i in range(layers)]
        self.wide = nn.ModuleList(nn.Conv1d(channels, 2 * channels, 3, padding=d, dilation=d) for d in dilations)
        self.onward = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in dilations)
        self.outward = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in dilations)
        self.head = nn.Conv1d(channels, classes, 1)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of (batch, 1, length)."""
        x = self.lift(x)
        total = torch.zeros_like(x)
        for wide, onward, outward in zip(self.wide, self.onward, self.outward, strict=True):
            value, gate = wide(x).chunk(2, 1)
            hidden = torch.tanh(value) * torch.sigmoid(gate)
            total = total + outward(hidden)
            x = x + onward(hidden)
        return F.cross_entropy(self.head(F.relu(total)), targets)


class WindowBlock(nn.Module):
    """Attention within square windows of an image of tokens, normed after it (as in Swin v2)."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, side, side, width), in and out."""
        batch, side, _, width = x.shape
        count, w = side // self.window, self.window
        windows = x.view(batch, count, w, count, w, width).transpose(2, 3).reshape(-1, w * w, width)
        split = self.inner(windows).view(-1, w * w, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).transpose(-2, -1)
        mixed = self.outer((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        mixed = mixed.view(batch, count, count, w, w, width).transpose(2, 3).reshape(x.shape)
        x = x + self.norms[0](mixed)
        return x + self.norms[1](self.feed(x))


class WindowTransformer(nn.Module):
    """Window attention between convolutions over tokens shown as an image, enlarged at the end (as in Swin2SR)."""

    def __init__(self, width: int, layers: int, window: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(WindowBlock(width, 2, window) for _ in range(layers))
        self.between = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(layers))
        self.enlarge = nn.Sequential(nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2))
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of (batch, 3, side, side) enlarged twice."""
        x = self.stem(images).permute(0, 2, 3, 1)
        for block, between in zip(self.blocks, self.between, strict=True):
            x = x + between(block(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return F.mse_loss(self.last(self.enlarge(x.permute(0, 3, 1, 2))), targets)
