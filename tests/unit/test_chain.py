"""The chain programme against an exhaustive search written from its docstring, and against real schedules."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.schedule import check_schedule
from rematpass.solve.chain import MAX_POINTS, solve_chain
from rematpass.solve.frontier import StageModel, StageOption, model_stages
from rematpass.solve.liveness import simulate
from rematpass.solve.recipe import run_recipe
from rematpass.solve.stages import find_stages
from tests.programs import Layer, layered

QUICK = settings(deadline=None, max_examples=60, derandomize=True)


@st.composite
def options(draw):
    small = st.integers(0, 30)
    kept = draw(small)
    return StageOption((), kept, draw(small), kept + draw(small), draw(small), kept + draw(small))


@st.composite
def chains(draw, most=4):
    """Stages with one or two options; boundaries are sets of unit blocks, some of them passed on (skips)."""
    n = draw(st.integers(1, most))
    models = [
        StageModel(
            kind=i,
            options=tuple(draw(st.lists(options(), min_size=1, max_size=2))),
            alone=draw(options()),
            advance_ns=draw(st.integers(0, 30)),
            advance_peak_bytes=draw(st.integers(0, 30)),
            gradient_bytes=draw(st.integers(0, 5)),
        )
        for i in range(n)
    ]
    blocks = [set(), *({10 * i + b for b in range(draw(st.integers(0, 9)))} for i in range(1, n))]
    for i in range(2, n):
        blocks[i] |= {b for b in blocks[i - 1] if draw(st.booleans())}
    return models, blocks


def exhaustive(models, blocks):
    """All (peak, time) of the chain, by trying every move at every place."""
    n = len(models)

    def added(i, k):
        return len(blocks[k] - blocks[i]) if k < n else 0

    def gradients(i, j):
        return sum(m.gradient_bytes for m in models[i:j])

    def hold(i, j, option, rest):
        """Option of stage i held while i+1..j-1 run, then its backward with their gradients produced."""
        own = gradients(i + 1, j) + option.backward_peak_bytes
        return max(option.kept_bytes + added(i, i + 1) + rest, own, option.forward_peak_bytes)

    def split(i, k, j, later, earlier):
        advance = max(m.advance_peak_bytes for m in models[i:k])
        return max(added(i, k) + later, gradients(k, j) + earlier, advance)

    def run(i, j, is_again):
        """Stages i..j-1; their forward is free the first time."""
        if i == n:
            return {(0, 0)}
        if is_again and j == i + 1:
            return {(models[i].alone.backward_peak_bytes, models[i].alone.extra_ns)}
        found = set()
        for o in models[i].options:
            spent = o.extra_ns + is_again * o.again_ns
            found |= {(hold(i, j, o, m), spent + t) for m, t in run(i + 1, j, is_again)}
        for k in range(i + 1, j):
            spent = is_again * sum(m.advance_ns for m in models[i:k])
            earlier = run(i, k, True)
            found |= {(split(i, k, j, m, m2), spent + t + t2) for m, t in run(k, j, is_again) for m2, t2 in earlier}
        return pareto(found)

    return sorted(run(0, n, False))


def pareto(points):
    """Not beaten by another in both."""
    return {p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)}


def added_of(blocks):
    return lambda i, k: len(blocks[k] - blocks[i])


@QUICK
@given(chains())
def test_same_points_as_trying_everything(chain):
    models, blocks = chain
    found = [(p.peak_bytes, p.extra_ns) for p in solve_chain(models, added_of(blocks))]
    expected = exhaustive(models, blocks)
    assert found == expected or len(expected) > MAX_POINTS


@QUICK
@given(chains(most=6))
def test_points_are_strictly_monotone(chain):
    models, blocks = chain
    points = solve_chain(models, added_of(blocks))
    assert 0 < len(points) <= MAX_POINTS
    for a, b in pairwise(points):
        assert a.peak_bytes < b.peak_bytes
        assert a.extra_ns > b.extra_ns


def test_equal_stages_share_tables_and_give_the_same_points():
    option, lean = StageOption((), 20, 0, 25, 7, 22), StageOption((), 2, 8, 25, 5, 22)
    alone = StageOption((), 0, 15, 27, 15, 0)
    blocks = [set(), *({i} for i in range(1, 5))]

    def chain(kinds):
        return [StageModel(kind, (option, lean), alone, 7, 9, 1) for kind in kinds]

    equal = solve_chain(chain([0] * 5), added_of(blocks))
    different = solve_chain(chain(range(5)), added_of(blocks))
    assert [(p.peak_bytes, p.extra_ns) for p in equal] == [(p.peak_bytes, p.extra_ns) for p in different]
    assert [(p.peak_bytes, p.extra_ns) for p in equal] == exhaustive(chain(range(5)), blocks)


def test_a_uniform_chain_reaches_the_square_root():
    """Only the boundaries cost memory: 25 stages fit into 2 sqrt(25) of them at one more forward (Chen 2016)."""
    stage = StageModel(0, (StageOption((), 10, 0, 10, 1, 10),), StageOption((), 0, 1, 10, 1, 10), 1, 1, 0)
    blocks = [set(), *({i} for i in range(1, 25))]
    points = solve_chain([stage] * 25, added_of(blocks))
    assert points[-1].extra_ns == 0
    twice = min(p.peak_bytes for p in points if p.extra_ns <= 25 + 25)
    assert twice <= 10 + 2 * 5 + 1


PROGRAMS = [
    pytest.param(layered([Layer()] * 5), id="chain"),
    pytest.param(layered([Layer()] * 5, is_residual=True), id="residual"),
    pytest.param(layered([Layer(wide=600 + 400 * (i % 2)) for i in range(5)], is_residual=True), id="unequal"),
    pytest.param(layered([Layer()] * 5, is_residual=True, is_fusing=True), id="fusing"),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_recipe_runs_and_costs_what_the_chain_says(program):
    stages = find_stages(program)
    boundary = [frozenset(b) for b in stages.boundary]
    models = model_stages(program, stages)
    points = solve_chain(models, lambda i, k: sum(program.size_bytes[v] for v in boundary[k] - boundary[i]))
    assert len(points) > 3
    for point in points:
        decision = run_recipe(program, stages, point.recipe)
        check_schedule(program, decision, [str(v) for v in range(len(program))])
        assert decision.recompute_ns <= point.extra_ns
    ends = [simulate(program, run_recipe(program, stages, p.recipe).schedule).peak_bytes for p in points]
    assert ends[0] == min(ends)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_chain_never_promises_less_memory_than_it_takes(program):
    """Its peak leaves out what is always live: inputs, and the loss with its gradient (8 bytes each)."""
    stages = find_stages(program)
    boundary = [frozenset(b) for b in stages.boundary]
    models = model_stages(program, stages)
    for point in solve_chain(models, lambda i, k: sum(program.size_bytes[v] for v in boundary[k] - boundary[i])):
        peak = simulate(program, run_recipe(program, stages, point.recipe).schedule).peak_bytes
        assert peak <= point.peak_bytes + program.static_bytes + 16
