"""Gradients accumulated over several backwards: those of the earlier ones are in the budget of the later ones."""

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


class Wide(nn.Module):
    """Parameters large enough that their gradients matter, activations large enough to give way."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(5))

    def forward(self, x):
        for layer in self.layers:
            x = functional.gelu(layer(x)) + x
        return x.square().mean()


class Attending(nn.Module):
    """Its backward takes more than its forward: attention's gradients are three tensors at once."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 192) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            parts = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in layer(x).chunk(3, dim=-1))
            x = x + functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        return x.square().mean()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def wide():
    torch.manual_seed(0)
    return Wide(), torch.randn(1024, 256)


def budget_at(model, x, share):
    plan = rematpass.plan(model, (x,), memory_budget="none")
    return int(plan.smallest_peak_bytes + share * (plan.fastest_peak_bytes - plan.smallest_peak_bytes))


def compiled(model, budget, **options):
    options = {"memory_budget": budget, "verify": False, **SCALAR, **options}
    return torch.compile(model, backend="rematpass", options=options)


def gradients(model):
    return [p.grad for p in model.parameters() if p.grad is not None]


def total_peak(model, x, step):
    """With all that lives before the step: parameters, the batch, gradients of earlier backwards."""
    return storage_bytes([*model.parameters(), x, *gradients(model)]) + measure_peak(step)


def test_the_budget_holds_from_the_second_backward_on(wide, caplog):
    caplog.set_level(logging.INFO, "rematpass.accumulated")
    model, x = wide
    budget = budget_at(model, x, 0.6)
    step = compiled(model, budget)
    step(x).backward()  # compiles, without gradients
    [alone] = rematpass.plans(step)
    peaks = [total_peak(model, x, lambda: step(x).backward()) for _ in range(3)]
    assert max(peaks) <= budget
    [beside] = rematpass.plans(step)
    held = storage_bytes(gradients(model))
    assert beside.peak_bytes <= budget - held < alone.peak_bytes
    assert beside.budget_bytes == budget - held
    assert "left to gradients of earlier backwards" in "".join(beside.notes)
    assert len([r for r in caplog.records if "planned again beside" in r.getMessage()]) == 1

    mine = [g.clone() for g in gradients(model)]
    model.zero_grad()
    for _ in range(4):
        model(x).backward()
    for ours, theirs in zip(mine, gradients(model), strict=True):
        torch.testing.assert_close(ours, theirs)
    model.zero_grad()
    step(x).backward()  # a new cycle: the plan stays
    assert rematpass.plans(step) == [beside]


@pytest.mark.usefixtures("zeros_are_computed")
def test_a_plan_that_fits_beside_them_stays(wide):
    model, x = wide
    step = compiled(model, 100 * budget_at(model, x, 1.0))
    step(x).backward()
    [plan] = rematpass.plans(step)
    step(x).backward()
    assert rematpass.plans(step)[0] is plan


@pytest.mark.usefixtures("zeros_are_computed")
def test_gradients_that_are_there_when_it_is_compiled_count_at_once(wide):
    model, x = wide
    model(x).backward()
    held = storage_bytes(gradients(model))
    budget = budget_at(model, x, 0.6)
    step = compiled(model, budget)
    assert total_peak(model, x, lambda: step(x).backward()) > 0  # compiles
    assert rematpass.plans(step)[0].budget_bytes == budget - held
    assert total_peak(model, x, lambda: step(x).backward()) <= budget
    torch._dynamo.reset()
    with pytest.raises(rematpass.BudgetTooSmall, match="Gradients of earlier backwards take") as caught:
        compiled(model, budget_at(model, x, 0.0))(x)
    assert caught.value.beside_bytes == held
    assert held < caught.value.minimum_bytes <= budget_at(model, x, 0.0) + held
    step = compiled(model, caught.value.minimum_bytes)
    step(x).backward()
    assert total_peak(model, x, lambda: step(x).backward()) <= 1.001 * caught.value.minimum_bytes


