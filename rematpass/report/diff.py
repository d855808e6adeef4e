"""Two plans compared, in words and bytes.

In: two plans. Out: `PlanDiff`, and it as text or JSON. Never decides which is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rematpass.plan_types import Decision, Plan, PlanDiff, ValueRecord

from .sizes import format_bytes
from .table import count_values, fold_values, value_table

_FIGURES = (
    ("peak", "peak_bytes"),
    ("parameters, buffers, batch", "static_bytes"),
    ("gradients", "gradient_bytes"),
    ("kept from the forward", "kept_bytes"),
    ("fastest plan's peak", "fastest_peak_bytes"),
    ("smallest peak", "smallest_peak_bytes"),
)
_FACTS = ("device", "torch_version", "budget_bytes")


def format_diff(found: PlanDiff) -> str:
    """What differs, section by section."""
    if found.is_empty:
        return "the plans are equal"
    sections = [_figures(found.before, found.after), _time(found.before, found.after)]
    if not found.is_same_graph:
        sections.append(["the graphs differ: another model, size, dtype, version of torch, or way of tracing"])
    for title, values in (
        ("now kept", found.kept_now),
        ("now recomputed", found.recomputed_now),
        ("only before", found.gone),
        ("only after", found.new),
    ):
        sections.append(_values(title, values))
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def diff_record(found: PlanDiff) -> dict[str, Any]:
    """The same as a record for JSON."""
    names = [*_FACTS, *(name for _, name in _FIGURES), "recompute_seconds", "step_seconds"]
    return {
        "is_equal": found.is_empty,
        "is_same_graph": found.is_same_graph,
        "before": {name: getattr(found.before, name) for name in names},
        "after": {name: getattr(found.after, name) for name in names},
        **{
            name: [asdict(value) for value in getattr(found, name)]
            for name in ("kept_now", "recomputed_now", "gone", "new")
        },
    }


def diff_plans(before: Plan, after: Plan) -> PlanDiff:
    """Compare two plans, values by name."""
    old, new = ({value.name: value for value in plan.values} for plan in (before, after))

    def turned(decision: Decision) -> tuple[ValueRecord, ...]:
        return tuple(
            v
            for name, v in new.items()
            if v.decision is decision and name in old and old[name].decision is not decision
        )

    return PlanDiff(
        before=before,
        after=after,
        is_same_graph=before.graph_fingerprint == after.graph_fingerprint,
        kept_now=turned(Decision.KEEP),
        recomputed_now=turned(Decision.RECOMPUTE),
        gone=tuple(v for name, v in old.items() if name not in new),
        new=tuple(v for name, v in new.items() if name not in old),
    )


def _figures(before: Plan, after: Plan) -> list[str]:
    lines = [
        f"{name}: {getattr(before, name)} -> {getattr(after, name)}"
        for name in _FACTS[:2]
        if getattr(before, name) != getattr(after, name)
    ]
    if before.budget_bytes != after.budget_bytes:
        lines.append(f"budget: {_budget(before)} -> {_budget(after)}")
    for words, name in _FIGURES:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            lines.append(f"{words}: {format_bytes(old)} -> {format_bytes(new)} ({_signed(new - old)})")
    return lines


def _budget(plan: Plan) -> str:
    return "no limit" if plan.budget_bytes is None else format_bytes(plan.budget_bytes)


def _signed(size_bytes: int) -> str:
    return f"{'+' if size_bytes > 0 else ''}{format_bytes(size_bytes)}, {size_bytes:+d} bytes"


def _time(before: Plan, after: Plan) -> list[str]:
    if before.recompute_seconds == after.recompute_seconds and before.step_seconds == after.step_seconds:
        return []
    return [f"extra time: {_extra(before)} -> {_extra(after)}"]


def _extra(plan: Plan) -> str:
    return f"{plan.recompute_seconds * 1e3:.3f} ms ({plan.recompute_fraction:+.1%} of step)"


def _values(title: str, values: Sequence[ValueRecord]) -> list[str]:
    if not values:
        return []
    total = format_bytes(sum(value.bytes for value in values))
    return [f"{title}: {count_values(values)}, {total}", *value_table(fold_values(values))]
