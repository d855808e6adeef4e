"""The smallest peak is kept where images are pooled, and concatenated once they have been enlarged again."""

import dataclasses
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from rematpass import device
from tests.differential.steps import measure_at_smallest

WIDTH = 16


def twice(read, returned):
    layers = ((nn.Conv2d(n, returned, 3, padding=1), nn.InstanceNorm2d(returned)) for n in (read, returned))
    return nn.Sequential(*[part for layer in layers for part in (*layer, nn.LeakyReLU(0.1))])


class Hourglass(nn.Module):
    """A U-Net with norms over each image, whose smallest plan computes pooled images again."""

    def __init__(self):
        super().__init__()
        sizes = [3, WIDTH, 2 * WIDTH, 4 * WIDTH]
        self.down = nn.ModuleList(twice(*pair) for pair in itertools.pairwise(sizes))
        self.enlarge = nn.ModuleList(nn.ConvTranspose2d(n, n // 2, 2, 2) for n in (4 * WIDTH, 2 * WIDTH))
        self.up = nn.ModuleList(twice(n, n // 2) for n in (4 * WIDTH, 2 * WIDTH))

    def forward(self, x):
        seen = []
        for layers in self.down[:-1]:
            seen.append(layers(x))
            x = F.max_pool2d(seen[-1], 2)
        x = self.down[-1](x)
        for enlarge, layers in zip(self.enlarge, self.up, strict=True):
            x = layers(torch.cat([enlarge(x), seen.pop()], 1))
        return x.square().mean()


# Which plan is the smallest that is found depends on how fast products are, next to memory.
@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize(("flops", "bandwidth"), [(50e9, 13e9), (150e9, 16e9)])
def test_the_smallest_peak_is_what_is_planned(monkeypatch, flops, bandwidth):
    rates = {"flops_per_second": (("float32", flops),), "bandwidth_bytes_per_second": bandwidth}
    processor = dataclasses.replace(device.present_device("cpu"), **rates, link_bytes_per_second=bandwidth)
    monkeypatch.setattr(device, "present_device", lambda _: processor)
    torch.manual_seed(0)
    measured, budget = measure_at_smallest(Hourglass(), torch.randn(2, 3, 64, 64))
    assert budget * 0.98 <= measured <= budget * 1.001
