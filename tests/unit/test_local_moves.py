"""Local moves against the simulator: what a step promises is what happens, and every result is a correct program."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rematpass.check.schedule import check_schedule
from rematpass.solve._core import Axis, apply_evictions, list_evictions, take_together
from rematpass.solve.liveness import simulate
from rematpass.solve.order import drop_unread, make_decision, must_keep, order_backward
from rematpass.solve.polish import Polisher
from rematpass.solve.program import Schedule
from rematpass.solve.repair import Limits, LocalSearch, repair
from tests.programs import EXTERN, PART, POINTWISE, Builder, Layer, layered
from tests.strategies import programs, stacked_programs

QUICK = settings(deadline=None, max_examples=80, derandomize=True)


def names(program):
    return [f"v{v}" for v in range(len(program))]


def smallest_kept(program):
    """Everything that may be computed again is."""
    return order_backward(program, must_keep(program, range(len(program))))


def axis_of(program, decision):
    return Axis(program.core, decision.schedule.forward, decision.schedule.backward)


def check(program, decision):
    check_schedule(program, decision, names(program))
    return simulate(program, decision.schedule).peak_bytes


@QUICK
@given(st.one_of(programs(), stacked_programs()))
def test_polishing_promises_what_the_simulator_finds(program):
    program = replace(program, is_fusing=False)
    start = smallest_kept(program)
    polisher = Polisher(program, start)
    time_ns = start.recompute_ns
    for count, (peak, saved) in enumerate(polisher.steps(), 1):
        decision = polisher.decision(count)
        assert check(program, decision) <= program.static_bytes + peak
        assert saved > 0
        assert decision.recompute_ns == time_ns - saved
        assert drop_unread(program, decision.schedule) == decision.schedule
        time_ns = decision.recompute_ns


@QUICK
@given(st.one_of(programs(is_fusing=True), stacked_programs()))
def test_polishing_under_fusion_stays_correct(program):
    start = smallest_kept(program)
    polisher = Polisher(program, start)
    for count, _ in enumerate(polisher.steps(), 1):
        decision = polisher.decision(count)
        check(program, decision)
        assert drop_unread(program, decision.schedule) == decision.schedule
    again = polisher.repeated()
    check(program, polisher.without(again[:2]))


@st.composite
def moments(draw):
    """A plan that keeps all it may, for an executor that does not fuse, as an axis; and a moment of it."""
    program = replace(draw(st.one_of(programs(), stacked_programs())), is_fusing=False)
    start = order_backward(program, [v for v in range(len(program)) if program.in_forward[v] and program.may_keep[v]])
    axis = axis_of(program, start)
    assume(len(axis.live))
    return program, start, axis, draw(st.integers(0, len(axis.live) - 1))


@QUICK
@given(moments())
def test_an_eviction_costs_what_it_says_and_stays_correct(drawn):
    program, start, axis, moment = drawn
    before = simulate(program, start.schedule)
    live = [*before.forward_bytes, *before.backward_bytes]
    assert [program.static_bytes + b for b in axis.live.tolist()] == live
    for eviction in list_evictions(axis, moment):
        decision = make_decision(program, Schedule(start.schedule.forward, apply_evictions(axis, [eviction])))
        check(program, decision)
        assert decision.recompute_ns == start.recompute_ns + eviction.extra_ns
        after = simulate(program, decision.schedule)
        changed = [*after.forward_bytes, *after.backward_bytes][moment]
        assert changed <= live[moment] - eviction.freed_bytes


def test_a_part_is_computed_again_with_its_operator():
    """Also where the backward has already computed the operator: parts are handed out when it runs."""
    b = Builder()
    wide = b.add(EXTERN, b.given(), size=64, ns=5)
    several = b.add(EXTERN, wide, ns=5, may_keep=False, workspace=128)
    parts = [b.add(PART, several, size=64) for _ in range(2)]
    loss = b.add(EXTERN, *parts, size=8, ns=5)
    gradient = b.tangent(8)
    for u in (parts[0], wide, parts[1], wide):
        gradient = b.add(EXTERN, gradient, u, size=8, ns=5)
    program = b.finish([loss], [gradient])
    start = order_backward(program, [wide])
    axis = axis_of(program, start)
    moment = axis.split + axis.ops[axis.split :].index(gradient - 2)
    evicted = [e for e in list_evictions(axis, moment) if axis.ops[e.execution] == parts[1]]
    assert [e.again for e in evicted] == [(several, *parts)]
    for eviction in evicted:
        check(program, make_decision(program, Schedule(start.schedule.forward, apply_evictions(axis, [eviction]))))


def test_an_op_goes_once_none_of_its_results_is_read():
    """Its other results are there whenever it runs. It took its time for nothing and held them to the end."""
    b = Builder()
    x = b.add(EXTERN, b.given(), size=64, ns=5)
    several = b.add(EXTERN, x, ns=50, may_keep=False, workspace=128)
    wanted, other = (b.add(PART, several, size=64) for _ in range(2))
    made = b.add(EXTERN, wanted, size=64, ns=5)
    loss = b.add(EXTERN, made, size=8, ns=5)
    first = b.add(EXTERN, b.tangent(8), wanted, other, size=8, ns=5)
    last = b.add(EXTERN, first, made, size=8, ns=5)
    program = b.finish([loss], [last])
    backward = (several, wanted, other, first, several, wanted, other, made, last)
    start = make_decision(program, Schedule(program.forward_ops, backward))
    axis = axis_of(program, start)
    again = max(i for i in range(len(axis.ops)) if axis.ops[i] == made)
    plan = Polisher(program, start).without([again])
    assert plan.schedule.backward == (several, wanted, other, first, last)


def test_a_view_of_the_forward_is_made_again_from_its_base():
    """Kept beside its base, one would be overwritten while the other is still read."""
    b = Builder()
    base = b.add(EXTERN, b.given(), size=64, ns=5)
    view = b.view(base)
    evicted = b.add(EXTERN, view, size=64, ns=5)
    loss = b.add(EXTERN, evicted, size=8, ns=5)
    gradient = b.tangent(8)
    for u in (evicted, base, evicted, base):
        gradient = b.add(EXTERN, gradient, u, size=8, ns=5)
    program = b.finish([loss], [gradient])
    start = order_backward(program, [base, evicted])
    axis = axis_of(program, start)
    moment = axis.split + axis.ops[axis.split :].index(gradient - 2)
    (found,) = [e for e in list_evictions(axis, moment) if axis.ops[e.execution] == evicted]
    assert found.again == (view, evicted)
    decision = make_decision(program, Schedule(start.schedule.forward, apply_evictions(axis, [found])))
    assert decision.kept == {base, evicted}
    check(program, decision)


@QUICK
@given(moments(), st.data())
def test_evictions_that_go_together_cost_what_each_costs(drawn, data):
    program, start, axis, moment = drawn
    found = data.draw(st.permutations(list(list_evictions(axis, moment))))
    taken = take_together(axis, found, program.static_bytes + int(axis.live.sum()), 4)
    assert len(taken) <= 4
    assert [(e.execution, e.again) for e in taken[:1]] == [(e.execution, e.again) for e in found[:1]]
    decision = make_decision(program, Schedule(start.schedule.forward, apply_evictions(axis, taken)))
    check(program, decision)
    assert decision.recompute_ns == start.recompute_ns + sum(eviction.extra_ns for eviction in taken)


def test_no_recomputation_is_left_that_would_fit():
    """The plan for a budget: leaving any one recomputation out does not fit any more."""
    program = layered([Layer(), Layer(wide=600)] * 6, is_residual=True)
    streams = [v for v in range(len(program)) if program.duration_ns[v] == 1 and not program.is_backward[v]]
    start = order_backward(program, streams)
    polisher = Polisher(program, start)
    budget = simulate(program, start.schedule).peak_bytes + 2000
    count = next(n for n, (peak, _) in enumerate(polisher.steps()) if program.static_bytes + peak > budget)
    plan = polisher.decision(count)
    rest = Polisher(program, plan)
    assert rest.repeated()
    for i in rest.repeated():
        shorter = rest.without([i])
        assert shorter.recompute_ns == plan.recompute_ns or check(program, shorter) > budget


@pytest.mark.parametrize("is_fusing", [False, True])
def test_repair_brings_a_plan_into_the_budget_and_is_repeatable(is_fusing):
    program = layered([Layer(), Layer(wide=700)] * 4, is_residual=True, is_fusing=is_fusing)
    fastest = order_backward(program, [v for v in range(len(program)) if program.in_forward[v] and program.may_keep[v]])
    budget = simulate(program, fastest.schedule).peak_bytes * 2 // 3
    limits = Limits(rounds=120, patience=120, stop=float("inf"))
    found = repair(program, fastest, budget, limits)
    assert found.decision is not None
    assert check(program, found.decision) <= budget
    assert repair(program, fastest, budget, limits) == found


def test_repair_says_when_nothing_fits():
    program = layered([Layer()] * 3)
    found = repair(program, smallest_kept(program), program.static_bytes, Limits(30, 30, float("inf")))
    assert (found.decision, found.is_complete) == (None, True)


def test_a_result_that_only_its_second_computation_has_readers_for_may_be_left_out_there():
    """The first is there while it is made, and no earlier: counted from before the step, the core never came back."""
    builder = Builder()
    x, other = builder.given(), builder.given()
    loss = builder.add(POINTWISE, x, size=8, ns=1)
    both = builder.add(EXTERN, x, ns=10)
    left, right = (builder.add(PART, both, size=size) for size in (128, 64))
    first = builder.add(EXTERN, builder.tangent(8), right, size=8, ns=1)
    second = builder.add(EXTERN, first, left, right, other, size=8, ns=1)
    program, computed = builder.finish([loss], [second]), [both, left, right]
    start = make_decision(program, Schedule((loss,), (*computed, first, *computed, second)))
    polisher = Polisher(program, start)
    [(peak, saved)] = polisher.steps()
    plan = polisher.decision(1)
    assert plan.schedule.backward == (*computed, first, second)
    assert (peak, saved) == (simulate(program, plan.schedule).peak_bytes, 10)


def test_what_promises_most_is_tried_first():
    """One dear recomputation among sixty, for which small things that are kept have to go."""
    b = Builder()
    total = weight = b.given(8)
    values = []
    for size, ns in [*[(30, 3)] * 40, (30, 100), *[(30, 3)] * 20, *[(10, 1)] * 9]:
        values.append(b.add(EXTERN, weight, size=size, ns=ns))
        total = b.add(EXTERN, total, values[-1], size=8)
    tangent = b.add(EXTERN, b.tangent(8), size=8)
    program = b.finish([total], [b.add(EXTERN, tangent, v, size=0) for v in values])
    start = order_backward(program, values[-9:])
    search = LocalSearch(program, start, simulate(program, start.schedule).peak_bytes, 0)
    for _ in range(6):
        search.step()
    assert search.best_ns <= start.recompute_ns - 100 + 3
