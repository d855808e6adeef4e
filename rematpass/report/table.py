"""A plan as text: the table, and the one line for the log.

In: a `Plan`. Out: plain text whose figures all come from the plan. Never decides, never prints.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rematpass.plan_types import Curve, Decision, Neighbour, Plan, ValueRecord

from .sizes import format_bytes

RECOMPUTED_ROWS = 20
"""Recomputed rows printed after folding; the rest is summed up in one line. A screen holds about twice as many."""

ALIVE_ROWS = 5
"""Tensors shown at the peak; as many as `BudgetTooSmall` names."""

_INDEX = re.compile(r"(?:^|[.\[])(\d+)(?:\]|(?=[.\[]|$))")
_TITLES = ("total", "each", "shape", "dtype", "decision", "because", "op", "module", "source")


@dataclass(frozen=True, slots=True)
class FoldedRow:
    """`count` equal values of equal layers: one of them, and the module path that names them all."""

    value: ValueRecord
    module: str
    count: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all values in the row."""
        return self.value.bytes * self.count


def count_values(values: Sequence[ValueRecord]) -> str:
    """How many there are, in words."""
    return f"{len(values)} value{'' if len(values) == 1 else 's'}"


def format_line(plan: Plan) -> str:
    """The one INFO line of a graph: `peak before -> after (budget), recompute, bound, time to plan`."""
    return (
        f"rematpass: {plan.graph_name}: {_peak_words(plan)}, {_recompute_words(plan)}, "
        f"{plan.plan_seconds * 1e3:.0f} ms to plan"
    )


