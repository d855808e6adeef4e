"""Dynamic sizes: right at every size, within the budget up to the largest allowed."""

import copy
import warnings

import pytest
import torch
from torch import nn

import rematpass
from rematpass.check.measure import storage_bytes
from tests.differential.steps import SCALAR, Backend, OpByOp

WIDTH = 16
SIZES = [(2, 8), (3, 8), (3, 12), (5, 7), (8, 16)]


class Attention(nn.Module):
    """Scores of batch x length x length; sizes are computed with, flattened and restored."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        batch, length, width = x.shape
        for layer in self.layers:
            h = layer(x).tanh()
            mixed = (h @ h.transpose(1, 2)).softmax(-1) @ h
            x = x + mixed.reshape(batch * length, width).view(batch, length, width)
        return x.square().mean()


def batch_of(sizes, *, is_marked=False):
    x = torch.randn(*sizes, WIDTH).requires_grad_()
    if is_marked:
        torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
        torch._dynamo.mark_dynamic(x, 1, min=2, max=16)
    return x


def train(executor, *, is_marked=False, sizes=SIZES):
    """Gradients at every size equal eager's. `executor` wraps the model."""
    torch.manual_seed(0)
    model = Attention()
    reference = copy.deepcopy(model)
    compiled = executor(model)
    for shape in sizes:
        x = batch_of(shape, is_marked=is_marked)
        y = x.detach().clone().requires_grad_()
        model.zero_grad()
        reference.zero_grad()
        compiled(x).backward()
        reference(y).backward()
        expected = [p.grad for p in (*reference.parameters(), y)]
        torch.testing.assert_close([p.grad for p in (*model.parameters(), x)], expected, rtol=1e-4, atol=1e-6)
    return executor.plans


DYNAMIC = [{}, {"dynamic": True}, {"dynamic": False}]


@pytest.mark.parametrize("how", DYNAMIC)
def test_every_size_op_by_op(how):
    plans = train(OpByOp("none", compile_options=how))
    train(OpByOp(max(plan.smallest_peak_bytes for plan in plans), compile_options=how))


@pytest.mark.parametrize("how", DYNAMIC[:2])
def test_every_size_through_inductor(how):
    """At the smallest budget of the last size, which is the largest: there is no room for larger ones."""
    largest = rematpass.plan(Attention(), (batch_of(SIZES[2]),), memory_budget="none")
    plans = train(Backend(largest.smallest_peak_bytes, compile_options=how), sizes=SIZES[:3])
    assert plans[-1].peak_bytes == largest.smallest_peak_bytes


def test_every_size_through_inductor_without_a_budget():
    train(Backend("none"), sizes=SIZES[:3])


@pytest.mark.parametrize("executor", [OpByOp, Backend])
def test_one_plan_for_the_stated_bounds(executor):
    """The first batch is small; the plan is for the largest, whatever comes first."""
    (plan,) = train(executor("none"), is_marked=True)
    torch._dynamo.reset()
    full = rematpass.plan(Attention(), (torch.randn(8, 16, WIDTH).requires_grad_(),), memory_budget="none")
    if executor is Backend:
        assert plan.peak_bytes == full.peak_bytes
    (tight,) = train(executor(plan.smallest_peak_bytes), is_marked=True)
    assert tight.peak_bytes == plan.smallest_peak_bytes
    assert not [note for note in tight.notes if "dynamic size" in note]


def test_the_budget_holds_at_the_largest_size():
    plan = train(Backend("none"), is_marked=True)[0]
    torch.manual_seed(0)
    model = Attention()
    compiled = torch.compile(model, backend="rematpass", options={"memory_budget": plan.smallest_peak_bytes, **SCALAR})
    for shape in ((2, 8), (8, 16)):
        x = batch_of(shape, is_marked=True)
        compiled(x).backward()
        model.zero_grad()
        x.grad = None
        above = rematpass.measure_peak(lambda x=x: compiled(x).backward(), device="cpu")
        assert above + storage_bytes([x, *model.parameters()]) <= plan.smallest_peak_bytes * 1.01


