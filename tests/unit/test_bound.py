"""The bound against every backward sequence of tiny programs."""

from itertools import chain, combinations, permutations, product
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.schedule import check_schedule
from rematpass.errors import SplitError
from rematpass.solve.bound import Bound, interpolate
from rematpass.solve.moments import Moment, Moments
from rematpass.solve.order import make_decision
from rematpass.solve.program import Kind, Schedule
from rematpass.solve.search import Frontier
from tests.naive_simulator import naive_timeline
from tests.programs import EXTERN, PART, POINTWISE, REDUCTION, Builder, Layer, layered
from tests.strategies import programs, stacked_programs


def recomputable(program):
    unpaid = (Kind.INPUT, Kind.SYMBOL)
    return [
        v
        for v, kind in enumerate(program.kind)
        if not program.is_backward[v] and kind not in unpaid and program.may_recompute[v]
    ]


def every_plan(program):
    """(peak, extra ns) of every valid sequence that computes any subset of values again before each backward op."""
    again, ops = recomputable(program), backward_ops(program)
    subsets = list(chain.from_iterable(combinations(again, k) for k in range(len(again) + 1)))
    for chosen in product(subsets, repeat=len(ops)):
        backward = tuple(v for subset, op in zip(chosen, ops, strict=True) for v in (*subset, op))
        yield from plan_of(program, backward)


def plan_of(program, backward):
    """(peak, extra ns) of the sequence; nothing where it is not valid."""
    decision = make_decision(program, Schedule(program.forward_ops, backward))
    try:
        check_schedule(program, decision, [str(v) for v in range(len(program))])
    except SplitError:
        return
    live = chain(*naive_timeline(program, decision.schedule))
    yield max(live, default=program.static_bytes), decision.recompute_ns


def bound_of(program):
    return Bound(program)


def backward_ops(program):
    return [v for v, b in enumerate(program.is_backward) if b and program.kind[v] is not Kind.INPUT]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(programs(most_forward=3, most_backward=2))
def test_no_plan_beats_the_bound(program):
    if len(recomputable(program)) * len(backward_ops(program)) > 12:
        return  # more than 4,096 sequences
    bound, moments = bound_of(program), backward_ops(program)
    plans = set(every_plan(program))  # thousands of plans, few pairs
    slowest = max(extra for _, extra in plans)
    for peak, extra in plans:
        assert bound.extra_ns_at(peak, moments) <= extra
        assert bound.extra_ns_at(peak, moments, slowest) <= extra
        assert bound.peak_bytes <= peak


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.one_of(programs(), stacked_programs(), programs(is_fusing=True)))
def test_no_plan_of_the_frontier_beats_the_bound(program):
    frontier, moments = Frontier(program), backward_ops(program)
    curve = frontier.curve(5)
    for p in curve:
        assert frontier.bound.extra_ns_at(p.peak_bytes, moments) <= p.extra_ns
        assert frontier.bound.extra_ns_at(p.peak_bytes, moments, 2 * curve[-1].extra_ns) <= p.extra_ns
        assert frontier.bound.peak_bytes <= p.peak_bytes


def test_no_plan_beats_the_bound_where_only_the_backward_wants_a_value():
    """1 - tanh(x)^2 runs once in any plan: that is no extra time."""
    b = Builder()
    a = b.add(EXTERN, b.given(8), size=64, ns=10)
    y = b.add(EXTERN, a, size=8, ns=3)
    helper = b.add(POINTWISE, a, size=64, ns=7)
    g = b.add(EXTERN, b.tangent(8), helper, size=8)
    program = b.finish([y], [g])
    bound = bound_of(program)
    assert min(extra for _, extra in every_plan(program)) == 0
    assert bound.extra_ns_at(None) == 0
    for peak, extra in every_plan(program):
        assert bound.extra_ns_at(peak, backward_ops(program)) <= extra


def two_layers(sizes):
    """Two layers and their gradients; each gradient of an activation stands beside that of a weight."""
    wide, narrow, tangent, last, between, first = sizes
    b = Builder()
    w, u = b.given(8), b.given(8)
    h = b.add(EXTERN, w, size=wide, ns=10)
    a = b.add(EXTERN, h, size=narrow, ns=3)
    y = b.add(EXTERN, a, u, size=8, ns=3, may_recompute=False)
    t = b.tangent(tangent)
    gu = b.add(EXTERN, t, a, size=last)
    ga = b.add(EXTERN, t, u, size=8)
    gh = b.add(EXTERN, ga, a, size=between)
    gw = b.add(EXTERN, gh, h, size=first)
    return b.finish([y], [gu, gw])


