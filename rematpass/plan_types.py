"""The plan: what is kept and recomputed, why, and what it costs.

In: numbers and names made by the pipeline. Out: frozen records, and JSON in both directions.
Never imports torch; never decides anything.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from .other_sizes import AtOtherSizes, SizedStep

PLAN_SCHEMA = 3
# How the note begins that says what a plan file was made of.
PLANNED_FROM = "planned from "

Phase = Literal["forward", "backward"]
Role = Literal["input", "kept", "recomputed", "gradient", "temporary"]


class Decision(StrEnum):
    """What happens to one forward value.

    KEEP: saved from the forward for the backward. RECOMPUTE: computed again in the backward. FREE: not needed by the
    backward, or fused away.
    """

    KEEP = "keep"
    RECOMPUTE = "recompute"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class ValueRecord:
    """One forward value: `bytes` of its storage, what was decided and why, and where the user wrote it.

    `label` is the user's own name for it (`rematpass.name`), "" when it has none. `flags` are sentences about what is
    usually a mistake.
    """

    name: str
    bytes: int
    shape: tuple[int | str, ...]
    dtype: str
    decision: Decision
    because: str
    op: str
    module: str
    source: str
    label: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """Bytes live while one op runs; graph inputs are included."""

    phase: Phase
    op: str
    live_bytes: int


@dataclass(frozen=True, slots=True)
class AliveRecord:
    """A tensor alive at the peak, and what it is there for."""

    name: str
    bytes: int
    role: Role
    module: str
    source: str


@dataclass(frozen=True, slots=True)
class LifeRecord:
    """A piece of memory from the position of the timeline where it comes to the last where it is there.

    What the forward keeps has two: one in the forward, one in the backward.
    """

    name: str
    bytes: int
    role: Role
    module: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The next plan of the frontier: its peak in bytes and its extra time in seconds."""

    peak_bytes: int
    recompute_seconds: float


def relative_gap(found: float, bound: float) -> float:
    """(found - bound) / bound; infinite when only the bound is zero."""
    if found <= bound:
        return 0.0
    return (found - bound) / bound if bound else math.inf


