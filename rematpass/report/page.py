"""A plan as one HTML file that needs no network.

In: a `Plan`, and a `Curve` where there is one. Out: the page as text, or as a file written whole. Never measures, never
loads anything from elsewhere.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from rematpass.errors import RematError
from rematpass.files import write_whole
from rematpass.plan_types import Curve, Plan

from .stacks import INPUTS, SCRATCH, stack_by_module
from .table import fold_values, format_header, format_neighbours

_MARK = "__DATA__"
_COLOURS = {INPUTS: "#c8c8c8", SCRATCH: "#303030"}


def write_page(plan: Plan, path: str | Path, curve: Curve | None = None, title: str = "") -> Path:
    """Write the page.

    Args:
        plan: what is shown.
        path: of the file.
        curve: extra time over memory; None where only a plan file is at hand.
        title: what was planned.

    Raises:
        RematError: the file cannot be written; an existing one is as it was.
    """
    path = Path(path)
    try:
        write_whole(path, format_page(plan, curve, title))
    except OSError as error:
        raise RematError(f"cannot write the report to {path}: {error}. Try: another path") from error
    return path


def check_page(path: str | Path) -> None:
    """See that `write_page` will be able to write `path`, before a long trace.

    Raises:
        RematError: the folder is not there.
    """
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise RematError(f"cannot write the report to {path}: there is no folder {folder}. Try: another path")


def format_page(plan: Plan, curve: Curve | None = None, title: str = "") -> str:
    """The page as text: table, timeline and curve, with the data and everything that draws it inside."""
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    text = json.dumps(_data(plan, curve, title), separators=(",", ":"), allow_nan=False)
    # Inside a script element only these two could end or hide it.
    return template.replace(_MARK, text.replace("<", "\\u003c").replace("&", "\\u0026"))


def _data(plan: Plan, curve: Curve | None, title: str) -> dict[str, Any]:
    return {
        "title": title or f"rematpass: {plan.graph_name} on {plan.device}",
        "head": "\n".join([*format_header(plan), *format_neighbours(plan)]),
        "notes": list(plan.notes),
        "peak_bytes": plan.peak_bytes,
        "peak_position": plan.peak_position,
        "percent": 100 * plan.recompute_fraction,
        "budget_bytes": plan.budget_bytes,
        "timeline": _timeline(plan),
        "curve": [] if curve is None else _points(curve),
        "rows": _rows(plan),
    }


def _timeline(plan: Plan) -> dict[str, Any]:
    return {
        "ops": [point.op for point in plan.timeline],
        "forward": sum(point.phase == "forward" for point in plan.timeline),
        "rows": [
            {"label": row.label, "colour": _COLOURS.get(row.label), "live_bytes": row.live_bytes.tolist()}
            for row in stack_by_module(plan)
        ],
    }


def _points(curve: Curve) -> list[dict[str, float]]:
    step = curve.step_seconds or 1.0
    return [
        {
            "peak_bytes": point.peak_bytes,
            "percent": 100 * point.recompute_fraction,
            "bound_percent": 100 * point.bound_seconds / step,
        }
        for point in curve.points
    ]


def _rows(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "total_bytes": row.total_bytes,
            "bytes": row.value.bytes,
            "count": row.count,
            "shape": " x ".join(map(str, row.value.shape)) or "scalar",
            "dtype": row.value.dtype,
            "decision": row.value.decision.value,
            "because": row.value.because,
            "op": row.value.op,
            "module": row.module,
            "source": row.value.source,
            "flags": list(row.value.flags),
        }
        for row in fold_values(plan.values)
    ]
