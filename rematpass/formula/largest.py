"""Which of many sums of bytes can be the largest somewhere on a range of sizes.

In: the live bytes at every position of a step, as sums. Out: those that can be the highest; every other one is proven
to be no higher than one of them at each size. Never guesses: in doubt a position stays.

Branch and bound: in a box of sizes a sum is beaten by another if the difference of the two, each unit at its own end of
the box, cannot be negative. Boxes where something is undecided are halved, down to single sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from .pieces import Piece
from .polynomial import Exponents, Point, monomial_at
from .sums import ByteSum, Cell, corners, halves

# Boxes looked at before everything undecided is kept. Peaks of transformers took 1 to 40 (2026-11); at half, formulas
# of odd models might get longer by what cannot be the peak.
MOST_CELLS = 4000


def find_largest(sums: Sequence[ByteSum], ranges: Sequence[range]) -> tuple[int, ...]:
    """Places in `sums` of those that can be the largest, in order; of equal ones the first."""
    search = _Search(sums, ranges)
    pending = [(tuple((0, len(r) - 1) for r in ranges), np.arange(len(search.rows)))]
    for _ in range(MOST_CELLS):
        if not pending:
            break
        cell, rows = pending.pop()
        left = search.unbeaten(cell, rows)
        if len(left) and all(a == b for a, b in cell):
            search.settle(corners(cell, ranges)[0], left)
        elif len(left):
            pending += [(half, left) for half in halves(cell)]
    for _, rows in pending:
        search.chosen.update(rows.tolist())
    return tuple(sorted(search.first[row] for row in search.chosen))


class _Search:
    """Sums as rows of counts over units (monomials and pieces), and the rows chosen so far."""

    def __init__(self, sums: Sequence[ByteSum], ranges: Sequence[range]) -> None:
        self._ranges = ranges
        self.first = sorted({s: i for i, s in reversed(list(enumerate(sums)))}.values())
        self._sums = [sums[i] for i in self.first]
        shared = [[less for less, _ in own.shared] for own in self._sums]
        counts = [_counts(own) for own in (*self._sums, *itertools.chain(*shared))]
        self._units = list(dict.fromkeys(unit for own in counts for unit, _ in own))
        # One denominator for all, so that rows hold whole numbers.
        self._scale = math.lcm(*(count.denominator for own in counts for _, count in own))
        self.rows = np.array([self._row([own]) for own in self._sums], dtype=object)
        # What is shared lowers a row, so such a row beats nothing with those bytes.
        self._lowest = self.rows - np.array([self._row(less) for less in shared], dtype=object)
        self.chosen: set[int] = set()
        for point in itertools.product(*(sorted({r[0], r[len(r) // 2], r[-1]}) for r in ranges)):
            self.settle(point, np.arange(len(self.rows)))

    def unbeaten(self, cell: Cell, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `rows` that no chosen row beats all over the box."""
        below, above = self._units_between(*corners(cell, self._ranges))
        for best in sorted(self.chosen):
            rows = rows[rows != best]
            if not len(rows):
                break
            difference = self._lowest[best] - self.rows[rows]
            worst = np.where(difference > 0, difference * below, difference * above).sum(axis=1)
            rows = rows[worst < 0]
        return rows

    def settle(self, point: Point, rows: NDArray[np.int64]) -> None:
        """At one size: choose the highest of `rows` unless something chosen is as high there."""
        units, _ = self._units_between(point, point)
        values = {
            row: value - self._shared(row, point) for row, value in zip(rows, self.rows[rows] @ units, strict=True)
        }
        best = max(values, key=lambda row: (values[row], -row))
        chosen = (self.rows[row] @ units - self._shared(row, point) for row in self.chosen)
        if all(value < values[best] for value in chosen):
            self.chosen.add(int(best))

    def _shared(self, row: int, point: Point) -> int:
        return self._scale * self._sums[row].shared_at(point)

    def _row(self, sums: Sequence[ByteSum]) -> list[int]:
        total = dict.fromkeys(self._units, Fraction(0))
        for unit, count in itertools.chain(*map(_counts, sums)):
            total[unit] += count
        return [int(count * self._scale) for count in total.values()]

    def _units_between(self, low: Point, high: Point) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
        ends = [
            unit.bounds(low, high) if isinstance(unit, Piece) else (monomial_at(unit, low), monomial_at(unit, high))
            for unit in self._units
        ]
        below, above = (np.array([end[i] for end in ends], dtype=object) for i in (0, 1))
        return below, above


def _counts(of: ByteSum) -> list[tuple[Exponents | Piece, Fraction]]:
    return [*of.polynomial.terms, *((piece, Fraction(count)) for piece, count in of.pieces)]
