"""Several graphs in one step, or one that runs several times: they keep the budget together."""

import logging
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import rematpass
from rematpass import measure_peak
from rematpass.check.measure import storage_bytes
from tests.differential.steps import SCALAR

# Dynamo's own, of what one graph hands to the next.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(64, 256), nn.Linear(256, 64), nn.LayerNorm(64)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    """Two graphs where `is_broken`."""

    def __init__(self, is_broken=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.is_broken = is_broken

    def forward(self, x):
        x = self.blocks[0](x)
        x = self.blocks[1](x)
        if self.is_broken:
            torch._dynamo.graph_break()
        x = self.blocks[2](x)
        x = self.blocks[3](x)
        return x.square().mean()


class Pair(nn.Module):
    """One encoder, run on both halves of a batch."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(Block(), Block())
        self.encode, self.compare = self.encoder, functional.mse_loss

    def forward(self, x):
        one, other = x.chunk(2)
        return self.compare(self.encode(one), self.encode(other))


def broken(model, **options):
    model.is_broken = True
    return torch.compile(model, backend="rematpass", options=options)


def block_by_block(model, **options):
    for block in model.blocks:
        block.compile(backend="rematpass", options=options)
    return model


def twice(model, **options):
    model.encode = torch.compile(model.encoder, backend="rematpass", options=options)
    model.compare = torch.compile(functional.mse_loss, backend="rematpass", options=options)
    return model


WAYS = {"broken": (Blocks, broken), "block_by_block": (Blocks, block_by_block), "twice": (Pair, twice)}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(way):
    torch.manual_seed(0)
    kind, wrap = WAYS[way]
    return kind(), torch.randn(16, 64, 64), wrap


def budget_at(model, x, share):
    plan = rematpass.plan(model, (x,), memory_budget="none")
    return int(plan.smallest_peak_bytes + share * (plan.fastest_peak_bytes - plan.smallest_peak_bytes))


def total_peak(model, step, x):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return storage_bytes([*model.parameters(), x, *gradients]) + measure_peak(lambda: step(x).backward())


@pytest.mark.parametrize("way", sorted(WAYS))
def test_the_budget_holds_for_all_graphs(way, caplog):
    """Gradients that accumulate over three more steps count, too, those of all graphs."""
    caplog.set_level(logging.INFO, "rematpass.together")
    model, x, wrap = make(way)
    reference, _, _ = make(way)
    budget = budget_at(reference, x, 0.5)
    step = wrap(model, memory_budget=budget, verify=False, **SCALAR)
    peaks = []
    for _ in range(3):
        model.zero_grad()
        peaks.append(total_peak(model, step, x))
    if way == "twice":
        assert peaks[0] > budget, "nobody knew that it would run again"
    else:
        assert peaks[0] <= 1.001 * budget
    assert 0.4 * budget < max(peaks[1:]) <= 1.001 * budget
    assert [r for r in caplog.records if "share a budget" in r.getMessage()] != []
    peaks = [total_peak(model, step, x) for _ in range(3)]
    assert max(peaks[1:]) <= 1.001 * budget

    for _ in range(4):
        reference(x).backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.usefixtures("zeros_are_computed")
def test_where_no_plans_fit_together_it_says_what_they_take():
    model, x, wrap = make("twice")
    step = wrap(model, memory_budget=budget_at(model, x, 0.0), verify=False)
    step(x).backward()
    model.zero_grad()
    with pytest.warns(UserWarning, match=r"graphs of one step take .* together, the budget is .* Try: that budget"):
        step(x).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            model.zero_grad()
            step(x).backward()


@pytest.mark.usefixtures("zeros_are_computed")
def test_graphs_of_ample_budgets_stay_as_they_are():
    model, x, wrap = make("broken")
    step = wrap(model, memory_budget="4GiB", verify=False)
    step(x).backward()
    plans = rematpass.plans(step)
    assert len(plans) == 2
    for _ in range(2):
        model.zero_grad()
        step(x).backward()
    assert all(now is then for now, then in zip(rematpass.plans(step), plans, strict=True))
    assert "share memory_budget" in "".join(plans[1].notes)


@pytest.mark.usefixtures("zeros_are_computed")
def test_where_nothing_comes_after_a_break_the_whole_budget_is_used():
    model, x, _ = make("broken")
    budget = budget_at(model, x, 0.5)
    alone = rematpass.plan(model, (x,), memory_budget=budget)

    def loss(x):
        y = model(x)
        torch._dynamo.graph_break()
        return y

    step = torch.compile(loss, backend="rematpass", options={"memory_budget": budget, "verify": False})
    step(x).backward()
    (first,) = rematpass.plans(step)
    assert first.kept_bytes < alone.kept_bytes, "graphs to come would need room"
    for _ in range(2):
        model.zero_grad()
        step(x).backward()
        (later,) = rematpass.plans(step)
        assert (later.peak_bytes, later.recompute_seconds) == (alone.peak_bytes, alone.recompute_seconds)


def test_runs_whose_outputs_are_dropped_hold_nothing():
    model, x, wrap = make("twice")
    wrap(model, memory_budget=budget_at(model, x, 0.6), verify=False)
    model.encode(x)
    plans = rematpass.plans(model.encode)
    for _ in range(3):
        model.encode(x)  # nobody keeps what it returns
    assert rematpass.plans(model.encode) == plans
