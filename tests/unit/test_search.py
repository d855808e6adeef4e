"""What a user relies on: one frontier, monotone, simulated, every point a correct program."""

import itertools
import time
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.schedule import check_schedule
from rematpass.solve import effort, search
from rematpass.solve.closure import sweep_closures, values_of
from rematpass.solve.effort import Effort
from rematpass.solve.liveness import find_peak, simulate
from rematpass.solve.moments import whole_problem
from rematpass.solve.order import drop_unread, order_backward
from rematpass.solve.search import Frontier
from rematpass.solve.squeeze import Squeeze, front
from rematpass.solve.stages import find_stages
from tests.naive_simulator import naive_timeline
from tests.programs import EXTERN, PART, POINTWISE, REDUCTION, Builder, Layer, densely_joined, layered
from tests.strategies import programs, stacked_programs

BUDGETS = 9


@pytest.mark.parametrize("size", [1, 4, 100])
def test_a_smaller_peak_is_looked_for_a_few_times(size):
    """A share of a few bytes rounds to nothing: the same plan over and over took seconds for three operators."""
    builder = Builder()
    x = builder.given(size)
    a = builder.add(EXTERN, x, size=size, ns=1)
    b = builder.add(EXTERN, a, size=size, ns=1)
    t = builder.tangent(size)
    program = builder.finish([b], [builder.add(EXTERN, t, a, size=size)])
    start, rounds = Frontier(program).smallest, []

    def spend(ops):
        rounds.append(ops)
        return len(rounds) < 1000

    squeeze = Squeeze(program, [start], 0, lambda decision: start, spend)
    squeeze.go_on([start])
    assert squeeze.plans == [start]
    assert len(rounds) < 300


def test_of_two_ways_to_smaller_peaks_what_is_beaten_is_left_out():
    """One way ends a little lower after plans that take twice as long as all of the other."""
    decision = order_backward(layered([Layer()]), ())
    one, other = (
        [search.FrontierPoint(peak, ns, decision, decision) for peak, ns in way]
        for way in ([(90, 32), (70, 33), (50, 35)], [(51, 17), (51, 18)])
    )
    assert front([*one, *other]) == [other[0], one[-1]]
    assert front([*one, *one]) == one
    assert front([]) == []


def check_frontier(program):
    """Plans at several budgets: correct, simulated, over no budget, falling in peak and rising in time."""
    frontier = Frontier(program)
    frontier.choose(0)  # and so it looks for the smallest peaks
    names = [f"v{v}" for v in range(len(program))]
    top, bottom = frontier.fastest.peak_bytes, frontier.smallest.peak_bytes
    budgets = [top - (top - bottom) * i // (BUDGETS - 1) for i in range(BUDGETS)]
    points = [frontier.choose(budget) for budget in budgets]
    for budget, p in zip(budgets, points, strict=True):
        assert frontier.smallest.peak_bytes <= p.peak_bytes <= budget, "every peak that is named is a budget kept"
        check_schedule(program, p.decision, names)
        own = [v for v in p.decision.schedule.backward if program.is_backward[v]]
        fixed = [v for v in own if program.is_fixed[v]]
        assert fixed == sorted(fixed), "ranks with different plans communicate in the same order"
        assert p.peak_bytes == simulate(program, p.decision.schedule).peak_bytes
        assert p.extra_ns == p.decision.recompute_ns
        assert drop_unread(program, p.decision.schedule) == p.decision.schedule
        assert frontier.bound_ns(budget, p) <= p.extra_ns
        assert frontier.bound.peak_bytes <= p.peak_bytes
    for fast, small in pairwise(points):
        assert fast.peak_bytes >= small.peak_bytes
        assert fast.extra_ns <= small.extra_ns
    return frontier, list(dict.fromkeys(points))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(programs())
def test_random_programs(program):
    _, points = check_frontier(program)
    for p in points:
        forward, backward = naive_timeline(program, p.decision.schedule)
        assert p.peak_bytes == max([*forward, *backward], default=program.static_bytes)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(programs(is_fusing=True))
def test_random_programs_for_a_fusing_executor(program):
    check_frontier(program)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(stacked_programs())
def test_stacks_of_a_random_block(program):
    check_frontier(program)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.one_of(programs(), programs(is_fusing=True), stacked_programs()), st.randoms(use_true_random=False))
