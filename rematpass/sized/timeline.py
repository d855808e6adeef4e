"""Live bytes at every position of a step as functions of sizes.

In: a program, a schedule, and functions for the bytes of its values. Out: `SizedTimeline`: a sum per position, and what
is alive at one. Never decides.

Lives depend on sizes only where a result takes the place of a dying input that is just as large. Where the two are not
always equal but may be, the sum says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..formula.polynomial import Point
from ..formula.sums import ByteSum, may_be_equal
from ..solve.liveness import Half, find_heirs, find_lives, find_spans
from ..solve.program import Program, Schedule
from .forms import Forms

Shared = tuple[tuple[ByteSum, tuple[ByteSum, ...]], ...]


@dataclass(frozen=True)
class SizedTimeline:
    """Live bytes per executed op, forward then backward.

    Attributes:
        sums: the distinct sums.
        places: per position, which of them.
        static: inputs of the forward, by name; part of every sum.
    """

    sums: tuple[ByteSum, ...]
    places: tuple[int, ...]
    static: tuple[tuple[str, ByteSum], ...]

    def at(self, point: Point) -> list[int]:
        """Live bytes per position."""
        values = [own.at(point) for own in self.sums]
        return [values[place] for place in self.places]


def trace_sums(program: Program, schedule: Schedule, forms: Forms, ranges: Sequence[range]) -> SizedTimeline:
    """The sums of a schedule."""
    static = forms.static()
    base = ByteSum()
    for _, size in static:
        base = base + size
    numbers: dict[tuple[tuple[int, ...], Shared], int] = {}
    columns = _Columns()
    keys = []
    for half in find_lives(program, schedule):
        rows, shared = _Sums(program, half, forms, ranges, columns).rows()
        keys += [(row, shared.get(i, ())) for i, row in enumerate(rows)]
    width = len(columns.sums)
    padded = [((*row, *(0,) * (width - len(row))), shared) for row, shared in keys]
    places = [numbers.setdefault(key, len(numbers)) for key in padded]
    sums = tuple(columns.add_up(base, row, shared) for row, shared in numbers)
    return SizedTimeline(sums, tuple(places), tuple(static))


class _Columns:
    """The distinct sums that rows count."""

    def __init__(self) -> None:
        self.sums: list[ByteSum] = []
        self._numbers: dict[ByteSum, int] = {}

    def number(self, own: ByteSum) -> int:
        """Of the column of `own`, a new one where it has none."""
        if own not in self._numbers:
            self._numbers[own] = len(self.sums)
            self.sums.append(own)
        return self._numbers[own]

    def add_up(self, base: ByteSum, row: Sequence[int], shared: Shared) -> ByteSum:
        """What a row stands for."""
        total = base
        for own, count in zip(self.sums, row, strict=True):
            total = total + own.scaled(count) if count else total
        return ByteSum(total.polynomial, total.pieces, shared)


@dataclass(frozen=True)
class _Sums:
    """Forward or backward as executed, counted."""

    program: Program
    half: Half
    forms: Forms
    ranges: Sequence[range]
    columns: _Columns

    def rows(self) -> tuple[list[tuple[int, ...]], dict[int, Shared]]:
        """Per position how often each column counts, and what is shared by accident."""
        given, ops = self.half.given, self.half.ops.tolist()
        taken, shared = self._takeovers()
        sizes = {i: self.columns.number(self._size(i)) for i in storages(self.half)}
        scratch = {i: self.columns.number(self.forms.scratch(op)) for i, op in enumerate(ops) if i >= given}
        counts = np.zeros((len(ops) + 2, len(self.columns.sums)), dtype=np.int64)
        _, start, stop = find_spans(self.half)
        for i, column in sizes.items():
            counts[start[i], column] += 1
            counts[stop[i], column] -= 1
        live = np.cumsum(counts, axis=0)[: len(ops)]
        for i, column in scratch.items():
            live[i, column] += 1
        for i in taken:
            live[i, sizes[i]] -= 1
        rows = [tuple(row) for row in live[given:].tolist()]
        return rows, {i - given: own for i, own in shared.items()}

    def _takeovers(self) -> tuple[list[int], dict[int, Shared]]:
        """Results that always take the place of an input; those that do at some sizes, with how."""
        taken, shared = [], dict[int, Shared]()
        for i, dying in find_heirs(self.program, self.half).items():
            own, others = self._size(i), [self._size(d) for d in dying]
            if own == ByteSum():
                continue
            if own in others:
                taken.append(i)
                continue
            close = tuple(dict.fromkeys(other for other in others if may_be_equal(own, other, self.ranges)))
            if close:
                shared[i] = ((own, close),)
        return taken, shared

    def _size(self, i: int) -> ByteSum:
        if not self.half.size[i]:
            return ByteSum()
        return self.forms.storage(storage_owner(self.program, self.half, i))


def storages(half: Half) -> list[int]:
    """Instances that are storages in memory, what somebody else pays for left out."""
    is_there, _, _ = find_spans(half)
    return [int(i) for i in np.flatnonzero(is_there & (half.size > 0))]


def storage_owner(program: Program, half: Half, i: int) -> int:
    """The value whose storage an instance allocates, or was handed."""
    op = int(half.ops[i])
    return program.root[op] if i < half.given else op