def every_order(program):
    """Every plan of `every_plan`, with the ops of the backward in any order that their inputs allow."""
    again, ops = recomputable(program), backward_ops(program)
    subsets = list(chain.from_iterable(combinations(again, k) for k in range(len(again) + 1)))
    orders = filter(lambda order: is_possible(program, order), permutations(ops))
    for order, chosen in product(orders, product(subsets, repeat=len(ops))):
        backward = tuple(v for subset, op in zip(chosen, order, strict=True) for v in (*subset, op))
        yield from plan_of(program, backward)


def is_possible(program, order):
    return all(u not in order[i:] for i, v in enumerate(order) for u in program.inputs[v])


SIZES = st.tuples(*[st.sampled_from([8, 40, 100, 250])] * 6)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(SIZES)
def test_no_plan_in_any_order_beats_the_bound(sizes):
    program = two_layers(sizes)
    bound, moments = bound_of(program), backward_ops(program)
    plans = set(every_order(program))
    slowest = max(extra for _, extra in plans)
    for peak, extra in plans:
        assert bound.extra_ns_at(peak, moments) <= extra
        assert bound.extra_ns_at(peak, moments, slowest) <= extra
        assert bound.peak_bytes <= peak


def test_a_gradient_beside_another_counts_before_between_or_after():
    """When the last weight's gradient is made, it, its tangent, or that and the other layer's gradient are there."""
    program = two_layers((100, 100, 400, 200, 200, 8))
    bound, moments = bound_of(program), backward_ops(program)
    enough = program.static_bytes + 8 + 100 + 100 + 400 + 200 + 8  # all kept, and ga
    plans = set(every_order(program))
    assert min(peak for peak, extra in plans if not extra) == enough
    assert bound.extra_ns_at(enough, moments) == 0
    assert 0 < bound.extra_ns_at(enough - 1, moments) <= min(extra for peak, extra in plans if peak < enough)


def written_out(sizes):
    """Scores made a softmax by a function, whose gradient a function makes; beside both stands a value `other`."""
    scores, softmax, arriving, other = sizes
    b = Builder()
    w, u = b.given(8), b.given(8)
    h = b.add(EXTERN, w, size=other, ns=7)
    s = b.add(EXTERN, h, size=scores, ns=3)
    p = b.add(POINTWISE, s, size=softmax, ns=1)
    y = b.add(EXTERN, p, u, size=8, ns=3, may_recompute=False)
    t = b.tangent(8)
    dp = b.add(EXTERN, t, u, size=arriving)
    ds = b.add(POINTWISE, dp, p, size=scores)
    dh = b.add(EXTERN, ds, u, size=8)
    gw = b.add(EXTERN, dh, h, size=8)
    return b.finish([y], [gw], is_fusing=True)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.tuples(*[st.sampled_from([8, 40, 100, 250])] * 4))
def test_no_plan_beats_the_bound_at_a_function(sizes):
    program = written_out(sizes)
    bound, moments = bound_of(program), backward_ops(program)
    for peak, extra in set(every_plan(program)):
        assert bound.extra_ns_at(peak, moments) <= extra


@settings(deadline=None, max_examples=60, derandomize=True)
@given(programs(most_forward=3, most_backward=2, is_fusing=True))
def test_no_plan_that_fuses_beats_the_bound(program):
    if len(recomputable(program)) * len(backward_ops(program)) > 12:
        return
    bound, moments = bound_of(program), backward_ops(program)
    for peak, extra in set(every_plan(program)):
        assert bound.extra_ns_at(peak, moments) <= extra
        assert bound.peak_bytes <= peak


def test_while_a_function_runs_what_it_is_made_of_is_there():
    """The scores, or what is made of them, beside the gradient that arrives: for `other` there is no room."""
    program = written_out((100, 100, 100, 100))
    bound, moments = bound_of(program), backward_ops(program)
    products = [v for v in moments if program.kind[v] is EXTERN]
    budget = program.static_bytes + 8 + 100 + 100 + 50
    assert bound.extra_ns_at(budget, products) == 4  # scores and softmax once more, after the gradient has arrived
    assert bound.extra_ns_at(budget, moments) == 7  # what `other` takes


def test_what_a_function_is_made_of_by_way_of_what_is_wanted_later_need_not_be_there():
    """A sum over layers, each of which adds a maximum, read by the function of the first gradient.

    Weights' gradients read the sum as it was in each layer, through a view: there all maxima before may come from it.
    """
    b = Builder()
    weight, x = b.given(8), b.given(100)
    layers = []
    for _ in range(12):
        seen = b.view(x)
        found = b.add(REDUCTION, b.add(EXTERN, seen, weight, size=100, ns=20), may_keep=False, ns=2)
        highest, place = b.add(PART, found, size=100), b.add(PART, found, size=200)
        layers.append((place, seen))
        x = b.add(POINTWISE, x, highest, size=100, ns=1)
    loss, g, returned = b.add(REDUCTION, x, size=8, ns=1), b.add(POINTWISE, b.tangent(8), x, size=100), []
    for place, seen in reversed(layers):
        spread = b.add(REDUCTION, g, place, size=100)
        returned.append(b.add(EXTERN, spread, seen, size=8))
        g = b.add(POINTWISE, g, b.add(EXTERN, spread, weight, size=100), size=100)
    program = b.finish([loss], [*returned, g], is_fusing=True)
    frontier, moments = Frontier(program), backward_ops(program)
    for p in frontier.curve(16):
        assert frontier.bound.extra_ns_at(p.peak_bytes, moments) <= p.extra_ns