def test_what_must_not_be_kept_is_not_kept_though_it_lies_on_a_boundary_or_is_returned(program, random):
    may_keep = [
        may and not (kind in (EXTERN, POINTWISE, REDUCTION) and again and random.random() < 0.5)
        for may, kind, again in zip(program.may_keep, program.kind, program.may_recompute, strict=True)
    ]
    _, points = check_frontier(replace(program, may_keep=tuple(may_keep)))
    assert all(may_keep[v] for p in points for v in p.decision.kept)


LAYERS = st.builds(Layer, st.integers(50, 150), st.integers(800, 1500), st.integers(1, 20), st.integers(1, 20))


@settings(deadline=None, max_examples=12, derandomize=True)
@given(st.lists(LAYERS, min_size=2, max_size=6), st.booleans(), st.booleans())
def test_random_layers(layers, is_residual, is_fusing):
    check_frontier(layered(layers, is_residual=is_residual, is_fusing=is_fusing))


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.one_of(stacked_programs(), programs(is_fusing=True)))
def test_no_run_of_stages_computed_again_as_a_whole_takes_less(program):
    smallest = Frontier(program, Effort(is_local=False)).smallest.peak_bytes
    problem, values = whole_problem(program)
    least = values_of(values, sweep_closures(problem)[-1].kept)
    boundary = find_stages(program).boundary
    for run in search.PLAIN_RUNS:
        plain = order_backward(program, {*least, *itertools.chain(*boundary[run::run])})
        assert smallest <= find_peak(program, plain.schedule)[0]


def compared_layers():
    """Layers with wide middles, begun at two narrow places; comparisons of theirs must not run again, their sum may."""
    b = Builder()
    x = b.given(100)
    layers = []
    for _ in range(6):
        inner = b.add(EXTERN, x, size=100, ns=20)
        scores = b.add(EXTERN, inner, size=1000, ns=20)
        mask = b.add(POINTWISE, scores, size=500, ns=1, may_recompute=False)
        total = b.add(REDUCTION, mask, size=8, ns=1)
        x = b.add(EXTERN, scores, total, size=100, ns=20)
        layers.append((inner, scores, total))
    loss = b.add(EXTERN, x, size=8, ns=1)
    g = b.tangent(100)
    for inner, scores, total in reversed(layers):
        wide = b.add(EXTERN, g, scores, total, size=1000, ns=20)
        g = b.add(EXTERN, wide, inner, size=100, ns=20)
    return b.finish([loss], [g])


def test_the_plainest_plan_keeps_what_is_made_of_a_comparison_instead_of_it():
    program = compared_layers()
    wide = {v for v in range(len(program)) if program.size_bytes[v] >= 500}
    frontier = Frontier(program, Effort(is_local=False))
    assert not wide & frontier.smallest.decision.kept


def test_a_smaller_budget_never_gives_a_higher_peak_or_less_time():
    program = layered([Layer()] * 6, is_residual=True)
    frontier = Frontier(program)
    top, quick = frontier.fastest.peak_bytes, frontier.smallest
    assert frontier.choose(quick.peak_bytes) is quick is frontier.smallest
    assert frontier.choose(1) is None
    bottom = frontier.smallest.peak_bytes
    assert bottom < quick.peak_bytes, "asked for less, it looks again"
    budgets = list(range(top + 50, bottom - 1, -13))
    chosen = [frontier.choose(budget) for budget in budgets]
    assert chosen[0] is frontier.choose(None) is frontier.fastest
    assert frontier.choose(quick.peak_bytes) is quick
    assert frontier.choose(bottom) is frontier.smallest
    assert frontier.choose(bottom - 1) is None
    assert all(p.peak_bytes <= budget for p, budget in zip(chosen, budgets, strict=True))
    assert all(a.peak_bytes >= b.peak_bytes and a.extra_ns <= b.extra_ns for a, b in pairwise(chosen))
    assert [Frontier(program).choose(budget) for budget in budgets[::9]] == chosen[::9], "whatever was asked before"


