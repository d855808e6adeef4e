"""Formulas where scratch jumps from size to size, and where arguments share memory."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional

import rematpass
from rematpass.graph import workspace
from tests.formulas import Fused, meta, peak_of_decision, total


@pytest.fixture
def unknown_kernels(monkeypatch):
    """A processor with other kernels for half precision, whose scratch jumps from size to size, up to most of the peak.

    Which operators have such kernels depends on torch's libraries; attention has one everywhere, so its scratch alone
    jumps.
    """
    jumps = (64, 800_000, 20_000, 6_000_000, 40_000)

    def jumping(node, _layout):
        if "attention" not in str(node.target):
            return jumps[0]
        rows = max(size for read in node.all_input_nodes for size in read.meta["val"].shape)
        return jumps[rows % len(jumps)]

    monkeypatch.setattr(workspace, "tried_bytes", jumping)


@pytest.mark.usefixtures("unknown_kernels")
def test_scratch_that_jumps_is_below_a_line():
    model, x = meta(Fused, 4, 192, 64)
    plan = rematpass.plan(model.bfloat16(), (x.bfloat16(),), device="cpu", memory_budget="none", loss=total)
    formula = plan.formula_on(batch=range(2, 8), sequence=range(100, 400))
    above = [formula.at(batch=b, sequence=s) - peak_of_decision(plan, b, s) for b in (2, 4, 7) for s in (100, 192, 399)]
    assert min(above) >= 0
    assert 0 < max(above) < 6_000_000  # the largest jump
    assert 0 < formula.excess_bytes < 6_000_000  # at the sizes that were tried
    assert "jumps from size to size" in str(formula)
    assert "exact" not in str(formula)
    assert json.loads(formula.to_json())["excess_bytes"] == formula.excess_bytes


class Autoregressive(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, ids, labels):
        return functional.cross_entropy(self.head(self.embed(ids)).flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("shift", [0, 1])
def test_labels_that_are_the_ids_share_their_memory_at_every_size(shift):
    ids = torch.zeros(3, 40 + shift, dtype=torch.long)
    args = (ids[:, :-shift], ids[:, shift:]) if shift else (ids, ids)
    formula = rematpass.plan(Autoregressive(), args, memory_budget="none").formula
    held = [held for held in formula.alive if held.role == "input"]
    # Ids, without what lies before or behind the first and the last of them, and the numbers of the two layers.
    assert sum(held.size.at((6, 80)) for held in held) == (6 * (80 + shift) - shift) * 8 + (2 * 50 * 16 + 50) * 4
