"""The smallest peak is kept by models that return more than their loss: their caller holds it during the backward.

Autograd hands the backward a gradient for each of them, zeros where nobody asked.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from tests.differential.steps import measure_at_smallest

CLASSES = 500
LENGTH = 64


class Scored(nn.Module):
    """Loss and scores, as language models return them."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(32, 32), nn.Linear(32, CLASSES, bias=False)
        self.register_buffer("targets", torch.randint(0, CLASSES, (64,)), persistent=False)

    def forward(self, x):
        scores = self.head(torch.relu(self.inner(x)))
        return F.cross_entropy(scores, self.targets), scores


class Traced(nn.Module):
    """Loss and what came between the layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        states = [x]
        for layer in self.layers:
            states.append(torch.tanh(layer(states[-1])))
        return states[-1].square().mean(), *states[1:]


class Words(nn.Module):
    """A language model with one table of words at both ends: the table's gradient is the last to be complete."""

    def __init__(self, width=64, depth=3):
        super().__init__()
        self.words, self.places = nn.Embedding(CLASSES, width), nn.Embedding(LENGTH, width)
        self.first, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.register_buffer("targets", torch.randint(0, CLASSES, (2, LENGTH)), persistent=False)

    def forward(self, ids):
        x = self.drop(self.first(self.words(ids) + self.places.weight))
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = norm(x + down(F.gelu(up(x))))
        scores = F.linear(x, self.words.weight)
        return F.cross_entropy(scores.flatten(0, 1), self.targets.flatten()), scores


@pytest.mark.parametrize(
    ("make", "given"),
    [
        pytest.param(Scored, lambda: torch.randn(64, 32), id="scored"),
        pytest.param(Traced, lambda: torch.randn(512, 64), id="traced"),
        pytest.param(Words, lambda: torch.randint(0, CLASSES, (2, LENGTH)), id="words"),
    ],
)
def test_the_smallest_peak_is_what_is_planned(make, given):
    torch.manual_seed(0)
    model = make()
    measured, budget = measure_at_smallest(model, given(), lambda outputs: outputs[0])
    measured += sum(buffer.nbytes for buffer in model.buffers())
    assert budget * 0.97 <= measured <= budget * 1.005
