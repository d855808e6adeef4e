"""Of the orders of a plan, the one with the lowest peak.

In: a `Program` and a decision. Out: `FrontierPoint`: the same executions, simulated in the best order known. Never
changes what is kept or computed again, but for what nobody reads, and for fills of a few bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .descent import FrontierPoint
from .liveness import find_peak
from .order import drop_unread, let_wait, make_decision, tidy_backward
from .program import Decision, Kind, Program, Schedule


@dataclass(frozen=True)
class _Ordered:
    """A plan, its peak, and the op that runs then; -1 where nothing does."""

    peak_bytes: int
    op: int
    decision: Decision


def in_lowest_order(program: Program, decision: Decision) -> FrontierPoint:
    """The plan as it is or tidied, whichever takes less, with gradients that make its peak waiting.

    Where what makes the peak is pointwise, its fills are kept if that is lower. An executor that fuses stores what
    several ops read and what is made of more than a few tensors; a fill it is handed is one of these, one that it makes
    itself is not. So a softmax is stored once instead of what is made of it in the backward, which is no smaller, and
    stands beside all that the softmax is made of.
    """
    best = _tidied_or_not(program, decision)
    if program.is_fusing and best.op >= 0 and program.kind[best.op] is Kind.POINTWISE:
        best = min([best, *_with_fills_kept(program, decision)], key=lambda plan: plan.peak_bytes)
    if best.op >= 0 and program.urgency.may_wait[best.op]:
        waiting = let_wait(program, best.decision.schedule)
        if waiting.backward != best.decision.schedule.backward:
            best = _find_peak(program, replace(best.decision, schedule=waiting))
    return FrontierPoint(best.peak_bytes, best.decision.recompute_ns, best.decision)


def _find_peak(program: Program, decision: Decision) -> _Ordered:
    return _Ordered(*find_peak(program, decision.schedule), decision)


def _tidied_or_not(program: Program, decision: Decision) -> _Ordered:
    tidied = tidy_backward(program, decision.schedule)
    if len(set(tidied.backward)) < len(tidied.backward):  # of two that moved together one is read
        tidied = drop_unread(program, tidied)
    orders = (decision, make_decision(program, tidied))
    return min((_find_peak(program, order) for order in orders), key=lambda plan: plan.peak_bytes)


def _with_fills_kept(program: Program, decision: Decision) -> Sequence[_Ordered]:
    """The plan with its fills handed to the backward; nothing where it makes none there."""
    schedule = decision.schedule
    backward = tuple(v for v in schedule.backward if v not in program.fills)
    if len(backward) == len(schedule.backward):
        return ()
    return (_tidied_or_not(program, make_decision(program, Schedule(schedule.forward, backward))),)