def test_of_a_gradient_made_by_functions_the_smallest_on_its_way_counts():
    """An op beside two, one of which is over and one to come: what leads from the one to the other is there."""
    b = Builder()
    a = b.add(EXTERN, b.given(16), size=8, ns=10)
    y = b.add(EXTERN, a, size=8, ns=3)
    t = b.tangent(8)
    first = b.add(EXTERN, t, a, size=100)
    wide = b.add(POINTWISE, first, size=200)
    small = b.add(POINTWISE, wide, size=60)
    last = b.add(EXTERN, small, size=8)
    beside = b.add(EXTERN, t, a, size=8)
    program = b.finish([y], [last, beside], is_fusing=True)
    forced = Moments(program).case_at(Moment(beside, before=(first,), after=(last,))).forced_bytes
    assert forced == 60 + 8 + 8  # and the tangent, and its own


def test_the_bound_is_the_line_between_neighbours():
    upper, lower = SimpleNamespace(kept_bytes=60, extra_ns=10), SimpleNamespace(kept_bytes=0, extra_ns=100)
    assert interpolate(upper, lower, None) == interpolate(upper, lower, 60) == interpolate(upper, lower, 5000) == 10
    assert interpolate(upper, lower, 30) == 55
    assert interpolate(upper, lower, 0) == interpolate(upper, lower, -5) == 100


def test_the_largest_single_op_bounds_the_peak():
    """16 bytes of inputs; the second op reads 64, writes 8, uses 100 as scratch: nothing gets below 188."""
    b = Builder()
    a = b.add(EXTERN, b.given(16), size=64, ns=10)
    y = b.add(EXTERN, a, size=8, ns=3, workspace=100)
    g = b.add(EXTERN, b.tangent(8), a, size=8)
    program = b.finish([y], [g])
    assert bound_of(program).peak_bytes == 16 + 64 + 8 + 100


@pytest.mark.parametrize(("tangent", "waiting"), [(120, 100), (8, 8)])
def test_a_gradient_made_or_what_it_is_made_of_counts_at_a_moment(tangent, waiting):
    """Two layers; while the first one's backward runs, the gradient of the second weight, or its tangent, is there."""
    b = Builder()
    w, u = b.given(100), b.given(100)
    h = b.add(EXTERN, w, size=50, ns=10)
    y = b.add(EXTERN, h, u, size=8, ns=3)
    t = b.tangent(tangent)
    gu = b.add(EXTERN, t, h, size=100)
    gh = b.add(EXTERN, t, u, size=50)
    gw = b.add(EXTERN, gh, size=100)
    program = b.finish([y], [gu, gw])
    first_layer = 200 + 8 + waiting + 50 + 100
    second_layer = 200 + 8 + tangent + 50 + 100
    end = 200 + 8 + 100 + 100
    assert bound_of(program).peak_bytes == max(first_layer, second_layer, end)


def test_all_that_is_returned_bounds_the_peak():
    """A hundred small gradients, of which no op meets more than its own."""
    b = Builder()
    weights = [b.given(100) for _ in range(100)]
    y = b.add(EXTERN, *weights, size=8, ns=3)
    t = b.tangent(8)
    program = b.finish([y], [b.add(EXTERN, t, w, size=100) for w in weights])
    assert bound_of(program).peak_bytes == 100 * 100 + 8 + 100 * 100


def test_a_tangent_handed_back_is_no_end_of_the_backward():
    """No op runs, so at no moment is it counted."""
    b = Builder()
    y = b.add(EXTERN, b.given(16), size=8, ns=10)
    program = b.finish([y], [b.tangent(64)])
    assert bound_of(program).peak_bytes == 16 + 8


@pytest.mark.parametrize("is_residual", [False, True])
def test_the_bound_is_near_on_layers(is_residual):
    """Between 20 and 80 % of the span of 24 equal layers, the plan is within 2 % and one small value of the bound.

    Ops take 10 to 30 ns here: one of 10 more than the bound says is all that 2 % do not cover, at two of the budgets.
    """
    frontier = Frontier(layered([Layer()] * 24, is_residual=is_residual))
    top, bottom = frontier.fastest.peak_bytes, frontier.smallest.peak_bytes
    for percent in range(20, 81, 3):
        budget = bottom + (top - bottom) * percent // 100
        point = frontier.choose(budget)
        assert point.extra_ns <= frontier.bound_ns(budget, point) * 1.02 + 10
