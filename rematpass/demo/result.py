"""What a demo run found: rows, the verdict on them, and both as text and JSON.

In: measurements. Out: records, lines and dicts. Never runs a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rematpass.report.sizes import format_bytes
from rematpass.report.table import align_columns

RESULT_SCHEMA = 1

LOSS_TOLERANCE = 5e-3
"""Largest relative difference of a loss to eager's at the same step. float32 sums in another order differ by about
1e-6 in a step, which the optimizer amplifies over a run (2026-11); at half nothing changes, at twice a wrong
gradient in one small layer could pass."""

BUDGET_TOLERANCE = 0.01
"""Share by which a measured peak may exceed its budget: allocators round sizes up. Twice would hide a real miss."""


@dataclass(frozen=True, slots=True)
class DemoRow:
    """One variant, measured. Bytes include parameters, buffers, batch and gradients; `losses` has one per step.

    `budget_bytes`, `predicted_peak_bytes`, `plan_ms` and the three shares are None where rematpass did not plan.
    """

    label: str
    is_rematpass: bool
    measured_peak_bytes: int
    step_ms: float
    first_step_seconds: float
    losses: tuple[float, ...]
    budget_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    plan_ms: float | None = None
    recompute_fraction: float | None = None
    bound_fraction: float | None = None


def loss_difference(row: DemoRow, reference: DemoRow) -> float:
    """The largest relative difference of a loss to that of `reference` at the same step; infinite for nan."""
    pairs = zip(row.losses, reference.losses, strict=True)
    differences = [abs(ours - theirs) / abs(theirs) for ours, theirs in pairs]
    return math.inf if any(map(math.isnan, differences)) else max(differences)


def find_problems(rows: Sequence[DemoRow]) -> list[str]:
    """Sentences on what is wrong, none when all is well. The first row is the reference for the losses."""
    reference = rows[0]
    problems = []
    for row in rows:
        difference = loss_difference(row, reference)
        if difference > LOSS_TOLERANCE:
            problems.append(f"{row.label}: losses differ from {reference.label}'s by up to {difference:.1e}")
        if row.budget_bytes is not None and row.measured_peak_bytes > row.budget_bytes * (1 + BUDGET_TOLERANCE):
            problems.append(
                f"{row.label}: measured peak {format_bytes(row.measured_peak_bytes)} exceeds the budget "
                f"{format_bytes(row.budget_bytes)}"
            )
    return problems


def format_rows(rows: Sequence[DemoRow]) -> str:
    """The rows side by side."""
    titles = ("", "budget MiB", "measured MiB", "predicted MiB", "ms per step", "last loss", "loss differs by")
    cells = [_cells(row, rows[0]) for row in rows]
    return "\n".join(align_columns([titles, *cells], right=range(1, len(titles))))


def format_conditions(conditions: dict[str, Any]) -> str:
    """What was run where, in two lines."""
    settings, hardware, versions = conditions["settings"], conditions["hardware"], conditions["versions"]
    shape, model = settings["shape"], conditions["model"]
    where = hardware["cpu"] if hardware["device"] == "cpu" else f"{hardware['device']}, {hardware['cpu']}"
    return (
        f"{model['parameters'] / 1e6:.1f} million parameters, {shape['layers']} layers, width {shape['width']}, "
        f"{settings['batch']} sequences of {shape['context']} bytes, {settings['steps']} steps, float32\n"
        f"{where}, {hardware['threads']} threads, torch {versions['torch']}, Python {versions['python']}, "
        f"{conditions['date']}"
    )


def format_verdict(problems: Sequence[str]) -> str:
    """One line when all is well, a line per problem when not."""
    if not problems:
        return f"ok: the losses agree within {LOSS_TOLERANCE:.1e} at every step, every peak is within 1 % of its budget"
    return "\n".join(f"PROBLEM: {problem}" for problem in problems)


def make_record(rows: Sequence[DemoRow], conditions: dict[str, Any]) -> dict[str, Any]:
    """The result as JSON-ready data: conditions, rows and verdict."""
    problems = find_problems(rows)
    data = [{**asdict(row), "loss_difference": loss_difference(row, rows[0])} for row in rows]
    return {
        "schema": RESULT_SCHEMA,
        **conditions,
        "rows": data,
        "is_ok": not problems,
        "problems": problems,
    }


def _cells(row: DemoRow, reference: DemoRow) -> tuple[str, ...]:
    difference = "" if row is reference else f"{loss_difference(row, reference):.0e}"
    return (
        row.label,
        _mib(row.budget_bytes),
        _mib(row.measured_peak_bytes),
        _mib(row.predicted_peak_bytes),
        f"{row.step_ms:.0f}",
        f"{row.losses[-1]:.4f}",
        difference,
    )


def _mib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 2**20:.1f}"
