"""The largest size that fits, as text.

In: a `MaxSize`. Out: plain text. Never decides, never prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sizes import format_bytes
from .table import align_columns, format_header

if TYPE_CHECKING:
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
