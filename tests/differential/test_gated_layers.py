"""Layers with gates: the smallest peak where several kernels read one result that is not stored, and the fastest plan.

The gradients of both halves of such a layer are made of one tangent; Inductor makes them in one kernel.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from bench.transformers import Llama
from rematpass.check.measure import storage_bytes
from tests.differential.compiled import compiled_step
from tests.differential.steps import measure_at_smallest

VOCABULARY, LENGTH = 64, 512


class Predicting(nn.Module):
    """Predicts what it is given."""

    def __init__(self):
        super().__init__()
        self.model = Llama(VOCABULARY, 4, 256, LENGTH, is_fused=True)

    def forward(self, ids):
        return self.model(ids, ids)


@pytest.mark.usefixtures("zeros_are_computed")
def test_the_smallest_peak_is_what_is_planned():
    torch.manual_seed(0)
    model = Predicting()
    measured, budget = measure_at_smallest(model, torch.randint(VOCABULARY, (2, LENGTH)))
    measured += storage_bytes([*model.buffers()])
    assert budget * 0.97 <= measured <= budget * 1.001


class Gated(nn.Module):
    """A feed-forward block with a gate on a residual stream."""

    def __init__(self, width, inner):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))


class Summed(nn.Sequential):
    """Blocks and a number."""

    def forward(self, x):
        return super().forward(x).square().mean()


def test_both_gradients_are_made_side_by_side():
    torch.manual_seed(0)
    model = Summed(Gated(64, 512), Gated(64, 512))
    plan, _, measured = compiled_step(model, torch.randn(512, 64), "none")
    assert plan.peak_bytes * 0.99 <= measured <= plan.peak_bytes * 1.002
