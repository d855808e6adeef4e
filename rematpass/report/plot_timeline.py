"""Memory over one step as a picture, coloured by module.

In: a `Plan`. Out: an image file, written whole or not at all. Never measures; matplotlib only when called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rematpass.errors import RematError
from rematpass.plan_types import Plan

from .plot import check_plot, new_figure, write_figure
from .sizes import format_bytes
from .stacks import INPUTS, SCRATCH, stack_by_module

_GREY = {INPUTS: "#c8c8c8", SCRATCH: "#303030"}
_GIB = 2**30


def plot_timeline(plan: Plan, path: str | Path) -> Path:
    """Draw live bytes at every op of forward and backward, the peak marked.

    Raises:
        RematError: matplotlib is missing, the format is unknown, the file cannot be written, or the plan has no ops.
    """
    check_plot(path)
    if not plan.timeline:
        raise RematError("the plan has no timeline to draw. Try: a plan of a training step")
    figure = new_figure()
    axes = figure.add_subplot()
    scale, unit = (_GIB, "GiB") if plan.peak_bytes >= _GIB else (2**20, "MiB")
    rows = stack_by_module(plan)
    colours = _colours([row.label for row in rows])
    axes.stackplot(
        range(len(plan.timeline)),
        [row.live_bytes / scale for row in rows],
        labels=[row.label for row in rows],
        colors=colours,
        step="mid",
        linewidth=0,
    )
    _mark(axes, plan, scale)
    axes.set_xlabel("ops in the order they run")
    axes.set_ylabel(f"live memory, {unit}")
    axes.set_xlim(0, max(1, len(plan.timeline) - 1))
    axes.set_ylim(0, 1.4 * max(plan.peak_bytes, _drawn_budget(plan) or 0) / scale)  # the legend is above the peak
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], fontsize=6, loc="upper left", ncols=2)
    write_figure(figure, Path(path))
    return Path(path)


def _mark(axes: Any, plan: Plan, scale: int) -> None:
    """The border between forward and backward, the budget, the peak."""
    border = sum(point.phase == "forward" for point in plan.timeline)
    axes.axvline(border - 0.5, color="black", linewidth=0.6, linestyle=":")
    budget_bytes = _drawn_budget(plan)
    if budget_bytes is not None:
        axes.axhline(budget_bytes / scale, color="#c03020", linewidth=0.8, linestyle="--", label="budget")
    point = plan.timeline[plan.peak_position]
    words = f"peak {format_bytes(point.live_bytes)}, {point.phase}: {point.op}"
    at = (plan.peak_position, point.live_bytes / scale)
    is_right = plan.peak_position > len(plan.timeline) / 2
    axes.plot(*at, "v", color="#c03020", markersize=6)
    side = "right" if is_right else "left"
    axes.annotate(words, at, textcoords="offset points", xytext=(0, 7), fontsize=7, ha=side, color="#c03020")


def _drawn_budget(plan: Plan) -> int | None:
    """A budget far above the peak would only make the picture flat."""
    budget_bytes = plan.budget_bytes
    return budget_bytes if budget_bytes is not None and budget_bytes < 2 * plan.peak_bytes else None


def _colours(labels: list[str]) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    cycle = iter(colormaps["tab20"].colors)  # type: ignore[attr-defined]  # a listed colour map
    return [_GREY.get(label) or to_hex(next(cycle)) for label in labels]
