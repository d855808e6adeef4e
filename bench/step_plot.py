"""Draw a case of `bench/step.py`: time against peak.

In: a case of the result. Out: an image file. Never computes a figure of its own; matplotlib only when called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

MIB = 2**20
_OURS, _EAGER, _COMPILED = "#c03020", "#305080", "#308050"


def plot_case(case: dict[str, Any], folder: Path) -> Path:
    """Our plans as a line, every peer as a mark; returns the path written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.5), dpi=150, layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    ours = sorted(_place(row) for row in case["rows"] if row["is_ours"])
    axes.plot([x for x, _ in ours], [y for _, y in ours], "o-", color=_OURS, markersize=4, label="rematpass")
    for row in case["rows"]:
        if not row["is_ours"]:
            _draw_peer(axes, row)
    axes.set_title(f"{case['name']}: {case['summary']}", fontsize=8)
    axes.set_xlabel("measured peak above parameters, buffers and batch, MiB")
    axes.set_ylabel("forward and backward, ms (median)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{case['name']}.png"
    figure.savefig(path)
    return path


def _place(row: dict[str, Any]) -> tuple[float, float]:
    return row["above_bytes"] / MIB, row["step_ms"]


def _draw_peer(axes: Any, row: dict[str, Any]) -> None:
    """Triangles for what is compiled, squares for what is not."""
    place = _place(row)
    mark, color = ("^", _COMPILED) if row["is_compiled"] else ("s", _EAGER)
    axes.plot(*place, mark, color=color, markersize=5)
    axes.annotate(row["name"], place, textcoords="offset points", xytext=(4, 3), fontsize=6)
