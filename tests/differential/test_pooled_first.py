"""The smallest peak is kept where a convolution's images are pooled before anything else, or spread and then read."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from tests.differential.steps import measure_at_smallest

WIDTH = 16


class PooledFirst(nn.Module):
    """Pools, then takes what is positive: the gradient of the pooling is what the convolution's reads."""

    def __init__(self, channels):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(n, WIDTH, 5, padding=2) for n in (channels, WIDTH))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        for layer in self.layers:
            x = F.max_pool2d(layer(x), 2).relu()
        return self.head(x.mean((2, 3))).square().mean()


class Spread(nn.Module):
    """Puts what it pooled back where it was, and reads that."""

    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, WIDTH, 3, padding=1)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        pooled, places = F.max_pool2d(self.first(x).relu(), 2, return_indices=True)
        return self.second(F.max_unpool2d(pooled, places, 2)).relu().mean()


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("model", [PooledFirst, Spread])
def test_the_smallest_peak_is_what_is_planned(model, channels):
    torch.manual_seed(0)
    measured, budget = measure_at_smallest(model(channels), torch.randn(4, channels, 64, 64))
    assert budget * 0.97 <= measured <= budget * 1.005
