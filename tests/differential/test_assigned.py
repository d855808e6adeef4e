"""The smallest peak is kept where parts of a tensor are assigned in place: copies, slices and scatters."""

import pytest
import torch
from torch import nn

from tests.differential.steps import measure_at_smallest, quick_and_thorough


def half(x, y):
    x[:, 8:] = 0


def two_axes(x, y):
    x[:, 8:, ::2] = 0


def grown(x, y):
    x[:, 8:] += y[:, :8]


def a_channel(x, y):
    x[:, 3] *= y[:, 2]


def inner(x, y):
    x[:, :, 1:-1, 1:-1] = y[:, :, 1:-1, 1:-1].sin()


def woven(x, y):
    x[:, :, ::2, 1:] = y[:, :, 1::2, :-1].tanh()


def several(x, y):
    x[:, 8:].mul_(0.5)
    x[:, :4].add_(1)
    x[:, 4:6] = y[:, 4:6]


CASES = {f.__name__: f for f in (half, two_axes, grown, a_channel, inner, woven, several)}


class Residual(nn.Module):
    """Convolutions, each added to the stream, in which `assign` then writes."""

    def __init__(self, assign):
        super().__init__()
        self.assign = assign
        self.layers = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            y = layer(x).relu()
            x = (y + x).clone()
            self.assign(x, y)
        return x.square().mean()


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize(("name", "_count"), quick_and_thorough(["half", "two_axes", "a_channel", "woven"], CASES))
def test_the_smallest_peak_is_what_is_planned(name, _count):
    torch.manual_seed(0)
    measured, budget = measure_at_smallest(Residual(CASES[name]), torch.randn(8, 16, 32, 32))
    assert budget * 0.99 <= measured <= budget * 1.001
