"""Where the memory of training goes.

In: a `Plan`, and the bytes of parameters and of the optimizer. Out: `Breakdown`, and it as text. Never decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from rematpass.plan_types import Plan

from .explain import alive_at_peak
from .sizes import format_bytes
from .table import align_columns


@dataclass(frozen=True)
class Breakdown:
    """Bytes at the peak of a step; they add up to `total_bytes`.

    Attributes:
        parameter_bytes: weights.
        batch_bytes: buffers and what the step is given.
        gradient_bytes: gradients that are there at the peak; `all_gradient_bytes` at the end of the step.
        accumulated_bytes: gradients of earlier backwards, there all the time.
        optimizer_bytes: its state, there all the time.
        kept_bytes: activations that the forward keeps.
        temporary_bytes: recomputed values, temporaries and scratch of the op that runs.
        budget_bytes: for the whole, None for no limit.
    """

    parameter_bytes: int
    batch_bytes: int
    gradient_bytes: int
    accumulated_bytes: int
    optimizer_bytes: int
    kept_bytes: int
    temporary_bytes: int
    all_gradient_bytes: int
    total_bytes: int
    budget_bytes: int | None


def make_breakdown(plan: Plan, parameter_bytes: int, optimizer_bytes: int, accumulated_bytes: int) -> Breakdown:
    """Split the peak of a plan, with the optimizer's state and gradients of earlier backwards beside it."""
    alive = alive_at_peak(plan)
    sizes = {role: sum(life.bytes for life in alive if life.role == role) for role in ("gradient", "kept")}
    beside = optimizer_bytes + accumulated_bytes
    parameter_bytes = min(parameter_bytes, plan.static_bytes)
    return Breakdown(
        parameter_bytes=parameter_bytes,
        batch_bytes=plan.static_bytes - parameter_bytes,
        gradient_bytes=sizes["gradient"],
        accumulated_bytes=accumulated_bytes,
        optimizer_bytes=optimizer_bytes,
        kept_bytes=sizes["kept"],
        temporary_bytes=plan.peak_bytes - plan.static_bytes - sum(sizes.values()),
        all_gradient_bytes=plan.gradient_bytes,
        total_bytes=plan.peak_bytes + beside,
        budget_bytes=None if plan.budget_bytes is None else plan.budget_bytes + beside,
    )


def format_breakdown(rows: Breakdown) -> str:
    """The breakdown as a table, and whether it fits."""
    parts = [
        ("parameters", rows.parameter_bytes),
        ("buffers and batch", rows.batch_bytes),
        (f"gradients there ({format_bytes(rows.all_gradient_bytes)} at the end)", rows.gradient_bytes),
        *([("gradients of earlier backwards", rows.accumulated_bytes)] if rows.accumulated_bytes else []),
        ("optimizer", rows.optimizer_bytes),
        ("kept activations", rows.kept_bytes),
        ("temporaries, recomputed values, scratch", rows.temporary_bytes),
        ("at the peak of the step", rows.total_bytes),
    ]
    table = align_columns([(name, format_bytes(size)) for name, size in parts], right=(1,))
    if rows.budget_bytes is None:
        return "\n".join(table)
    room = rows.budget_bytes - rows.total_bytes
    verdict = f"it fits {format_bytes(rows.budget_bytes)}, with {format_bytes(room)} to spare"
    if room < 0:
        verdict = f"it does not fit {format_bytes(rows.budget_bytes)}: {format_bytes(-room)} are missing"
    return "\n".join([*table, verdict])
