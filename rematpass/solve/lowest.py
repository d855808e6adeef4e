"""Of the orders of a plan, the one with the lowest peak.

In: a `Program` and a decision. Out: `FrontierPoint`: the same executions, simulated in the best order known. Never
takes longer, nor keeps other values but masks in place of what they are made of, and where other values make other
functions for an executor that fuses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from .descent import FrontierPoint
from .liveness import find_peak
from .order import drop_unread, let_wait, let_wait_longer, make_decision
from .program import Decision, Kind, Program, Schedule

# A block of CUDA's allocator: what a single number takes there.
BLOCK_BYTES = 512
# What is made of inputs alone is a trifle up to this share of what is the peak. Other values were not tried (2026-11).
TRIFLE = 1 / 256
# Share of the peak that masks must free for the fastest plan to hand them over; 100 linear layers with ReLUs take 0.6 %
# less with one and compile to nine different kernels instead of six (2026-11). Other values were not tried.
MASKS_TRIFLE = 0.01


@dataclass(frozen=True)
class _Ordered:
    """A plan, its peak, and the op that runs then; -1 where nothing does; `start` as in `FrontierPoint`."""

    peak_bytes: int
    op: int
    decision: Decision
    start: Decision

    @property
    def extra_ns(self) -> int:
        """Extra time of the plan."""
        return self.decision.recompute_ns


def in_lowest_order(program: Program, decision: Decision, *, hands_masks: bool = True) -> FrontierPoint:
    """The plan as it is or tidied, whichever takes less, with functions before its peak and masks that free memory.

    Gradients that make its peak wait. Where a pointwise result makes it, other values are kept if that is lower: see
    `_fused_otherwise`.
    """
    best = _best_order(program, decision, hands_masks)
    if program.is_fusing and best.op >= 0 and program.kind[best.op] is Kind.POINTWISE:
        others = (other for other in _fused_otherwise(program, best, hands_masks) if other.extra_ns <= best.extra_ns)
        best = min([best, *others], key=lambda plan: plan.peak_bytes)
    for later in (let_wait, let_wait_longer):
        if best.op >= 0 and program.urgency.may_wait[best.op]:
            waiting = later(program, best.decision.schedule)
            if waiting.backward != best.decision.schedule.backward:
                schedule = Schedule(waiting.forward, program.core.drop_overtaken(waiting.backward))
                decision = make_decision(program, schedule)
                best = _Ordered(*find_peak(program, schedule), decision, decision)
    return FrontierPoint(best.peak_bytes, best.extra_ns, best.decision, best.start)


def without_trifling_masks(program: Program, decision: Decision, found: FrontierPoint) -> FrontierPoint:
    """What `in_lowest_order` found, or the same without masks where these free a trifle: each needs a kernel."""
    if found.decision.kept <= decision.kept:
        return found
    plain = in_lowest_order(program, decision, hands_masks=False)
    is_trifle = plain.peak_bytes * (1 - MASKS_TRIFLE) < found.peak_bytes
    return plain if is_trifle and plain.extra_ns <= found.extra_ns else found


def _best_order(program: Program, decision: Decision, hands_masks: bool) -> _Ordered:
    """The plan as it is or tidied, with functions before its peak and masks that free memory where that is lower.

    Compiled: core/lowest.cpp, core/order.cpp, core/hurry.cpp, core/masks.cpp.
    """
    forward = decision.schedule.forward
    (above_inputs, op), backward, before = program.core.best_order(forward, decision.schedule.backward, hands_masks)
    start = decision if before == decision.schedule.backward else make_decision(program, Schedule(forward, before))
    best = start if backward == before else make_decision(program, Schedule(forward, backward))
    return _Ordered(program.static_bytes + above_inputs, op, best, start)


def _fused_otherwise(program: Program, plan: _Ordered, hands_masks: bool) -> Iterator[_Ordered]:
    """The plan with other values handed to the backward, none of them larger, where those make other functions.

    An executor that fuses stores what several ops read if it is made of more than a few tensors, and what is too long.
    A number at hand is one more tensor, where one that is made on the spot is none: so a masked softmax is stored once,
    instead of what its gradient makes of it, which is no smaller and stands beside all that the softmax is made of.
    Labels at hand, padded and shifted, are no part of the function that reads them, so that it need not be stored. Nor
    is a mask, until it is made of its positions; nor logits that a function caps, until that is handed what it caps.
    """
    schedules = [plan.decision.schedule]
    sourced = _with_sources_kept(program, plan)
    if sourced is not None:
        schedules.append(sourced)
        yield _best_order(program, make_decision(program, sourced), hands_masks)
    for schedule in schedules:
        for kept in _trifles(program, schedule, plan.op):
            backward = tuple(v for v in schedule.backward if v not in kept)
            without = drop_unread(program, Schedule(schedule.forward, backward))
            yield _best_order(program, make_decision(program, without), hands_masks)


def _trifles(program: Program, schedule: Schedule, op: int) -> Iterator[set[int]]:
    """What the backward computes and takes next to nothing beside `op`: numbers that fill tensors; all but these."""
    most_bytes = _trifle_bytes(program, op)
    trifles = {v for v in program.free_functions.intersection(schedule.backward) if program.size_bytes[v] <= most_bytes}
    numbers = {v for v in trifles if not program.inputs[v]}
    return filter(None, (numbers, trifles - numbers))


def _trifle_bytes(program: Program, op: int) -> int:
    return max(BLOCK_BYTES, int(program.size_bytes[op] * TRIFLE))


def _with_sources_kept(program: Program, plan: _Ordered) -> Schedule | None:
    """The plan that keeps what the op at its peak is handed is made of, if no larger, in its place; None without any.

    What takes next to nothing is left as it is.
    """
    schedule, kept = plan.decision.schedule, set(plan.decision.kept)
    before: dict[int, list[int]] = {}
    for v in _handed(program, plan.op, kept, _trifle_bytes(program, plan.op)):
        made, sources = _made_of(program, v, kept)
        added = sum(program.size_bytes[program.root[u]] for u in sources - kept)
        if added <= program.size_bytes[v] and all(program.may_keep[u] for u in sources):
            kept = (kept | sources) - {v}
            before[v] = made
    if not before:
        return None
    backward, rest = list[int](), iter(schedule.backward)
    for op in rest:
        if not before.keys().isdisjoint(program.inputs[op]):
            for v in sorted(before.keys() & program.inputs[op]):
                backward += before.pop(v)
        backward.append(op)
        if not before:
            break
    backward += rest
    # Sources that were computed again are at hand now.
    return drop_unread(program, Schedule(schedule.forward, tuple(backward)))


def _handed(program: Program, op: int, kept: Collection[int], most_bytes: int) -> list[int]:
    """The pointwise results among `kept`, larger than so many bytes, that an op's function reads and may compute."""
    seen, stack = {op}, [op]
    while stack:
        read = {u for u in program.inputs[stack.pop()] if u not in seen and _is_function(program, u)}
        seen |= read
        stack += read.difference(kept)
    found = (seen & {*kept}) - {*program.forward_outputs}  # keeping what the caller gets costs nothing
    return sorted(u for u in found if _is_function(program, u) and program.size_bytes[u] > most_bytes)


def _made_of(program: Program, v: int, kept: Collection[int]) -> tuple[list[int], set[int]]:
    """What to run for a value, itself at the end, and what that reads: what is kept, and results of other ops."""
    made, sources, stack = {v}, set[int](), [v]
    while stack:
        for u in program.inputs[stack.pop()]:
            if u in kept or not _is_function(program, u):
                sources |= {u} if program.kind[u] is not Kind.INPUT else set()
            elif u not in made:
                made.add(u)
                stack.append(u)
    return sorted(made), sources


def _is_function(program: Program, v: int) -> bool:
    """Whether a fusing executor may compute a value inside its readers, as often as it likes."""
    return program.may_recompute[v] and program.kind[v] in (Kind.POINTWISE, Kind.VIEW)
