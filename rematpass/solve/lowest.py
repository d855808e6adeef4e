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
    orders = (decision, _tidied(program, decision))
    (peak_bytes, op), decision = min(
        ((find_peak(program, order.schedule), order) for order in orders), key=lambda found: found[0][0]
    )
    if op >= 0 and program.urgency.may_wait[op]:
        waiting = let_wait(program, decision.schedule)
        if waiting.backward != decision.schedule.backward:
            peak_bytes, decision = find_peak(program, waiting)[0], replace(decision, schedule=waiting)
    return FrontierPoint(peak_bytes, decision.recompute_ns, decision)


def _tidied(program: Program, decision: Decision) -> Decision:
    tidied = tidy_backward(program, decision.schedule)
    if len(set(tidied.backward)) < len(tidied.backward):  # of two that moved together one is read
        tidied = drop_unread(program, tidied)
    return make_decision(program, tidied)
