"""The bound against every backward sequence of tiny programs."""

from itertools import chain, combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.schedule import check_schedule
from rematpass.errors import SplitError
from rematpass.solve.bound import HullBound, hull_bound
from rematpass.solve.closure import Closure
from rematpass.solve.order import forward_sequence, make_decision
from rematpass.solve.program import Kind, Schedule
from rematpass.solve.search import sweep_frontier
from tests.naive_simulator import naive_timeline
from tests.programs import EXTERN, POINTWISE, Builder, Layer, layered
from tests.strategies import programs, stacked_programs


def every_plan(program):
    """(peak, extra ns) of every valid sequence that computes any subset of values again before each backward op."""
    unpaid = (Kind.INPUT, Kind.SYMBOL)
    again = [
        v
        for v, kind in enumerate(program.kind)
        if not program.is_backward[v] and kind not in unpaid and program.may_recompute[v]
    ]
    subsets = list(chain.from_iterable(combinations(again, k) for k in range(len(again) + 1)))
    ops = [v for v, b in enumerate(program.is_backward) if b and program.kind[v] is not Kind.INPUT]
    forward = forward_sequence(program)
    for chosen in product(subsets, repeat=len(ops)):
        backward = tuple(v for subset, op in zip(chosen, ops, strict=True) for v in (*subset, op))
        decision = make_decision(program, Schedule(forward, backward))
        try:
            check_schedule(program, decision, [str(v) for v in range(len(program))])
        except SplitError:
            continue
        live = chain(*naive_timeline(program, decision.schedule))
        yield max(live, default=program.static_bytes), decision.recompute_ns


@settings(deadline=None, max_examples=40, derandomize=True)
@given(programs(most_forward=3, most_backward=2))
def test_no_plan_beats_the_bound(program):
    if sum(not b for b in program.is_backward) > 6:
        return
    frontier = sweep_frontier(program)
    for peak, extra in every_plan(program):
        assert frontier.bound.extra_ns_at(peak) <= extra


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.one_of(programs(), stacked_programs()))
def test_no_point_of_the_frontier_beats_the_bound(program):
    frontier = sweep_frontier(program)
    for p in frontier.points:
        assert frontier.bound.extra_ns_at(p.peak_bytes) <= p.extra_ns


def test_no_plan_beats_the_bound_where_only_the_backward_wants_a_value():
    """1 - tanh(x)^2 runs once in any plan: that is no extra time."""
    b = Builder()
    a = b.add(EXTERN, b.given(8), size=64, ns=10)
    y = b.add(EXTERN, a, size=8, ns=3)
    helper = b.add(POINTWISE, a, size=64, ns=7)
    g = b.add(EXTERN, b.tangent(8), helper, size=8)
    program = b.finish([y], [g])
    frontier = sweep_frontier(program)
    assert min(extra for _, extra in every_plan(program)) == 0
    assert frontier.bound.extra_ns_at(None) == 0
    for peak, extra in every_plan(program):
        assert frontier.bound.extra_ns_at(peak) <= extra


def test_the_bound_is_the_line_between_corners():
    bound = HullBound((100, 60, 0), (0, 10, 100), fixed_bytes=1000)
    assert bound.extra_ns_at(None) == bound.extra_ns_at(1100) == bound.extra_ns_at(5000) == 0
    assert bound.extra_ns_at(1080) == 5
    assert bound.extra_ns_at(1060) == 10
    assert bound.extra_ns_at(1030) == 55
    assert bound.extra_ns_at(10) == 100


def test_points_above_the_hull_are_dropped():
    b = Builder()
    x = b.given(40)
    y = b.add(EXTERN, x, size=2)
    program = b.finish([y], [b.add(EXTERN, b.tangent(2), size=1)])
    hull = [Closure(None, None, kept, ns) for kept, ns in [(100, 0), (80, 90), (50, 20), (0, 100)]]
    bound = hull_bound(program, hull)
    assert (bound.kept_bytes, bound.extra_ns, bound.fixed_bytes) == ((100, 50, 0), (0, 20, 100), 42)


@pytest.mark.parametrize("is_residual", [False, True])
def test_the_bound_is_near_on_layers(is_residual):
    """Half way down, the plan found is within half of the bound."""
    frontier = sweep_frontier(layered([Layer()] * 12, is_residual=is_residual))
    top, bottom = frontier.points[0].peak_bytes, frontier.points[-1].peak_bytes
    budget = (top + bottom) // 2
    assert frontier.points[frontier.choose(budget)].extra_ns <= frontier.bound.extra_ns_at(budget) * 3 / 2
