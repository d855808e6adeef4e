"""Bytes that are a sum: a polynomial, what is rounded, less what is shared where two sizes happen to be equal.

In: polynomials and pieces. Out: `ByteSum`: its value anywhere, bounds, an expression. Never imports torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .pieces import Piece, polynomial_to_sympy
from .polynomial import Point, Polynomial

if TYPE_CHECKING:
    import sympy


NOTHING = Polynomial()


@dataclass(frozen=True)
class ByteSum:
    """Polynomial, plus pieces so many times each, less what is shared.

    Attributes:
        polynomial: what needs no rounding.
        pieces: what does, with how often it counts.
        shared: (bytes, others): as many bytes less where one of the others is just as large.
    """

    polynomial: Polynomial = NOTHING
    pieces: tuple[tuple[Piece, int], ...] = ()
    shared: tuple[tuple[ByteSum, tuple[ByteSum, ...]], ...] = ()

    @classmethod
    def of(cls, pieces: Iterable[Piece], ranges: Sequence[range]) -> ByteSum:
        """The sum of pieces; those that need no rounding on the ranges become one polynomial."""
        polynomial, rest = Polynomial(), Counter[Piece]()
        for piece in pieces:
            exact = piece.as_polynomial(ranges)
            if exact is None:
                rest[piece] += 1
            else:
                polynomial = polynomial + exact
        return cls(polynomial, tuple(rest.items()))

    def at(self, point: Point) -> int:
        """Its value."""
        total = int(self.polynomial.at(point)) + sum(count * piece.at(point) for piece, count in self.pieces)
        return total - self.shared_at(point)

    def shared_at(self, point: Point) -> int:
        """What is shared there."""
        owned = ((own.at(point), others) for own, others in self.shared)
        return sum(size for size, others in owned if any(other.at(point) == size for other in others))

    def bounds(self, low: Point, high: Point) -> tuple[int, int]:
        """Between these it lies where each size is between `low` and `high`, before anything is shared."""
        least, most = self.polynomial.bounds(low, high)
        ends = [(count, piece.bounds(low, high)) for piece, count in self.pieces]
        least += sum(count * a for count, (a, _) in ends)
        most += sum(count * b for count, (_, b) in ends)
        return int(least // 1), int(-(-most // 1))

    def scaled(self, factor: int) -> ByteSum:
        """It so many times; nothing is shared in it."""
        return ByteSum(self.polynomial.scaled(factor), tuple((piece, count * factor) for piece, count in self.pieces))

    def __add__(self, other: ByteSum) -> ByteSum:
        pieces = Counter(dict(self.pieces))
        for piece, count in other.pieces:
            pieces[piece] += count
        return ByteSum(self.polynomial + other.polynomial, tuple(pieces.items()), (*self.shared, *other.shared))

    def to_sympy(self, symbols: Sequence[sympy.Symbol]) -> Any:
        """The expression."""
        import sympy

        total = polynomial_to_sympy(self.polynomial, symbols)
        for piece, count in self.pieces:
            total = total + count * piece.to_sympy(symbols)
        for own, others in self.shared:
            size = own.to_sympy(symbols)
            is_equal = sympy.Or(*(sympy.Eq(size, other.to_sympy(symbols)) for other in others))
            total = total - sympy.Piecewise((size, is_equal), (0, True))
        return total


def may_be_equal(one: ByteSum, other: ByteSum, ranges: Sequence[range]) -> bool:
    """Whether two sums that are not the same may have one value somewhere on the ranges; in doubt they may."""
    cells = [tuple((0, len(r) - 1) for r in ranges)]
    for _ in range(_MOST_CELLS):
        if not cells:
            return False
        cell = cells.pop()
        low, high = corners(cell, ranges)
        (a, b), (c, d) = one.bounds(low, high), other.bounds(low, high)
        if a > d or c > b:
            continue
        if low == high:
            return True
        cells += halves(cell)
    return True


# Boxes looked at before two sums are said to be equal somewhere. A formula only becomes longer by a doubt.
_MOST_CELLS = 2000

Cell = tuple[tuple[int, int], ...]


def corners(cell: Cell, ranges: Sequence[range]) -> tuple[Point, Point]:
    """The smallest and the largest sizes of a box, which is given by places in the ranges."""
    low = tuple(r[a] for r, (a, _) in zip(ranges, cell, strict=True))
    return low, tuple(r[b] for r, (_, b) in zip(ranges, cell, strict=True))


def halves(cell: Cell) -> list[Cell]:
    """A box in two, cut across its longest side by the ratio of its ends."""
    axis = max(range(len(cell)), key=lambda i: (cell[i][1] + 1) / (cell[i][0] + 1) if cell[i][1] > cell[i][0] else 0)
    a, b = cell[axis]
    middle = (a + b) // 2
    return [(*cell[:axis], half, *cell[axis + 1 :]) for half in ((a, middle), (middle + 1, b))]
