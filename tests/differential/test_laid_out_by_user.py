"""The smallest peak is what is planned where users lay out their model, or their batch, channels last."""

import pytest
import torch
from torch import nn

from tests.differential.steps import Squared, measure_at_smallest

WIDTH = 64


def make():
    layers = []
    for channels in (3, WIDTH, WIDTH):
        layers += [nn.Conv2d(channels, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 1))


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize("batch", [torch.contiguous_format, torch.channels_last], ids=["rows", "last"])
@pytest.mark.parametrize("weights", [torch.contiguous_format, torch.channels_last], ids=["rows", "last"])
def test_a_weight_that_lies_channels_last_is_not_copied(weights, batch):
    torch.manual_seed(0)
    model = Squared(make()).to(memory_format=weights)
    measured, budget = measure_at_smallest(model, torch.randn(2, 3, 24, 24).to(memory_format=batch))
    assert budget * 0.99 <= measured <= budget * 1.002
