"""The smallest peak is kept by models that return more than their loss: their caller holds it during the backward.

Autograd hands the backward a gradient for each of them, zeros where nobody asked.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from tests.differential.steps import measure_at_smallest

CLASSES = 500


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


@pytest.mark.parametrize(("make", "shape"), [(Scored, (64, 32)), (Traced, (512, 64))])
def test_the_smallest_peak_is_what_is_planned(make, shape):
    torch.manual_seed(0)
    model = make()
    measured, budget = measure_at_smallest(model, torch.randn(shape), lambda outputs: outputs[0])
    measured += sum(buffer.nbytes for buffer in model.buffers())
    assert budget * 0.97 <= measured <= budget * 1.005
