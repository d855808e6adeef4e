"""What a user relies on: one frontier, monotone, simulated, every point a correct program."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.schedule import check_schedule
from rematpass.solve.liveness import simulate
from rematpass.solve.search import sweep_frontier
from tests.naive_simulator import naive_timeline
from tests.programs import EXTERN, PART, Builder, Layer, layered
from tests.strategies import programs, stacked_programs


def check_frontier(program):
    frontier = sweep_frontier(program)
    names = [f"v{v}" for v in range(len(program))]
    for p in frontier.points:
        check_schedule(program, p.decision, names)
        live = [*p.timeline.forward_bytes, *p.timeline.backward_bytes]
        assert p.peak_bytes == max(live, default=program.static_bytes)
        assert p.timeline == simulate(program, p.decision.schedule)
        assert p.extra_ns == p.decision.recompute_ns
    for fast, small in pairwise(frontier.points):
        assert fast.peak_bytes > small.peak_bytes
        assert fast.extra_ns < small.extra_ns
    return frontier


@settings(deadline=None, max_examples=60, derandomize=True)
@given(programs())
def test_random_programs(program):
    frontier = check_frontier(program)
    for p in frontier.points:
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


LAYERS = st.builds(Layer, st.integers(50, 150), st.integers(800, 1500), st.integers(1, 20), st.integers(1, 20))


@settings(deadline=None, max_examples=12, derandomize=True)
@given(st.lists(LAYERS, min_size=2, max_size=6), st.booleans(), st.booleans())
def test_random_layers(layers, is_residual, is_fusing):
    check_frontier(layered(layers, is_residual=is_residual, is_fusing=is_fusing))


def test_a_smaller_budget_never_gives_a_higher_peak_or_less_time():
    frontier = check_frontier(layered([Layer()] * 6, is_residual=True))
    top, bottom = frontier.points[0].peak_bytes, frontier.points[-1].peak_bytes
    chosen = [frontier.choose(budget) for budget in range(top + 50, bottom - 1, -37)]
    assert chosen == sorted(chosen)
    assert chosen[0] == frontier.choose(None) == 0
    assert frontier.choose(bottom) == len(frontier.points) - 1
    assert frontier.choose(bottom - 1) is None
    for budget in range(bottom, top + 50, 61):
        place = frontier.choose(budget)
        assert frontier.points[place].peak_bytes <= budget
        assert place == 0 or frontier.points[place - 1].peak_bytes > budget


def test_memory_really_falls_on_layers():
    """12 equal layers: two wide values each at the fastest, a few layers' worth at the smallest."""
    frontier = check_frontier(layered([Layer()] * 12, is_residual=True))
    above = [p.peak_bytes - layered([Layer()] * 12).static_bytes for p in frontier.points]
    assert above[0] > 12 * 1000
    assert above[-1] < 5500
    assert len(above) > 10


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
    for p in check_frontier(program).points:
        assert all(program.size_bytes[v] for v in p.decision.kept), "a tuple cannot cross from forward to backward"


def test_the_same_twice():
    program = layered([Layer(), Layer(wide=700)] * 3, is_residual=True)
    assert sweep_frontier(program) == sweep_frontier(program)
