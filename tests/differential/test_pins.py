"""What users demand of single values, where that meets outputs, views and boundaries: as they say, the same step."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.differential.steps import check_budgets

WIDTH = 16


class Returned(nn.Module):
    """Its tanh is an output, a view of it is another, and the backward wants it, too."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.layer(x).tanh()
        return y, y.transpose(0, 1), y.square().mean()


class Region(nn.Module):
    """Two checkpointed regions that must be computed again, one reading the other."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(self.inside, layer, x, use_reentrant=False, context_fn=again) * x.sigmoid()
        return x

    def inside(self, layer, x):
        return functional.rms_norm(layer(x).tanh(), (WIDTH,)).exp()


class Several(nn.Module):
    """The policy keeps an operator that returns several tensors."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)

    def forward(self, x):
        return checkpoint(self.norm, x.tanh(), use_reentrant=False, context_fn=kept).square()


def kept():
    return create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.MUST_SAVE)


def again():
    return create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.MUST_RECOMPUTE)


CASES = {
    "output": (Returned, ["tanh"], "tanh"),
    "regions": (Region, [], "tanh"),
    "against a policy": (Several, ["*batch_norm*"], "getitem"),
}


@pytest.mark.parametrize("name", CASES)
def test_computed_again(name):
    module, pins, op = CASES[name]
    plans = check_budgets(lambda: (module(), (torch.randn(8, WIDTH).requires_grad_(),)), count=3, recompute=pins)
    for plan in plans:
        assert op in {v.op for v in plan.values if v.decision == "recompute"}
