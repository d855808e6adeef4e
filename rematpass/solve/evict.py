"""Free memory at one moment: compute values again instead of holding them there.

In: a plan on its `Axis` and a moment. Out: the ways to free memory at that moment, and the longer backward that some of
them make. Never simulates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .axis import Axis
from .program import Kind

# An input of what is computed again is held until then when it is no larger than this share of what is freed; else it
# is computed again as well. Each share is tried. Without the last two, `layered_n100` takes 51 % more extra time at
# 80 % of its memory and 71 % more at 70 %; a fourth between them changed nothing (2026-11).
HOLD_SHARES = (0.0, 0.3, 1.0)


@dataclass(frozen=True)
class Eviction:
    """Drop a value after its last use before a moment, compute it again right before its next use.

    Attributes:
        execution: whose storage is freed.
        start: moment of its last use before.
        freed_bytes: its size.
        extra_ns: time of what is computed again.
        place: moment before which it happens.
        again: ops computed there, in order.
        replaced: executions of views that nobody needs any more once they are made again there.
    """

    execution: int
    start: int
    freed_bytes: int
    extra_ns: int
    place: int
    again: tuple[int, ...]
    replaced: tuple[int, ...]


def apply_evictions(axis: Axis, evictions: Iterable[Eviction]) -> tuple[int, ...]:
    """The backward with the recomputations in it."""
    gone = {i for eviction in evictions for i in eviction.replaced}
    at: dict[int, list[int]] = {}
    for eviction in evictions:
        at.setdefault(eviction.place, []).extend(eviction.again)
    backward: list[int] = []
    for i in range(axis.split, len(axis.ops)):
        backward += at.get(i, ())
        if i not in gone:
            backward.append(axis.ops[i])
    return (*backward, *at.get(len(axis.ops), ()))


def take_together(axis: Axis, evictions: Sequence[Eviction], wanted_bytes: int, most: int) -> list[Eviction]:
    """The first of `evictions`, and as many of the next as free `wanted_bytes` and have nothing to do with each other.

    What one computes again, no other computes, drops or reads.
    """
    taken: list[Eviction] = []
    dropped, again, reads = set[int](), set[int](), set[int]()
    for eviction in evictions:
        if wanted_bytes <= 0 or len(taken) == most:
            break
        op, ops = axis.ops[eviction.execution], set(eviction.again)
        needs = {u for v in ops for u in axis.program.needs[v]}
        if op in dropped or op in reads or ops & (again | reads) or needs & (again | dropped):
            continue
        taken.append(eviction)
        dropped.add(op)
        again |= ops
        reads |= needs
        wanted_bytes -= eviction.freed_bytes
    return taken


def list_evictions(axis: Axis, moment: int) -> Iterator[Eviction]:
    """Every value held across `moment` that could be computed again later, with each way to have its inputs then."""
    for i in range(min(moment, len(axis.ops))):
        if axis.end[i] > moment and axis.stored[i] and axis.size(i):
            yield from _evict(axis, i, moment)


def _evict(axis: Axis, execution: int, moment: int) -> list[Eviction]:
    found = _next_use(axis, execution, moment)
    if found is None:
        return []
    start, place, wanted = found
    size = axis.size(execution)
    ways: dict[tuple[int, ...], Eviction] = {}
    least_bytes = 0.0
    for share in HOLD_SHARES:
        if least_bytes > int(share * size):
            continue  # nothing more is held than at the share before
        again, held_bytes, least_bytes = _missing(axis, wanted, _Spot(execution, place, moment, int(share * size)))
        if again and held_bytes < size:
            extra = sum(axis.program.duration_ns[v] for v in again)
            replaced = _replaced(axis, execution, place)
            ways.setdefault(again, Eviction(execution, start, size - held_bytes, extra, place, again, replaced))
        if len(again) == len(wanted):
            break  # all its inputs live on anyway
    return list(ways.values())


def _next_use(axis: Axis, execution: int, moment: int) -> tuple[int, int, set[int]] | None:
    """Last use before `moment`, the reader after it, and the ops it wants; None when it cannot be dropped there."""
    program, op = axis.program, axis.ops[execution]
    if program.is_backward[op] or not program.may_recompute[op]:
        return None
    wanted: set[int] = set()
    start, place = execution, len(axis.ops)
    stack = [execution]
    while stack:
        i = stack.pop()
        for r in axis.readers[i]:
            if r == len(axis.ops) or axis.runs_at[r] == moment or r <= moment < axis.runs_at[r]:
                return None
            if program.kind[axis.ops[r]] is Kind.VIEW:
                stack.append(r)
            elif axis.runs_at[r] < moment:
                start = max(start, axis.runs_at[r])
            else:
                wanted.add(axis.ops[i])
                place = min(place, r)
    return (start, place, wanted) if wanted and place > max(moment, axis.split - 1) else None


def _replaced(axis: Axis, execution: int, place: int) -> tuple[int, ...]:
    """Views of the storage that the backward made before `place` for readers from there on."""
    views: list[int] = []
    stack = [execution]
    while stack:
        made = [r for r in axis.readers[stack.pop()] if r < place and axis.program.kind[axis.ops[r]] is Kind.VIEW]
        views += made
        stack += made
    gone: set[int] = set()
    for v in sorted(views, reverse=True):
        if v >= axis.split and all(reader >= place or reader in gone for reader in axis.readers[v]):
            gone.add(v)
    return tuple(sorted(gone))


@dataclass(frozen=True)
class _Spot:
    """Dropping `execution` at `moment`, computing it again at `place`; inputs up to `hold_bytes` live on instead."""

    execution: int
    place: int
    moment: int
    hold_bytes: int


def _missing(axis: Axis, wanted: set[int], spot: _Spot) -> tuple[tuple[int, ...], int, float]:
    """What to compute at the spot; bytes of inputs that live on for it, and of the smallest that could, but does not.

    Nothing when it is not possible.
    """
    program, least = axis.program, math.inf
    again: set[int] = set()
    held: set[int] = set()
    stack = list(wanted)
    while stack:
        v = stack.pop()
        if v in again:
            continue
        if not program.may_recompute[v] or program.is_backward[v]:
            return (), 0, 0
        again.add(v)
        again.update(program.parts.get(v, ()))
        if program.kind[v] is Kind.PART:  # handed out by its op when that runs, and only then
            stack.append(program.inputs[v][0])
            continue
        for u in program.needs[v]:
            owner = _holder(axis, u, spot)
            if owner == _LOST:
                stack.append(u)
            elif axis.end[owner] <= spot.moment and axis.size(owner) > spot.hold_bytes:
                least = min(least, axis.size(owner))
                stack.append(u)
            elif axis.end[owner] <= spot.moment:
                held.add(owner)
    return tuple(sorted(again)), sum(axis.size(i) for i in held), least


_LOST = -1


def _holder(axis: Axis, value: int, spot: _Spot) -> int:
    """The execution whose storage has `value` at the spot, alive or not; `_LOST` when it has to be computed again.

    That is so for the evicted one, and for what may not cross from the forward to the backward, such as a tuple. Nor
    does a view: its base does, and with two of one storage at hand an executor would take over the memory of one.
    """
    latest = axis.latest(value, spot.place)
    owner = axis.owner(latest) if latest >= 0 else _LOST
    may_cross = axis.program.may_keep[value] and axis.program.kind[value] is not Kind.VIEW
    return _LOST if owner == spot.execution or (latest < axis.split and not may_cross) else owner
