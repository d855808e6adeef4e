"""The largest size that fits, or that keeps something, as text.

In: a `MaxSize` or a `Crossover`. Out: plain text. Never decides, never prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sizes import format_bytes
from .table import align_columns, format_header

if TYPE_CHECKING:
    from ..other_sizes import Crossover
    from ..sizing import MaxSize


def format_max_size(found: MaxSize) -> str:
    """The answer, the size above it, what was tried, and the head of the plan."""
    budget = found.plan.budget_bytes
    assert budget is not None, "a search has a budget"
    lines = [f"the largest {found.vary} that fits {format_bytes(budget)} is {found.size}"]
    if found.above is not None and found.above_minimum_bytes is not None:
        lines.append(f"{found.above} needs at least {format_bytes(found.above_minimum_bytes)}")
    rows = [
        (str(tried.size), format_bytes(tried.smallest_peak_bytes), "fits" if tried.fits else "does not fit")
        for tried in sorted(found.tried, key=lambda tried: tried.size)
    ]
    table = [f"  {line}" for line in align_columns([(found.vary, "smallest peak", ""), *rows], right=(0, 1))]
    return "\n".join([*lines, "", *table, "", *format_header(found.plan)])


def format_crossover(found: Crossover) -> str:
    """The answer, the size above it, what was tried, and what either costs."""
    budget, vary = format_bytes(found.budget_bytes), found.vary
    above = "no plan fits" if found.plan_above is None else "some of it is computed again"
    rows = [(str(size), format_bytes(kept), format_bytes(again)) for size, kept, again in sorted(found.tried)]
    table = [f"  {line}" for line in align_columns([(vary, "kept", "computed again"), *rows], right=(0, 1, 2))]
    lines = [
        f"{found.glob!r} is kept within {budget} up to {vary} {found.size}; at {found.above} {above}",
        f"recompute {found.plan.recompute_fraction * 100:+.1f} % of step at {found.size}",
    ]
    if found.plan_above is not None:
        lines[1] += f", {found.plan_above.recompute_fraction * 100:+.1f} % at {found.above}"
    return "\n".join([*lines, "", *table])
