"""The roofline, and what computing a value again costs beside keeping it: exact small answers, monotone."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rematpass.cost.device_model import DeviceModel
from rematpass.cost.prices import roofline_ns
from rematpass.cost.values import ValueWork, price_values

# One operation a nanosecond in float32, four in bfloat16, two bytes a nanosecond, 100 ns a launch.
TOY = DeviceModel("toy", (("float32", 1e9), ("bfloat16", 4e9)), 2e9, 100, 1e9, 2**30, "invented")
COUNTS = st.integers(0, 10**15)


@pytest.mark.parametrize(
    ("flops", "moved_bytes", "dtype", "launches", "nanoseconds"),
    [
        (0, 0, "float32", 0, 0),
        (0, 0, "float32", 1, 100),
        (10, 0, "float32", 0, 10),  # bound by arithmetic
        (10, 4, "float32", 1, 110),
        (10, 40, "float32", 1, 120),  # bound by memory
        (10, 0, "bfloat16", 0, 3),  # 2.5 rounds up
        (1, 1, "float32", 3, 301),
        (10, 0, "int8", 0, 10),  # unknown dtypes are priced as float32
        (3 * 10**12, 0, "float32", 0, 3 * 10**12),  # a whole quotient is not rounded up
    ],
)
def test_exact_answers(flops, moved_bytes, dtype, launches, nanoseconds):
    price = roofline_ns(flops=flops, moved_bytes=moved_bytes, dtype=dtype, device=TOY, launches=launches)
    assert price == nanoseconds
    assert isinstance(price, int)


@given(flops=COUNTS, moved_bytes=COUNTS, more=COUNTS)
def test_more_work_never_costs_less(flops, moved_bytes, more):
    def price(flops, moved_bytes):
        return roofline_ns(flops=flops, moved_bytes=moved_bytes, dtype="float32", device=TOY, launches=1)

    base = price(flops, moved_bytes)
    assert base <= price(flops + more, moved_bytes)
    assert base <= price(flops, moved_bytes + more)


def test_negative_counts_are_a_bug():
    with pytest.raises(AssertionError):
        roofline_ns(flops=-1, moved_bytes=0, dtype="float32", device=TOY, launches=0)


# Bytes are all that counts: two a nanosecond.
SIZE = 1000
READ_NS = SIZE // 2


def fused(*reads, size=SIZE, is_read_backward=False):
    """A value of the forward that is computed inside its readers, wherever they are."""
    return ValueWork(0, "float32", size, tuple((u, SIZE) for u in reads), False, is_read_backward, False, False, False)


def stored():
    """A value of the forward that is kept, without a price of its own: an input."""
    return ValueWork(0, "float32", SIZE, (), False, True, True, True, True)


def again(*work):
    return price_values(work, TOY).again_ns


def test_what_one_tensor_is_made_into_is_free_to_compute_again():
    """Keeping it costs a write and a read, computing it again one read, however many steps that takes."""
    assert again(stored(), fused(0), fused(1), fused(2), fused(3, is_read_backward=True)) == (0, 0, 0, 0, 0)


def test_what_four_tensors_are_made_into_costs_one_read_more_than_keeping_it():
    """The new cell of an LSTM: two gates, a candidate, the old cell. One is read anyhow, keeping it would cost two."""
    tensors = [stored()] * 4
    prices = again(*tensors, fused(0, 1), fused(2, 3), fused(4, 5, is_read_backward=True))
    assert prices[-1] == 0
    assert sum(prices) == READ_NS


def test_one_kernel_reads_a_tensor_once():
    """x * sigmoid(x), written out, and a second tensor: the first is read once, so keeping costs as much."""
    prices = again(stored(), stored(), fused(0), fused(2), fused(0, 3), fused(4, 1, is_read_backward=True))
    assert prices == (0,) * 6


def test_a_mask_is_free_where_what_it_is_made_of_is_read_anyhow():
    """Keeping the sign of a tensor would cost less than reading the tensor, but its gradient reads that."""
    mask = ValueWork(0, "float32", SIZE // 4, ((0, SIZE),), False, True, False, False, False)
    assert again(stored(), mask) == (0, 0)
    assert again(stored(), stored(), dataclasses.replace(mask, reads=((0, SIZE), (1, SIZE)))) == (0, 0, SIZE // 4)


def test_parts_of_a_tensor_are_read_once_each():
    halves = ((0, SIZE // 2),)
    half = ValueWork(0, "float32", SIZE // 2, halves, False, False, False, False, False)
    whole = fused(1, 2, is_read_backward=True)
    assert again(stored(), half, half, whole) == (0, 0, 0, 0)
    assert price_values((stored(), half), TOY).again_ns[1] == SIZE // 4


def test_only_what_the_backward_reads_would_be_kept():
    """Of two values on the way to a third, each costs its read; neither saves the traffic of a value that is kept."""
    unread = again(stored(), fused(0))
    assert unread == (0, SIZE // 2)
    assert again(stored(), fused(0, is_read_backward=True)) == (0, 0)


def test_what_is_stored_when_computed_again_saves_nothing_for_others():
    """A product's operand is written in the forward, too: keeping it is no traffic."""
    written = ValueWork(0, "float32", SIZE, ((1, SIZE),), False, True, True, True, False)
    prices = again(stored(), fused(0), written)
    assert prices == (0, SIZE // 2, SIZE // 2 + 100)


def test_a_backward_value_costs_a_launch_where_it_is_stored():
    made = ValueWork(0, "float32", SIZE, ((0, SIZE),), True, True, False, True, False)
    assert price_values((stored(), made), TOY).run_ns[1] == SIZE + 100
