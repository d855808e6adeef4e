"""The peak as a formula, as text.

In: a `PeakFormula`. Out: plain text whose figures all come from it. Never decides, never prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from rematpass.formula.record import Held, PeakFormula, Term, format_range

from .explain import fold_modules, fold_path
from .sizes import format_bytes
from .table import align_columns

# What a term consists of is named up to here; the rest is summed up.
MOST_HELD = 4
# Sums with more terms are not written out; the table has them.
MOST_WRITTEN = 400


def format_formula(formula: PeakFormula) -> str:
    """Where it holds, the expression, and its terms at the planned size, largest first."""
    planned = ", ".join(f"{name} {size}" for name, size in zip(formula.symbols, formula.planned, strict=True))
    where = ", ".join(f"{name} {format_range(sizes)}" for name, sizes in formula.range.items())
    text = str(formula.peak)
    at = ", ".join(f"the {position.phase} runs {position.op}" for position in formula.positions[:3])
    more = len(formula.positions) - 3
    lines = [
        f"peak in bytes, {'just above that of' if formula.excess_bytes else 'exact for'} this decision at {where}",
        f"  = {text if len(text) <= MOST_WRITTEN else text[:MOST_WRITTEN] + ' ... (formula.peak has all of it)'}",
        f"highest while {at}{f', or at {more} more positions' if more > 0 else ''}",
        f"at {planned}: {format_bytes(formula.peak_bytes)} ({formula.peak_bytes} bytes), of which",
    ]
    rows = [row for term in formula.terms for row in _rows(term)]
    lines += [f"  {line}" for line in align_columns([("bytes", "coefficient", "unit", "what"), *rows], right=(0, 1))]
    return "\n".join([*lines, *formula.notes])


def _rows(term: Term) -> list[tuple[str, str, str, str]]:
    groups: dict[tuple[str, str, str, Fraction], list[Held]] = {}
    for coefficient, held in term.held:
        groups.setdefault((held.role, held.op, fold_path(held.module), coefficient), []).append(held)
    order = sorted(groups.items(), key=lambda item: -item[0][3] * len(item[1]))
    words = [_words(key[3], key[0], members, key[2]) for key, members in order[:MOST_HELD]]
    rest = order[MOST_HELD:]
    if rest:
        total = sum((key[3] * len(members) for key, members in rest), Fraction(0))
        words.append(f"{_number(total)} of {sum(len(members) for _, members in rest)} others")
    first = (format_bytes(term.bytes), _number(term.coefficient), term.unit)
    return [(*(first if i == 0 else ("", "", "")), text) for i, text in enumerate(words)]


def _words(coefficient: Fraction, role: str, members: Sequence[Held], path: str) -> str:
    count = f" x{len(members)}" if len(members) > 1 else ""
    name = members[0].label or members[0].op
    where = f" {fold_modules(members, path)}" if path else ""
    return f"{_number(coefficient * len(members))} {role} {name}{where}{count}"


def _number(value: Fraction) -> str:
    return str(value) if value.denominator > 1 else str(int(value))
