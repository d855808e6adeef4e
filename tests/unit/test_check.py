"""The checkers catch what they are there for."""

from dataclasses import replace

import pytest
import torch
from functorch.compile import aot_function, nop
from torch import fx

import rematpass
from rematpass.check.schedule import check_schedule
from rematpass.check.split import check_split
from rematpass.errors import SplitError
from rematpass.solve.order import order_backward
from rematpass.solve.program import Decision, Schedule
from tests.programs import EXTERN, PART, Builder

NAMES = ["x", "a", "b", "t", "g", "h", "k"]
X, A, B, T, G, H, K = range(7)


def program(**flags):
    b = Builder()
    b.given(8)
    b.add(EXTERN, X, size=8, ns=1)
    b.add(EXTERN, A, size=8, ns=1, **flags)
    b.tangent(8)
    b.add(EXTERN, T, B, size=8)
    b.add(EXTERN, G, A, size=8)
    return b.finish([B], [H])


def check(p, decision=None, *, kept=(A, B), forward=(X, A, B), backward=(G, H)):
    check_schedule(p, decision or Decision(frozenset(kept), Schedule(forward, backward), 0), NAMES)


@pytest.mark.parametrize("kept", [(), (A,), (B,), (A, B)])
def test_what_the_planner_makes_passes(kept):
    check(program(), order_backward(program(), kept))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kept": (B,)}, "h, but a is neither kept nor computed"),
        ({"kept": (B,), "backward": (G, H, A)}, "h, but a is neither"),
        ({"backward": (H, G)}, "h, but g is neither"),
        ({"backward": (G,)}, "h belongs to the backward and runs 0 times"),
        ({"backward": (G, G, H)}, "g belongs to the backward and runs 2 times"),
        ({"forward": (X, B, A)}, "computes b before a"),
        ({"forward": (X, A)}, "does not compute its output b"),
    ],
)
def test_broken_schedules(fault, message):
    with pytest.raises(SplitError, match=message):
        check(program(), **fault)


def test_parts_away_from_what_makes_them():
    b = Builder()
    b.given(8)
    b.add(EXTERN, X, size=8, ns=1)
    several = b.add(EXTERN, A, ns=1)
    t = b.tangent(8)
    part, g = b.add(PART, several, size=8), b.add(EXTERN, t, A, size=8)
    p = b.finish([A], [part, g])
    check(p, kept=(A,), forward=(X, A), backward=(several, part, g))
    with pytest.raises(SplitError, match="g does not run right behind b, which makes it"):
        check(p, kept=(A,), forward=(X, A), backward=(several, g, part))


def test_forbidden_recomputation():
    with pytest.raises(SplitError, match="b is recomputed but must not be"):
        check(program(may_recompute=False), backward=(B, G, H))


def test_forbidden_keeping():
    with pytest.raises(SplitError, match="b is kept but must not be"):
        check(program(may_keep=False))


def test_two_kept_values_of_one_storage():
    b = Builder()
    b.given(8)
    b.add(EXTERN, X, size=8, ns=1)
    view = b.view(A)
    b.tangent(8)
    b.add(EXTERN, view + 1, A, size=8)
    b.add(EXTERN, view + 2, view, size=8)
    made = b.finish([A], [view + 3])
    with pytest.raises(SplitError, match="a and b are both kept, but share their memory"):
        check(made, kept=(A, view), forward=(X, A, view), backward=(view + 2, view + 3))


def test_kept_but_never_made():
    p = replace(program(), forward_outputs=(A,))
    with pytest.raises(SplitError, match="b is kept but the forward does not compute it"):
        check(p, forward=(X, A))


def test_a_backward_that_runs_in_the_forward():
    with pytest.raises(SplitError):
        check(program(), forward=(X, A, B, G), backward=(H,))


@pytest.mark.parametrize(("backward", "may"), [((G, H, K), True), ((H, G, K), False), ((G, K, H), False)])
def test_effects_keep_their_place(backward, may):
    b = Builder()
    b.given(8)
    b.add(EXTERN, X, size=8, ns=1)
    b.add(EXTERN, A, size=8, ns=1)
    b.tangent(8)
    b.add(EXTERN, T, B, size=8)
    b.add(EXTERN, T, A, size=8, is_fixed=True)
    b.add(EXTERN, T, X, size=8)
    made = b.finish([B], [G, H, K])
    if may:
        check(made, backward=backward)
    else:
        with pytest.raises(SplitError, match="has effects and changed places"):
            check(made, backward=backward)


def test_lost_gradient():
    p = replace(program(), backward_outputs=(H, A))
    with pytest.raises(SplitError, match="does not compute its output a"):
        check(replace(p, inputs=(*p.inputs[:H], (G,))), kept=(B,))


def halves():
    """Forward and backward of x -> sin -> exp -> sum, as they were emitted."""
    made = []

    def split(*args, **kwargs):
        made.append(inner(*args, **kwargs))
        return made[-1]

    inner = rematpass.partition_fn(memory_budget="none")
    x = torch.ones(3, requires_grad=True)
    aot_function(lambda x: x.sin().exp().sum(), nop, nop, partition_fn=split)(x)
    return made[0]


def output_of(gm):
    return next(n for n in gm.graph.nodes if n.op == "output")


def test_a_true_split_passes():
    check_split(*halves(), num_fwd_outputs=1)


def test_a_saved_value_nobody_takes():
    forward, backward = halves()
    output = output_of(forward)
    (leaves,) = output.args
    extra = next(n for n in forward.graph.nodes if n.op == "call_function" and n not in leaves)
    output.args = ((*leaves, extra),)
    with pytest.raises(SplitError):
        check_split(forward, backward, 1)


def test_a_value_taken_that_nobody_saves():
    forward, backward = halves()
    output = output_of(forward)
    (leaves,) = output.args
    output.args = (leaves[:-1],)
    with pytest.raises(SplitError):
        check_split(forward, backward, 1)


def test_a_saved_list_of_tensors():
    """Autograd saves tensors; what an operator returns as a list crosses to the backward one by one."""
    forward, backward = halves()
    (leaves,) = output_of(forward).args
    leaves[-1].meta["val"] = [leaves[-1].meta["val"]]
    with pytest.raises(SplitError, match="several tensors"):
        check_split(forward, backward, 1)


def test_saved_values_in_another_order():
    """Two saved values of one shape exchanged: every shape fits, every gradient is wrong."""
    made = []

    def split(*args, **kwargs):
        made.append(inner(*args, **kwargs))
        return made[-1]

    inner = rematpass.partition_fn(memory_budget="none")
    x, y = (torch.ones(3, 3, requires_grad=True) for _ in range(2))
    aot_function(lambda x, y: (x @ y.tanh()).exp().sum(), nop, nop, partition_fn=split)(x, y)
    forward, backward = made[0]
    output = output_of(forward)
    (leaves,) = output.args
    if not isinstance(leaves[1], fx.Node) or len(leaves) < 3:
        pytest.fail("the example saves fewer than two values")
    output.args = ((leaves[0], leaves[2], leaves[1], *leaves[3:]),)
    with pytest.raises(SplitError):
        check_split(forward, backward, 1)
