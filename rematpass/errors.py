"""The errors a user can meet.

In: what went wrong, with the figures at hand. Out: one family, `RematError`, whose messages say what, which value,
why and what to try. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan_types import AliveRecord


class RematError(Exception):
    """Anything rematpass refuses or cannot do."""


class OptionError(RematError, ValueError):
    """An option that does not exist, or a value it does not take."""


class PlanFileError(RematError, ValueError):
    """A plan file that cannot be read."""


class ProblemError(RematError, ValueError):
    """A problem or a budget that the solver cannot read."""


class SplitError(RematError):
    """A plan or a split that failed its check: nothing was run. This is a bug in rematpass, please report it."""


class SolverError(RematError):
    """A certificate that does not hold (flow and cut differ). This is a bug in rematpass, please report it."""


class BudgetTooSmall(RematError, ValueError):  # noqa: N818  public name fixed by the interface
    """No plan fits the budget.

    Attributes:
        budget_bytes: what was asked.
        minimum_bytes: the smallest budget that works.
        largest: the largest tensors alive at the smallest plan's peak.
        pinned_bytes: what only the user's pins (`save`, MUST_SAVE) keep.
        beside_bytes: of both budgets, what gradients of earlier backwards take while the step runs.
    """

    def __init__(
        self,
        budget_bytes: int,
        minimum_bytes: int,
        largest: Sequence[AliveRecord] = (),
        pinned_bytes: int = 0,
        beside_bytes: int = 0,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.minimum_bytes = minimum_bytes
        self.largest = tuple(largest)
        self.pinned_bytes = pinned_bytes
        self.beside_bytes = beside_bytes
        super().__init__(budget_bytes, minimum_bytes, self.largest, pinned_bytes, beside_bytes)

    def __str__(self) -> str:
        from .report.sizes import format_bytes

        rows = "\n".join(
            f"  {format_bytes(a.bytes):>10}  {a.role:<10} {a.name}  {a.module}  {a.source}" for a in self.largest[:5]
        )
        pinned = (
            f"Your pins (save=, MUST_SAVE) keep {format_bytes(self.pinned_bytes)} of it.\n" if self.pinned_bytes else ""
        )
        beside = (
            f"Gradients of earlier backwards take {format_bytes(self.beside_bytes)} of it: they stay until the "
            "optimizer has taken them.\n"
            if self.beside_bytes
            else ""
        )
        alive = f"\nLargest tensors alive at the peak of the smallest plan:\n{rows}" if rows else ""
        return (
            f"memory budget too small: need {format_bytes(self.minimum_bytes)} ({self.minimum_bytes} bytes), "
            f"have {format_bytes(self.budget_bytes)} ({self.budget_bytes} bytes).\n"
            f"The smallest budget that works is memory_budget={self.minimum_bytes}.{alive}\n{pinned}{beside}"
            "Try: that budget; a smaller batch or sequence; or on_infeasible='warn' to run with the smallest peak "
            "possible."
        )
