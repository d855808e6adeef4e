"""Plans of smaller and smaller peaks, each made from the one before by local search.

In: a `Program`, plans to start from. Out: `Squeeze`: the plans, and still smaller ones when they are asked for. Never
looks at a budget: asking for less leaves the plans that are there as they are.

A share of the peak is taken off until that no longer works, then half of it, and so on. Where that ends depends on the
start and on chance, so the patient search tries many starts and small shares. It takes about as long as all the rest,
so only those pay for it whose budget is below what the quick one found, or who want the whole curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .descent import Evaluate, FrontierPoint
from .order import drop_unread, make_decision
from .program import Decision, Program
from .repair import LocalSearch

Spend = Callable[[int], bool]

# A round takes about as long as simulating so many plans.
ROUND_WORK = 1
# The first share by which the smallest peak is lowered.
FIRST_SHARE = 0.08


@dataclass(frozen=True)
class Pace:
    """How long to go on.

    Attributes:
        last_share: the last share of the peak worth trying.
        rounds: for each.
        grows: whether a share that worked is doubled again.
    """

    last_share: float
    rounds: int
    grows: bool


# With a last share of 0.01 and 20 rounds the smallest peaks of five of ten models are 1 to 2 % lower, but every plan
# takes twice as long to find (2026-11).
QUICK = Pace(last_share=0.02, rounds=12, grows=False)
# On 21 models at two speeds of the processor each, smallest peaks above parameters are 2.5 % lower than the quick one's
# on average, up to 18 %, in 0.05 to 1.1 s; with twice the rounds 2.7 % on average, in twice the time (2026-11).
PATIENT = Pace(last_share=0.005, rounds=20, grows=True)


class Squeeze:
    """The lowest plans of a program.

    Args:
        program: what is planned.
        starts: plans to start from; of all but the first, those with a lower peak than it are tried.
        lower_bytes: no plan has a smaller peak.
        evaluate: simulates a plan; None when no work is left.
        spend: counts ops that were walked through; whether there is work left.

    Attributes:
        plans: of smaller and smaller peaks, none of them faster than the one before.
    """

    def __init__(
        self,
        program: Program,
        starts: Sequence[FrontierPoint],
        lower_bytes: int,
        evaluate: Evaluate,
        spend: Spend,
    ) -> None:
        self._program = program
        self._lower_bytes = lower_bytes
        self._evaluate = evaluate
        self._spend = spend
        first = starts[0]
        tried = [start for start in starts if start is first or start.peak_bytes < first.peak_bytes]
        self.plans = front(point for start in tried for point in self._lower(start, QUICK))

    def go_on(self, starts: Sequence[FrontierPoint]) -> None:
        """Add plans of still smaller peaks, from the last one and from others, whatever their peaks."""
        last = self.plans[-1]
        found = [point for start in (last, *starts) for point in self._lower(start, PATIENT, last)]
        self.plans += front(p for p in found if p.peak_bytes < last.peak_bytes and p.extra_ns >= last.extra_ns)

    def _lower(self, start: FrontierPoint, pace: Pace, known: FrontierPoint | None = None) -> list[FrontierPoint]:
        """`start`, then plans of smaller and smaller peaks, none faster than the one before.

        Below the peak of a plan that is known they are to take as long as that: only such can stand behind it.
        """
        program, found, share = self._program, [start], FIRST_SHARE
        while share >= pace.last_share:
            last = found[-1]
            target = last.peak_bytes - max(1, int((last.peak_bytes - program.static_bytes) * share))
            enough_ns = last.extra_ns
            if known is not None and target < known.peak_bytes:
                enough_ns = max(enough_ns, known.extra_ns)
            search = LocalSearch(program, last.decision, target, enough_ns)
            if target >= self._lower_bytes:
                fit(search, pace.rounds, self._spend)
            plan = search.best()
            point = None if plan is None else self._evaluate(without_unread(program, plan))
            if point is None or point.peak_bytes > target or point.extra_ns < last.extra_ns:
                share /= 2
                continue
            found.append(point)
            share = min(FIRST_SHARE, share * 2) if pace.grows else share
        return found


def front(found: Iterable[FrontierPoint]) -> list[FrontierPoint]:
    """Of some plans, those of smaller and smaller peaks that take longer and longer: no other is better in both."""
    plans: list[FrontierPoint] = []
    for point in sorted(found, key=lambda p: (p.peak_bytes, p.extra_ns)):
        if not plans or point.extra_ns < plans[-1].extra_ns:
            plans.append(point)
    return plans[::-1]


def fit(search: LocalSearch, rounds: int, spend: Spend) -> None:
    """Rounds until a plan fits."""
    for _ in range(rounds):
        if search.best_ns < math.inf or not spend(ROUND_WORK * len(search.program)):
            return
        search.step()


def without_unread(program: Program, decision: Decision) -> Decision:
    """A plan without what nothing reads."""
    return make_decision(program, drop_unread(program, decision.schedule))
