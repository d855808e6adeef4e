"""Runs and curves as a picture: peak memory against time.

In: points. Out: an image file, written whole or not at all. Never measures; matplotlib only when called.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rematpass.errors import RematError
from rematpass.files import write_whole, written_beside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..plan_types import Curve

_OURS = "#c03020"
_OTHERS = "#305080"


@dataclass(frozen=True, slots=True)
class RunPoint:
    """One measured run: its name, peak in bytes, milliseconds per step, and whether rematpass planned it."""

    label: str
    peak_bytes: int
    step_ms: float
    is_rematpass: bool


def plot_runs(points: Sequence[RunPoint], path: str | Path) -> Path:
    """Draw peak MiB against ms per step, every point labelled and those of rematpass joined.

    Args:
        points: what to draw.
        path: an image file; its suffix chooses the format (.png, .svg, .pdf).

    Returns:
        The path written.

    Raises:
        RematError: matplotlib is missing, the format is unknown, or the file cannot be written.
    """
    path = Path(path)
    figure = _draw(points)
    write_figure(figure, path)
    return path


def plot_curve(curve: Curve, path: str | Path) -> Path:
    """Draw extra time and its lower bound (percent of the step) against peak MiB.

    Raises:
        RematError: matplotlib is missing, the format is unknown, or the file cannot be written.
    """
    check_plot(path)
    figure = new_figure()
    axes = figure.add_subplot()
    peaks = [point.peak_bytes / 2**20 for point in curve.points]
    bound = [100 * point.bound_seconds / curve.step_seconds for point in curve.points]
    axes.plot(peaks, [100 * p.recompute_fraction for p in curve.points], "o-", color=_OURS, label="plans")
    axes.plot(peaks, bound, "--", color=_OTHERS, label="no plan is below")
    axes.axvline(curve.bound_peak_bytes / 2**20, color=_OTHERS, linewidth=0.8, label="no peak is left of this")
    axes.set_xlabel("peak of one step, MiB")
    axes.set_ylabel("extra time, % of the step")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    write_figure(figure, Path(path))
    return Path(path)


def check_plot(path: str | Path) -> None:
    """See that `plot_runs` will be able to write `path`, before a long run.

    Raises:
        RematError: matplotlib is missing, the format is unknown, or the folder cannot be written to.
    """
    canvas = new_figure().canvas
    suffix = _image_format(Path(path))
    if suffix not in canvas.get_supported_filetypes():
        raise RematError(f"no image format for {path}: .{suffix} is not known. Try: a path ending in .png or .svg")
    with _explained(Path(path)), written_beside(Path(path)):
        pass


def _draw(points: Sequence[RunPoint]) -> Figure:
    figure = new_figure()
    axes = figure.add_subplot()
    ours = sorted((point for point in points if point.is_rematpass), key=lambda point: point.peak_bytes)
    axes.plot([_mib(p) for p in ours], [p.step_ms for p in ours], "o-", color=_OURS, label="rematpass")
    others = [point for point in points if not point.is_rematpass]
    axes.plot([_mib(p) for p in others], [p.step_ms for p in others], "s", color=_OTHERS, label="others")
    for point in points:
        offset = (6, 6) if point.is_rematpass else (6, -12)  # apart, where two points meet
        axes.annotate(point.label, (_mib(point), point.step_ms), textcoords="offset points", xytext=offset, fontsize=8)
    _finish(axes, points)
    return figure


def _finish(axes: Any, points: Sequence[RunPoint]) -> None:
    """Both axes from zero, so that a half looks like a half, with room for the labels on the right."""
    axes.set_xlabel("measured peak of one step, MiB")
    axes.set_ylabel("forward + backward, ms")
    axes.set_xlim(0, 1.4 * max(map(_mib, points)))
    axes.set_ylim(0, 1.15 * max(point.step_ms for point in points))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left", fontsize=8)


def _mib(point: RunPoint) -> float:
    return point.peak_bytes / 2**20


def new_figure() -> Figure:
    """A figure on the Agg canvas: no display and no global pyplot state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RematError('matplotlib is missing. Try: pip install "rematpass[plot]"') from error
    figure = Figure(figsize=(7.5, 4.8), dpi=150, layout="tight")
    FigureCanvasAgg(figure)
    return figure


def write_figure(figure: Figure, path: Path) -> None:
    """Write the picture in the format of its suffix.

    Raises:
        RematError: the format is unknown, or the file cannot be written.
    """
    with _explained(path):
        image = io.BytesIO()
        figure.savefig(image, format=_image_format(path))
        write_whole(path, image.getvalue())


def _image_format(path: Path) -> str:
    return path.suffix.removeprefix(".").lower() or "png"


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """What the system refuses, in our words."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise RematError(f"cannot write the plot to {path}: {error}. Try: another path, or no plot") from error
