"""What users wish: checkpoint regions and their policies, pins, names. Must is obeyed, or refused with an error."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import rematpass
from tests.differential.steps import Backend, OpByOp, check_backend, check_budgets, run_step

aten = torch.ops.aten


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def regions(body, policy=None):
    """Three checkpointed blocks `body(x, w)`, plain or with a policy."""
    extra = {} if policy is None else {"context_fn": lambda: create_selective_checkpoint_contexts(policy)}

    def make():
        def function(x, w):
            for _ in range(3):
                x = checkpoint(body, x, w, use_reentrant=False, **extra)
            return x

        return function, (leaf(32, 8), leaf(8, 8))

    return make


def block(x, w):
    return (x @ w).tanh().exp() @ w * 0.1


def noisy(x, w):
    return functional.dropout((x @ w).tanh(), 0.2).exp() @ w * 0.1


def split(x, w):
    left, right = (x @ w).chunk(2, dim=-1)
    values, _ = (x @ w).max(-1, keepdim=True)
    return torch.cat([left.tanh() * right.sigmoid(), left], -1) @ w * values.exp() * 0.1


def policy(**kinds):
    """A policy by operator name; `other` for the rest."""

    def decide(ctx, op, *args, **kwargs):
        name = op.overloadpacket.__name__
        return CheckpointPolicy[kinds.get(name, kinds["other"])]

    return decide


SAVE_PRODUCTS = policy(mm="MUST_SAVE", other="PREFER_RECOMPUTE")
ALL_AGAIN = policy(other="MUST_RECOMPUTE")
MIXED = policy(mm="MUST_RECOMPUTE", tanh="MUST_SAVE", other="PREFER_SAVE")
ALL_SAVED = policy(other="MUST_SAVE")


DECIDE = {"plain": None, "products": SAVE_PRODUCTS, "mixed": MIXED, "saved": ALL_SAVED}
# Eager itself refuses to cache what dropout writes to, so `noisy` saves products only.
REGIONS = [(body, kind) for body in (block, split) for kind in DECIDE] + [(noisy, "plain"), (noisy, "products")]


@pytest.mark.parametrize(("body", "kind"), REGIONS)
def test_regions_op_by_op(body, kind):
    check_budgets(regions(body, DECIDE[kind]), count=3)


@pytest.mark.parametrize(("body", "decide"), [(noisy, None), (block, MIXED), (block, ALL_AGAIN)])
def test_regions_through_inductor(body, decide):
    check_backend(regions(body, decide), count=2, fallback_random=True)


def decisions(plan, op):
    return {record.decision.value for record in plan.values if record.op == op}


def plan_at(make, memory_budget="none", **options):
    executor = OpByOp(memory_budget, **options)
    run_step(make, executor)
    return executor.plans[0]


def test_musts_are_obeyed_at_any_budget():
    for plan in check_budgets(regions(block, MIXED), count=3):
        assert decisions(plan, "mm") <= {"recompute"} or plan.values == ()
        assert decisions(plan, "tanh") == {"keep"}
        assert "MUST_SAVE" in next(record.because for record in plan.values if record.op == "tanh")


def test_must_recompute_leaves_what_enters_the_next_region():
    """As eager checkpointing does: else the backward would start with the whole forward."""
    plan = check_budgets(regions(block, ALL_AGAIN), count=2)[0]
    assert {(r.op, r.decision.value) for r in plan.values if r.op in ("tanh", "exp")} <= {
        ("tanh", "recompute"),
        ("exp", "recompute"),
    }
    assert plan.recompute_fraction < 1
    assert sum(record.decision == "keep" for record in plan.values) == 2  # two boundaries between three regions


def test_the_end_of_a_region_may_be_a_view():
    """As the result of a linear layer on three dimensions is."""

    def body(x, w):
        return torch.nn.functional.linear((x @ w).tanh().exp(), w).view(4, 8, 8)

    def make():
        function, (_, w) = regions(body, ALL_AGAIN)()
        return function, (leaf(4, 8, 8), w)

    plan = check_budgets(make, count=2)[0]
    assert sum(record.decision == "keep" for record in plan.values) == 2


def test_preferences_yield_to_the_budget_and_are_told():
    plan = plan_at(regions(block))
    assert {record.decision.value for record in plan.values} == {"keep"}
    assert any("PREFER_RECOMPUTE; the budget has room" in record.because for record in plan.values)


def test_must_recompute_of_a_random_operator_is_refused():
    function, arguments = regions(noisy, ALL_AGAIN)()
    with pytest.raises(rematpass.OptionError, match=r"MUST_RECOMPUTE asks .* is random and would draw again.*PREFER_"):
        OpByOp("none")(function)(*arguments)


def test_a_pin_that_makes_the_budget_impossible():
    make = regions(block)
    smallest = plan_at(make).smallest_peak_bytes
    function, arguments = make()
    with pytest.raises(rematpass.BudgetTooSmall, match=r"Your pins .* keep .* of it") as raised:
        OpByOp(smallest, save=["tanh", "exp"])(function)(*arguments)
    assert raised.value.minimum_bytes > smallest
    assert raised.value.pinned_bytes > 0


class Named(nn.Module):
    """Two layers whose hidden values have names, one of them seen through a view."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            h = rematpass.name(layer(x).tanh(), "hidden")
            g = rematpass.name(h.view(4, -1).exp().view(h.shape), "gate")
            x = x + h * g
        return x.square().mean()


