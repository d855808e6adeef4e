"""What one part of a model does to memory, as text.

In: a `Plan` and a glob. Out: text whose figures all come from the plan. Never decides, never prints.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from rematpass.globs import is_named, refuse_glob
from rematpass.plan_types import Decision, LifeRecord, Plan, ValueRecord

from .sizes import format_bytes
from .table import (
    align_columns,
    count_values,
    fold_values,
    format_header,
    format_neighbours,
    format_ranges,
    value_table,
)

MOST_ALIVE = 12
"""Rows of what is alive at the peak, after folding."""

_NUMBER = re.compile(r"(?<=\.)(\d+)(?=\.|$)|^(\d+)(?=\.|$)")


class Located(Protocol):
    """Something of a module."""

    @property
    def module(self) -> str:
        """Its path."""


def explain_plan(plan: Plan, glob: str = "*") -> str:
    """The values of the modules that `glob` names, what they hold at the peak, and what looks like a mistake.

    Args:
        plan: a plan.
        glob: a module path or a glob of such paths, operators, value names or labels; what lies inside a named module
            counts, too.

    Raises:
        OptionError: nothing matches; the message names the nearest modules.
    """
    values = find_values(plan, glob)
    alive = [life for life in alive_at_peak(plan) if is_named(glob, life.module, life.name)]
    sections = [
        format_header(plan),
        _value_lines(values, glob),
        _flag_lines(values),
        _alive_lines(plan, alive, glob),
        format_neighbours(plan),
        list(plan.notes),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def explain_record(plan: Plan, glob: str = "*") -> dict[str, Any]:
    """The same as a record for JSON."""
    alive = [life for life in alive_at_peak(plan) if is_named(glob, life.module, life.name)]
    point = plan.timeline[plan.peak_position] if plan.timeline else None
    return {
        "glob": glob,
        "device": plan.device,
        "budget_bytes": plan.budget_bytes,
        "peak_bytes": plan.peak_bytes,
        "peak_op": point and asdict(point),
        "values": [asdict(value) for value in find_values(plan, glob)],
        "alive_at_peak": [asdict(life) for life in alive],
        "cheaper": plan.cheaper and asdict(plan.cheaper),
        "smaller": plan.smaller and asdict(plan.smaller),
        "notes": list(plan.notes),
    }


def find_values(plan: Plan, glob: str) -> list[ValueRecord]:
    """The values that `glob` names, largest first.

    Raises:
        OptionError: none.
    """
    found = [v for v in plan.values if is_named(glob, v.module, v.name, v.op, *v.label.split(", "))]
    if found:
        return sorted(found, key=lambda value: -value.bytes)
    raise refuse_glob(glob, (value.module for value in plan.values))


def alive_at_peak(plan: Plan) -> list[LifeRecord]:
    """What is alive at the peak, largest first; the graph's inputs are not in it."""
    at = plan.peak_position
    return sorted((life for life in plan.lives if life.first <= at <= life.last), key=lambda life: -life.bytes)


def fold_path(module: str) -> str:
    """A module path with its numbers starred: equal layers have one.

    >>> fold_path("model.layers.3.mlp"), fold_path("0.1")
    ('model.layers.*.mlp', '*.*')
    """
    return _NUMBER.sub("*", module)


def _value_lines(values: Sequence[ValueRecord], glob: str) -> list[str]:
    kept = sum(v.bytes for v in values if v.decision is Decision.KEEP)
    again = sum(v.bytes for v in values if v.decision is Decision.RECOMPUTE)
    where = "" if glob == "*" else f" in {glob}"
    title = f"{count_values(values)}{where}: {format_bytes(kept)} kept, {format_bytes(again)} recomputed"
    return [title, *value_table(fold_values(values))]


def _flag_lines(values: Sequence[ValueRecord]) -> list[str]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    example: dict[str, ValueRecord] = {}
    for value in values:
        for flag in value.flags:
            counts[flag] += 1
            sizes[flag] += value.bytes
            example.setdefault(flag, value)
    lines = [
        f"  {flag}: {counts[flag]} value{'' if counts[flag] == 1 else 's'}, {format_bytes(sizes[flag])}, "
        f"such as {example[flag].name}  {example[flag].source}".rstrip()
        for flag in sorted(counts, key=lambda flag: -sizes[flag])
    ]
    return ["worth a look:", *lines] if lines else []


def _alive_lines(plan: Plan, alive: Iterable[LifeRecord], glob: str) -> list[str]:
    if not plan.timeline:
        return []
    groups: dict[tuple[str, str], list[LifeRecord]] = {}
    for life in alive:
        groups.setdefault((life.role, fold_path(life.module)), []).append(life)
    point = plan.timeline[plan.peak_position]
    total = sum(life.bytes for members in groups.values() for life in members)
    where = "" if glob == "*" else f" of {glob}"
    title = (
        f"at the peak ({format_bytes(point.live_bytes)}, while the {point.phase} runs {point.op}) "
        f"{format_bytes(total)}{where} are alive besides the graph's inputs"
    )
    order = sorted(groups.items(), key=lambda item: -sum(life.bytes for life in item[1]))
    rows = [
        (format_bytes(sum(life.bytes for life in members)), role, f"{len(members)} x", fold_modules(members, path))
        for (role, path), members in order
    ]
    lines = [f"  {line}" for line in align_columns(rows[:MOST_ALIVE], right=(0, 2))]
    rest = len(rows) - MOST_ALIVE
    return [title, *lines, *([f"  and {rest} smaller rows"] if rest > 0 else [])]


def fold_modules(members: Sequence[Located], path: str) -> str:
    """The path of `members` with the range of its one number, or starred where there are several."""
    if path.count("*") != 1:
        return path or "(no module)"
    before, after = path.split("*")
    numbers = [int(life.module[len(before) : len(life.module) - len(after) or None]) for life in members]
    if len(set(numbers)) == 1:
        return members[0].module
    return f"{before.removesuffix('.')}[{format_ranges(numbers)}]{after}"
