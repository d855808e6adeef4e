"""Gradients of weights that wait where they are the peak of the backward."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.schedule import check_schedule
from rematpass.solve.liveness import find_peak, simulate
from rematpass.solve.lowest import in_lowest_order
from rematpass.solve.order import let_wait, let_wait_longer, make_decision, order_backward
from rematpass.solve.program import Schedule
from tests.orders import let_hurry, tidy_backward
from tests.programs import EXTERN, PART, POINTWISE, Builder
from tests.strategies import decisions, programs

HEAD = 100


def headed(kept=90, *, is_cast=False, is_fixed=False):
    """A layer that keeps `kept` bytes below a head whose weight's gradient is as large as the tangent.

    The backward: of the weight, of the head, of the layer, which sets free what was kept.
    """
    b = Builder()
    weight = b.given(8)
    x = b.add(EXTERN, weight, size=kept, ns=10)
    y = b.add(EXTERN, weight, size=8, ns=10)
    tangent = b.add(EXTERN, b.tangent(8), size=HEAD)
    of_weight = b.add(EXTERN, tangent, y, size=HEAD)
    of_head = b.add(EXTERN, tangent, size=8)
    of_layer = b.add(EXTERN, of_head, x, size=8)
    cast = b.add(POINTWISE, of_weight, size=2 * HEAD) if is_cast else of_weight
    program = b.finish([b.add(EXTERN, x, y, size=8)], [cast, of_layer])
    fixed = tuple(is_fixed and v == of_layer for v in range(len(program)))
    return replace(program, is_fixed=fixed), (tangent, of_weight, of_head, of_layer, cast), (x, y)


def test_a_gradient_waits_until_what_a_layer_kept_is_gone():
    program, (tangent, of_weight, of_head, of_layer, _), kept = headed()
    schedule = Schedule(program.forward_ops, (tangent, of_weight, of_head, of_layer))
    later = let_wait(program, schedule)
    assert later.backward == (tangent, of_head, of_layer, of_weight)
    assert find_peak(program, schedule)[1] == of_weight
    # Without the 90 bytes that the layer kept, but with its gradient of 8.
    assert find_peak(program, schedule)[0] - find_peak(program, later)[0] == 90 - 8
    assert set(kept) == order_backward(program, kept).kept


def test_what_is_made_of_it_goes_along():
    program, (tangent, of_weight, of_head, of_layer, cast), _ = headed(is_cast=True)
    schedule = Schedule(program.forward_ops, (tangent, of_weight, cast, of_head, of_layer))
    assert let_wait(program, schedule).backward == (tangent, of_head, of_layer, of_weight, cast)


def test_what_is_computed_again_for_it_alone_goes_along():
    program, (tangent, of_weight, of_head, of_layer, _), (_, y) = headed()
    schedule = Schedule(program.forward_ops, (tangent, y, of_weight, of_head, of_layer))
    assert let_wait(program, schedule).backward == (tangent, of_head, of_layer, y, of_weight)


@pytest.mark.parametrize(("kept", "is_fixed"), [(0, False), (90, True)])
def test_it_stays_where_nothing_gets_lower(kept, is_fixed):
    """Where the layer sets nothing free, and where it has effects that nothing moves past."""
    program, (tangent, of_weight, of_head, of_layer, _), _ = headed(kept, is_fixed=is_fixed)
    schedule = Schedule(program.forward_ops, (tangent, of_weight, of_head, of_layer))
    assert let_wait(program, schedule).backward == schedule.backward


def test_it_does_not_come_between_an_op_and_its_results():
    b = Builder()
    weight = b.given(8)
    x = b.add(EXTERN, weight, size=90, ns=10)
    tangent = b.add(EXTERN, b.tangent(8), size=HEAD)
    of_weight = b.add(EXTERN, tangent, size=HEAD)
    of_head = b.add(EXTERN, tangent, size=8)
    pair = b.add(EXTERN, of_head, x, size=0)
    one, other = b.add(PART, pair, size=4), b.add(PART, pair, size=4)
    program = b.finish([b.add(EXTERN, x, size=8)], [of_weight, one, other])
    order = (tangent, of_weight, of_head, pair, one, other)
    later = let_wait(program, Schedule(program.forward_ops, order)).backward
    assert later.index(one) == later.index(pair) + 1
    assert later.index(other) == later.index(pair) + 2


def test_a_gradient_that_another_one_needs_does_not_wait():
    b = Builder()
    x = b.add(EXTERN, b.given(8), size=90, ns=10)
    tangent = b.add(EXTERN, b.tangent(8), size=HEAD)
    shared = b.add(EXTERN, tangent, size=HEAD)
    of_layer = b.add(EXTERN, tangent, x, size=8)
    total = b.add(EXTERN, shared, of_layer, size=HEAD)
    program = b.finish([b.add(EXTERN, x, size=8)], [total, of_layer])
    assert not program.urgency.may_wait[shared]
    assert program.urgency.may_wait[total]


def headed_gates(of_weight):
    """A head above a gated layer: the gradient of one half takes a place of its own before the other's is made."""
    b = Builder()
    weight = b.given(8)
    gate = b.add(EXTERN, weight, size=44, ns=10)
    up = b.add(EXTERN, weight, gate, size=44, ns=10)
    hidden = b.add(EXTERN, up, size=16, ns=10)
    tangent = b.add(EXTERN, b.tangent(8), size=5 * HEAD)
    of_weight = b.add(EXTERN, tangent, hidden, size=of_weight)
    of_head = b.add(EXTERN, tangent, size=16)
    inner = b.add(EXTERN, of_head, size=44)
    of_up = b.add(POINTWISE, inner, gate, size=44)
    product = b.add(EXTERN, of_up, size=16)
    of_gate = b.add(POINTWISE, inner, gate, up, size=44)
    other = b.add(EXTERN, of_gate, size=16)
    program = b.finish([b.add(EXTERN, gate, up, hidden, size=8)], [of_weight, product, other], is_fusing=True)
    return program, (tangent, of_head, of_weight, inner, of_up, product, of_gate, other)