def named():
    return Named(), (torch.randn(64, 16),)


@pytest.mark.parametrize(
    ("save", "recompute"), [(["hidden"], []), ([], ["hidden"]), (["gate"], ["hidden"]), ([], ["*.tanh"])]
)
def test_named_values(save, recompute):
    for plan in check_budgets(named, count=3, save=save, recompute=recompute):
        for label in ("hidden", "gate"):
            found = {r.decision.value for r in plan.values if r.label == label}
            wanted = {"keep"} if label in save else {"recompute"} if label in recompute else {"keep", "recompute"}
            assert found <= wanted


def test_names_survive_inductor():
    plans = check_backend(named, count=2, save=["hidden"])
    assert {r.decision.value for plan in plans for r in plan.values if r.label == "hidden"} == {"keep"}


def two_names(first, second):
    def function(x, w):
        y = rematpass.name((x @ w).tanh(), first)
        return rematpass.name((y @ w).sigmoid(), second) @ w

    return lambda: (function, (leaf(64, 8), leaf(8, 8)))


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_cached_step_is_taken_only_for_the_same_names(names):
    """Both graphs are equal but for the names; torch's own cache does not see these."""
    executor = Backend("none", recompute=["a"])
    run_step(two_names(*names), executor)
    again = {record.op for record in executor.plans[0].values if record.decision == "recompute"}
    assert again == {"tanh" if names[0] == "a" else "sigmoid"}


def test_a_name_nobody_gave():
    model, arguments = named()
    with pytest.raises(rematpass.OptionError, match=r"'hiden' matches no .*Nearest: hidden"):
        OpByOp("none", save=["hiden"])(model)(*arguments)


@pytest.mark.parametrize(("value", "label"), [(torch.ones(2), ""), (torch.ones(2), 3), ([torch.ones(2)], "x")])
def test_names_that_are_none(value, label):
    with pytest.raises(rematpass.OptionError, match="name"):
        rematpass.name(value, label)


def test_a_name_changes_nothing_in_eager():
    x = torch.randn(3, 1, 2).requires_grad_()
    y = rematpass.name(x, "x")
    assert y.data_ptr() == x.data_ptr()
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    z = torch.zeros(2)
    rematpass.name(z, "z").add_(1)
    assert torch.equal(z, torch.ones(2))
