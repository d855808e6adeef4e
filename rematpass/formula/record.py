"""The peak of a plan as a formula, to print, to evaluate, and as a sympy expression.

In: sums of bytes at the positions that can be the peak, and what is alive there. Out: `PeakFormula`. Never imports
torch, and sympy only to make an expression; never decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import OptionError
from ..globs import is_named, refuse_glob
from .polynomial import Point, Polynomial
from .sums import ByteSum

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True)
class Position:
    """An op of the timeline, and the bytes live while it runs."""

    phase: str
    op: str
    live: ByteSum


@dataclass(frozen=True)
class Held:
    """A piece of memory: its name, the op that made it, where, the user's name for it, what for, and its bytes."""

    name: str
    op: str
    module: str
    label: str
    role: str
    size: ByteSum


@dataclass(frozen=True)
class Term:
    """A part of the peak that grows in one way.

    Attributes:
        unit: how it grows: "batch*sequence**2", "1" for what does not, or what is rounded.
        coefficient: bytes per unit.
        bytes: at the planned size.
        held: what it consists of, each with its bytes per unit, largest first.
    """

    unit: str
    coefficient: Fraction
    bytes: int
    held: tuple[tuple[Fraction, Held], ...]


@dataclass(frozen=True)
class PeakFormula:
    """Peak bytes of one plan's decision as a function of batch and sequence, exact on a range; `print` it.

    At every size of the range it is what the planner counts if that size keeps, recomputes and orders what the plan
    does; a plan made for another size may decide otherwise.

    Attributes:
        symbols: "batch", "sequence": what may vary.
        planned: their values in the plan.
        ranges: where the formula holds.
        positions: those of the step that can be its peak somewhere on the range.
        alive: what is alive at the peak of the planned size.
        kept_values: what the forward keeps for the backward.
        notes: sentences for the reader.
        excess_bytes: so much more than that it is at most, at the sizes that were tried: 0 but where scratch had to be
            measured, as of products in half precision on a CPU with AMX.
    """

    symbols: tuple[str, ...]
    planned: Point
    ranges: tuple[range, ...]
    positions: tuple[Position, ...]
    alive: tuple[Held, ...]
    kept_values: tuple[Held, ...]
    notes: tuple[str, ...] = ()
    excess_bytes: int = 0

    @property
    def range(self) -> dict[str, range]:
        """Per symbol, the sizes at which the formula holds."""
        return dict(zip(self.symbols, self.ranges, strict=True))

    @cached_property
    def peak(self) -> Any:
        """The peak as a sympy expression of positive integer symbols, a `Max` where several positions can be it."""
        import sympy

        rows = [position.live.to_sympy(self._sympy_symbols) for position in self.positions]
        return sympy.Max(*rows, evaluate=False) if len(rows) > 1 else rows[0]

    @property
    def peak_bytes(self) -> int:
        """The peak at the planned size."""
        return self._at(self.planned)

    @property
    def kept(self) -> Any:
        """Bytes kept from the forward for the backward, as a sympy expression."""
        return self._total(self.kept_values)

    def kept_in(self, glob: str) -> Any:
        """The same for the values that `glob` names: module paths, operators, values, users' names.

        Raises:
            OptionError: nothing that is kept has such a name.
        """
        found = [v for v in self.kept_values if is_named(glob, v.module, v.op, v.name, *v.label.split(", "))]
        if not found:
            raise refuse_glob(glob, (v.module for v in self.kept_values), "that the plan keeps")
        return self._total(found)

    def at(self, **sizes: int) -> int:
        """The peak in bytes, such as `formula.at(batch=16, sequence=2048)`; what is left out is as planned.

        Raises:
            OptionError: a size outside the range, or another name.
        """
        return self._at(self.read_sizes(sizes))

    def read_sizes(self, sizes: Mapping[str, int]) -> Point:
        """`sizes` in the order of `symbols`.

        Raises:
            OptionError: a size outside the range, or another name.
        """
        for name, size in sizes.items():
            if name not in self.symbols:
                raise OptionError(f"{name!r} does not vary here. Try: {' and '.join(self.symbols)}")
            if size not in self.range[name]:
                raise OptionError(
                    f"{name} {size!r} is outside the formula's range, {format_range(self.range[name])}. Try: "
                    f"plan.formula_on({name}=range(...))"
                )
        return tuple(sizes.get(name, size) for name, size in zip(self.symbols, self.planned, strict=True))

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The peak at the planned size, by how its parts grow; largest first."""
        parts: dict[str, list[tuple[Fraction, Held]]] = {}
        size_of: dict[str, ByteSum] = {}
        for held in self.alive:
            for unit, coefficient, size in self._split(held.size):
                parts.setdefault(unit, []).append((coefficient, held))
                size_of[unit] = size
        terms = []
        for unit, members in parts.items():
            total = sum((coefficient for coefficient, _ in members), Fraction(0))
            members.sort(key=lambda member: -member[0])
            terms.append(Term(unit, total, int(total * size_of[unit].at(self.planned)), tuple(members)))
        return tuple(sorted(terms, key=lambda term: -term.bytes))

    def __str__(self) -> str:
        from ..report.formula_table import format_formula

        return format_formula(self)

    def to_json(self) -> str:
        """The formula as JSON: expressions as sympy prints them, sizes and terms as numbers."""
        terms = [
            {
                "unit": term.unit,
                "coefficient": str(term.coefficient),
                "bytes": term.bytes,
                "held": [{"coefficient": str(c), **_words(held)} for c, held in term.held],
            }
            for term in self.terms
        ]
        record = {
            "planned": dict(zip(self.symbols, self.planned, strict=True)),
            "range": {name: {"first": r[0], "last": r[-1], "step": r.step} for name, r in self.range.items()},
            "peak": str(self.peak),
            "peak_bytes": self.peak_bytes,
            "excess_bytes": self.excess_bytes,
            "kept": str(self.kept),
            "terms": terms,
            "notes": list(self.notes),
        }
        return json.dumps(record, sort_keys=True, separators=(",", ":"))

    @cached_property
    def _sympy_symbols(self) -> tuple[sympy.Symbol, ...]:
        import sympy

        return tuple(sympy.Symbol(name, positive=True, integer=True) for name in self.symbols)

    def _at(self, point: Point) -> int:
        return max(position.live.at(point) for position in self.positions)

    def _total(self, values: Iterable[Held]) -> Any:
        total = ByteSum()
        for held in values:
            total = total + held.size
        return total.to_sympy(self._sympy_symbols)

    def _split(self, size: ByteSum) -> Iterable[tuple[str, Fraction, ByteSum]]:
        """Units, how many, and one of each."""
        for exponents, coefficient in size.polynomial.terms:
            one = ByteSum(Polynomial.of({exponents: Fraction(1)}))
            yield str(one.to_sympy(self._sympy_symbols)), coefficient, one
        for piece, count in size.pieces:
            one = ByteSum(pieces=((piece, 1),))
            yield str(one.to_sympy(self._sympy_symbols)), Fraction(count), one


def format_range(sizes: range) -> str:
    """A range of sizes as words.

    >>> format_range(range(128, 1025, 128)), format_range(range(2, 9))
    ('128 to 1024 in steps of 128', '2 to 8')
    """
    steps = f" in steps of {sizes.step}" if sizes.step > 1 and len(sizes) > 1 else ""
    return f"{sizes[0]} to {sizes[-1]}{steps}" if len(sizes) > 1 else f"{sizes[0]} only"


def _words(held: Held) -> dict[str, str]:
    return {"name": held.name, "op": held.op, "module": held.module, "label": held.label, "role": held.role}
