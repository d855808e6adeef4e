"""How much work a search may do, and what it has done.

In: an `Effort`. Out: `Work`, which says whether to go on. Never a clock: equal programs get equal plans anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Ops simulated in a second of search, with what it takes to make their plans. Work is counted, not time: a plan depends
# on its program alone, not on how fast or busy the machine is, so that all ranks of a job find the same one. On a
# current server core 4 million at 1,300 to 3,600 ops, 2 million at 10,000 to 100,000 (2026-11). At half, the search
# ends at half of the time limit; at twice, it takes twice as long as asked.
WORK_PER_SECOND = 3_000_000
# Of the work allowed, what may go into a smaller smallest peak; and never more than these seconds of it, so that a
# curve without a limit ends where a plan with the usual one does (`Options.time_limit`). Ten models take at most 0.1
# seconds of it (2026-11); with half, or twice, their smallest peaks are the same.
ENDS_SHARE = 0.5
ENDS_SECONDS = 2.5


@dataclass(frozen=True)
class Effort:
    """How much to spend on a program.

    Attributes:
        seconds: for simulating plans beyond the first ones, counted in ops (`WORK_PER_SECOND`), never by a clock; when
            they are used up, what was found by then is taken.
        is_local: whether plans are improved value by value; not, where the caller does that.
    """

    seconds: float = math.inf
    is_local: bool = True


class Work:
    """What a search has done of what it may do, in ops simulated.

    Attributes:
        is_complete: False once it was refused to go on.
    """

    def __init__(self, effort: Effort) -> None:
        self._seconds = effort.seconds
        self._ops = self._ends_ops = 0
        self.is_complete = True

    def add(self, ops: int) -> None:
        """Work that was done."""
        self._ops += ops

    def forget(self) -> None:
        """What was done so far is free."""
        self._ops = 0

    def may_go_on(self, share: float = 1.0) -> bool:
        """Whether there is some left of a share of all; notes when there is none."""
        may_go_on = self._ops < share * self._seconds * WORK_PER_SECOND
        self.is_complete &= may_go_on
        return may_go_on

    def spend(self, ops: int, share: float = 1.0) -> bool:
        """Do so much, no simulation of a plan, if that leaves some of a share of all; whether it may be done."""
        self._ops += ops
        if not self.may_go_on(share):
            self._ops -= ops
            return False
        return True

    def spend_on_ends(self, ops: int) -> bool:
        """As `spend`, on a smaller smallest peak."""
        if self._ends_ops + ops >= ENDS_SECONDS * WORK_PER_SECOND or not self.spend(ops, ENDS_SHARE):
            return False
        self._ends_ops += ops
        return True