@pytest.mark.parametrize("seed", [75, 393, 437, 467, 682])
def test_peaks_fall_and_times_rise_over_many_budgets_of_layers_that_all_differ(seed):
    """Halfway between two plans nothing may be found, though something is above or below."""
    random = Random(seed)
    forms = {"is_residual": random.random() < 0.5, "is_fusing": random.random() < 0.5}
    sizes = (50, 300), (300, 3000), (1, 40), (1, 60)
    layers = [Layer(*(random.randint(*size) for size in sizes)) for _ in range(random.randint(8, 20))]
    frontier = Frontier(layered(layers, **forms))
    top, bottom = frontier.fastest.peak_bytes, frontier.smallest.peak_bytes
    chosen = [frontier.choose(top - (top - bottom) * i // 64) for i in range(65)]
    assert all(a.peak_bytes >= b.peak_bytes and a.extra_ns <= b.extra_ns for a, b in pairwise(chosen))


def test_a_plan_with_room_to_spare_names_a_first_step_down_not_the_last():
    frontier = Frontier(layered([Layer()] * 12, is_residual=True))
    fastest, smallest = frontier.fastest, frontier.smallest
    smaller = frontier.next_smaller(fastest)
    assert (fastest.peak_bytes + smallest.peak_bytes) / 2 < smaller.peak_bytes < fastest.peak_bytes
    assert fastest.extra_ns <= smaller.extra_ns < smallest.extra_ns / 2


def test_memory_really_falls_on_layers():
    """12 equal layers: two wide values each at the fastest, a few layers' worth at the smallest."""
    program = layered([Layer()] * 12, is_residual=True)
    _, points = check_frontier(program)
    above = [p.peak_bytes - program.static_bytes for p in points]
    assert above[0] > 12 * 1000
    assert above[-1] < 5500
    assert len(above) == BUDGETS


def pinned_parts():
    """Layers around an op that returns two tensors and must not run again (dropout, a custom op)."""
    b = Builder()
    x = b.given(100)
    made = []
    for _ in range(4):
        h = b.add(EXTERN, x, size=1000, ns=20)
        several = b.add(EXTERN, h, ns=20, may_recompute=False, may_keep=False)
        p, mask = b.add(PART, several, size=1000), b.add(PART, several, size=250)
        x = b.add(EXTERN, p, size=100, ns=10)
        made.append((h, p, mask))
    loss = b.add(EXTERN, x, size=8, ns=1)
    g = b.tangent(8)
    for h, p, mask in reversed(made):
        g = b.add(EXTERN, g, p, size=1000, ns=5)
        g = b.add(EXTERN, g, mask, h, size=100, ns=5)
    return b.finish([loss], [g])


@pytest.mark.parametrize("is_fusing", [False, True])
def test_a_tuple_is_never_kept_itself(is_fusing):
    program = replace(pinned_parts(), is_fusing=is_fusing)
    for p in check_frontier(program)[1]:
        assert all(program.size_bytes[v] for v in p.decision.kept), "a tuple cannot cross from forward to backward"


def test_the_same_twice():
    program = layered([Layer(), Layer(wide=700)] * 3, is_residual=True)
    budget = (Frontier(program).fastest.peak_bytes + Frontier(program).smallest.peak_bytes) // 2
    assert Frontier(program).choose(budget) == Frontier(program).choose(budget)


def test_a_curve_without_a_limit_ends_where_a_plan_with_one_does(monkeypatch):
    program = layered([Layer()] * 12, is_residual=True)
    smaller = Frontier(program).smallest.peak_bytes
    monkeypatch.setattr(effort, "ENDS_SECONDS", 0.0)
    free, limited = Frontier(program), Frontier(program, Effort(seconds=5.0))
    assert free.smallest == limited.smallest
    assert free.is_complete
    assert smaller < free.smallest.peak_bytes, "what is cut off here gains something"


def test_value_by_value_is_never_slower_and_somewhere_faster():
    uneven = [Layer(wide=300 + 170 * (5 * i % 7), wide_ns=10 + 9 * (3 * i % 5)) for i in range(8)]
    program = layered(uneven, is_residual=True)
    by_stages, by_values = Frontier(program, Effort(is_local=False)), Frontier(program)
    top, bottom = by_stages.fastest.peak_bytes, by_stages.smallest.peak_bytes
    budgets = [bottom + (top - bottom) * i // 8 for i in range(8)]
    gained = [by_stages.choose(b).extra_ns - by_values.choose(b).extra_ns for b in budgets]
    assert min(gained) >= 0
    assert sum(gained) > 0
    assert by_values.smallest.peak_bytes <= bottom


def half_way(frontier):
    return (frontier.fastest.peak_bytes + frontier.smallest.peak_bytes) // 2


def test_a_plan_does_not_depend_on_the_clock(monkeypatch):
    """A machine that stalls for an hour whenever the clock is read finds the plan that an idle one finds."""
    program = layered([Layer(), Layer(wide=700)] * 6, is_residual=True)
    idle = Frontier(program, Effort(seconds=5.0))
    expected = idle.choose(half_way(idle))
    now = itertools.count(0, 3600)
    for clock in ("monotonic", "perf_counter", "time", "process_time"):
        monkeypatch.setattr(time, clock, lambda: float(next(now)))
    stalled = Frontier(program, Effort(seconds=5.0))
    assert stalled.choose(half_way(idle)) == expected
    assert stalled.is_complete


def test_the_limit_counts_work():
    """With nothing allowed beyond the first plans, the best of them; with twice the work, never a worse plan."""
    program = layered([Layer(), Layer(wide=700)] * 12, is_residual=True)
    budget = half_way(Frontier(program))
    frontiers = [Frontier(program, Effort(seconds=seconds)) for seconds in (0.0, 1e-3, 1e-2, 5.0)]
    chosen = [frontier.choose(budget) for frontier in frontiers]
    assert [frontier.is_complete for frontier in frontiers] == [False, False, False, True]
    assert chosen[0] is frontiers[0].smallest
    assert all(p.peak_bytes <= budget for p in chosen)
    assert all(a.extra_ns >= b.extra_ns for a, b in pairwise(chosen))
    assert chosen[0].extra_ns > chosen[-1].extra_ns
    simulated = [frontier.simulated for frontier in frontiers]
    assert simulated == sorted(simulated)
    assert simulated[0] < simulated[1] < simulated[3]


def test_a_large_program_is_searched_as_a_small_one_where_nothing_is_narrow(monkeypatch):
    """A DenseNet of 10,000 ops took four times the memory it takes now: there was no plan but the chain's."""
    program = densely_joined(blocks=4, layers=8)
    _, small = check_frontier(program)
    monkeypatch.setattr(search, "MODERATE_OPS", 0)
    _, large = check_frontier(program)
    assert [(p.peak_bytes, p.extra_ns) for p in large] == [(p.peak_bytes, p.extra_ns) for p in small]
    monkeypatch.setattr(Frontier, "_is_chain_far", lambda _: False)
    assert Frontier(program).smallest.peak_bytes > 1.5 * small[-1].peak_bytes, "the chain finds none"


def test_a_large_program_of_narrow_layers_is_not_searched_value_by_value(monkeypatch):
    program = layered([Layer()] * 24)
    half = [Frontier(program)]
    monkeypatch.setattr(search, "MODERATE_OPS", 0)
    half.append(Frontier(program))
    for frontier in half:
        frontier.choose((frontier.fastest.peak_bytes + frontier.smallest.peak_bytes) // 2)
    assert half[1].simulated < half[0].simulated


def test_the_smallest_peak_may_come_from_a_closure_of_the_whole_graph():
    """Two blocks whose wide values only lead to what the backward reads; from the chain's plans it is 488."""
    b = Builder()
    x, w = b.given(32), b.given(8)
    stream, wide = [x], []
    for _ in range(2):
        wide.append(b.add(POINTWISE, b.add(POINTWISE, stream[-1], size=256, ns=1), size=128, ns=1))
        fed = b.add(EXTERN, wide[-1], w, size=32, ns=5)
        stream.append(b.add(POINTWISE, stream[-1], fed, size=32, ns=1))
    of_middle = b.add(EXTERN, b.tangent(32), stream[1], size=4, ns=3)
    of_second = b.add(EXTERN, of_middle, wide[1], size=8, ns=3)
    of_x = b.add(EXTERN, of_middle, x, size=4, ns=3)
    of_first = b.add(EXTERN, of_x, wide[0], size=8, ns=3)
    assert Frontier(b.finish(stream[-1:], [of_second, of_first, of_x])).smallest.peak_bytes == 468
