"""Plans are kept where images are pooled into a few parts, or large windows, right in front of a linear layer.

The gradient comes out of the linear layer in rows; torch's kernels for poolings want it as the image lies.
"""

import pytest
import torch
from torch import nn

import rematpass
from tests.differential.compiled import compiled_step

CHANNELS, SIZE, WIDTH = 64, 32, 32
POOLINGS = {
    "equal parts": lambda: nn.AdaptiveAvgPool2d(4),
    "parts": lambda: nn.AdaptiveAvgPool2d(5),
    "many parts": lambda: nn.AdaptiveAvgPool2d(20),
    "largest of parts": lambda: nn.AdaptiveMaxPool2d(20),
    "large windows": lambda: nn.AvgPool2d(7, 1),
    "positive parts": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(20), nn.ReLU()),
}


class Pooled(nn.Module):
    """A convolution, a pooling, a linear layer."""

    def __init__(self, pooling):
        super().__init__()
        self.convolve = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.pool = pooling
        parts = self.pool(torch.zeros(1, CHANNELS, SIZE, SIZE)).numel()
        self.head = nn.Linear(parts, WIDTH)

    def forward(self, x):
        return self.head(self.pool(self.convolve(x).relu()).flatten(1)).square().mean()


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize("end", ["fastest", "smallest"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_plan_is_kept(pooling, end):
    torch.manual_seed(0)
    model, x = Pooled(POOLINGS[pooling]()), torch.randn(8, 3, SIZE, SIZE)
    budget = getattr(rematpass.plan(model, (x,), memory_budget="none"), f"{end}_peak_bytes")
    plan, _, measured = compiled_step(model, x, budget)
    assert plan.peak_bytes * 0.98 <= measured <= plan.peak_bytes * 1.002
