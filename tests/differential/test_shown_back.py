"""The smallest peak is kept where images that are shown in another shape are shown in their own again."""

import pytest
import torch
from torch import nn

from tests.differential.steps import check_backend, measure_at_smallest

WIDTH = 24


def layer(read, returned):
    # The norm works on a view of the images, and the activation writes to what it returns: the view is traced anew.
    return [nn.Conv2d(read, returned, 3, padding=1), nn.InstanceNorm2d(returned), nn.ReLU(inplace=True)]


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*layer(3, WIDTH), *layer(WIDTH, WIDTH), *layer(WIDTH, WIDTH), *layer(WIDTH, 3))

    def forward(self, x):
        return (self.layers(x) - x).abs().mean()


@pytest.mark.usefixtures("zeros_are_computed")
def test_the_smallest_peak_is_what_is_planned():
    torch.manual_seed(0)
    measured, budget = measure_at_smallest(Translator(), torch.randn(2, 3, 48, 48))
    assert budget * 0.98 <= measured <= budget * 1.001


def test_gradients_are_eagers_at_every_budget():
    def make():
        return Translator().double(), (torch.randn(2, 3, 48, 48).double(),)

    check_backend(make, count=2, relative=1e-9, floor=1e-12)  # a bias before a norm has a gradient of rounding alone
