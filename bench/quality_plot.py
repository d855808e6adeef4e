"""Draw a case of `bench/plan_quality.py`: extra time against peak.

In: a case of the result. Out: an image file. Never computes a figure of its own; matplotlib only when called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

MIB, MS = 2**20, 1e6
_OURS, _BOUND, _HAND, _TORCH, _WORSE = "#c03020", "#808080", "#305080", "#308050", "#e0a000"


def plot_case(case: dict[str, Any], folder: Path) -> Path:
    """Our plans as a curve, the bound below it, everybody else as a mark; returns the path written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.5), dpi=150, layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_curve(axes, case["frontier"], "o-", color=_OURS, label="rematpass", drawstyle="steps-pre", markersize=3)
    _draw_curve(axes, case["bound"], "--", color=_BOUND, label="no plan lies below")
    for row in case["rows"]:
        _draw_mark(axes, row)
    axes.set_title(f"{case['name']}: a step takes {case['step_ns'] / MS:.1f} ms without recomputation", fontsize=10)
    axes.set_xlabel("simulated peak, MiB")
    axes.set_ylabel("extra time, ms")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right", fontsize=8)
    path = folder / f"{case['name']}.png"
    figure.savefig(path)
    return path


def _draw_curve(axes: Any, points: list[list[float]], style: str, **look: Any) -> None:
    axes.plot([peak / MIB for peak, _ in points], [extra / MS for _, extra in points], style, **look)


def _draw_mark(axes: Any, row: dict[str, Any]) -> None:
    """Squares for what people do, triangles for torch's budgets."""
    is_torch = row["strategy"].startswith("torch budget")
    color = _WORSE if row["is_worse"] else _TORCH if is_torch else _HAND
    place = (row["peak_bytes"] / MIB, row["extra_ns"] / MS)
    axes.plot(*place, "^" if is_torch else "s", color=color, markersize=4)
    axes.annotate(row["strategy"], place, textcoords="offset points", xytext=(4, 3), fontsize=6)
