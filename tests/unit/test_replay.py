"""Plans from files: followed exactly, or refused with what differs."""

import dataclasses
import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import rematpass
from rematpass.errors import PlanFileError
from rematpass.plan_types import PLANNED_FROM, Decision, Plan


class Net(nn.Module):
    def __init__(self, width: int = 32, act=functional.gelu) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.act(layer(x)) + x
        return x.square().sum()


def plan_net(net: nn.Module, rows: int = 256, width: int = 32, **options: object) -> Plan:
    with torch.device("meta"):
        x = torch.empty(rows, width)
    return rematpass.plan(net.to("meta"), (x,), device="cpu", **options)


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> tuple[Plan, str]:
    """A plan half way between the ends, and its file."""
    whole = plan_net(Net(), memory_budget="none")
    plan = plan_net(Net(), memory_budget=(whole.peak_bytes + whole.smallest_peak_bytes) // 2)
    assert plan.recompute_seconds > 0
    return plan, str(plan.save(tmp_path_factory.mktemp("plans") / "half.json"))


def test_the_same_graph_gets_the_same_plan(half):
    plan, path = half
    assert plan_net(Net(), plan=path) == plan


def test_all_budgets_are_reproduced(tmp_path):
    """The timeline tells the schedule: whatever the planner made of the graph, it is followed to the byte."""
    ends = plan_net(Net(act=torch.sin), memory_budget="none")
    for i in range(5):
        budget = ends.smallest_peak_bytes + (ends.peak_bytes - ends.smallest_peak_bytes) * i // 4
        plan = plan_net(Net(act=torch.sin), memory_budget=budget)
        assert plan_net(Net(act=torch.sin), plan=plan.save(tmp_path / f"{i}.json")) == plan


def test_an_input_handed_over_twice_is_named_by_its_bytes(tmp_path):
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (self.layer(x) * y).sum()

    x, y = torch.empty(8, 32), torch.empty(8, 32)
    path = rematpass.plan(Pair(), (x, y), memory_budget="none").save(tmp_path / "pair.json")
    once = (32 * 32 + 32 + 8 * 32) * 4
    with pytest.raises(PlanFileError, match=f"take {once + 8 * 32 * 4} bytes in the plan, {once} here"):
        rematpass.plan(Pair(), (x, x), plan=path)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda path: plan_net(Net(), rows=128, plan=path), r"is float32 \(256, 32\) in the plan, .* \(128, 32\) here"),
        (lambda path: plan_net(Net(), dtype="bf16", plan=path), "is float32 .* in the plan, bfloat16 .* here"),
        (lambda path: plan_net(Net(act=torch.sin), plan=path), "only the plan has 6 x erf"),
        (
            lambda path: plan_net(nn.Sequential(Net(), nn.Identity(), nn.Tanh()), plan=path),
            "only the graph has 1 x tanh",
        ),
    ],
)
def test_another_graph_is_refused_with_what_differs(half, other, words):
    with pytest.raises(PlanFileError, match="another graph") as error:
        other(half[1])
    assert re.search(words, str(error.value))


def test_what_a_plan_file_was_made_of_is_said_where_it_does_not_fit(half, tmp_path):
    plan, _ = half
    noted = dataclasses.replace(plan, notes=(*plan.notes, f"{PLANNED_FROM}Net of tiny.py, autocast to bf16"))
    path = noted.save(tmp_path / "noted.json")
    assert plan_net(Net(), plan=path) == noted
    with pytest.raises(PlanFileError, match=r"The plan is of Net of tiny\.py, autocast to bf16\. What differs"):
        plan_net(Net(act=torch.sin), plan=path)


def test_another_device_has_other_memory(tmp_path):
    model, x, path = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 32)), torch.ones(256, 32), tmp_path / "p"
    rematpass.plan(model, (x,), loss=torch.sum, memory_budget="none").save(path)
    with pytest.raises(PlanFileError, match=r"made for cpu: it counts \d+ bytes while the forward runs"):
        rematpass.plan(model.to("meta"), (x.to("meta"),), loss=torch.sum, device="l4", plan=path)


def test_sums_of_products_make_another_graph_on_another_device(half):
    with torch.device("meta"):
        x = torch.empty(256, 32)
    with pytest.raises(PlanFileError, match=r"another graph, on cpu: .* \d x mm"):
        rematpass.plan(Net().to("meta"), (x,), device="l4", plan=half[1])


def test_a_missing_file_is_one_message(tmp_path):
    with pytest.raises(PlanFileError, match="cannot be read"):
        plan_net(Net(), plan=tmp_path / "none.json")


def _swap(plan: Plan, first: int, second: int) -> Plan:
    rows = list(plan.timeline)
    ops = [row.op for row in rows]
    rows[first] = dataclasses.replace(rows[first], op=ops[second])
    rows[second] = dataclasses.replace(rows[second], op=ops[first])
    return dataclasses.replace(plan, timeline=tuple(rows))


def test_a_plan_made_unsafe_is_refused(half, tmp_path):
    """Whoever writes such files with the right digests is refused all the same."""
    plan, _ = half
    last = len(plan.timeline) - 1
    border = sum(row.phase == "forward" for row in plan.timeline)
    kept = next(i for i, value in enumerate(plan.values) if value.decision is Decision.KEEP)
    values = list(plan.values)
    values[kept] = dataclasses.replace(values[kept], decision=Decision.RECOMPUTE)
    rows = list(plan.timeline)
    rows[last] = dataclasses.replace(rows[last], op="nothing")
    forged = {
        "not safe to follow|counts": _swap(plan, border, last),
        "forward runs other ops: op 0": _swap(plan, 0, 1),
        "contradicts itself": dataclasses.replace(plan, values=tuple(values)),
        "runs nothing, which the graph": dataclasses.replace(plan, timeline=tuple(rows)),
    }
    for words, other in forged.items():
        with pytest.raises(PlanFileError, match=words):
            plan_net(Net(), plan=other.save(tmp_path / "forged.json"))
