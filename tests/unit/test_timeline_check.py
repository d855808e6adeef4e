"""The always-on recount of live bytes: agrees with the simulator on anything, and notices any figure that is off."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.timeline import check_timeline, recount
from rematpass.errors import SplitError
from rematpass.solve.liveness import simulate
from rematpass.solve.order import must_keep, order_backward
from tests.naive_simulator import naive_timeline
from tests.strategies import programs, stacked_programs


@st.composite
def scheduled(draw):
    """A program, and the schedule of a random kept set."""
    program = replace(draw(st.one_of(programs(), stacked_programs())), is_fusing=draw(st.booleans()))
    choice = [v for v in range(len(program)) if program.may_keep[v] and program.in_forward[v]]
    kept = draw(st.sets(st.sampled_from(choice))) if choice else set()
    return program, order_backward(program, {*kept, *must_keep(program, range(len(program)))}).schedule


@settings(deadline=None, max_examples=300, derandomize=True)
@given(scheduled(), st.sampled_from([6, 10, 30, 50]), st.sampled_from([2, 4, 8]))
def test_the_recount_agrees_with_the_simulator_and_with_the_naive_one(case, most_operations, most_reads):
    program, schedule = case
    program = replace(program, most_operations=most_operations, most_reads=most_reads)
    timeline = simulate(program, schedule)
    predicted = [*timeline.forward_bytes, *timeline.backward_bytes]
    names = [f"v{v}" for v in range(len(program))]
    check_timeline(program, schedule, predicted, timeline.peak_bytes, names)
    if not program.is_fusing:
        forward, backward = naive_timeline(program, schedule)
        assert recount(program, schedule) == forward + backward


@settings(deadline=None, max_examples=60, derandomize=True)
@given(scheduled(), st.data())
def test_any_wrong_figure_is_noticed(case, data):
    program, schedule = case
    names = [f"v{v}" for v in range(len(program))]
    predicted = recount(program, schedule)
    place = data.draw(st.integers(0, len(predicted) - 1))
    changed = list(predicted)
    changed[place] += data.draw(st.sampled_from([-8, 1, 64]))
    with pytest.raises(SplitError, match=r"while v\d+ runs"):
        check_timeline(program, schedule, changed, max(predicted), names)
    with pytest.raises(SplitError, match="the peak is"):
        check_timeline(program, schedule, predicted, max(predicted) - 1, names)
    with pytest.raises(SplitError, match="positions"):
        check_timeline(program, schedule, predicted[1:], max(predicted), names)
