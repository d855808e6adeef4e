"""The largest size that fits a budget.

In: a function from a size to the smallest peak at it, a budget. Out: the largest size that fits, with what was tried.
Never plans itself, never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .errors import OptionError
from .plan_types import Plan

# A size is at most multiplied by this while nothing has failed yet: beyond, a straight line through two points says
# little (2026-11). At half, more steps are taken upwards; at twice, large graphs are traced for nothing.
GROWTH = 4


@dataclass(frozen=True)
class Tried:
    """A size, the smallest peak of any plan at it, and whether that fits."""

    size: int
    smallest_peak_bytes: int
    fits: bool


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
        smallest_peak: from a size to the smallest peak at it, in bytes.
        budget_bytes: what fits.
        step: sizes are multiples of it.
        most: no larger size is tried.
    """

    smallest_peak: Callable[[int], int]
    budget_bytes: int
    step: int = 1
    most: int = 2**20
    tried: list[Tried] = field(default_factory=list)

    def run(self, start: int) -> int:
        """The largest size that fits, 0 when not even one step does. `start` is tried first."""
        if self.step < 1 or self.most < self.step:
            raise OptionError(f"sizes in steps of {self.step} up to {self.most} are none. Try: a step of at least 1")
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
        peak = self.smallest_peak(size)
        self.tried.append(Tried(size, peak, peak <= self.budget_bytes))
        return self.tried[-1].fits

    def _guess(self, low: int, high: int | None, last: int) -> int:
        """Where a line through what is nearest to the budget crosses it; half way where that has not helped."""
        near = sorted(self.tried, key=lambda t: abs(t.smallest_peak_bytes - self.budget_bytes))[:2]
        crossing = self._crossing(near)
        if high is None:
            return min(last, max(low + 1, min(crossing or GROWTH * low, GROWTH * low)))
        if crossing is None or len(self.tried) % 4 == 0:
            crossing = (low + high) // 2
        return min(high - 1, max(low + 1, crossing))

    def _crossing(self, near: list[Tried]) -> int | None:
        if len(near) < 2:
            return None
        one, other = near
        rise = other.smallest_peak_bytes - one.smallest_peak_bytes
        if rise == 0 or (rise > 0) != (other.size > one.size):
            return None
        share = (self.budget_bytes - one.smallest_peak_bytes) / rise
        return int((one.size + share * (other.size - one.size)) // self.step)
