"""What each stage offers: kept bytes, peak while it runs, extra time.

In: a `Program` and its `Stages`. Out: a `StageModel` per stage, equal stages computed once. Never looks beyond a stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ._core import Closure, ClosureProblem
from .closure import fill_between, sweep_closures
from .liveness import find_lives, local_peak
from .order import Recorder, must_keep
from .program import Decision, Kind, Program
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
        kept: values of the stage to hold between its forward and its backward, its output boundary left out.
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
    """Stages start..stop-1 taken as one: no boundary between them need be kept. Fields as in `StageModel`."""

    start: int
    stop: int
    kind: int
    options: tuple[StageOption, ...]
    alone: StageOption


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
    """Models stages and runs of them; what has equal structure is computed once, value ids are translated."""

    def __init__(self, program: Program, stages: Stages) -> None:
        self._program = program
        self._stages = stages
        self._users = backward_users(program)
        self._returned = set(program.backward_outputs)
        self._seen: dict[tuple[object, ...], tuple[_Scope, StageModel]] = {}

    @property
    def computed_ops(self) -> int:
        """Ops of all stages and runs that were really computed."""
        return sum(len(scope.forward) + len(scope.backward) for scope, _ in self._seen.values())

    def model(self, start: int, stop: int) -> StageModel:
        """The model of stages start..stop-1 taken as one."""
        scope = _Scope.of(self._program, self._stages, start, stop, self._users, self._returned)
        if scope.signature in self._seen:
            source, model = self._seen[scope.signature]
            return _translate(model, source, scope)
        model = _model(scope, len(self._seen))
        self._seen[scope.signature] = (scope, model)
        return model


def backward_users(program: Program) -> list[list[int]]:
    """Per value, the backward ops that read it."""
    users: list[list[int]] = [[] for _ in range(len(program))]
    for v in range(len(program)):
        if program.is_backward[v]:
            for u in program.inputs[v]:
                users[u].append(v)
    return users


@dataclass(frozen=True)
class _Scope:
    """One stage with what surrounds it. `members` lists every value in a canonical order, for translation."""

    program: Program
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    before: frozenset[int]
    after: frozenset[int]
    wanted: tuple[int, ...]
    leaving: frozenset[int]
    gradient_bytes: int
    members: tuple[int, ...]
    signature: tuple[object, ...]

    @cached_property
    def must(self) -> list[int]:
        """Of its forward, what can only be kept."""
        return must_keep(self.program, self.forward)

    @cached_property
    def elsewhere(self) -> set[int]:
        """What it reads from outside itself and its boundaries: taken to be at hand."""
        program, inside = self.program, frozenset(self.forward)
        reads = {u for v in (*self.forward, *self.backward) for u in program.inputs[v] if not program.is_backward[u]}
        return set(program.core.held_values(list(reads), self.forward)) - inside

    @classmethod
    def of(
        cls, program: Program, stages: Stages, start: int, stop: int, users: list[list[int]], returned: set[int]
    ) -> _Scope:
        forward = tuple(sorted(v for s in range(start, stop) for v in stages.forward[s]))
        backward = tuple(v for s in range(stop - 1, start - 1, -1) for v in stages.backward[s])
        before = frozenset(stages.boundary[start])
        after = frozenset(stages.boundary[stop]) if stop < len(stages) else frozenset()
        inside = set(backward)
        wanted = dict.fromkeys(
            u for v in backward for u in program.inputs[v] if not program.is_backward[u] and _is_paid(program, u)
        )
        leaving = frozenset(v for v in backward if v in returned or any(w not in inside for w in users[v]))
        gradients = {program.root[v] for v in backward if v in returned and program.is_backward[program.root[v]]}
        gradient_bytes = sum(program.size_bytes[v] for v in gradients)
        members, signature = _canonical(program, forward, backward, before, after, leaving | (set(forward) & returned))
        return cls(
            program=program,
            forward=forward,
            backward=backward,
            before=before,
            after=after,
            wanted=tuple(wanted),
            leaving=leaving,
            gradient_bytes=gradient_bytes,
            members=members,
            signature=signature,
        )


def _is_paid(program: Program, value: int) -> bool:
    return program.kind[value] not in (Kind.INPUT, Kind.SYMBOL)


def _canonical(
    program: Program,
    forward: Sequence[int],
    backward: Sequence[int],
    before: Iterable[int],
    after: frozenset[int],
    marked: frozenset[int] | set[int],
) -> tuple[tuple[int, ...], tuple[object, ...]]:
    """Members in order of first sight and a signature equal for stages of equal structure and cost."""
    number: dict[int, int] = {}
    figures = program.figures
    rows: list[int] = []
    for v in (*sorted(before), *forward, *backward):
        reads = [number.setdefault(u, len(number)) for u in program.inputs[v]]
        # The figures say how many reads follow.
        rows += (figures[v], *reads, number.setdefault(v, len(number)), v in after, v in marked)
    outside = tuple(figures[v] for v in number)
    return tuple(number), (tuple(rows), outside)


def _model(scope: _Scope, kind: int) -> StageModel:
    program, sequence = scope.program, _forward_again(scope, ())
    advance = sum(program.duration_ns[v] for v in sequence)
    outside = {program.root[v] for v in scope.before}
    advance_peak = local_peak(program, sequence, scope.after & set(scope.forward), outside)
    alone = _option(scope, (), advance_peak, with_after=False)
    options = prune_options(_option(scope, kept, advance_peak, with_after=True) for kept in _thin(_kept_sets(scope)))
    assert options, "a stage offers at least what it must keep"
    return StageModel(kind, options, alone, advance, advance_peak, scope.gradient_bytes)


def _kept_sets(scope: _Scope) -> list[tuple[int, ...]]:
    """Kept sets of the stage's closures, from fastest to smallest."""
    free = scope.before | scope.after
    problem, values = closure_problem(scope.program, scope.forward, scope.wanted, free)
    hull = sweep_closures(problem, HULL_RESOLUTION)
    closures: list[Closure] = []
    for upper, lower in itertools.pairwise(hull):
        closures += [upper, *fill_between(problem, upper, lower)]
    closures.append(hull[-1])
    return [tuple(v for v in (values[i] for i in np.flatnonzero(c.kept).tolist()) if v not in free) for c in closures]


