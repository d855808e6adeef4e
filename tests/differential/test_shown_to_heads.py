"""The smallest peak is kept where all heads are shown one key, or one mask, and the step is as without us."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import rematpass
from tests.differential.compiled import check_fastest
from tests.differential.steps import measure_at_smallest
from tests.formulas import peak_of_decision

WIDTH, HEADS, LENGTH = 64, 4, 48


class Layer(nn.Module):
    """Attention of several heads over one key; `is_masked`: every head with a mask of its own, all of them equal."""

    def __init__(self, is_masked):
        super().__init__()
        keys = WIDTH if is_masked else WIDTH // HEADS
        self.query, self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, keys), nn.Linear(WIDTH, keys)
        self.is_masked = is_masked

    def forward(self, x, mask):
        q, k, v = (
            made.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2).expand(-1, HEADS, -1, -1)
            for made in (self.query(x), self.key(x), self.value(x))
        )
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask if self.is_masked else None)
        return x + y.transpose(1, 2).flatten(2)


class Stack(nn.Module):
    """Three such layers, a mask that depends on the input, and a loss."""

    def __init__(self, is_masked):
        super().__init__()
        self.layers = nn.ModuleList(Layer(is_masked) for _ in range(3))

    def forward(self, x):
        mask = torch.where(x[:, None, None, :, 0] > -1, 0.0, -1e9).expand(-1, HEADS, x.shape[1], -1)
        for layer in self.layers:
            x = layer(x, mask)
        return x.square().mean()


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize("is_masked", [False, True])
def test_what_is_copied_for_the_heads_is_planned(is_masked):
    torch.manual_seed(0)
    measured, budget = measure_at_smallest(Stack(is_masked), torch.randn(4, LENGTH, WIDTH))
    assert budget * 0.98 <= measured <= budget * 1.002


@pytest.mark.parametrize("is_masked", [False, True])
def test_gradients_and_the_fastest_plan(is_masked):
    torch.manual_seed(0)
    plan = check_fastest(Stack(is_masked), torch.randn(4, LENGTH, WIDTH))
    assert plan.recompute_seconds == 0  # the copy is made in each half, whatever is kept


def test_the_formula_counts_the_copy():
    with torch.device("meta"):
        model, x = Stack(True), torch.empty(4, LENGTH, WIDTH)
    plan = rematpass.plan(model, (x,), device="cpu", memory_budget="none")
    assert any(alive.name == "expand" for alive in plan.alive_at_peak)
    for batch, sequence in [(2, 67), (7, 190)]:
        assert plan.formula.at(batch=batch, sequence=sequence) == peak_of_decision(plan, batch, sequence)


@pytest.mark.parametrize("pin", ["save", "recompute"])
def test_a_name_given_to_what_is_copied_is_that_of_what_it_shows(pin):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // HEADS)

        def forward(self, x):
            q = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            key = rematpass.name(self.key(x)[:, None].expand(-1, HEADS, -1, -1), "key")
            return functional.scaled_dot_product_attention(q, key, key).square().mean()

    x = torch.randn(2, LENGTH, WIDTH)
    plan = rematpass.plan(Named(), args=(x,), memory_budget="none", **{pin: ["key"]})
    products = [value for value in plan.values if "key" in value.module and value.op == "addmm"]
    assert [value.decision.value for value in products] == ["keep" if pin == "save" else "recompute"]
