"""The smallest peak is kept where images have one channel, whose strides do not say whether it is first or last."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from tests.differential.steps import measure_at_smallest

WIDTH = 16


class Digits(nn.Module):
    """Reads gray images, whose gradient nobody asks for."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, WIDTH, 5)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = F.max_pool2d(self.first(x).relu(), 2)
        return self.head(self.second(x).relu().mean((2, 3))).square().mean()


class Masked(nn.Module):
    """Shrinks what it sees to one channel, by which it weighs and from which it starts again."""

    def __init__(self, kernel):
        super().__init__()
        self.first = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.to_gray = nn.ModuleList(nn.Conv2d(WIDTH, 1, kernel, padding=kernel // 2) for _ in range(2))
        self.from_gray = nn.ModuleList(nn.Conv2d(1, WIDTH, kernel, padding=kernel // 2) for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for shrink, grow in zip(self.to_gray, self.from_gray, strict=True):
            gray = shrink(F.silu(x)).sigmoid()
            x = x * gray + F.silu(grow(gray))
        return x.square().mean()


class Sloped(nn.Module):
    """What a gray image becomes is stored for a pooling, in the place of the convolution's result."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 2 * WIDTH, 3, padding=1), nn.Conv2d(2 * WIDTH, 4 * WIDTH, 3, padding=1)
        self.slopes = nn.ModuleList(nn.PReLU(n * WIDTH) for n in (2, 4))

    def forward(self, x):
        x = F.avg_pool2d(self.slopes[0](self.first(x)), 2)
        return self.slopes[1](self.second(x)).flatten(2).square().mean()


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize("is_half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Digits, (8, 1, 64, 64)),
        (lambda: Masked(1), (4, 3, 48, 48)),
        (lambda: Masked(5), (4, 3, 48, 48)),
        (Sloped, (8, 1, 32, 32)),
    ],
    ids=["read", "inside, points", "inside", "pooled"],
)
def test_the_smallest_peak_is_what_is_planned(model, shape, is_half):
    torch.manual_seed(0)
    kind = torch.bfloat16 if is_half else torch.float32
    measured, budget = measure_at_smallest(model().to(kind), torch.randn(shape, dtype=kind))
    assert budget * 0.97 <= measured <= budget * 1.005