def test_it_waits_longer_where_a_function_makes_place():
    program, order = headed_gates(80)
    tangent, of_head, of_weight, inner, of_up, product, of_gate, other = order
    schedule = Schedule(program.forward_ops, order)
    assert find_peak(program, schedule)[1] == of_weight
    assert let_wait(program, schedule) == let_hurry(program, schedule) == schedule
    later = let_wait_longer(program, schedule)
    assert later.backward == (tangent, of_head, inner, of_up, of_gate, product, of_weight, other)
    # Beside the tangent are both halves, the first one's gradient, and what both are made of, not the other gradients.
    assert find_peak(program, schedule)[0] - find_peak(program, later)[0] == 80 + 16 - 2 * 44
    assert in_lowest_order(program, make_decision(program, schedule)).decision.schedule == later


def test_it_waits_no_longer_for_less():
    program, order = headed_gates(70)
    schedule = Schedule(program.forward_ops, order)
    assert let_wait_longer(program, schedule) == schedule


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.booleans().flatmap(lambda is_fusing: programs(is_fusing=is_fusing)), st.data())
def test_every_plan_stays_valid_and_takes_no_more(program, data):
    decision = data.draw(decisions(program))
    orders = (decision.schedule, tidy_backward(program, decision.schedule))
    for schedule, move in itertools.product(orders, (let_wait, let_wait_longer)):
        later = make_decision(program, move(program, schedule))
        assert Counter(later.schedule.backward) == Counter(schedule.backward)
        check_schedule(program, later, [str(v) for v in range(len(program))])
        assert max(simulate(program, later.schedule).backward_bytes) <= max(simulate(program, schedule).backward_bytes)