def format_plan(plan: Plan) -> str:
    """The plan as a table: kept values, recomputed values, what is alive at the peak, the neighbouring plans."""
    sections = (
        format_header(plan),
        _kept(plan),
        _recomputed(plan),
        _peak(plan),
        format_neighbours(plan),
        list(plan.notes),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def format_curve(curve: Curve) -> str:
    """The curve as a table: a row a plan, fastest first."""
    head = ("budget", "extra time", "of step", "bound", "gap")
    rows = [
        (
            format_bytes(point.peak_bytes),
            f"{point.recompute_seconds * 1e3:.3f} ms",
            _percent(point.recompute_fraction),
            f"{point.bound_seconds * 1e3:.3f} ms",
            f"{point.gap * 100:.1f} %" if math.isfinite(point.gap) else "-",
        )
        for point in curve.points
    ]
    title = (
        f"rematpass: {len(rows)} plans on {curve.device}, torch {curve.torch_version}; "
        f"no plan needs less than {format_bytes(curve.bound_peak_bytes)}"
    )
    return "\n".join([title, *align_columns([head, *rows], right=range(len(head)))])


def fold_values(values: Iterable[ValueRecord]) -> list[FoldedRow]:
    """Fold values that differ only in one number of their module path; the largest total first.

    A path with several numbers is folded over the one that joins the most values, the leftmost when equal.
    """
    values = list(values)
    groups: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for position, value in enumerate(values):
        for key in _fold_keys(value):
            groups[key].add(position)
    chosen: dict[tuple[object, ...], list[ValueRecord]] = defaultdict(list)
    for value in values:
        chosen[max(_fold_keys(value), key=lambda key: len(groups[key]))].append(value)
    rows = [_fold_group(key, members) for key, members in chosen.items()]
    return sorted(rows, key=lambda row: -row.total_bytes)


def format_ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges.

    >>> format_ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def align_columns(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Rows of equal length as lines with aligned columns, two spaces apart; the columns in `right` to the right.

    >>> align_columns([("a", "1"), ("long", "22")], right=(1,))
    ['a      1', 'long  22']
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    flush_right = frozenset(right)
    return [
        "  ".join(
            cell.rjust(width) if column in flush_right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _fold_keys(value: ValueRecord) -> list[tuple[object, ...]]:
    """What must be equal to fold: the path without one number (by its span), and everything the row prints."""
    row = (value.op, value.bytes, value.shape, value.dtype, value.decision, value.because, value.source)
    spans = [(match.start(), match.end()) for match in _INDEX.finditer(value.module)]
    paths = [(value.module[:start], value.module[end:]) for start, end in spans]
    return [(path, *row) for path in paths] or [((value.module, None), *row)]


def _fold_group(key: tuple[object, ...], members: list[ValueRecord]) -> FoldedRow:
    """One row for values with the same key."""
    modules = {member.module for member in members}
    if len(modules) == 1:
        return FoldedRow(members[0], members[0].module, len(members))
    path = key[0]
    assert isinstance(path, tuple)
    before, after = path
    numbers = [_number_between(module, before, after) for module in modules]
    return FoldedRow(members[0], f"{before}[{format_ranges(numbers)}]{after}", len(members))


def _number_between(module: str, before: str, after: str) -> int:
    """The number of `module` that stands between `before` and `after`."""
    return int(module[len(before) : len(module) - len(after)].strip(".[]"))


def _peak_words(plan: Plan) -> str:
    budget = "no limit" if plan.budget_bytes is None else f"budget {format_bytes(plan.budget_bytes)}"
    return f"peak {format_bytes(plan.fastest_peak_bytes)} -> {format_bytes(plan.peak_bytes)} ({budget})"


def _recompute_words(plan: Plan) -> str:
    bound = plan.bound_seconds / plan.step_seconds if plan.step_seconds else 0.0
    return f"recompute {_percent(plan.recompute_fraction)} of step (bound: {_percent(bound)})"


def _percent(fraction: float) -> str:
    return f"{fraction * 100:+.1f} %"


def format_header(plan: Plan) -> list[str]:
    """Where, how much, what is in every peak, at what price."""
    gap = f"{plan.gap * 100:.1f} %" if math.isfinite(plan.gap) else "not known (the bound is zero)"
    static, gradients = format_bytes(plan.static_bytes), format_bytes(plan.gradient_bytes)
    return [
        f"rematpass: {plan.graph_name} on {plan.device}, torch {plan.torch_version}",
        (
            f"{_peak_words(plan)}; the smallest found is {format_bytes(plan.smallest_peak_bytes)}, "
            f"no plan needs less than {format_bytes(plan.bound_peak_bytes)}"
        ),
        f"in every peak: {static} of parameters, buffers and batch; at the end also {gradients} of gradients",
        f"{_recompute_words(plan)}, gap {gap}",
    ]


def _kept(plan: Plan) -> list[str]:
    values = [value for value in plan.values if value.decision is Decision.KEEP]
    title = f"kept from the forward: {_count(values)}"
    return [title, *value_table(fold_values(values))]


def _recomputed(plan: Plan) -> list[str]:
    values = [value for value in plan.values if value.decision is Decision.RECOMPUTE]
    rows = fold_values(values)
    shown, rest = rows[:RECOMPUTED_ROWS], rows[RECOMPUTED_ROWS:]
    lines = [f"recomputed in the backward: {_count(values)}", *value_table(shown)]
    if rest:
        count, total_bytes = sum(row.count for row in rest), sum(row.total_bytes for row in rest)
        lines.append(f"  and {len(rest)} smaller rows: {count} values, {format_bytes(total_bytes)}")
    return lines


def _count(values: Sequence[ValueRecord]) -> str:
    total = format_bytes(sum(value.bytes for value in values))
    return f"{len(values)} value{'' if len(values) == 1 else 's'}, {total}"


def value_table(rows: Sequence[FoldedRow]) -> list[str]:
    """Rows as indented lines under their titles; none for no rows."""
    if not rows:
        return []
    lines = align_columns([_TITLES, *(_cells(row) for row in rows)], right=(0, 1))
    return [f"  {line}" for line in lines]


def _cells(row: FoldedRow) -> tuple[str, ...]:
    value = row.value
    module = row.module if row.count == 1 else f"{row.module} x{row.count}".lstrip()
    shape = "x".join(str(size) for size in value.shape) or "scalar"
    decision = value.decision.value
    sizes = (format_bytes(row.total_bytes), format_bytes(value.bytes))
    return (*sizes, shape, value.dtype, decision, value.because, value.op, module, value.source)


def _peak(plan: Plan) -> list[str]:
    if not plan.timeline:
        return []
    point = plan.timeline[plan.peak_position]
    lines = [f"peak: {format_bytes(point.live_bytes)} while the {point.phase} runs {point.op}; alive there:"]
    shown, rest = plan.alive_at_peak[:ALIVE_ROWS], plan.alive_at_peak[ALIVE_ROWS:]
    rows = [(format_bytes(alive.bytes), alive.role, alive.name, alive.module, alive.source) for alive in shown]
    lines += [f"  {line}" for line in align_columns(rows, right=(0,))]
    if rest:
        lines.append(f"  and {len(rest)} more: {format_bytes(sum(alive.bytes for alive in rest))}")
    return lines


def format_neighbours(plan: Plan) -> list[str]:
    """The next cheaper and the next smaller plan, a line each."""
    lines = []
    if plan.cheaper is not None:
        more_bytes, time = _difference(plan, plan.cheaper)
        lines.append(f"next cheaper plan: {more_bytes} peak for {time} time")
    if plan.smaller is not None:
        more_bytes, time = _difference(plan, plan.smaller)
        lines.append(f"next smaller plan: {more_bytes} peak for {time} time")
    return lines


def _difference(plan: Plan, other: Neighbour) -> tuple[str, str]:
    """Bytes and share of the step from `plan` to `other`, with their signs."""
    seconds = other.recompute_seconds - plan.recompute_seconds
    difference_bytes = other.peak_bytes - plan.peak_bytes
    sign = "+" if difference_bytes > 0 else ""
    return sign + format_bytes(difference_bytes), _percent(seconds / plan.step_seconds if plan.step_seconds else 0.0)
