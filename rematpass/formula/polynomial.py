"""Exact polynomials in a few sizes, and the one that goes through given numbers.

In: integers at a grid of sizes. Out: `Polynomial`, with fractions for coefficients. Never rounds, never imports torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

Exponents = tuple[int, ...]
Point = tuple[int, ...]


@dataclass(frozen=True)
class Polynomial:
    """A sum of coefficient * product of size ** exponent; `terms` are sorted, no coefficient is zero.

    >>> p = Polynomial.of({(1, 2): Fraction(3), (0, 0): Fraction(5)})
    >>> p.at((2, 10)), (p + p).at((2, 10)), (p * p).at((1, 1))
    (Fraction(605, 1), Fraction(1210, 1), Fraction(64, 1))
    """

    terms: tuple[tuple[Exponents, Fraction], ...] = ()

    @classmethod
    def of(cls, terms: Mapping[Exponents, Fraction]) -> Polynomial:
        """The polynomial with these coefficients."""
        return cls(tuple(sorted((e, c) for e, c in terms.items() if c)))

    @property
    def degree(self) -> int:
        """The largest sum of exponents."""
        return max((sum(exponents) for exponents, _ in self.terms), default=0)

    def at(self, point: Point) -> Fraction:
        """Its value."""
        return sum((c * monomial_at(e, point) for e, c in self.terms), Fraction(0))

    def bounds(self, low: Point, high: Point) -> tuple[Fraction, Fraction]:
        """Between these its values lie where each size is between `low` and `high`: monomials grow with sizes."""
        ends = [sorted((c * monomial_at(e, low), c * monomial_at(e, high))) for e, c in self.terms]
        return sum((a for a, _ in ends), Fraction(0)), sum((b for _, b in ends), Fraction(0))

    def scaled(self, factor: int | Fraction) -> Polynomial:
        """It times a number."""
        return Polynomial.of({e: c * factor for e, c in self.terms})

    def __add__(self, other: Polynomial) -> Polynomial:
        total = dict(self.terms)
        for e, c in other.terms:
            total[e] = total.get(e, Fraction(0)) + c
        return Polynomial.of(total)

    def __mul__(self, other: Polynomial) -> Polynomial:
        total: dict[Exponents, Fraction] = {}
        for (e, c), (f, d) in itertools.product(self.terms, other.terms):
            exponents = tuple(map(sum, zip(e, f, strict=True)))
            total[exponents] = total.get(exponents, Fraction(0)) + c * d
        return Polynomial.of(total)

    def is_multiple_of(self, block: int, ranges: Sequence[range]) -> bool:
        """Whether every value on the ranges is surely a multiple: with start + step * k for a size, coefficients are.

        >>> Polynomial.of({(1,): Fraction(4)}).is_multiple_of(512, [range(128, 1024, 128)])
        True
        """
        shifted = Polynomial.of({})
        for exponents, c in self.terms:
            part = Polynomial.of({(0,) * len(ranges): c})
            for axis, exponent in enumerate(exponents):
                part = part * _shifted(axis, exponent, ranges)
            shifted = shifted + part
        return all((c / block).denominator == 1 for _, c in shifted.terms)


def monomial_at(exponents: Exponents, point: Point) -> int:
    """Product of size ** exponent."""
    return math.prod(size**e for size, e in zip(point, exponents, strict=True))


def _shifted(axis: int, exponent: int, ranges: Sequence[range]) -> Polynomial:
    """(start + step * k) ** exponent for the size of one axis, as a polynomial in k."""
    own = ranges[axis]
    at = [tuple(i if a == axis else 0 for a in range(len(ranges))) for i in range(exponent + 1)]
    return Polynomial.of(
        {
            at[i]: Fraction(math.comb(exponent, i) * own.start ** (exponent - i) * own.step**i)
            for i in range(exponent + 1)
        }
    )


class Grid:
    """Polynomials of at most given degrees through numbers at a grid of sizes.

    Args:
        axes: per size, the values it takes on the grid; the degree in it is one less than their number.
    """

    def __init__(self, axes: Sequence[Sequence[int]]) -> None:
        self.points: tuple[Point, ...] = tuple(itertools.product(*axes))
        self._exponents: tuple[Exponents, ...] = tuple(itertools.product(*(range(len(axis)) for axis in axes)))
        self._inverse = _invert([[Fraction(monomial_at(e, p)) for e in self._exponents] for p in self.points])

    def fit(self, values: Sequence[int]) -> Polynomial:
        """The polynomial that has these values at `points`.

        >>> Grid([(1, 2), (1, 2, 3)]).fit([1, 4, 9, 2, 8, 18])
        Polynomial(terms=(((1, 2), Fraction(1, 1)),))
        """
        rows = (sum((a * v for a, v in zip(row, values, strict=True)), Fraction(0)) for row in self._inverse)
        return Polynomial.of(dict(zip(self._exponents, rows, strict=True)))


def _invert(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Gauss and Jordan; the matrix of a grid has an inverse."""
    count = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(count))] for i, row in enumerate(matrix)]
    for i in range(count):
        pivot = next(r for r in range(i, count) if rows[r][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for r in range(count):
            factor = rows[r][i]
            if r != i and factor:
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [row[count:] for row in rows]
