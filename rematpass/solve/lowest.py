"""Of the orders of a plan, the one with the lowest peak.

In: a `Program` and a decision. Out: `FrontierPoint`: the same executions, simulated in the best order known. Never
changes what is kept or computed again, but for what nobody reads.
"""

from __future__ import annotations

from dataclasses import replace

from .descent import FrontierPoint
from .liveness import find_peak
from .order import drop_unread, let_wait, make_decision, tidy_backward
from .program import Decision, Program


def in_lowest_order(program: Program, decision: Decision) -> FrontierPoint:
    """The plan as it is or tidied, whichever takes less, with gradients that make its peak waiting."""
    best = min(_as_it_is(program, decision), _as_it_is(program, _tidied(program, decision)), key=lambda p: p.peak_bytes)
    schedule = let_wait(program, best.decision.schedule)
    if schedule.backward == best.decision.schedule.backward:
        return best
    return min(best, _as_it_is(program, replace(best.decision, schedule=schedule)), key=lambda p: p.peak_bytes)


def _tidied(program: Program, decision: Decision) -> Decision:
    tidied = tidy_backward(program, decision.schedule)
    if len(set(tidied.backward)) < len(tidied.backward):  # of two that moved together one is read
        tidied = drop_unread(program, tidied)
    return make_decision(program, tidied)


def _as_it_is(program: Program, decision: Decision) -> FrontierPoint:
    return FrontierPoint(find_peak(program, decision.schedule), decision.recompute_ns, decision)
