"""What explain says: rows, folding, what is alive, what is usually a mistake; and how two plans differ."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import rematpass
from rematpass import mistakes
from rematpass.errors import OptionError
from rematpass.report.explain import explain_record, find_values
from rematpass.report.stacks import INPUTS, OTHERS, SCRATCH, stack_by_module


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(x)))


def plan_blocks(budget: object = "none", **more: object) -> rematpass.Plan:
    with torch.device("meta"):
        model, x = nn.Sequential(*(Block(64) for _ in range(4))), torch.empty(512, 64)
    return rematpass.plan(model, (x,), loss=torch.sum, device="l4", memory_budget=budget, **more)


def plan_here(function, *shapes, **more) -> rematpass.Plan:
    arguments = [torch.ones(shape, requires_grad=True) for shape in shapes]
    return rematpass.plan(function, arguments, device="cpu", memory_budget="none", **more)


@pytest.fixture(scope="module")
def plan() -> rematpass.Plan:
    return plan_blocks()


def flags_of(plan: rematpass.Plan) -> set[str]:
    return {flag for value in plan.values for flag in value.flags}


def test_lives_add_up_to_the_timeline(plan):
    """Storages, inputs and the scratch of the op that runs: nothing else is live."""
    for found in (plan, plan_blocks((plan.smallest_peak_bytes + plan.peak_bytes) // 2)):
        rows = {row.label: row.live_bytes for row in stack_by_module(found, most=2)}
        assert sum(rows.values()).tolist() == [point.live_bytes for point in found.timeline]
        assert min(rows[SCRATCH]) == 0, "a plain block takes no scratch"
        assert max(rows[SCRATCH]) == 0
        assert set(rows[INPUTS].tolist()) == {found.static_bytes}
        assert len(rows) == 5
        assert OTHERS in rows


def test_roles_of_lives(plan):
    half = plan_blocks((plan.smallest_peak_bytes + plan.peak_bytes) // 2)
    kept = {value.name for value in half.values if value.decision == "keep"}
    assert {life.name for life in half.lives if life.role == "kept"} == kept | {"sum_1"}, "the loss is held, too"
    assert sum(life.bytes for life in half.lives if life.role == "gradient") == half.gradient_bytes
    again = {value.name for value in half.values if value.decision == "recompute"}
    assert {life.name for life in half.lives if life.role == "recomputed"} <= again


def test_a_module_is_explained_with_equal_layers_folded(plan):
    text = plan.explain("*.up")
    assert "[0-3].up x4" in text
    assert "[0-3].down" not in text
    assert re.search(r"at the peak \(.* while the \w+ runs \w+\) .* of \*\.up are alive", text)
    assert {v.module for v in find_values(plan, "2")} <= {"2", "2.up", "2.down"}
    assert [v["name"] for v in explain_record(plan, "addmm")["values"]]


def test_an_unknown_module_names_the_nearest(plan):
    with pytest.raises(OptionError, match=r"called '3\.upp'.*Nearest modules: 3\.up"):
        plan.explain("3.upp")


def test_a_difference_is_in_words_and_bytes(plan):
    small = plan_blocks(plan.smallest_peak_bytes)
    found = plan.diff(small)
    assert found.is_same_graph
    assert f"{small.peak_bytes - plan.peak_bytes:+d} bytes" in str(found)
    old = {v.name: v.decision for v in plan.values}
    assert all(old[v.name] == "keep" for v in found.recomputed_now)
    assert found.recomputed_now or found.gone or found.new
    assert str(plan.diff(plan)) == "the plans are equal"


def test_another_graph_is_told(plan):
    other = plan_here(lambda x: (x @ x).exp().sum(), (8, 8))
    assert "the graphs differ" in str(plan.diff(other))
    assert not plan.diff(other).is_same_graph


def test_a_kept_value_of_parameters_only():
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Parameter(torch.ones(64, 64)), nn.Parameter(torch.ones(64, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ (self.left @ self.right)).sum()

    plan = rematpass.plan(Weighted(), (torch.ones(4, 64, requires_grad=True),), device="cpu", memory_budget="none")
    (value,) = (v for v in plan.values if v.decision == "keep" and v.op == "mm")
    assert value.flags == (mistakes.FROM_PARAMETERS,)
    assert "worth a look" in plan.explain()
    plain = rematpass.plan(nn.Linear(4, 4), (torch.ones(2, 4),), loss=torch.sum, device="cpu", memory_budget="none")
    assert flags_of(plain) == set()


def test_a_kept_wide_copy():
    def widen(x: torch.Tensor) -> torch.Tensor:
        wide = rematpass.name((x @ x).float(), "wide")
        return (wide * wide.sin()).sum()

    plan = plan_here(widen, (64, 64), dtype="bf16", save=["wide"])
    assert mistakes.WIDE_COPY in flags_of(plan)


def test_logits():
    with torch.device("meta"):
        model, tokens = nn.Sequential(nn.Embedding(1000, 16), nn.Linear(16, 1000)), torch.zeros(64).long()
    plan = rematpass.plan(lambda x: functional.cross_entropy(model(x), x), (tokens,), device="l4", memory_budget="none")
    flagged = [value for value in plan.values if mistakes.LOGITS in value.flags]
    assert flagged
    assert {value.shape for value in flagged} == {(64, 1000)}


def test_checkpointing_of_ones_own():
    def step(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: (y @ y).sin() @ y, x, use_reentrant=False).sum()

    assert any("your own checkpointing" in note for note in plan_here(step, (16, 16)).notes)
    assert not any("your own checkpointing" in note for note in plan_here(lambda x: (x @ x).sum(), (16, 16)).notes)


def test_memory_that_does_not_fall_says_why():
    with torch.device("meta"):
        model, x = nn.Linear(512, 512), torch.empty(2, 512)
    plan = rematpass.plan(model, (x,), loss=torch.sum, device="l4", memory_budget="none")
    (note,) = (note for note in plan.notes if "hardly falls" in note)
    assert "gradients (1.0 MiB)" in note
    assert "parameters and inputs (1.0 MiB)" in note


def test_outputs_beside_the_loss():
    weight = torch.ones(16, 1000, requires_grad=True)

    def step(x: torch.Tensor, *, is_returned: bool) -> object:
        scores = x @ weight
        loss = functional.log_softmax(scores, 1)[:, 0].sum()
        return (loss, scores) if is_returned else loss

    def notes(**how: bool) -> list[str]:
        plan = rematpass.plan(step, (torch.ones(64, 16),), how, device="cpu", memory_budget="none")
        return [note for note in plan.notes if "hands in" in note]

    (note,) = notes(is_returned=True)
    assert note.startswith("250.0 KiB at the peak")
    assert notes(is_returned=False) == []
