"""Masks in place of what they are made of: kept where nothing else needs that, computed again where that is kept."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

import rematpass
from rematpass.graph.capture import JointProgram
from rematpass.look import Step, look_at_step
from rematpass.options import parse_options
from rematpass.pipeline import Settings, collect_inputs
from rematpass.solve.liveness import find_peak
from rematpass.solve.order import order_backward
from rematpass.solve.program import Program
from rematpass.solve.search import Frontier
from tests.differential.compiled import clear, compiled_step, gradients, train_step

ROWS, WIDTH = 1024, 64


class Residual(nn.Module):
    """Blocks whose activation is added to what goes by, so that no product reads its result."""

    def __init__(self, activation, count=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))
        self.activation = activation

    def forward(self, x):
        for layer in self.layers:
            x = x + self.activation(layer(x))
        return x.square().mean()


class Chain(Residual):
    """The same, but each product reads the activation before."""

    def forward(self, x):
        for layer in self.layers:
            x = self.activation(layer(x))
        return x.square().mean()


class Pooled(nn.Module):
    """Convolutions, ReLU and pooling: the pooling's indices and the mask say all that the backward wants."""

    def __init__(self):
        super().__init__()
        widths = (3, 8, 16, 16)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
                for a, b in itertools.pairwise(widths)
            )
        )

    def forward(self, x):
        return self.layers(x).square().mean()


def kept(plan, dtype):
    return [v for v in plan.values if v.decision == "keep" and v.dtype == dtype]


def plan_of(model, x, budget="none"):
    return rematpass.plan(model, (x,), memory_budget=budget)


@pytest.mark.parametrize("activation", [functional.relu, functional.relu6, functional.leaky_relu])
def test_a_mask_is_kept_where_nothing_reads_what_it_is_made_of(activation):
    model, x = Residual(activation), torch.randn(ROWS, WIDTH)
    plan = plan_of(model, x)
    assert plan.recompute_seconds == 0
    masks = kept(plan, "bool")
    assert len(masks) >= 3
    assert {v.bytes for v in masks} == {ROWS * WIDTH}
    plain = torch.compile(model)
    train_step(plain, x)
    clear(model)
    above = rematpass.measure_peak(lambda: train_step(plain, x), device="cpu")
    assert plan.peak_bytes - plan.static_bytes <= above


def test_no_mask_is_kept_beside_what_it_is_made_of():
    plan = plan_of(Chain(functional.relu), torch.randn(ROWS, WIDTH))
    assert len(kept(plan, "bool")) <= 1, "of the last, which no product reads"


MODELS = {
    "residual": (lambda: Residual(functional.relu), (ROWS, WIDTH)),
    "residual of two masks": (lambda: Residual(functional.relu6), (ROWS, WIDTH)),
    "chain": (lambda: Chain(functional.relu), (ROWS, WIDTH)),
    "pooled": (Pooled, (4, 3, 32, 32)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("zeros_are_computed")
def test_what_is_planned_is_measured(name):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    fastest = plan_of(model, x)
    budgets = ("none", (fastest.peak_bytes + fastest.smallest_peak_bytes) // 2, fastest.smallest_peak_bytes)
    for budget in budgets:
        plan, _, measured = compiled_step(model, x, budget)
        assert measured == pytest.approx(plan.peak_bytes, rel=0.01)


@pytest.mark.parametrize("name", ["residual of two masks", "pooled"])
def test_gradients_are_those_of_eager(name):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    train_step(model, x)
    wanted = [g.clone() for g in gradients(model)]
    clear(model)
    for budget in ("none", plan_of(model, x).smallest_peak_bytes):
        _, found, _ = compiled_step(model, x, budget)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


class Bottlenecks(nn.Module):
    """Residual blocks of BatchNorm and ReLU, then the mean of each channel: the last mask is of what is not kept."""

    def __init__(self, count=3, channels=32):
        super().__init__()
        self.into = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
            )
            for _ in range(count)
        )
        self.head = nn.Linear(channels, 10)

    def forward(self, x):
        x = self.into(x)
        for block in self.blocks:
            x = (x + block(x)).relu()
        return functional.cross_entropy(self.head(x.mean((2, 3))), torch.zeros(len(x), dtype=torch.long))


def test_no_mask_would_make_the_fastest_plan_smaller():
    def use(joint: JointProgram, settings: Settings) -> Program:
        return collect_inputs(joint, settings).program

    step = Step(Bottlenecks(), (torch.randn(8, 3, 16, 16),), device="h100-sxm")
    program = look_at_step(step, parse_options({"memory_budget": "none"}), use)
    fastest = Frontier(program).fastest
    masks = [v for v in fastest.decision.schedule.backward if program.is_ahead[v] and program.may_keep[v]]
    assert masks
    for mask in masks:
        other = order_backward(program, {*fastest.decision.kept, mask})
        assert other.recompute_ns > fastest.extra_ns or find_peak(program, other.schedule)[0] >= fastest.peak_bytes
