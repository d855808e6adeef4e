"""Local search on the byte-exact timeline: trade time for memory at one moment, take back what turned out unneeded.

In: a `Program`, a plan, a budget. Out: the cheapest plan found that fits. Never leaves the timeline: every state is a
plan whose live bytes are counted, not estimated.

While the plan is over the budget, one value held across an overfull moment is computed again instead, chosen by extra
time per byte freed over the whole overfull stretch. Once it fits, what still fits is taken back (`polish`). Then a few
recomputations of the best plan are left out at random and the search goes on from there: ruin and recreate (Schrimpf et
al. 2000). The random numbers start from a fixed seed: equal calls give equal plans.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .axis import Axis
from .evict import Eviction, apply_evictions, list_evictions, take_together
from .flow import IntArray
from .liveness import simulate
from .order import make_decision
from .polish import Polisher
from .program import Decision, Program, Schedule

# The choice of an eviction is blurred by up to this power of two in either direction. Half and twice moved plans of the
# published resnet50 at 80, 50, 30, 20 % by -5 to +2 % of their extra time, of `layered_n100` not at all (2026-11).
NOISE = 1.0
# What was evicted within the last rounds counts as this much dearer, so that the search does not go round in circles.
# 5 rounds cost `layered_n100` 2 % at 70 %; 20 moved resnet50 by -4 to +2 %. At a penalty of 3 or 6 resnet50 takes up to
# 11 % more at 30 % (2026-11).
RECENT_ROUNDS = 10
RECENT_PENALTY = 1.5
# A plan this much dearer than the best is given up. 1.07 and 1.3 changed nothing (2026-11).
GIVE_UP = 1.15
# Recomputations left out at random. One at a time, and twice as many, moved resnet50 by -2 to +1 % (2026-11).
RUIN_SIZES = (1, 1, 2, 3)
# Evictions of one round. With 1 the published resnet50 takes 8 % more extra time at 30 % of its memory and 3 % more at
# 20 % (2026-11).
MOST_TOGETHER = 8
# Share of rounds that count all an eviction frees, also beyond what is too much: then something large goes, and small
# things come back.
WHOLE_SHARE = 0.3
SEED = 0


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
            return Repaired(search.best, rounds, is_complete=False)
        rounds += 1
        if search.step():
            last_gain = rounds
        if search.best is not None and search.best.recompute_ns <= limits.enough_ns:
            break
        if on_round is not None:
            on_round(rounds)
    return Repaired(search.best, rounds, is_complete=True)


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
        self._start = start
        self.enough_ns = enough_ns
        self._budget = budget_bytes - program.static_bytes
        self._random = random.Random(SEED)
        self._steps = 0
        self._recent: dict[int, int] = {}
        self._present = start
        self.best: Decision | None = None

    def step(self) -> bool:
        """Some evictions, or one take-back and a fresh ruin; whether a better plan was found."""
        self._steps += 1
        axis = Axis(self.program, self._present)
        excess = np.maximum(axis.live - self._budget, 0)
        if not excess.any():
            return self._settle(axis)
        evictions = self._choose(axis, excess)
        if not evictions:
            self._restart()
            return False
        self._recent.update((axis.ops[eviction.execution], self._steps) for eviction in evictions)
        schedule = Schedule(self._present.schedule.forward, apply_evictions(axis, evictions))
        self._present = make_decision(self.program, schedule)
        if self.best is not None and self._present.recompute_ns > GIVE_UP * self.best.recompute_ns + 1:
            self._restart()
        return False

    def _choose(self, axis: Axis, excess: IntArray) -> list[Eviction]:
        """Least time per byte and moment freed, at the fullest moment or at any overfull one."""
        is_at_peak = self._random.random() < 1 / 2
        moment = int(excess.argmax()) if is_at_peak else self._random.choice(np.flatnonzero(excess).tolist())
        counts_all = self._random.random() < WHOLE_SHARE

        def price(eviction: Eviction) -> float:
            stretch = excess[eviction.start + 1 : eviction.place]
            most = eviction.freed_bytes
            freed = int((most * (stretch > 0) if counts_all else np.minimum(stretch, most)).sum())
            blur = 2 ** self._random.uniform(-NOISE, NOISE)
            is_recent = self._steps <= self._recent.get(axis.ops[eviction.execution], -RECENT_ROUNDS) + RECENT_ROUNDS
            return (eviction.extra_ns + 1) / max(1, freed) * blur * (RECENT_PENALTY if is_recent else 1.0)

        cheapest_first = sorted(list_evictions(axis, moment), key=price)
        return take_together(axis, cheapest_first, int(excess[moment]), MOST_TOGETHER)

    def _settle(self, axis: Axis) -> bool:
        """Take back what fits, note the plan if it is the best, go on from a ruin of the best."""
        polisher = Polisher(self.program, self._present, axis)
        count, extra_ns = 0, self._present.recompute_ns
        for peak, saved in polisher.steps():
            extra_ns -= saved
            if peak > self._budget or extra_ns < self.enough_ns:
                break
            count += 1
        plan = polisher.decision(count)
        while count and simulate(self.program, plan.schedule).peak_bytes > self._budget + self.program.static_bytes:
            count //= 2  # under fusion the steps are estimates
            plan = polisher.decision(count)
        is_better = self.best is None or plan.recompute_ns < self.best.recompute_ns
        if is_better:
            self.best = plan
        self._restart()
        return is_better

    def _restart(self) -> None:
        """Leave out a few recomputations of the best plan, or begin again."""
        if self.best is None:
            self._present = self._start
            return
        polisher = Polisher(self.program, self.best)
        again = polisher.repeated()
        chosen = self._random.sample(again, min(len(again), self._random.choice(RUIN_SIZES)))
        self._present = polisher.without(chosen)