def _thin(kept_sets: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """At most MAX_OPTIONS of them, both ends kept, evenly along the curve."""
    if len(kept_sets) <= MAX_OPTIONS:
        return kept_sets
    places = np.unique(np.linspace(0, len(kept_sets) - 1, MAX_OPTIONS).round().astype(int))
    return [kept_sets[p] for p in places.tolist()]


def closure_problem(
    program: Program, scope: Iterable[int], wanted: Iterable[int], free: Iterable[int]
) -> tuple[ClosureProblem, list[int]]:
    """The closure over the values in `scope` and those in `free`, whose keeping costs nothing.

    Keeping an output of the forward is free as well: the caller holds it. What is made from inputs is always there.

    Returns:
        The problem and the value behind each of its indices.
    """
    return program.core.closure_problem(list(scope), list(wanted), list(free))


def _option(scope: _Scope, kept: tuple[int, ...], advance_peak_bytes: int, *, with_after: bool) -> StageOption:
    """Figures of running the stage's backward with `kept` at hand.

    The forward that makes them once more is taken to need what advancing needs, and what is kept.
    """
    program = scope.program
    given = {*scope.before, *kept, *(scope.after if with_after else scope.must)}
    recorder = Recorder(program, given | scope.elsewhere)
    recorder.run(scope.backward)
    outside = {program.root[v] for v in scope.before}
    peak = local_peak(program, recorder.sequence, scope.leaving, outside)
    again = sum(program.duration_ns[v] for v in recorder.sequence if program.in_forward[v])
    kept_bytes = sum(program.size_bytes[v] for v in kept)
    made = _forward_again(scope, kept)
    again_ns = sum(program.duration_ns[v] for v in made)
    return StageOption(kept, kept_bytes, again, peak, again_ns, kept_bytes + advance_peak_bytes)


def _forward_again(scope: _Scope, kept: tuple[int, ...]) -> tuple[int, ...]:
    """A forward of the stage that computes `kept` and the output boundary."""
    program = scope.program
    mine = set(scope.forward)
    made = [v for v in (*scope.after, *kept) if v in mine]
    recorder = Recorder(program, {*scope.before, *scope.must} | scope.elsewhere)
    recorder.demand(sorted(made))
    return recorder.sequence


def prune_options(options: Iterable[StageOption]) -> tuple[StageOption, ...]:
    """Drop what another option beats in kept bytes, peak and time at once."""
    chosen: list[StageOption] = []
    for o in sorted(options, key=lambda o: (o.extra_ns, o.kept_bytes, o.backward_peak_bytes)):
        if not any(c.kept_bytes <= o.kept_bytes and c.backward_peak_bytes <= o.backward_peak_bytes for c in chosen):
            chosen.append(o)
    return tuple(chosen)


def _translate(model: StageModel, source: _Scope, target: _Scope) -> StageModel:
    """The same model for a twin stage: same figures, the twin's values."""
    name = dict(zip(source.members, target.members, strict=True))

    def move(o: StageOption) -> StageOption:
        kept = tuple(sorted(name[v] for v in o.kept))
        return StageOption(kept, o.kept_bytes, o.extra_ns, o.backward_peak_bytes, o.again_ns, o.forward_peak_bytes)

    return StageModel(
        model.kind,
        tuple(move(o) for o in model.options),
        move(model.alone),
        model.advance_ns,
        model.advance_peak_bytes,
        model.gradient_bytes,
    )
