"""Functions that free memory and run before the peak of the backward."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.schedule import check_schedule
from rematpass.solve.liveness import find_peak, simulate
from rematpass.solve.lowest import in_lowest_order
from rematpass.solve.order import make_decision, order_backward
from rematpass.solve.program import Schedule
from tests.orders import let_hurry, tidy_backward
from tests.programs import EXTERN, PART, POINTWISE, VIEW, Builder
from tests.strategies import decisions, programs, stacked_programs

WIDE = 100


def gated(*, is_fixed=False, narrow=16, wide=WIDE, access=0, times=None):
    """A gated layer's backward: the gradients of both halves, each with the product that it is for.

    Both are made of one tangent and of what the other half kept. The second is two steps long, through a view; with
    `times` it also reads something small, all over as often.
    """
    b = Builder()
    weight = b.given(8)
    gate = b.add(EXTERN, weight, size=WIDE, ns=10)
    up = b.add(EXTERN, weight, gate, size=WIDE, ns=10)
    tangent = b.add(EXTERN, b.tangent(8), size=WIDE)
    of_up = b.add(POINTWISE, tangent, gate, size=WIDE)
    product = b.add(EXTERN, of_up, size=narrow)
    step = b.add(POINTWISE, tangent, up, size=2 * wide)
    shown = b.add(VIEW, step)
    seen = b.view(gate, access) if access else gate
    small = [] if times is None else [b.add(POINTWISE, size=8)]
    factors = [b.add(POINTWISE, v, size=wide, times=times) for v in small]
    of_gate = b.add(POINTWISE, shown, seen, *factors, size=wide)
    other = b.add(EXTERN, of_gate, size=narrow)
    program = b.finish([b.add(EXTERN, gate, up, size=8)], [product, other], is_fusing=True)
    fixed = tuple(is_fixed and v == product for v in range(len(program)))
    return replace(program, is_fixed=fixed), (tangent, of_up, product, step, shown, of_gate, other), {gate, up}


def test_a_function_that_frees_two_tensors_runs_before_the_product():
    program, (tangent, of_up, product, step, shown, of_gate, other), kept = gated()
    schedule = Schedule(program.forward_ops, (tangent, of_up, product, step, shown, of_gate, other))
    earlier = let_hurry(program, schedule)
    assert earlier.backward == (tangent, of_up, step, shown, of_gate, product, other)
    assert find_peak(program, schedule)[1] == product
    assert find_peak(program, earlier)[0] < find_peak(program, schedule)[0]
    assert order_backward(program, kept).kept == kept


@pytest.mark.parametrize("changed", [{"is_fixed": True}, {"narrow": 0}, {"wide": 4 * WIDE}])
def test_it_stays_where_nothing_gets_lower(changed):
    """Where the product has effects, where it is not the peak, and where the function makes more than it frees."""
    program, (tangent, of_up, product, step, shown, of_gate, other), _ = gated(**changed)
    schedule = Schedule(program.forward_ops, (tangent, of_up, product, step, shown, of_gate, other))
    assert let_hurry(program, schedule).backward == schedule.backward


@pytest.mark.parametrize(("access", "is_moved"), [(0, True), (1, False)])
def test_what_reads_slices_stays(access, is_moved):
    """An executor joins kernels that read them in ways of its own."""
    program, (tangent, of_up, product, step, shown, of_gate, other), _ = gated(access=access)
    views = range(shown + 1, of_gate)  # of the gate; none without an access of its own
    schedule = Schedule(program.forward_ops, (tangent, of_up, product, step, shown, *views, of_gate, other))
    assert (let_hurry(program, schedule).backward != schedule.backward) == is_moved


@pytest.mark.parametrize("times", [0, 4])
def test_what_reads_a_number_or_a_factor_for_each_row_does_not_stay(times):
    program, (tangent, of_up, product, step, shown, of_gate, other), _ = gated(times=times)
    steps = step, shown, of_gate - 2, of_gate - 1, of_gate
    schedule = Schedule(program.forward_ops, (tangent, of_up, product, *steps, other))
    earlier = tangent, of_up, *steps, product, other
    assert let_hurry(program, schedule).backward == earlier


def test_it_does_not_come_between_an_op_and_its_results():
    b = Builder()
    x = b.add(EXTERN, b.given(8), size=WIDE, ns=10)
    tangent = b.add(EXTERN, b.tangent(8), size=WIDE)
    pair = b.add(EXTERN, tangent, size=0)
    one, two = b.add(PART, pair, size=4), b.add(PART, pair, size=4)
    heavy = b.add(EXTERN, one, two, size=2 * WIDE)
    product = b.add(POINTWISE, tangent, x, size=WIDE)
    last = b.add(EXTERN, product, heavy, size=8)
    program = b.finish([b.add(EXTERN, x, size=8)], [last])
    order = (tangent, pair, one, two, heavy, product, last)
    earlier = let_hurry(program, Schedule(program.forward_ops, order)).backward
    assert earlier == (tangent, pair, one, two, product, heavy, last)


def test_searches_go_on_from_where_it_was():
    program, order, kept = gated()
    decision = make_decision(program, Schedule(program.forward_ops, order))
    assert decision.kept == kept
    point = in_lowest_order(program, decision)
    assert point.peak_bytes < find_peak(program, point.start.schedule)[0]
    assert point.start.kept == point.decision.kept
    assert Counter(point.start.schedule.backward) == Counter(point.decision.schedule.backward)


@settings(deadline=None, max_examples=600, derandomize=True)
@given(st.one_of(programs(), programs(is_fusing=True), stacked_programs()), st.data())
def test_every_plan_stays_valid_and_takes_no_more(program, data):
    decision = data.draw(decisions(program))
    for schedule in (decision.schedule, tidy_backward(program, decision.schedule)):
        earlier = make_decision(program, let_hurry(program, schedule))
        assert Counter(earlier.schedule.backward) == Counter(schedule.backward)
        check_schedule(program, earlier, [str(v) for v in range(len(program))])
        before, after = (max(simulate(program, s).backward_bytes) for s in (schedule, earlier.schedule))
        assert after < before or earlier.schedule.backward == schedule.backward
