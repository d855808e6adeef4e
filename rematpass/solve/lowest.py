"""Of the orders of a plan, the one with the lowest peak.

In: a `Program` and a decision. Out: `FrontierPoint`: the same executions, simulated in the best order known. Never
changes what is kept or computed again, but for what nobody reads, and for trifles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .descent import FrontierPoint
from .liveness import find_peak
from .order import drop_unread, let_wait, make_decision, tidy_backward
from .program import Decision, Kind, Program, Schedule

# A block of CUDA's allocator: what a single number takes there.
BLOCK_BYTES = 512
# What is made of inputs alone is a trifle up to this share of what is the peak. Other values were not tried (2026-11).
TRIFLE = 1 / 256


@dataclass(frozen=True)
class _Ordered:
    """A plan, its peak, and the op that runs then; -1 where nothing does."""

    peak_bytes: int
    op: int
    decision: Decision


def in_lowest_order(program: Program, decision: Decision) -> FrontierPoint:
    """The plan as it is or tidied, whichever takes less, with gradients that make its peak waiting.

    Where a pointwise result makes the peak, trifles are kept if that is lower: see `_with_trifles_kept`.
    """
    best = _tidied_or_not(program, decision)
    if program.is_fusing and best.op >= 0 and program.kind[best.op] is Kind.POINTWISE:
        best = min([best, *_with_trifles_kept(program, best)], key=lambda plan: plan.peak_bytes)
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


def _with_trifles_kept(program: Program, plan: _Ordered) -> Iterator[_Ordered]:
    """The plan with what takes next to nothing handed to the backward: numbers that fill tensors, or all but these.

    An executor that fuses stores what several ops read if it is made of more than a few tensors, and what is too long.
    A number at hand is one more tensor, where one that is made on the spot is none: so a masked softmax is stored once,
    instead of what its gradient makes of it, which is no smaller and stands beside all that the softmax is made of.
    Labels at hand, padded and shifted, are no part of the function that reads them, so that it need not be stored.
    """
    schedule = plan.decision.schedule
    most_bytes = max(BLOCK_BYTES, int(program.size_bytes[plan.op] * TRIFLE))
    trifles = {v for v in schedule.backward if _is_trifle(program, v, most_bytes)}
    numbers = {v for v in trifles if not program.inputs[v]}
    for kept in filter(None, (numbers, trifles - numbers)):
        backward = tuple(v for v in schedule.backward if v not in kept)
        changed = drop_unread(program, Schedule(schedule.forward, backward))
        yield _find_peak(program, make_decision(program, tidy_backward(program, changed)))


def _is_trifle(program: Program, v: int, most_bytes: int) -> bool:
    is_free = program.from_inputs[v] and program.kind[v] is Kind.POINTWISE and program.size_bytes[v] <= most_bytes
    return is_free and program.in_forward[v] and program.may_keep[v]
