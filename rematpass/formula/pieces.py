"""What rounds bytes: blocks of an allocator, padded rows, blocks of threads.

In: integers, or polynomials in sizes. Out: bytes, exactly, as integers or as sympy expressions. Never imports torch,
and sympy only to make an expression.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .polynomial import Point, Polynomial

if TYPE_CHECKING:
    import sympy

# Rows of scores in a block of the CPU's attention, by the query's length (aten/native/cpu/FlashAttentionKernel.cpp,
# torch 2.13), and columns.
_ROWS = ((768, 256), (192, 64), (0, 32))
_COLUMNS = 512
# What oneDNN's products of such blocks in half precision copy at least, and columns of the other factor at once; a
# primitive's own. Fitted to 34 gradients on a processor with AVX-512 (2026-11, torch 2.13), two threads: one is
# counted 4 KB too low (short blocks of wide heads), one 13 KB too high (10 positions, oneDNN is not asked), all others
# 4 to 132 bytes too high.
_LEAST = 32
_PRODUCT_COLUMNS = 64
_PRODUCT_BYTES = 900


def round_up(factor: int, size: int, block: int) -> int:
    """`factor` times `size` rounded up to whole blocks.

    >>> round_up(3, 500, 512)
    1536
    """
    return factor * block * -(-size // block)


def seen(size: int) -> int:
    """What was measured, and may jump from one size to the next.

    >>> seen(1664)
    1664
    """
    return size


def cpu_attention(length: int, keys: int, width: int, threads: int, is_backward: int) -> int:
    """Scratch of fused attention on the CPU: per thread, blocks of scores; checked by measurement."""
    rows, columns = _block_of_scores(length, keys)
    blocks = 2 * rows * columns if is_backward else rows * columns + 2 * rows + rows * width
    return blocks * 4 * threads + (rows * 4 if is_backward else 0)


def cpu_half_attention(length: int, keys: int, width: int, threads: int, is_backward: int) -> int:
    """What half precision takes besides: the blocks of scores again in that type, as factors of products.

    In the backward there are two, and oneDNN copies what it multiplies with them.
    """
    rows, columns = _block_of_scores(length, keys)
    if not is_backward:
        return 2 * rows * columns * threads
    most_rows, most_columns = round_up(1, rows, _LEAST), max(columns, _LEAST)
    wide = min(width, _PRODUCT_COLUMNS)
    scored = 2 * most_columns * wide + most_rows * most_columns + 2 * _PRODUCT_COLUMNS * most_rows
    turned = 2 * _PRODUCT_COLUMNS * round_up(1, columns, _LEAST) + 2 * wide * most_rows
    return threads * (4 * rows * columns + max(scored, turned) + _PRODUCT_BYTES)


def _block_of_scores(length: int, keys: int) -> tuple[int, int]:
    """Rows and columns."""
    most = next(rows for least, rows in _ROWS if length >= least)
    return min(most, length), min(_COLUMNS, keys)


def _sympy_round_up(factor: Any, size: Any, block: Any) -> Any:
    import sympy

    return factor * block * sympy.ceiling(size / block)


def _sympy_cpu_attention(length: Any, keys: Any, width: Any, threads: Any, is_backward: Any) -> Any:
    rows, columns = _sympy_block_of_scores(length, keys)
    if is_backward:
        return 8 * rows * columns * threads + 4 * rows
    return 4 * threads * rows * (columns + 2 + width)


def _sympy_cpu_half_attention(length: Any, keys: Any, width: Any, threads: Any, is_backward: Any) -> Any:
    import sympy

    rows, columns = _sympy_block_of_scores(length, keys)
    if not is_backward:
        return 2 * rows * columns * threads
    most_rows, most_columns = _sympy_round_up(1, rows, _LEAST), sympy.Max(columns, _LEAST)
    wide = sympy.Min(width, _PRODUCT_COLUMNS)
    scored = 2 * most_columns * wide + most_rows * most_columns + 2 * _PRODUCT_COLUMNS * most_rows
    turned = 2 * _PRODUCT_COLUMNS * _sympy_round_up(1, columns, _LEAST) + 2 * wide * most_rows
    return threads * (4 * rows * columns + sympy.Max(scored, turned) + _PRODUCT_BYTES)


def _sympy_block_of_scores(length: Any, keys: Any) -> tuple[Any, Any]:
    import sympy

    most = sympy.Piecewise(*((rows, length >= least) for least, rows in _ROWS))
    return sympy.Min(most, length), sympy.Min(_COLUMNS, keys)


_FUNCTIONS: dict[str, tuple[Callable[..., int], Callable[..., Any]]] = {
    "round_up": (round_up, _sympy_round_up),
    "seen": (seen, seen),
    "cpu_attention": (cpu_attention, _sympy_cpu_attention),
    "cpu_half_attention": (cpu_half_attention, _sympy_cpu_half_attention),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes as a function of integers, known by its name; all of them grow with every argument.

    >>> Part("round_up", (1, 500, 512)).bytes
    512
    """

    function: str
    arguments: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Their number."""
        return _FUNCTIONS[self.function][0](*self.arguments)


@dataclass(frozen=True, slots=True)
class Piece:
    """The same with polynomials in sizes for arguments."""

    function: str
    arguments: tuple[Polynomial, ...]

    def at(self, point: Point) -> int:
        """Its value."""
        return _FUNCTIONS[self.function][0](*(int(a.at(point)) for a in self.arguments))

    def bounds(self, low: Point, high: Point) -> tuple[int, int]:
        """Between these its values lie where each size is between `low` and `high`."""
        ends = [a.bounds(low, high) for a in self.arguments]
        run = _FUNCTIONS[self.function][0]
        return run(*(max(0, int(a // 1)) for a, _ in ends)), run(*(int(-(-b // 1)) for _, b in ends))

    def as_polynomial(self, ranges: Sequence[range]) -> Polynomial | None:
        """What it is where nothing has to be rounded on the ranges; None where something has."""
        if all(a.degree == 0 for a in self.arguments):
            none = (0,) * len(ranges)
            return Polynomial.of({none: Fraction(self.at(none))})
        if self.function != "round_up":
            return None
        factor, size, block = self.arguments
        whole = int(block.at((0,) * len(ranges)))
        # Bytes are whole numbers at every size, whatever their coefficients are.
        return factor * size if whole == 1 or size.is_multiple_of(whole, ranges) else None

    def to_sympy(self, symbols: Sequence[sympy.Symbol]) -> Any:
        """The expression."""
        return _FUNCTIONS[self.function][1](*(polynomial_to_sympy(a, symbols) for a in self.arguments))


def polynomial_to_sympy(polynomial: Polynomial, symbols: Sequence[sympy.Symbol]) -> Any:
    """The expression of a polynomial."""
    import sympy

    total: Any = sympy.Integer(0)
    for exponents, c in polynomial.terms:
        term: Any = sympy.Rational(c.numerator, c.denominator)
        for symbol, exponent in zip(symbols, exponents, strict=True):
            term = term * symbol**exponent
        total = total + term
    return total
