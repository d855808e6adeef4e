"""The largest size that fits a budget.

In: a function from a size to the smallest peak at it, a budget. Out: the largest size that fits, with what was tried.
Never plans itself, never imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from .errors import BudgetTooSmall, OptionError
from .plan_types import Plan

# How fast sizes grow while nothing says where the budget is crossed (2026-11). A trace takes as long at any size, so a
# step too far costs no more than a short one. At half and at twice, about one try more.
GROWTH = 4


@dataclass(frozen=True)
class Tried:
    """A size, the smallest peak of any plan at it, and the budget there."""

    size: int
    smallest_peak_bytes: int
    budget_bytes: int

    @property
    def excess_bytes(self) -> int:
        """What is missing; at most zero where it fits."""
        return self.smallest_peak_bytes - self.budget_bytes

    @property
    def fits(self) -> bool:
        """Whether some plan at this size meets the budget."""
        return self.excess_bytes <= 0


@dataclass(frozen=True)
class MaxSize:
    """The largest size that fits.

    Attributes:
        vary: "batch" or "sequence".
        size: the largest that fits; every larger one tried does not.
        plan: the plan at `size`.
        above: the next size, which does not fit; None where the search ended at its upper end.
        above_minimum_bytes: the smallest budget that would do there.
        tried: every size that was planned exactly, in the order of trying.
    """

    vary: str
    size: int
    plan: Plan
    above: int | None
    above_minimum_bytes: int | None
    tried: tuple[Tried, ...]

    def __str__(self) -> str:
        from .report.size_table import format_max_size

        return format_max_size(self)


@dataclass
class SizeSearch:
    """Finds the largest multiple of `step` that fits, with few tries.

    Attributes:
        measure: from a size to the smallest peak at it and the budget there, both in bytes.
        step: sizes are multiples of it.
        most: no larger size is tried.
    """

    measure: Callable[[int], tuple[int, int]]
    step: int = 1
    most: int = 2**20
    tried: list[Tried] = field(default_factory=list)

    def run(self, start: int) -> int:
        """The largest size that fits, 0 when not even one step does. `start` is tried first."""
        if self.step < 1 or self.most < self.step:
            most = max(1, self.most)
            raise OptionError(f"sizes in steps of {self.step} up to {self.most} are none. Try: a step from 1 to {most}")
        low, high, last = 0, None, self.most // self.step
        place = min(max(1, start // self.step), last)
        while low < last and (high is None or high - low > 1):
            if self._fits(place):
                low = place
            else:
                high = place
            place = self._guess(low, high, last)
        return low * self.step

    def _fits(self, place: int) -> bool:
        size = place * self.step
        self.tried.append(Tried(size, *self.measure(size)))
        return self.tried[-1].fits

    def _guess(self, low: int, high: int | None, last: int) -> int:
        """Where a line through what is nearest to the budget crosses it; half way where that has not helped."""
        near = sorted(self.tried, key=lambda t: abs(t.excess_bytes))[:2]
        crossing = self._crossing(near)
        if high is None:
            return min(last, max(low + 1, crossing or GROWTH * low))
        if crossing is None or len(self.tried) % 2 == 0:
            crossing = (low + high) // 2 if high <= GROWTH * max(1, low) else math.isqrt(low * high)
        return min(high - 1, max(low + 1, crossing))

    def _crossing(self, near: list[Tried]) -> int | None:
        if len(near) < 2:
            return None
        one, other = near
        rise = other.excess_bytes - one.excess_bytes
        if rise == 0 or (rise > 0) != (other.size > one.size):
            return None
        share = -one.excess_bytes / rise
        return int((one.size + share * (other.size - one.size)) // self.step)


def find_max_size(
    plan_at: Callable[[int], Plan],
    vary: str,
    *,
    start: int,
    step: int = 1,
    most: int = 2**20,
    on_tried: Callable[[Tried], object] | None = None,
) -> MaxSize:
    """The largest size that `plan_at` does not refuse.

    Args:
        plan_at: from a size to the plan for it; raises BudgetTooSmall where nothing fits.
        vary: what the size is, for the reader.
        start: the first size to try.
        step: sizes are multiples of it.
        most: no larger size is tried.
        on_tried: called with every size tried, for a progress bar.

    Raises:
        BudgetTooSmall: not even one step fits.
    """
    plans: dict[int, Plan] = {}
    errors: dict[int, BudgetTooSmall] = {}

    def measure(size: int) -> tuple[int, int]:
        found = _measure(size)
        if on_tried is not None:
            on_tried(Tried(size, *found))
        return found

    def _measure(size: int) -> tuple[int, int]:
        try:
            plans[size] = plan_at(size)
        except BudgetTooSmall as error:
            errors[size] = error
            return error.minimum_bytes, error.budget_bytes
        budget = plans[size].budget_bytes
        assert budget is not None, "a search has a budget"
        return plans[size].smallest_peak_bytes, budget

    search = SizeSearch(measure, step, most)
    size = search.run(start)
    if not size:
        raise errors[step]
    above = size + step if size + step in errors else None
    minimum = errors[above].minimum_bytes if above is not None else None
    return MaxSize(vary, size, plans[size], above, minimum, tuple(search.tried))
