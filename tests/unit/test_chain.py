"""The chain programme against an exhaustive search written from its docstring, and against real schedules."""

from dataclasses import dataclass
from itertools import pairwise, product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.schedule import check_schedule
from rematpass.solve.chain import SLOTS, Chain
from rematpass.solve.frontier import Modeller, StageModel, StageOption, StageRun
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


@st.composite
def chains_with_runs(draw):
    """Some runs of two or three stages have options of their own."""
    models, blocks = draw(chains())
    spans = [(i, j) for i in range(len(models)) for j in range(i + 2, min(len(models), i + 3) + 1)]
    chosen = draw(st.sets(st.sampled_from(spans), max_size=2)) if spans else set()
    runs = [
        StageRun(i, j, StageModel(100 + n, (draw(options()),), draw(options()), 0, 0, 0), ())
        for n, (i, j) in enumerate(sorted(chosen))
    ]
    return models, blocks, runs


@dataclass
class Costs:
    """What the docstrings of the chain say a move needs."""

    models: list
    blocks: list

    def added(self, i, k):
        return len(self.blocks[k] - self.blocks[i]) if k < len(self.models) else 0

    def gradients(self, i, j):
        return sum(m.gradient_bytes for m in self.models[i:j])

    def hold(self, i, stop, j, option, rest):
        """Option of stages i..stop-1 held while the later ones to j-1 run, then its backward with their gradients."""
        own = self.gradients(stop, j) + option.backward_peak_bytes
        return max(option.kept_bytes + self.added(i, stop) + rest, own, option.forward_peak_bytes)

    def split(self, i, k, j, later, earlier):
        advance = max(m.advance_peak_bytes for m in self.models[i:k])
        return max(self.added(i, k) + later, self.gradients(k, j) + earlier, advance)


def exhaustive(models, blocks, runs=()):
    """All (peak, time) of the chain, by trying every move at every place."""
    n, costs = len(models), Costs(models, blocks)

    def starting(i, j):
        own = StageRun(i, i + 1, models[i], ())
        return [r for r in (own, *runs) if r.start == i and r.stop <= j]

    def run(i, j, is_again):
        """Stages i..j-1; their forward is free the first time."""
        if i == n:
            return {(0, 0)}
        found = set()
        for r in starting(i, j):
            if is_again and r.stop == j:
                found.add((r.model.alone.backward_peak_bytes, r.model.alone.extra_ns))
                continue
            for o in r.model.options:
                spent = o.extra_ns + is_again * o.again_ns
                found |= {(costs.hold(i, r.stop, j, o, m), spent + t) for m, t in run(r.stop, j, is_again)}
        for k in range(i + 1, j):
            spent = is_again * sum(m.advance_ns for m in models[i:k])
            both = product(run(k, j, is_again), run(i, k, True))
            found |= {(costs.split(i, k, j, m, m2), spent + t + t2) for (m, t), (m2, t2) in both}
        return pareto(found)

    return sorted(run(0, n, False))


def pareto(points):
    """Not beaten by another in both."""
    return {p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)}


def chain_of(models, blocks, runs=()):
    """The chain of stages whose boundaries are sets of unit blocks."""
    added = np.array([[len(later - earlier) for later in blocks] for earlier in blocks])
    return Chain([StageRun(i, i + 1, m, ()) for i, m in enumerate(models)], added, runs)


@QUICK
@given(chains_with_runs())
def test_same_points_as_trying_everything(chain):
    models, blocks, runs = chain
    found = [(p.peak_bytes, p.extra_ns) for p in chain_of(models, blocks, runs).points()]
    assert found == exhaustive(models, blocks, runs)


@QUICK
@given(chains(most=6))
def test_points_are_strictly_monotone(chain):
    models, blocks = chain
    points = chain_of(models, blocks).points()
    assert points
    for a, b in pairwise(points):
        assert a.peak_bytes < b.peak_bytes
        assert a.extra_ns > b.extra_ns


def test_equal_stages_share_tables_and_give_the_same_points():
    option, lean = StageOption((), 20, 0, 25, 7, 22), StageOption((), 2, 8, 25, 5, 22)
    alone = StageOption((), 0, 15, 27, 15, 0)
    blocks = [set(), *({i} for i in range(1, 5))]

    def chain(kinds):
        return [StageModel(kind, (option, lean), alone, 7, 9, 1) for kind in kinds]

    equal = chain_of(chain([0] * 5), blocks).points()
    different = chain_of(chain(range(5)), blocks).points()
    assert [(p.peak_bytes, p.extra_ns) for p in equal] == [(p.peak_bytes, p.extra_ns) for p in different]
    assert [(p.peak_bytes, p.extra_ns) for p in equal] == exhaustive(chain(range(5)), blocks)


