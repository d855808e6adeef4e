import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.schedule import check_schedule
from rematpass.errors import SolverError
from rematpass.solve.order import Recorder, drop_unread, order_backward
from rematpass.solve.program import Kind, Schedule
from tests.orders import tidy_backward
from tests.programs import EXTERN, PART, POINTWISE, REDUCTION, VIEW, Builder, Layer, layered
from tests.strategies import programs


def chain():
    """x -> a -> b -> c, and a backward that reads c, b, a in this order."""
    b = Builder()
    x = b.given(8)
    v = [b.add(EXTERN, x, size=8, ns=1)]
    v += [b.add(EXTERN, v[0], size=8, ns=10)]
    v += [b.add(EXTERN, v[1], size=8, ns=100)]
    g = b.add(EXTERN, b.tangent(8), v[2], size=8)
    g = b.add(EXTERN, g, v[1], size=8)
    g = b.add(EXTERN, g, v[0], size=8)
    return b.finish([v[2]], [g]), v


def test_each_missing_value_right_before_its_first_use():
    program, (a, b, c) = chain()
    t, g1, g2, g3 = range(4, 8)
    assert t not in order_backward(program, ()).schedule.backward
    assert order_backward(program, [a, b, c]).schedule.backward == (g1, g2, g3)
    assert order_backward(program, [a, c]).schedule.backward == (g1, b, g2, g3)
    assert order_backward(program, []).schedule.backward == (a, b, c, g1, g2, g3)


def test_kept_and_time_are_read_off_the_sequence():
    program, (a, b, c) = chain()
    decision = order_backward(program, [a, c])
    assert decision.kept == {a, c}
    assert decision.recompute_ns == 10
    assert order_backward(program, [b, c]).recompute_ns == 1


def test_dropped_values_are_computed_again():
    program, (a, b, c) = chain()
    recorder = Recorder(program, [])
    assert recorder.demand([c]) == [a, b, c]
    recorder.run([5])
    recorder.drop([a, b])
    assert recorder.demand([b]) == [a, b]
    recorder.run([6, 7])
    decision = recorder.finish()
    assert decision.recompute_ns == 1 + 10 + 100 + 1 + 10


def test_what_is_computed_again_and_not_read_is_dropped_with_all_that_served_it_alone():
    program, (a, b, c) = chain()
    recorder = Recorder(program, [c])
    recorder.run([5])
    recorder.demand([b])
    recorder.drop([a, b])
    recorder.demand([a, b])
    recorder.run([6])
    recorder.demand([c])
    recorder.drop([a, b])
    recorder.run([7])
    decision = recorder.finish()
    assert decision.schedule.backward == (5, a, b, 6, a, 7)
    assert decision.kept == {c}


def test_what_an_op_returns_is_dropped_with_it_and_not_before():
    b = Builder()
    pair = b.add(EXTERN, b.given(8))
    one, other = b.add(PART, pair, size=8), b.add(PART, pair, size=8)
    y = b.add(EXTERN, one, other, size=8)
    g = b.add(EXTERN, b.tangent(8), one, size=8)
    program = b.finish([y], [g])
    assert order_backward(program, ()).schedule.backward == (pair, one, other, g)
    forward = (pair, one, other, y)
    for again in ((pair, one, other), forward):
        assert drop_unread(program, Schedule(forward, (*again, pair, one, other, g))).backward == (pair, one, other, g)


def test_what_must_not_be_recomputed_and_was_not_kept_is_an_error():
    b = Builder()
    a = b.add(EXTERN, b.given(8), size=8, may_recompute=False)
    y = b.add(EXTERN, a, size=8)
    g = b.add(EXTERN, b.tangent(8), a, size=8)
    program = b.finish([y], [g])
    with pytest.raises(SolverError, match="must not be recomputed"):
        order_backward(program, ())
    assert order_backward(program, [a]).kept == {a}


