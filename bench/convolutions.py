"""The convolutional networks of `bench/architectures.py`, written out in plain PyTorch.

In: sizes. Out: modules whose `forward` returns a loss. Never holds anything but the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

NORM_GROUPS = 8
BLOCKS_PER_SCALE = 2
BOTTLENECK = 4
CLASSES = 1000


class ResBlock(nn.Module):
    """Two times GroupNorm, SiLU and a 3 x 3 convolution, around a skip. `change`: "", "halve" or "double" the size."""

    def __init__(self, channels_in: int, channels_out: int, change: str = "") -> None:
        super().__init__()
        self.change = change
        self.norm_first = nn.GroupNorm(NORM_GROUPS, channels_in)
        self.first = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.norm_second = nn.GroupNorm(NORM_GROUPS, channels_out)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.skip = nn.Conv2d(channels_in, channels_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels_in, h, w) -> (batch, channels_out, h', w')."""
        if self.change == "halve":
            x = F.avg_pool2d(x, 2)
        if self.change == "double":
            x = F.interpolate(x, scale_factor=2, mode="nearest")
        hidden = self.first(F.silu(self.norm_first(x)))
        hidden = self.second(F.silu(self.norm_second(hidden)))
        joined: Tensor = self.skip(x) + hidden
        return joined


class UNet(nn.Module):
    """Predicts an image from an image; every block on the way down feeds one on the way up."""

    def __init__(self, width: int, factors: Sequence[int]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        down, channels, skips = [], width, []
        for scale, factor in enumerate(factors):
            for i in range(BLOCKS_PER_SCALE):
                down.append(ResBlock(channels, factor * width, "halve" if scale and not i else ""))
                channels = factor * width
                skips.append(channels)
        self.down = nn.ModuleList(down)
        self.middle = nn.ModuleList(ResBlock(channels, channels) for _ in range(2))
        up = []
        for scale, factor in reversed(list(enumerate(factors))):
            for i in range(BLOCKS_PER_SCALE):
                is_last = i == BLOCKS_PER_SCALE - 1
                up.append(ResBlock(channels + skips.pop(), factor * width, "double" if scale and is_last else ""))
                channels = factor * width
        self.up = nn.ModuleList(up)
        self.norm = nn.GroupNorm(NORM_GROUPS, channels)
        self.head = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error."""
        x, skips = self.stem(images), []
        for block in self.down:
            x = block(x)
            skips.append(x)
        for block in self.middle:
            x = block(x)
        for block in self.up:
            x = block(torch.cat((x, skips.pop()), dim=1))
        return F.mse_loss(self.head(F.silu(self.norm(x))), targets)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with BatchNorm, around a skip."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = BOTTLENECK * width
        self.reduce = nn.Conv2d(channels_in, width, 1, bias=False)
        self.norm_reduce = nn.BatchNorm2d(width)
        self.middle = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm_middle = nn.BatchNorm2d(width)
        self.expand = nn.Conv2d(width, channels_out, 1, bias=False)
        self.norm_expand = nn.BatchNorm2d(channels_out)
        is_same = stride == 1 and channels_in == channels_out
        self.skip = None if is_same else nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False)
        self.norm_skip = None if is_same else nn.BatchNorm2d(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels_in, h, w) -> (batch, 4 * width, h / stride, w / stride)."""
        hidden = F.relu(self.norm_reduce(self.reduce(x)))
        hidden = F.relu(self.norm_middle(self.middle(hidden)))
        hidden = self.norm_expand(self.expand(hidden))
        skip = x if self.skip is None or self.norm_skip is None else self.norm_skip(self.skip(x))
        return F.relu(hidden + skip)


class ResNet(nn.Module):
    """Image classifier; `counts` bottlenecks per scale."""

    def __init__(self, counts: Sequence[int]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        layers, channels = [], 64
        for scale, count in enumerate(counts):
            width = 64 << scale
            for i in range(count):
                layers.append(Bottleneck(channels, width, 2 if scale and not i else 1))
                channels = BOTTLENECK * width
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy."""
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 3, stride=2, padding=1)
        for block in self.layers:
            x = block(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), targets)


class DenseLayer(nn.Module):
    """A 1 x 1 and a 3 x 3 convolution, normed before each, of all that the block has made so far."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm_first = nn.BatchNorm2d(channels)
        self.first = nn.Conv2d(channels, BOTTLENECK * growth, 1, bias=False)
        self.norm_second = nn.BatchNorm2d(BOTTLENECK * growth)
        self.second = nn.Conv2d(BOTTLENECK * growth, growth, 3, padding=1, bias=False)

    def forward(self, made: Sequence[Tensor]) -> Tensor:
        """(batch, *, size, size) each -> (batch, growth, size, size)."""
        x = self.first(F.relu(self.norm_first(torch.cat(list(made), dim=1))))
        grown: Tensor = self.second(F.relu(self.norm_second(x)))
        return grown


class DenseBlock(nn.Module):
    """Each layer reads what all before it made; halved in channels and in size at the end, unless it is the last."""

    def __init__(self, channels: int, layers: int, growth: int, *, is_last: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(channels + i * growth, growth) for i in range(layers))
        channels += layers * growth
        self.norm = nn.BatchNorm2d(channels)
        self.narrow = None if is_last else nn.Conv2d(channels, channels // 2, 1, bias=False)
        self.channels = channels if is_last else channels // 2

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, size, size) -> (batch, self.channels, size / 2, size / 2)."""
        made = [x]
        for layer in self.layers:
            made.append(layer(made))
        x = F.relu(self.norm(torch.cat(made, dim=1)))
        return x if self.narrow is None else F.avg_pool2d(self.narrow(x), 2)


class DenseNet(nn.Module):
    """Image classifier; `counts` layers per block."""

    def __init__(self, counts: Sequence[int], growth: int = 32) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.blocks = nn.ModuleList()
        for i, count in enumerate(counts):
            self.blocks.append(DenseBlock(channels, count, growth, is_last=i == len(counts) - 1))
            channels = self.blocks[-1].channels
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy."""
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 3, stride=2, padding=1)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), targets)


class Vgg(nn.Module):
    """Scales of so many 3 x 3 convolutions and ReLUs, each with a pooling at its end; no norm."""

    def __init__(self, counts: Sequence[int], width: int = 64, widest: int = 512) -> None:
        super().__init__()
        self.scales = nn.ModuleList()
        channels = 3
        for number, count in enumerate(counts):
            wanted = min(widest, width * 2**number)
            layers: list[nn.Module] = []
            for _ in range(count):
                layers += [nn.Conv2d(channels, wanted, 3, padding=1), nn.ReLU()]
                channels = wanted
            self.scales.append(nn.Sequential(*layers, nn.MaxPool2d(2)))
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy of `(n, 3, h, w)` images, `target` the classes `(n,)`."""
        x = image
        for scale in self.scales:
            x = scale(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), target)
