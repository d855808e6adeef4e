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


class Words(nn.Module):
    """A language model with one table of words at both ends: the table's gradient is the last to be complete."""

    def __init__(self, width=64):
        super().__init__()
        self.words, self.places = nn.Embedding(CLASSES, width), nn.Embedding(LENGTH, width)
        self.first, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.register_buffer("targets", torch.randint(0, CLASSES, (2, LENGTH)), persistent=False)

    def forward(self, ids):
        x = self.drop(self.first(self.words(ids) + self.places.weight))
        x = self.norm(x + self.down(F.gelu(self.up(x))))
        scores = F.linear(x, self.words.weight)
        return F.cross_entropy(scores.flatten(0, 1), self.targets.flatten()), scores


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize(
    ("make", "given"),
    [
        pytest.param(Scored, lambda: torch.randn(64, 32), id="scored"),
        pytest.param(Words, lambda: torch.randint(0, CLASSES, (2, LENGTH)), id="words"),
    ],
)
def test_the_smallest_peak_is_what_is_planned(make, given):
    torch.manual_seed(0)
    model = make()
    measured, budget = measure_at_smallest(model, given(), lambda outputs: outputs[0])
    measured += sum(buffer.nbytes for buffer in model.buffers())
    assert budget * 0.97 <= measured <= budget * 1.005
