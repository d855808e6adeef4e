"""What a script's steps took, as text and as data.

In: measurements of the graphs that follow a plan. Out: plain text, or a dict for JSON. Never judges itself, never
prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..check.verdict import SCRATCH_BYTES, TOLERANCE, Measurement
from .sizes import format_bytes, format_range
from .table import align_columns


def format_measurements(found: Sequence[Measurement]) -> str:
    """A block per graph: budget, predicted and measured peak, their difference, and the verdict."""
    return "\n\n".join(_format_one(one) for one in found)


def verdict_record(found: Sequence[Measurement]) -> dict[str, Any]:
    """The same for JSON. Sizes in bytes, `difference` as a share of the prediction."""
    return {
        "is_kept": all(one.is_kept for one in found),
        "tolerance": TOLERANCE,
        "tolerance_bytes": SCRATCH_BYTES,
        "graphs": [asdict(one) | {"difference": one.difference, "is_kept": one.is_kept} for one in found],
    }


def _format_one(found: Measurement) -> str:
    budget = "none" if found.budget_bytes is None else format_bytes(found.budget_bytes)
    of_what = "the prediction" if found.budget_bytes is None else "the budget"
    over = found.least_bytes / found.limit_bytes - 1 if found.limit_bytes else 0.0
    words = (
        f"kept: measured is within {TOLERANCE - 1:.0%} and {format_bytes(SCRATCH_BYTES)} of {of_what}, or below it"
        if found.is_kept
        else f"not kept: measured is {over:.1%} above {of_what}"
    )
    rows = [
        ("budget", budget, ""),
        ("predicted peak", format_bytes(found.predicted_bytes), ""),
        ("measured peak", format_range(found.least_bytes, found.most_bytes), f"{found.difference:+.1%} to predicted"),
    ]
    return "\n".join([f"{found.graph_name}: {words}", *(f"  {line}" for line in align_columns(rows, right=(1,)))])
