"""The roofline: exact small answers, monotone, whole nanoseconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rematpass.cost.device_model import DeviceModel
from rematpass.cost.prices import roofline_ns

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