@pytest.mark.usefixtures("zeros_are_computed")
def test_auto_is_above_gradients_that_are_there_when_it_is_compiled(wide):
    model, x = wide
    model(x).backward()
    step = compiled(model, "auto")
    step(x).backward()
    [plan] = rematpass.plans(step)
    step(x).backward()
    assert rematpass.plans(step)[0] is plan
    assert "earlier backwards" not in "".join(plan.notes)


@pytest.mark.usefixtures("zeros_are_computed")
def test_where_nothing_fits_beside_them_training_goes_on_with_the_smallest_peak(wide):
    model, x = wide
    smallest = budget_at(model, x, 0.0)
    for _ in range(2):  # planned, then from torch's cache
        torch._dynamo.reset()
        model.zero_grad()
        step = compiled(model, smallest)
        step(x).backward()
        step(x).backward()  # gradients could have been cleared before this backward
        with pytest.warns(UserWarning, match="radients of earlier backwards"):
            step(x).backward()
    held = storage_bytes(gradients(model))
    assert total_peak(model, x, lambda: step(x).backward()) <= 1.001 * (smallest + held)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(x).backward()


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize(("share", "forms"), [(0.6, 2), (0.0, 1)])
def test_gradients_that_are_cleared_before_the_backward_leave_it_the_whole_budget(share, forms, caplog):
    """As in `loss = model(x); optimizer.zero_grad(); loss.backward()`."""
    caplog.set_level(logging.INFO, "rematpass")
    torch.manual_seed(0)
    model, x = Attending(), torch.randn(4, 256, 64)
    budget = budget_at(model, x, share)
    step = compiled(model, budget)
    caplog.clear()
    losses, above = [], []
    for _ in range(4):
        held = storage_bytes([*model.parameters(), x, *gradients(model)])
        above.append(measure_peak(lambda: losses.append(step(x))))
        assert held + above[-1] <= budget
        model.zero_grad()
        losses.pop().backward()
    assert len(set(above)) == forms
    assert above[0] == above[2] == above[3], "the third step knows"
    assert len([r for r in caplog.records if "to plan" in r.getMessage()]) <= forms
    assert caplog.records[-1].levelno < logging.WARNING


@pytest.mark.usefixtures("zeros_are_computed")
def test_what_cannot_be_planned_again_says_so(wide):
    model, x = wide
    budget = budget_at(model, x, 0.6)
    torch._dynamo.mark_dynamic(x, 0, min=32, max=1024)
    step = compiled(model, budget)
    step(x).backward()
    step(x).backward()
    with pytest.warns(UserWarning, match="gradients of earlier backwards take .* cannot be planned again. Try: a"):
        step(x).backward()


@pytest.mark.usefixtures("zeros_are_computed")
def test_batches_of_other_sizes_leave_room_once_gradients_were_seen_to_stay(wide):
    """A graph with dynamic sizes is compiled once, perhaps by the first batch of a round, which finds no gradients."""
    model, x = wide
    held = storage_bytes(model.parameters())
    budget = budget_at(model, x, 0.3) + held  # the fastest plan fits, but not beside gradients
    step = compiled(model, budget)
    for first, second in ((256, 300), (1024, 1000)):  # the first alone is compiled for its size alone
        model.zero_grad()
        step(x[:first]).backward()
        peak = total_peak(model, x[:second].clone(), lambda n=second: step(x[:n]).backward())
        assert peak <= budget
    *_, last = rematpass.plans(step)
    assert "left to gradients of earlier backwards" in "".join(last.notes)

    other, _ = Wide(), model.zero_grad()
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(x, 0)
    step = compiled(other, budget)
    step(x).backward()
    assert "left to gradients" not in "".join(rematpass.plans(step)[0].notes), "of other parameters nothing is known"


def test_a_plan_from_a_file_stays_as_it_is(wide, tmp_path):
    model, x = wide
    plan = rematpass.plan(model, (x,), memory_budget=budget_at(model, x, 0.6))
    plan.save(tmp_path / "plan.json")
    step = torch.compile(model, backend="rematpass", options={"plan": str(tmp_path / "plan.json"), "verify": False})
    step(x).backward()
    step(x).backward()
    with pytest.warns(UserWarning, match="gradients of earlier backwards take .* cannot be planned again"):
        step(x).backward()
    assert rematpass.plans(step)[0].values == plan.values
