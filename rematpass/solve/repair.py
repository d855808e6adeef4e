"""Local search on the byte-exact timeline: trade time for memory at one moment, take back what turned out unneeded.

In: a `Program`, a plan, a budget. Out: the cheapest plan found that fits. Never leaves the timeline: every state is a
plan whose live bytes are counted, not estimated.

While the plan is over the budget, one value held across an overfull moment is computed again instead, chosen by extra
time per byte freed over the whole overfull stretch. Once it fits, what still fits is taken back (`polish`). Then the
search goes on from the best plan without some of its recomputations, in turn one that promises most for what has to go
instead and a few drawn at random: ruin and recreate (Schrimpf et al. 2000). The random numbers start from a fixed seed
and are the same on every machine: equal calls give equal plans.
A round is compiled: core/repair.cpp, core/evict.cpp.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from . import _core
from .order import make_decision
from .program import Decision, Program, Schedule


@dataclass(frozen=True)
class Limits:
    """When to stop.

    After `rounds`, after `patience` rounds without a better plan, at `stop` on the monotonic clock, or once the extra
    time is down to `enough_ns`: nothing is taken back that leads below it.
    """

    rounds: int
    patience: int
    stop: float = math.inf
    enough_ns: int = 0


@dataclass(frozen=True)
class Repaired:
    """The best plan that fits (None: none was found), the rounds it took, and whether time cut them short."""

    decision: Decision | None
    rounds: int
    is_complete: bool


def repair(
    program: Program,
    start: Decision,
    budget_bytes: int,
    limits: Limits,
    on_round: Callable[[int], object] | None = None,
) -> Repaired:
    """Search from `start`, which may be over the budget.

    Args:
        program: what is planned.
        start: any valid plan.
        budget_bytes: the graph's inputs counted.
        limits: when to stop.
        on_round: called with the number of each round, for a progress bar.
    """
    search = LocalSearch(program, start, budget_bytes, limits.enough_ns)
    last_gain = rounds = 0
    while rounds < limits.rounds and rounds - last_gain < limits.patience:
        if time.monotonic() > limits.stop:
            return Repaired(search.best(), rounds, is_complete=False)
        rounds += 1
        if search.step():
            last_gain = rounds
        if search.best_ns <= limits.enough_ns:
            break
        if on_round is not None:
            on_round(rounds)
    return Repaired(search.best(), rounds, is_complete=True)


class LocalSearch:
    """The present plan, the best one that fits, and what was evicted lately.

    Args:
        program: what is planned.
        start: any valid plan.
        budget_bytes: the graph's inputs counted.
        enough_ns: extra time below which nothing is taken back.
    """

    def __init__(self, program: Program, start: Decision, budget_bytes: int, enough_ns: float) -> None:
        self.program = program
        self.enough_ns = enough_ns
        self._forward = start.schedule.forward
        budget_bytes -= program.static_bytes
        self._core = _core.LocalSearch(program.core, self._forward, start.schedule.backward, budget_bytes, enough_ns)

    def step(self) -> bool:
        """Some evictions, or one take-back and a fresh ruin; whether a better plan was found."""
        return self._core.step()

    @property
    def best_ns(self) -> float:
        """Extra time of the best plan that fits; infinite where none was found."""
        return self._core.best_ns

    @property
    def present_ns(self) -> int:
        """Extra time of the present plan, whether it fits or not."""
        return self._core.present_ns

    def present(self) -> Decision:
        """The present plan, whether it fits or not."""
        return make_decision(self.program, Schedule(self._forward, self._core.present))

    def best(self) -> Decision | None:
        """The best plan that fits; None where none was found."""
        backward = self._core.best
        return None if backward is None else make_decision(self.program, Schedule(self._forward, backward))
