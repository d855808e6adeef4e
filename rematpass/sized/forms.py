"""The bytes of every value as functions of sizes.

In: samples of one step at several sizes. Out: `Forms`: pieces per value. Never takes what does not go through every
sample for a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import RematError
from ..formula.pieces import Part, Piece
from ..formula.polynomial import Grid, Polynomial
from ..formula.sums import ByteSum
from ..graph.size_parts import Parts, SizeParts
from .sample import Sample


class FormError(RematError):
    """Bytes that grow with sizes in a way that is not known here."""


class Forms:
    """Functions through samples.

    Args:
        grid: of the first samples.
        samples: at the points of the grid, in order, then at others.
        symbols: what the sizes are called.
        ranges: where the functions shall hold.
    """

    def __init__(self, grid: Grid, samples: Sequence[Sample], symbols: Sequence[str], ranges: Sequence[range]) -> None:
        self._grid, self._samples, self._symbols, self._ranges = grid, samples, symbols, ranges
        self._pieces: dict[tuple[Part, ...], Piece] = {}
        self._sums: dict[tuple[Piece, ...], ByteSum] = {}

    def storage(self, v: int) -> ByteSum:
        """The storage that value `v` owns."""
        return self._sum(v, lambda parts: parts.storage[v], "takes")

    def scratch(self, v: int) -> ByteSum:
        """What is there while `v` is computed."""
        return self._sum(v, lambda parts: parts.scratch[v], "works with")

    def static(self) -> list[tuple[str, ByteSum]]:
        """The inputs of the forward, with their names."""
        found = []
        for i, (name, _) in enumerate(self._samples[0].parts.static):
            piece = self._piece([s.parts.static[i][1] for s in self._samples], f"the input {name} takes")
            found.append((name, ByteSum.of([piece], self._ranges)))
        return found

    def _sum(self, v: int, parts_of: Callable[[SizeParts], Parts], verb: str) -> ByteSum:
        value = self._samples[0].facts.values[v]
        words = f"{value.name} ({value.op}{' of ' if value.module else ''}{value.module}) {verb}"
        columns = zip(*(parts_of(sample.parts) for sample in self._samples), strict=True)
        pieces = tuple(self._piece(column, words) for column in columns)
        if pieces not in self._sums:
            self._sums[pieces] = ByteSum.of(pieces, self._ranges)
        return self._sums[pieces]

    def _piece(self, column: Sequence[Part], words: str) -> Piece:
        key = tuple(column)
        if key not in self._pieces:
            rows = zip(*(part.arguments for part in column), strict=True)
            self._pieces[key] = Piece(column[0].function, tuple(self._fit(row, column, words) for row in rows))
        return self._pieces[key]

    def _fit(self, values: Sequence[int], column: Sequence[Part], words: str) -> Polynomial:
        count = len(self._grid.points)
        found = self._grid.fit(values[:count])
        for value, part, sample in zip(values[count:], column[count:], self._samples[count:], strict=True):
            if found.at(sample.point) != value:
                raise FormError(
                    f"{words} {part.bytes} bytes at {name_sizes(self._symbols, sample.point)}, which no polynomial "
                    "explains that goes through the other sizes tried. Try: a narrower range, or steps that all its "
                    "sizes are multiples of: plan.formula_on(sequence=range(1024, 8193, 128))"
                )
        return found


def name_sizes(symbols: Sequence[str], point: Sequence[int]) -> str:
    """Sizes as words.

    >>> name_sizes(("batch", "sequence"), (8, 1024))
    'batch 8, sequence 1024'
    """
    return ", ".join(f"{symbol} {size}" for symbol, size in zip(symbols, point, strict=True))