def test_a_size_without_a_bound_is_told():
    (plan,) = train(OpByOp("none", compile_options={"dynamic": True}), sizes=SIZES[:1])
    notes = [note for note in plan.notes if "without an upper bound" in note]
    assert len(notes) == 2
    assert any("planned for 8" in note and "mark_dynamic" in note for note in notes)


LENGTHS = (8, 12, 24, 28, 60, 128, 16)


def test_larger_sizes_get_plans_of_their_own():
    """Batches grow: the budget holds for each, smaller ones run what was compiled for them."""
    torch.manual_seed(0)
    model = Attention()
    reference = copy.deepcopy(model)
    longest = rematpass.plan(model, (batch_of((4, max(LENGTHS))),), memory_budget="none")
    budget = (longest.smallest_peak_bytes + longest.fastest_peak_bytes) // 2
    compiled = torch.compile(model, backend="rematpass", options={"memory_budget": budget, **SCALAR, "verify": False})
    for length in LENGTHS:
        x = batch_of((4, length))
        compiled(x).backward()
        y = x.detach().clone().requires_grad_()
        reference.zero_grad()
        reference(y).backward()
        expected = [p.grad for p in (*reference.parameters(), y)]
        torch.testing.assert_close([p.grad for p in (*model.parameters(), x)], expected, rtol=1e-4, atol=1e-6)
        model.zero_grad()
        x.grad = None
        above = rematpass.measure_peak(lambda x=x: compiled(x).backward(), device="cpu")
        assert above + storage_bytes([x, *model.parameters()]) <= budget * 1.01
        model.zero_grad()
    plans = rematpass.plans(compiled)
    assert 3 <= len(plans) <= 5, "one for the first length, then by powers of two and more"
    assert plans[-1].recompute_seconds > 0 == plans[1].recompute_seconds
    assert "<= 128; a larger one is compiled once more" in "".join(plans[-1].notes)


@pytest.mark.usefixtures("zeros_are_computed")
def test_an_ample_budget_is_planned_for_far_larger_sizes():
    torch.manual_seed(0)
    compiled = torch.compile(Attention(), backend="rematpass", options={"memory_budget": "1GiB", **SCALAR})
    for length in (5, 6, 40):
        compiled(batch_of((2, length))).backward()
    _, plan = rematpass.plans(compiled)
    assert any("<= 256; a larger one is compiled once more" in note for note in plan.notes)


@pytest.mark.usefixtures("zeros_are_computed")
def test_what_fits_no_plan_is_planned_for_the_size_seen():
    """With on_infeasible="warn" a guard would only compile again what cannot be helped."""
    torch.manual_seed(0)
    options = {"memory_budget": "1KiB", "on_infeasible": "warn", "verify": False}
    compiled = torch.compile(Attention(), backend="rematpass", dynamic=True, options=options)
    with pytest.warns(UserWarning, match="memory budget too small"):
        compiled(batch_of((2, 5))).backward()
    compiled(batch_of((2, 11))).backward()
    (plan,) = rematpass.plans(compiled)
    assert any("<= 5" in note and "; a larger one needs more" in note for note in plan.notes)


def test_sizes_that_depend_on_data():
    """Kept scalars stay scalars; the plan counts with as many rows as there may be."""

    def step(x, w):
        chosen = x[(x @ w)[:, 0] > 0]
        return (chosen @ w).tanh().exp().sum() * chosen.shape[0]

    x, w = torch.randn(64, 8).requires_grad_(), torch.randn(8, 8).requires_grad_()
    expected = torch.autograd.grad(step(x, w), (x, w))
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), warnings.catch_warnings():
        executor = OpByOp("none")
        torch.testing.assert_close(torch.autograd.grad(executor(step)(x, w), (x, w)), expected)
        plan = executor.plans[0]
        assert max(record.shape[0] for record in plan.values if len(record.shape) == 2) == 64
        tight = OpByOp(plan.smallest_peak_bytes)
        torch.testing.assert_close(torch.autograd.grad(tight(step)(x, w), (x, w)), expected)
