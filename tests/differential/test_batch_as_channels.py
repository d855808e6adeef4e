"""The smallest peak is kept where each image has weights of its own: a batch shown as channels of one image."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from tests.differential.steps import measure_at_smallest

WIDTH = 24


def convolve(x, weights):
    batch, channels, *size = x.shape
    shown = x.reshape(1, batch * channels, *size)
    return F.conv2d(shown, weights, padding=weights.shape[-1] // 2, groups=batch).view(batch, -1, *size)


class Modulated(nn.Module):
    """A generator whose style scales the weights, enlarging its image twice, then turning it into colours."""

    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, WIDTH, 8, 8))
        self.styles = nn.ModuleList(nn.Linear(16, WIDTH) for _ in range(3))
        shapes = [(WIDTH, WIDTH, 3, 3), (WIDTH, WIDTH, 3, 3), (3, WIDTH, 1, 1)]
        self.weights = nn.ParameterList(torch.randn(shape) * 0.1 for shape in shapes)

    def forward(self, z):
        x = self.start.expand(len(z), -1, -1, -1)
        for number, (style, weight) in enumerate(zip(self.styles, self.weights, strict=True)):
            own = weight * (1 + style(z))[:, None, :, None, None]
            own = own * (own.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
            x = F.leaky_relu(convolve(x, own.flatten(0, 1)))
            x = F.interpolate(x, scale_factor=2.0) if number < 2 else x
        return x.square().mean()


class Mixed(nn.Module):
    """Each image mixes the weights of experts, between convolutions like any others."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.experts = nn.ParameterList(torch.randn(4, WIDTH * WIDTH * 9) * 0.05 for _ in range(3))
        self.routers = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(WIDTH) for _ in range(3))
        self.last = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for experts, router, norm, last in zip(self.experts, self.routers, self.norms, self.last, strict=True):
            own = router(x.mean((2, 3))).sigmoid() @ experts
            x = x + last(F.silu(norm(convolve(x, own.view(-1, WIDTH, 3, 3)))))
        return x.square().mean()


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize(("make", "shape"), [(Modulated, (4, 16)), (Mixed, (4, 3, 32, 32))])
def test_the_smallest_peak_is_what_is_planned(make, shape):
    torch.manual_seed(0)
    measured, budget = measure_at_smallest(make(), torch.randn(shape))
    assert budget * 0.97 <= measured <= budget * 1.005
