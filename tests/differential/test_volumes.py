"""The smallest peak is kept by networks over three dimensions, which torch leaves partly to kernels of its own."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from tests.differential.steps import Squared, measure_at_smallest


class Segmenting(nn.Module):
    """A U-Net over a volume: one level down and up, and the volume beside it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv3d(1, 8, 3, padding=1)
        self.norms = nn.ModuleList(nn.InstanceNorm3d(width, affine=True) for width in (8, 16, 8))
        self.down = nn.Conv3d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose3d(16, 8, 2, 2)
        self.joined = nn.Conv3d(16, 8, 3, padding=1)
        self.head = nn.Conv3d(8, 3, 1)

    def forward(self, x):
        high = F.leaky_relu(self.norms[0](self.first(x)))
        low = F.leaky_relu(self.norms[1](self.down(F.max_pool3d(high, 2))))
        return self.head(F.leaky_relu(self.norms[2](self.joined(torch.cat([self.up(low), high], 1)))))


class Patches(nn.Module):
    """Patches of a video, each a token."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv3d(3, 48, (2, 4, 4), (2, 4, 4))
        self.up, self.down = nn.Linear(48, 192), nn.Linear(192, 48)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return tokens + self.down(F.gelu(self.up(tokens)))


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize(
    ("make", "shape"),
    [pytest.param(Segmenting, (1, 1, 8, 16, 16), id="single"), pytest.param(Patches, (2, 3, 4, 32, 32), id="patches")],
)
def test_the_smallest_peak_is_what_is_planned(make, shape):
    torch.manual_seed(0)
    measured, budget = measure_at_smallest(Squared(make()), torch.randn(shape))
    assert budget * 0.97 <= measured <= budget * 1.005
