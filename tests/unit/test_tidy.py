"""A better order of the same executions."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rematpass.check.schedule import check_schedule
from rematpass.solve.order import make_decision, order_backward
from rematpass.solve.program import Schedule
from tests.orders import tidy_backward
from tests.programs import EXTERN, PART, VIEW, Builder
from tests.strategies import decisions, programs


@given(programs(), st.data())
def test_the_same_executions_and_still_a_correct_program(program, data):
    decision = data.draw(decisions(program))
    tidied = tidy_backward(program, decision.schedule)
    assert Counter(tidied.backward) == Counter(decision.schedule.backward)
    assert tidied.forward == decision.schedule.forward
    again = make_decision(program, tidied)
    assert again.recompute_ns <= decision.recompute_ns
    check_schedule(program, again, [str(v) for v in range(len(program))])


def linear_layers(count):
    """y = f(x): the backward of each layer reads its input for a small gradient, and makes the gradient of x."""
    b = Builder()
    weight, values = b.given(1), [b.given(8)]
    for _ in range(count):
        values.append(b.add(EXTERN, values[-1], weight, size=8, ns=1))
    gradient, returned = b.tangent(8), []
    for x in reversed(values[:-1]):
        before = gradient
        gradient = b.add(EXTERN, before, weight, size=8)
        returned.append(b.add(EXTERN, before, x, size=1))
    return b.finish([values[-1]], [*returned, gradient]), values


def test_the_gradient_of_a_weight_runs_before_that_of_the_activation():
    program, values = linear_layers(2)
    backward = order_backward(program, values[1:2]).schedule.backward
    activation, weight = len(program) - 4, len(program) - 3
    assert backward.index(activation) < backward.index(weight)
    tidied = tidy_backward(program, Schedule((), backward)).backward
    assert tidied.index(weight) < tidied.index(activation)


def test_a_value_is_computed_again_when_its_reader_is_next():
    program, (_, a, b, _) = linear_layers(3)
    g2, w2, g1, w1, g0, w0 = range(len(program) - 6, len(program))
    early = (a, b, g2, w2, g1, w1, g0, w0)
    assert tidy_backward(program, Schedule((), early)).backward == (a, b, w2, g2, w1, g1, g0, w0)
    early = (a, g2, b, w2, g1, w1, g0, w0)
    assert tidy_backward(program, Schedule((), early)).backward[:3] == (a, b, w2)


def test_a_gradient_larger_than_all_it_is_made_from_waits_for_the_end():
    b = Builder()
    x = b.given(4)
    a = b.add(EXTERN, x, size=4, ns=1)
    tangent = b.tangent(4)
    large = b.add(EXTERN, tangent, a, size=100)
    shown = b.add(VIEW, large)
    small = b.add(EXTERN, tangent, a, size=8)
    program = b.finish([a], [shown, small])
    assert tidy_backward(program, Schedule((), (large, shown, small))).backward == (small, large, shown)


@pytest.mark.parametrize("is_fixed", [False, True])
def test_nothing_passes_what_has_effects(is_fixed):
    b = Builder()
    x = b.given(4)
    a = b.add(EXTERN, x, size=4, ns=1)
    tangent = b.tangent(4)
    large = b.add(EXTERN, tangent, a, size=100)
    effect = b.add(EXTERN, tangent, a, size=1, is_fixed=is_fixed)
    last = b.add(EXTERN, tangent, a, size=1)
    program = b.finish([a], [large, effect, last])
    order = tidy_backward(program, Schedule((), (large, effect, last))).backward
    assert order == ((large, effect, last) if is_fixed else (effect, last, large))


def test_what_an_op_returns_stays_together():
    """A reader of its first part would run next, were its second not there already."""
    b = Builder()
    x = b.given(4)
    a = b.add(EXTERN, x, size=8, ns=1)
    tangent = b.tangent(8)
    several = b.add(EXTERN, tangent, a, workspace=12)
    first, second = b.add(PART, several, size=8), b.add(PART, several, size=4)
    reader = b.add(EXTERN, first, size=8)
    program = b.finish([a], [second, reader])
    order = (several, first, second, reader)
    assert tidy_backward(program, Schedule((), order)).backward == order
