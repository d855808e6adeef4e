"""The smallest peak is kept in mixed precision, where what is stored and what it is made from differ in size."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from tests.differential.steps import measure_at_smallest


class Scores(nn.Module):
    """Attention written out: its scores are bfloat16, their exponentials float32."""

    def __init__(self):
        super().__init__()
        self.heads = nn.Parameter(torch.randn(8, 64, 8) * 0.1)

    def forward(self, x):
        for _ in range(3):
            rows = torch.einsum("bsi,hid->bhsd", x, self.heads)
            scores = (rows @ rows.transpose(-1, -2) * 0.25).softmax(-1)
            x = x + (scores @ rows).transpose(1, 2).flatten(2)
        return x


class Causal(nn.Module):
    """Convolutions that look back only: padded on both sides, what is too much cut off."""

    def __init__(self):
        super().__init__()
        self.reach = [2 << i for i in range(6)]
        self.lift = nn.Conv1d(4, 48, 1)
        self.layers = nn.ModuleList(nn.Conv1d(48, 48, 3, padding=n, dilation=n // 2) for n in self.reach for _ in "ab")

    def forward(self, x):
        x = self.lift(x)
        for i, reach in enumerate(self.reach):
            y = x
            for layer in self.layers[2 * i : 2 * i + 2]:
                y = F.relu(layer(y)[..., :-reach])
            x = F.relu(x + F.dropout(y, 0.1, self.training))
        return x


class Repeated(nn.Module):
    """Five layers of the same two weights: a gradient is a sum of five products, each cast."""

    def __init__(self):
        super().__init__()
        self.widen, self.narrow = nn.Linear(64, 512), nn.Linear(512, 64)

    def forward(self, x):
        for _ in range(5):
            x = x + self.narrow(self.widen(x).tanh())
        return x


class Weighed(nn.Module):
    """Sums over a sequence, weighed feature by feature: products whose batch is the innermost dimension."""

    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.rand(64))
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        weight = torch.exp(-self.decay * distance.clamp(min=0)[..., None]) * (distance >= 0)[..., None]
        for layer in self.layers:
            x = x + torch.einsum("tsd,bsd->btd", weight, layer(x).sigmoid())
        return x


class Mixed(nn.Module):
    """A model under autocast, and a loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(x).float().square().mean()


CASES = {
    "scores": (Scores, (2, 192, 64)),
    "causal": (Causal, (4, 4, 1000)),
    "repeated": (Repeated, (64, 64)),
    "weighed": (Weighed, (4, 96, 64)),
}


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize("name", CASES)
def test_the_smallest_peak_is_kept_under_autocast(name):
    torch.manual_seed(0)
    make, shape = CASES[name]
    model, x = Mixed(make()), torch.randn(shape)
    measured, budget = measure_at_smallest(model, x)
    assert measured <= 1.01 * budget
