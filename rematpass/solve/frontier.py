"""What each stage offers: kept bytes, peak while it runs, extra time.

In: a `Program` and its `Stages`. Out: a `StageRun` for stages taken as one, equal ones modelled once. Never looks
beyond them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from . import _core
from ._core import ClosureProblem
from .liveness import find_lives
from .program import Decision, Program
from .stages import Stages

# Options per stage. At 8, plans of a ResNet take up to 31 % more extra time and its smallest peak is 8 % higher, while
# transformers do not care; at 32 nothing changed on either (2026-11).
MAX_OPTIONS = 16
# Vertices of a stage's hull nearer than this share of its bytes or time are not looked for: they outnumber options.
# At 8 one of thirty plans on six graphs took 1 % more extra time, at 32 none changed, at 64 one took 2 % more
# (2026-11).
HULL_RESOLUTION = 16


@dataclass(frozen=True)
class StageOption:
    """One way through a stage whose input boundary is available.

    Attributes:
        kept: what to hold of the stage between its forward and its backward, its output boundary left out, by place
            among the members of the stage (`StageRun.members`).
        kept_bytes: their bytes.
        extra_ns: time of what its backward computes again.
        backward_peak_bytes: live during its backward beyond the input boundary (kept, gradients, temporaries).
        again_ns: time of computing `kept` and the output boundary in a forward that is run again.
        forward_peak_bytes: live during that forward beyond the input boundary, about.
    """

    kept: tuple[int, ...]
    kept_bytes: int
    extra_ns: int
    backward_peak_bytes: int
    again_ns: int
    forward_peak_bytes: int


@dataclass(frozen=True)
class StageModel:
    """A stage as the chain programme sees it.

    Attributes:
        kind: equal for equal stages.
        options: Pareto-optimal, least extra time first.
        alone: its backward from nothing but the input boundary: everything computed again, nothing held.
        advance_ns, advance_peak_bytes: computing only the output boundary from the input boundary.
        gradient_bytes: gradients it returns, live from here to the end.
    """

    kind: int
    options: tuple[StageOption, ...]
    alone: StageOption
    advance_ns: int
    advance_peak_bytes: int
    gradient_bytes: int


@dataclass(frozen=True)
class StageRun:
    """Stages start..stop-1 taken as one: no boundary between them need be kept.

    Attributes:
        start, stop: the first, and the one after the last.
        model: shared by all of equal structure.
        members: values in and around them, in an order that all of equal structure share.
    """

    start: int
    stop: int
    model: StageModel
    members: tuple[int, ...]

    def kept(self, option: StageOption) -> tuple[int, ...]:
        """The values that an option holds."""
        return tuple(self.members[place] for place in option.kept)


class Passing:
    """Gradients that cross a stage on their way from a later one to an earlier one, neither made nor read in it.

    Sums over many stages, mostly: the gradient of a weight that a recurrent loop uses in every step. What the backward
    returns is left out; the chain programme counts it from where it is made.
    """

    def __init__(self, program: Program, stages: Stages, decision: Decision) -> None:
        """Read the lives of gradients off a plan: under fusion a gradient lives until its reader's reader has run."""
        half = find_lives(program, decision.schedule)[1]
        stage = np.array(stages.backward_stage_of, dtype=np.int64)[half.ops]
        stage = np.maximum.accumulate(stage[::-1])[::-1]  # ops of the forward side run for the backward op after them
        ends = np.minimum(np.maximum(half.end, 0), len(stage) - 1)
        returned = np.isin(np.array(program.root)[half.ops], [program.root[v] for v in program.backward_outputs])
        owner = half.root == np.arange(len(half.ops))
        is_gradient = np.array(program.is_backward)[half.ops]
        far = is_gradient & half.is_stored & owner & ~returned & (stage - stage[ends] > 1)
        far[: half.given] = False
        self._made, self._last, self._size = stage[far], stage[ends][far], half.size[far]

    def over(self, start: int, stop: int) -> int:
        """Bytes that cross stages start..stop-1."""
        return int(self._size[(self._made >= stop) & (self._last < start)].sum())


class Modeller:
    """Models stages and runs of them; what has equal structure is modelled once. Compiled: core/stage.cpp.

    An option's kept set is one of the closures of the stage, from fastest to smallest. Its forward, run again, is taken
    to need what advancing needs, and what is kept.
    """

    def __init__(self, program: Program, stages: Stages) -> None:
        parts = stages.forward, stages.backward, stages.boundary
        self._core = _core.Modeller(program.core, *parts, program.figures, MAX_OPTIONS, HULL_RESOLUTION)
        self._models: list[StageModel] = []

    @property
    def computed_ops(self) -> int:
        """Ops of all stages and runs that were really modelled."""
        return self._core.computed_ops

    def run(self, start: int, stop: int) -> StageRun:
        """Stages start..stop-1 taken as one."""
        kind, members = self._core.kind_of(start, stop)
        if kind == len(self._models):
            options, alone, *rest = self._core.model(kind)
            model = StageModel(kind, tuple(StageOption(*o) for o in options), StageOption(*alone), *rest)
            self._models.append(model)
        return StageRun(start, stop, self._models[kind], members)


def closure_problem(
    program: Program, scope: Iterable[int], wanted: Iterable[int], free: Iterable[int]
) -> tuple[ClosureProblem, list[int]]:
    """The closure over the values in `scope` and those in `free`, whose keeping costs nothing.

    Keeping an output of the forward is free as well: the caller holds it. What is made from inputs is always there.

    Returns:
        The problem and the value behind each of its indices.
    """
    return program.core.closure_problem(list(scope), list(wanted), list(free))
