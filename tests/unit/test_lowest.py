"""The order of a plan that takes least, and trifles that are kept for it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.schedule import check_schedule
from rematpass.solve.liveness import find_peak
from rematpass.solve.lowest import in_lowest_order
from rematpass.solve.order import drop_unread, make_decision, order_backward
from rematpass.solve.program import Schedule
from rematpass.solve.search import Frontier
from tests.orders import let_hurry, tidy_backward
from tests.programs import EXTERN, POINTWISE, REDUCTION, Builder
from tests.strategies import decisions, programs, stacked_programs

ROWS = 1000


def attend(b, scores, *added):
    """A softmax of scores and what is added to them, and its gradient, whose sum reads a product another op reads, too.

    Made of five tensors it is stored; of four, the product is. Returns the program, the product, what a softmax keeps.
    """
    inner = b.add(POINTWISE, scores, *added, size=2 * ROWS)
    highest = b.add(REDUCTION, inner, size=8, ns=1)
    powers = b.add(POINTWISE, inner, highest, size=2 * ROWS)
    total = b.add(REDUCTION, powers, size=8, ns=1)
    shares = b.add(POINTWISE, powers, total, size=2 * ROWS)
    out = b.add(EXTERN, shares, size=8)
    back = b.add(EXTERN, b.tangent(8), size=ROWS)
    product = b.add(POINTWISE, back, shares, size=2 * ROWS)
    summed = b.add(REDUCTION, product, size=8)
    gradient = b.add(POINTWISE, product, summed, shares, size=ROWS)
    of_scores = b.add(EXTERN, gradient, size=8)
    return b.finish([out], [of_scores], is_fusing=True), product, {scores, highest, total}


def softmax(fill=8):
    """Scores that a fill masks: with it at hand the softmax is made of five tensors."""
    b = Builder()
    shift = b.given(8)
    masked = b.add(POINTWISE, size=fill)
    scores = b.add(EXTERN, shift, size=ROWS, ns=10)
    program, product, _ = attend(b, scores, masked, shift)
    return program, masked, product


def test_a_number_is_kept_where_that_takes_less():
    program, masked, product = softmax()
    decision = order_backward(program, ())
    assert find_peak(program, decision.schedule)[1] == product
    found = in_lowest_order(program, decision)
    assert found.decision.kept == {*decision.kept, masked}
    assert masked not in found.decision.schedule.backward
    assert found.peak_bytes < find_peak(program, decision.schedule)[0]
    assert found.extra_ns == decision.recompute_ns


def test_what_is_larger_than_a_block_is_no_trifle():
    program, masked, _ = softmax(fill=513)
    decision = order_backward(program, ())
    assert masked not in in_lowest_order(program, decision).decision.kept


def masked_softmax(position=8, mask=513, *, may_recompute=True):
    """Scores and a mask made of two positions: without it at hand the softmax is made of five tensors."""
    b = Builder()
    positions = [b.add(EXTERN, b.given(8), size=position, ns=1) for _ in range(2)]
    masked = b.add(POINTWISE, *positions, size=mask, may_recompute=may_recompute)
    scores = b.add(EXTERN, b.given(8), size=ROWS, ns=10)
    program, product, kept = attend(b, scores, masked)
    return program, {masked, *kept}, masked, product, {*positions}


def test_a_mask_is_computed_from_its_positions_where_that_takes_less():
    program, kept, masked, product, positions = masked_softmax()
    decision = order_backward(program, kept)
    assert find_peak(program, decision.schedule)[1] == product
    found = in_lowest_order(program, decision)
    assert found.decision.kept == {*kept, *positions} - {masked}
    assert masked in found.decision.schedule.backward
    assert found.peak_bytes < find_peak(program, decision.schedule)[0]
    assert found.extra_ns == decision.recompute_ns


@pytest.mark.parametrize(("position", "mask", "may_recompute"), [(257, 513, True), (8, 512, True), (8, 513, False)])
def test_it_stays_where_its_positions_are_larger_or_it_is_a_trifle_or_must(position, mask, may_recompute):
    program, kept, masked, *_ = masked_softmax(position, mask, may_recompute=may_recompute)
    assert masked in in_lowest_order(program, order_backward(program, kept)).decision.kept


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.booleans().flatmap(lambda is_fusing: programs(is_fusing=is_fusing)), st.data())
def test_no_order_takes_more_than_the_given_one(program, data):
    decision = data.draw(decisions(program))
    found = in_lowest_order(program, decision)
    assert found.peak_bytes == find_peak(program, found.decision.schedule)[0]
    assert found.peak_bytes <= find_peak(program, decision.schedule)[0]
    assert found.extra_ns <= decision.recompute_ns
    assert drop_unread(program, found.decision.schedule) == found.decision.schedule
    check_schedule(program, found.decision, [str(v) for v in range(len(program))])


def test_of_two_runs_of_an_op_that_moved_past_each_other_one_is_left():
    """The gradient of the weight waits with what is computed again for it, past another run of the same op."""
    b = Builder()
    base = b.add(EXTERN, b.given(8), size=8, ns=10)
    again = b.add(EXTERN, base, size=10, ns=5)
    wide = b.add(EXTERN, base, size=900, ns=50)
    loss = b.add(EXTERN, again, wide, size=8)
    tangent = b.add(EXTERN, b.tangent(8), size=1000)
    of_weight = b.add(EXTERN, tangent, again, size=1000)
    of_head = b.add(EXTERN, tangent, size=8)
    of_wide = b.add(EXTERN, of_head, wide, size=8)
    last = b.add(EXTERN, of_wide, again, size=300)
    program = b.finish([loss], [of_weight, last])
    backward = (again, tangent, of_weight, of_head, again, of_wide, last)
    found = in_lowest_order(program, make_decision(program, Schedule(program.forward_ops, backward))).decision
    order = found.schedule.backward
    assert order.index(of_weight) > order.index(of_wide)
    assert order.count(again) == 1
    assert found.recompute_ns == 5


def steps_of_the_best_order(program, schedule):
    """The best of the given order and the tidied one, and what it is once functions hurry."""
    tidied = program.core.drop_overtaken(tidy_backward(program, schedule).backward)
    orders = schedule, Schedule(schedule.forward, tidied)
    best = min(orders, key=lambda order: find_peak(program, order)[0])
    earlier = let_hurry(program, best)
    if earlier != best:
        earlier = Schedule(schedule.forward, program.core.drop_overtaken(earlier.backward))
    return best, earlier


@given(st.one_of(programs(), stacked_programs(), programs(is_fusing=True)), st.data())
def test_the_best_order_is_what_its_steps_come_to_one_by_one(program, data):
    schedule = data.draw(decisions(program)).schedule
    peak, backward, before = program.core.best_order(schedule.forward, schedule.backward, True)
    best, earlier = steps_of_the_best_order(program, schedule)
    while masks := program.core.find_masks(earlier.backward):
        handed = drop_unread(program, Schedule(best.forward, tuple(v for v in best.backward if v not in masks)))
        steps = steps_of_the_best_order(program, handed)
        if find_peak(program, steps[1])[0] >= find_peak(program, earlier)[0]:
            break
        best, earlier = steps
    assert (backward, before) == (earlier.backward, best.backward)
    assert (program.static_bytes + peak[0], peak[1]) == find_peak(program, earlier)


def linear_layers(count, mask):
    """Layers of a product and a ReLU, whose gradients read what it returns, then a mask that it is compared to."""
    b = Builder()
    weight, x = b.given(8), b.given(8)
    made = []
    for _ in range(count):
        x = b.add(POINTWISE, b.add(EXTERN, weight, x, size=800, ns=50), size=800, ns=1)
        made.append(x)
    loss = b.add(REDUCTION, x, size=8, ns=1)
    gradient, returned, masks = b.tangent(8), [], []
    for place in reversed(range(count)):
        masks.append(b.add(POINTWISE, made[place], size=mask, is_ahead=True))
        masked = b.add(POINTWISE, gradient, masks[-1], size=800)
        gradient = b.add(EXTERN, masked, weight, size=800)
        returned.append(b.add(EXTERN, masked, made[place - 1] if place else weight, size=100))
    return b.finish([loss], [*returned, gradient], is_fusing=True), made, masks


def test_a_mask_is_handed_over_where_what_it_is_made_of_can_go_earlier():
    program, made, masks = linear_layers(3, mask=200)
    decision = order_backward(program, made)
    before = find_peak(program, decision.schedule)[0]
    found = in_lowest_order(program, decision)
    assert found.decision.kept == {*made, masks[1]}
    assert found.extra_ns == 0
    # While the gradient of the last but one activation is made: what it is made of, itself, two weights' gradients,
    # the mask and what the first layer returned, instead of what the second returned in place of its mask.
    assert before - found.peak_bytes >= 800 - 200 - 100


def test_a_mask_as_large_as_what_it_is_made_of_is_not():
    program, made, masks = linear_layers(3, mask=800)
    assert in_lowest_order(program, order_backward(program, made)).decision.kept.isdisjoint(masks)


@pytest.mark.parametrize(("count", "is_trifle"), [(3, False), (100, True)])
def test_the_fastest_plan_hands_no_mask_over_that_frees_a_trifle(count, is_trifle):
    program, _, masks = linear_layers(count, mask=200)
    frontier = Frontier(program)
    fastest, handed = frontier.fastest, masks[1]
    assert fastest is frontier.choose(None)
    assert (handed in fastest.decision.kept) != is_trifle
    if is_trifle:
        smaller = frontier.choose(fastest.peak_bytes - 1)
        assert handed in smaller.decision.kept
        assert smaller.extra_ns == fastest.extra_ns == 0
        assert 0 < fastest.peak_bytes - smaller.peak_bytes < fastest.peak_bytes / 100


def test_what_is_narrow_is_handed_over_where_what_it_is_made_of_would_be_made_again_at_the_peak():
    """As which elements a dropout left, made of numbers that are drawn."""
    b = Builder()
    seed = b.given(8)
    drawn = b.add(EXTERN, seed, size=400, ns=1)
    left = b.add(POINTWISE, drawn, size=100)
    loss = b.add(REDUCTION, b.add(POINTWISE, seed, left, size=400, ns=1), size=8, ns=1)
    arriving = b.add(EXTERN, b.tangent(8), size=600)
    gradient = b.add(EXTERN, b.add(POINTWISE, arriving, left, size=600), seed, size=8)
    program = b.finish([loss], [gradient], is_fusing=True)
    decision = order_backward(program, ())
    assert drawn in decision.schedule.backward
    found = in_lowest_order(program, decision)
    assert found.decision.kept == {left}
    assert drawn not in found.decision.schedule.backward
    assert find_peak(program, decision.schedule)[0] - found.peak_bytes >= 400 - 100 - 8  # the next op is the peak