def test_a_uniform_chain_reaches_the_square_root():
    """Only the boundaries cost memory: 25 stages fit into 2 sqrt(25) of them at one more forward (Chen 2016)."""
    stage = StageModel(0, (StageOption((), 10, 0, 10, 1, 10),), StageOption((), 0, 1, 10, 1, 10), 1, 1, 0)
    blocks = [set(), *({i} for i in range(1, 25))]
    points = chain_of([stage] * 25, blocks).points()
    assert points[-1].extra_ns == 0
    twice = min(p.peak_bytes for p in points if p.extra_ns <= 25 + 25)
    assert twice <= 10 + 2 * 5 + 1


def griewank(steps, slots):
    """Extra forward steps to reverse `steps` of them with `slots` states held (Griewank and Walther 2000, eq. 1)."""
    if steps <= 1:
        return 0
    repeats = next(r for r in range(steps) if comb(slots + r, slots) >= steps)
    return repeats * steps - comb(slots + repeats, slots + 1)


def first_sweep_free(steps, slots):
    """The same with the first sweep not counted; it may leave states on its way."""
    if steps <= 1:
        return 0
    return min(
        (first_sweep_free(steps - k, slots - 1) + griewank(k, slots) for k in range(1, steps) if slots > 0),
        default=10**9,
    )


@pytest.mark.parametrize("steps", [2, 7, 20, 33])
def test_a_uniform_chain_reaches_the_binomial_optimum(steps):
    """Boundaries of one byte, steps of 1 ns, nothing else in memory: the closed formula, exactly."""
    stage = StageModel(0, (), StageOption((), 0, 0, 0, 0, 0), 1, 0, 0)
    last = StageModel(1, (StageOption((), 0, 0, 0, 0, 0),), StageOption((), 0, 0, 0, 0, 0), 1, 0, 0)
    blocks = [set(), *({i} for i in range(1, steps))]
    points = chain_of([*[stage] * (steps - 1), last], blocks).points()
    assert points[-1].extra_ns == 0
    for slots in range(1, min(steps, 7)):
        assert min(p.extra_ns for p in points if p.peak_bytes <= slots) == first_sweep_free(steps, slots)


def test_sizes_without_a_common_divisor_are_rounded_to_slots():
    """Many stages that hold the same odd number of bytes: the promise stays within two slots of the truth."""
    stage = StageModel(0, (StageOption((), 100_003, 0, 100_003, 1, 7),), StageOption((), 0, 1, 50_021, 1, 7), 1, 7, 0)
    blocks = [set() for _ in range(40)]
    top = chain_of([stage] * 40, blocks).points()[-1]
    assert top.extra_ns == 0
    assert abs(top.peak_bytes - 40 * 100_003) <= 2 * 40 * 100_003 / SLOTS


PROGRAMS = [
    pytest.param(layered([Layer()] * 5), id="chain"),
    pytest.param(layered([Layer()] * 5, is_residual=True), id="residual"),
    pytest.param(layered([Layer(wide=600 + 400 * (i % 2)) for i in range(5)], is_residual=True), id="unequal"),
    pytest.param(layered([Layer()] * 5, is_residual=True, is_fusing=True), id="fusing"),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_recipe_runs_and_costs_what_the_chain_says(program):
    stages = find_stages(program)
    modeller = Modeller(program, stages)
    single = [modeller.run(s, s + 1) for s in range(len(stages))]
    pairs = [modeller.run(s, s + 2) for s in range(len(stages) - 1)]
    chain = Chain(single, stages.added_bytes(program.size_bytes), pairs)
    points = chain.points()
    assert len(points) > 3
    for point in points:
        decision = run_recipe(program, stages, chain.recipe(point))
        check_schedule(program, decision, [str(v) for v in range(len(program))])
        assert decision.recompute_ns <= point.extra_ns
    ends = [simulate(program, run_recipe(program, stages, chain.recipe(p)).schedule).peak_bytes for p in points]
    assert ends[0] <= min(ends) * 1.02


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_chain_promises_what_it_takes(program):
    """Its peak leaves out what is always live: inputs, and the loss with its gradient (8 bytes each)."""
    stages = find_stages(program)
    modeller = Modeller(program, stages)
    chain = Chain([modeller.run(s, s + 1) for s in range(len(stages))], stages.added_bytes(program.size_bytes))
    for point in chain.points():
        peak = simulate(program, run_recipe(program, stages, chain.recipe(point)).schedule).peak_bytes
        assert peak <= (point.peak_bytes + program.static_bytes + 16) * 1.02