@dataclass(frozen=True)
class Plan(AtOtherSizes):
    """One graph's plan. Sizes in bytes, times in seconds as priced by the cost model.

    Attributes:
        graph_name: which graph of the compiled model ("graph 0", ...).
        fingerprint: hash of the joint graph and of everything that decided the plan.
        budget_bytes: what was asked, None for no limit.
        peak_bytes: highest bytes live in forward or backward: inputs, kept, recomputed, gradients, temporaries.
        fastest_peak_bytes: the peak of the plan with no limit.
        smallest_peak_bytes: the lowest peak any plan found reaches; for a budget below it more would have been tried.
        bound_peak_bytes: no plan has a lower peak than this.
        static_bytes: the graph's own inputs (parameters, buffers, batch), part of every peak.
        gradient_bytes: the gradients the backward returns, live at its end.
        recompute_seconds: extra time of this plan.
        step_seconds: time of forward and backward without recomputation.
        bound_seconds: no plan at this budget has less extra time than this.
        values: one record per forward value that the backward could use.
        timeline: live bytes per executed op, forward then backward.
        peak_position: index into `timeline`.
        alive_at_peak: the tensors alive there, largest first.
        cheaper, smaller: the neighbours on the frontier, None at its ends.
        notes: sentences for the reader, e.g. why memory does not fall.
        graph_fingerprint: hash of the joint graph alone: a plan can be replayed where it is the same.
        lives: every tensor that reaches memory, from when to when; the graph's inputs are `static_bytes`, and what is
            missing to `timeline` is scratch of the op that runs.
        plan_seconds: how long planning took; not part of the plan's identity.
        sized: looks at the step at other sizes, where the plan was made by `rematpass.plan`; no part of it either.
    """

    graph_name: str
    fingerprint: str
    device: str
    torch_version: str
    budget_bytes: int | None
    peak_bytes: int
    fastest_peak_bytes: int
    smallest_peak_bytes: int
    bound_peak_bytes: int
    static_bytes: int
    gradient_bytes: int
    recompute_seconds: float
    step_seconds: float
    bound_seconds: float
    values: tuple[ValueRecord, ...]
    timeline: tuple[TimelinePoint, ...]
    peak_position: int
    alive_at_peak: tuple[AliveRecord, ...]
    cheaper: Neighbour | None = None
    smaller: Neighbour | None = None
    notes: tuple[str, ...] = ()
    graph_fingerprint: str = ""
    lives: tuple[LifeRecord, ...] = ()
    plan_seconds: float = field(default=0.0, compare=False)
    sized: SizedStep | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles are the plan alone: a model is no part of it.
        return {**self.__dict__, "sized": None}

    @property
    def recompute_fraction(self) -> float:
        """Extra time as a share of the step without recomputation."""
        return self.recompute_seconds / self.step_seconds if self.step_seconds else 0.0

    @property
    def gap(self) -> float:
        """(extra time - bound) / bound: at most this far from the best possible. Infinite when the bound is zero."""
        return relative_gap(self.recompute_seconds, self.bound_seconds)

    @property
    def kept_bytes(self) -> int:
        """Sum of what the forward saves for the backward, graph inputs not counted."""
        return sum(v.bytes for v in self.values if v.decision is Decision.KEEP)

    @property
    def source(self) -> str:
        """What `rematpass plan --save` was asked to plan, and how it set the model; "" for other plans."""
        named = (note.removeprefix(PLANNED_FROM) for note in self.notes if note.startswith(PLANNED_FROM))
        return next(named, "")

    def __str__(self) -> str:
        from .report.table import format_plan

        return format_plan(self)

    def to_json(self) -> str:
        """The plan as JSON; equal plans give equal bytes (planning time is left out)."""
        record = asdict(replace(self, sized=None))
        del record["plan_seconds"], record["sized"]
        return json.dumps({"schema": PLAN_SCHEMA, **record}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` wrote.

        Raises:
            PlanFileError: not JSON, another schema, or a field that is missing or impossible.
        """
        from .plan_file import plan_from_json

        return plan_from_json(text)

    def explain(self, glob: str = "*") -> str:
        """What the modules that `glob` names keep and recompute, why, and what they hold at the peak, as text.

        Raises:
            OptionError: nothing matches.
        """
        from .report.explain import explain_plan

        return explain_plan(self, glob)

    def diff(self, other: Plan) -> PlanDiff:
        """What is different in `other`; `print` it."""
        from .report.diff import diff_plans

        return diff_plans(self, other)

    def plot(self, path: str | Path) -> Path:
        """Draw memory over the step, coloured by module, into an image file; needs matplotlib.

        Raises:
            RematError: matplotlib is missing, the format is unknown, or the file cannot be written.
        """
        from .report.plot_timeline import plot_timeline

        return plot_timeline(self, path)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a file that `rematpass.load_plan` reads back to an equal plan; returns its path.

        Raises:
            PlanFileError: the system refuses; an existing file is as it was.
        """
        from .plan_file import save_plan

        return save_plan(self, path)


@dataclass(frozen=True)
class PlanDiff:
    """What is different in `after`, seen from `before`; `print` it.

    Attributes:
        is_same_graph: both plan one graph.
        kept_now: kept in `after`, but not in `before`, which has them, too.
        recomputed_now: likewise.
        gone, new: values that only one of them has.
    """

    before: Plan
    after: Plan
    is_same_graph: bool
    kept_now: tuple[ValueRecord, ...]
    recomputed_now: tuple[ValueRecord, ...]
    gone: tuple[ValueRecord, ...]
    new: tuple[ValueRecord, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the plans are equal."""
        return self.before == self.after

    def __str__(self) -> str:
        from .report.diff import format_diff

        return format_diff(self)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One plan of a curve.

    Attributes:
        peak_bytes: its peak, which is also the smallest budget that gives this plan.
        recompute_seconds: its extra time.
        recompute_fraction: that as a share of the step.
        bound_seconds: no plan within `peak_bytes` has less extra time.
        gap: (extra time - bound) / bound; infinite when only the bound is zero.
    """

    peak_bytes: int
    recompute_seconds: float
    recompute_fraction: float
    bound_seconds: float
    gap: float


@dataclass(frozen=True)
class Curve:
    """Extra time over peak for one graph, fastest plan first: peaks fall, extra time rises.

    Attributes:
        device: whose prices were used.
        torch_version: that traced the graph.
        static_bytes: parameters, buffers and batch, part of every peak.
        step_seconds: forward and backward without recomputation.
        bound_peak_bytes: no plan has a lower peak.
        points: the plans.
    """

    device: str
    torch_version: str
    static_bytes: int
    step_seconds: float
    bound_peak_bytes: int
    points: tuple[CurvePoint, ...]

    def __str__(self) -> str:
        from .report.table import format_curve

        return format_curve(self)

    def to_json(self) -> str:
        """The curve as JSON; an infinite gap is null."""
        record = asdict(self)
        for point in record["points"]:
            point["gap"] = point["gap"] if math.isfinite(point["gap"]) else None
        return json.dumps(record, sort_keys=True, separators=(",", ":"))

    def plot(self, path: str | Path) -> Path:
        """Draw extra time and its bound against peak into an image file; needs matplotlib.

        Raises:
            RematError: matplotlib is missing, the format is unknown, or the file cannot be written.
        """
        from .report.plot import plot_curve

        return plot_curve(self, path)