def test_values_that_only_the_backward_wants_cost_nothing_extra_once():
    b = Builder()
    a = b.add(EXTERN, b.given(8), size=8, ns=3)
    y = b.add(EXTERN, a, size=8, ns=3)
    helper = b.add(POINTWISE, a, size=8, ns=7)
    g = b.add(EXTERN, b.tangent(8), helper, size=8)
    program = b.finish([y], [g])
    assert order_backward(program, [a]).recompute_ns == 0
    assert order_backward(program, []).recompute_ns == 3


def test_parts_are_taken_out_where_their_op_runs():
    """Recomputing one result of an op takes out the others as well, so that the tuple itself dies at once."""
    b = Builder()
    several = b.add(EXTERN, b.given(8), ns=5, may_keep=False)
    p, q = b.add(PART, several, size=8), b.add(PART, several, size=8)
    y = b.add(EXTERN, p, q, size=8)
    g = b.add(EXTERN, b.tangent(8), p, size=8)
    g2 = b.add(EXTERN, g, q, size=8)
    program = b.finish([y], [g2])
    assert order_backward(program, ()).schedule.backward == (several, p, q, g, g2)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(programs(), st.data())
def test_any_kept_set_gives_a_valid_schedule(program, data):
    """Whatever is kept beside what must be: the order completes it."""
    values = [v for v in range(len(program)) if program.in_forward[v] and program.kind[v] is not Kind.INPUT]
    may = [v for v in values if program.may_keep[v] and not program.is_backward[v]]
    must = {v for v in values if not program.may_recompute[v]}
    parts = {v for v in may if program.kind[v] is Kind.PART}  # of ops that may not run again
    kept = {*data.draw(st.sets(st.sampled_from(may))), *must, *parts} if may else must
    decision = order_backward(program, kept)
    check_schedule(program, decision, [str(v) for v in range(len(program))])
    assert decision.kept <= kept


@pytest.mark.parametrize("is_residual", [False, True])
def test_the_forward_is_in_the_given_order_and_has_no_backward_only_value(is_residual):
    program = layered([Layer()] * 3, is_residual=is_residual)
    forward = order_backward(program, ()).schedule.forward
    assert list(forward) == sorted(forward)
    assert not any(program.is_backward[v] or not program.in_forward[v] for v in forward)


def summed():
    """A gradient that a product along the layers and a sum read; what was made of it in a builder."""
    b = Builder()
    x = b.given(8)
    v = b.add(EXTERN, x, size=8, ns=1)
    g = b.add(EXTERN, b.tangent(8), v, size=64)
    along = b.add(EXTERN, g, x, size=64)
    total = b.add(REDUCTION, g, size=4)
    return b, (x, v, g, along, total)


def tidied(program):
    backward = tidy_backward(program, order_backward(program, ()).schedule).backward
    return [op for op in backward if program.is_backward[op]]


def test_the_sum_of_a_gradient_runs_beside_the_next_kernel():
    b, (x, v, g, along, total) = summed()
    shown = b.add(VIEW, total)
    weight = b.add(EXTERN, g, v, size=8)
    kernel = b.add(POINTWISE, along, size=64)
    last = b.add(EXTERN, kernel, x, size=8)
    program = b.finish([v], [weight, shown, last])
    assert program.urgency.may_join[total]
    assert tidied(program) == [g, weight, along, total, shown, kernel, last]


def test_a_sum_does_not_wait_beyond_what_reads_its_gradient_last():
    b, (x, v, g, along, total) = summed()
    other = b.add(EXTERN, along, x, size=64)
    last = b.add(POINTWISE, other, size=8)
    assert tidied(b.finish([v], [total, last])) == [g, along, total, other, last]


def test_a_sum_runs_before_a_kernel_that_may_write_over_its_gradient():
    b, (_, v, g, along, total) = summed()
    last = b.add(POINTWISE, g, along, size=64)
    assert tidied(b.finish([v], [total, last])) == [g, along, total, last]
