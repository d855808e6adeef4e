"""Networks of images whose layout decides whether Inductor keeps to the plan."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class Warped(nn.Module):
    """Layers that look at parts of images, at the four corners around each place, and add what they make of them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.flows = nn.ModuleList(nn.Conv2d(32, 2, 3, padding=1) for _ in range(3))
        self.mixes = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(32) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        rows, columns = (torch.linspace(-1, 1, size) for size in x.shape[2:])
        places = torch.stack(torch.meshgrid(rows, columns, indexing="xy"), -1)
        for flow, mix, norm in zip(self.flows, self.mixes, self.norms, strict=True):
            grid = places + 0.1 * torch.tanh(flow(x).permute(0, 2, 3, 1))
            seen = functional.grid_sample(x, grid, align_corners=False)
            x = x + functional.leaky_relu(norm(mix(seen)), 0.1)
        return x.square().mean()


class Shuffled(nn.Module):
    """Blocks that convolve half of the channels and then mix both halves, in rows, as ShuffleNet does."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.mixes = nn.ModuleList(nn.Conv2d(16, 16, 1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(4))

    def forward(self, x):
        x = self.first(x)
        for mixes, norms in zip(pairwise(self.mixes), pairwise(self.norms), strict=True):
            left, right = x.chunk(2, 1)
            for mix, norm in zip(mixes, norms, strict=True):
                right = functional.relu(norm(mix(right)))
            x = torch.cat([left, right], 1).unflatten(1, (2, 16)).transpose(1, 2).flatten(1, 2)
        return x.square().mean()


class Spatial(nn.Module):
    """The largest in wider and wider windows, side by side, as spatial pyramids have them."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.last = nn.Conv2d(64, 16, 1)

    def forward(self, x):
        seen = [functional.silu(self.norm(self.first(x)))]
        for _ in range(3):
            seen.append(functional.max_pool2d(seen[-1], 5, 1, 2))
        return self.last(torch.cat(seen, 1)).square().mean()


class Neighbours(nn.Module):
    """Points see the largest of what is made of their neighbours, shown as rows of an image."""

    def __init__(self):
        super().__init__()
        self.mixes = nn.ModuleList(nn.Conv2d(*sizes, 1, bias=False) for sizes in ((6, 32), (64, 64)))
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in (32, 64))

    def forward(self, x):
        every, found = torch.arange(len(x))[:, None, None], []
        for mix, norm in zip(self.mixes, self.norms, strict=True):
            rows = x.transpose(1, 2)
            near = torch.cdist(rows, rows).topk(12, largest=False).indices
            beside, own = rows[every, near].permute(0, 3, 1, 2), x[..., None].expand(-1, -1, -1, 12)
            x = functional.leaky_relu(norm(mix(torch.cat([beside - own, own], 1))), 0.2).amax(-1)
            found.append(x)
        return torch.cat(found, 1).amax(-1).square().mean()


class Gathered(nn.Module):
    """Features of two sizes side by side, the larger as the means of as many parts."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3, padding=1)
        self.mixes = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.InstanceNorm2d(24, affine=True) for _ in range(3))
        self.slopes = nn.ModuleList(nn.PReLU(24) for _ in range(3))
        self.last = nn.Conv2d(96, 24, 1)

    def forward(self, x):
        found = [x := self.first(x)]
        for mix, norm, slope in zip(self.mixes, self.norms, self.slopes, strict=True):
            found.append(slope(norm(mix(x))))
            x = functional.avg_pool2d(found[-1], 2) if len(found) == 3 else found[-1]
        found = [functional.adaptive_avg_pool2d(one, x.shape[2:]) for one in found]
        return self.last(torch.cat(found, 1)).square().mean()
