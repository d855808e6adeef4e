"""How good any plan could be: lower bounds on extra time at a budget, and on the peak itself.

In: a `Program`. Out: `Bound`. Never looks at a plan: what it says holds for every plan, whatever it keeps, however
often it recomputes, and in whatever order it runs the ops of the backward.

Take one moment, while backward op k runs. Certainly over are the ops k depends on, certainly to come those that depend
on k. So certainly live are the graph's inputs, the forward's outputs, gradients made by the former and read by the
latter, what op k reads, writes and uses as scratch, and for each gradient that is neither: itself or what was returned
in its place, whichever is smaller. All else that is live then are forward values; what k and the ops to come need and
is not among them is computed again at least once. So no plan is faster than the linear-programming value of the
closure over these ops at the bytes that are left (Lagrangian duality; the constraint matrix of a closure is totally
unimodular). Values are kept whole, which may ask for more: see core/whole.cpp.

Of k and another op that reads one of its gradients, neither needs the other: that of a weight beside that of an
activation. The other runs before k, and what it returns is there; or between k and a later op that needs k; or after
that, and the gradient that both read is there until then. Each case has a moment of which more is certain than of k's
alone, and the least of the three bounds holds.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from . import _core
from ._core import Closure, ClosureProblem
from .arrays import BoolArray, IntArray
from .closure import Hull
from .frontier import closure_problem
from .program import Kind, Program

# Backward ops at whose moments the peak is bounded, those that read and write most first; each costs a walk through the
# graph. 96 changed no bound on eight models, 4 made three of them up to 6 % lower (2026-11).
PEAK_MOMENTS = 24
_UNPAID = (Kind.INPUT, Kind.SYMBOL)


@dataclass(frozen=True)
class Bound:
    """Lower bounds for a program."""

    program: Program

    def extra_ns_at(self, budget_bytes: int | None, moments: Iterable[int] = (), known_ns: int | None = None) -> float:
        """Least extra time in ns of any plan whose peak fits the budget.

        Args:
            budget_bytes: None for no limit.
            moments: backward ops to look at, besides the start of the backward. More give a better bound.
            known_ns: what a plan takes that fits. Where given, values are kept whole or not at all at the moment that
                says most, which says more yet, up to `known_ns`; takes up to two tenths of a second.
        """
        start = self._line(self._start, budget_bytes)
        best = [start]
        for k in () if budget_bytes is None else moments:
            if self.is_certain(k):
                best = max(best, [self._line_at(budget_bytes, _Moment(k))], key=_least)
                best = max(best, self._lines_beside_rival(budget_bytes, k, _least(best)), key=_least)
        if known_ns is None or _least(best) >= known_ns:
            return _least(best)
        return min(line.least_of_whole(known_ns) for line in best)

    def _line_at(self, budget_bytes: int | None, moment: _Moment) -> Line:
        """What a moment asks of plans that meet it."""
        case = self._cases.get(moment)
        if case is None:
            around = self._moments.around(moment.op, moment.before, moment.after)
            forced = self._moments.live_gradients(around) + self._own(moment.op)
            case = self._cases[moment] = _Case(Hull(self._problem_at(moment.op, around.to_come)), forced)
        return self._line(case, budget_bytes)

    def _lines_beside_rival(self, budget_bytes: int | None, k: int, enough: float) -> list[Line]:
        """What moments of op k, of one beside it, and of one that needs k ask, one of which a plan meets.

        Empty if one of them does not ask for more than `enough`.
        """
        if k not in self._met_beside:
            self._met_beside[k] = self._find_rival(k)
        lines = list[Line]()
        for moment in self._met_beside[k]:
            lines.append(self._line_at(budget_bytes, moment))
            if lines[-1].least_ns <= enough:
                return []
        return lines

    def _find_rival(self, k: int) -> tuple[_Moment, ...]:
        """Moments of op k, of one beside it, and of one that needs k, one of which a plan meets; none without these."""
        around = self._moments.around(k)
        rival = max(self._rivals(k, around), key=lambda v: self.program.size_bytes[v], default=None)
        if rival is None:
            return ()
        aside = self._moments.around(rival)
        is_later = around.to_come & ~aside.to_come & ~aside.is_over
        followers = (v for v in np.flatnonzero(is_later).tolist() if v != k and self.is_met(v))
        later = next(filter(self.leads_on, followers), None)
        if later is None:
            return ()
        return _Moment(k, before=(rival,)), _Moment(later, after=(rival,)), _Moment(rival, (k,), (later,))

    def _rivals(self, k: int, around: _core.Around) -> Iterable[int]:
        """Ops of the backward that read a gradient that op k reads, too; neither needs the other."""
        program = self.program
        reads = {program.root[u] for u in program.inputs[k] if program.is_backward[u]}
        met = {v for r in reads for v in self._readers.get(r, ())}
        return [v for v in sorted(met) if v != k and not (around.to_come[v] or around.is_over[v])]

    @cached_property
    def _readers(self) -> dict[int, list[int]]:
        """Per storage of a gradient, the ops that read it and have a moment."""
        program, found = self.program, dict[int, list[int]]()
        for v in filter(self.is_met, range(len(program))):
            for r in {program.root[u] for u in program.inputs[v] if program.is_backward[u]}:
                found.setdefault(r, []).append(v)
        return found

    def is_met(self, v: int) -> bool:
        """Whether op v is one of the backward that runs once, with all it reads and makes in memory."""
        return self.program.is_backward[v] and self.program.is_paid[v] and self.is_certain(v)

    @cached_property
    def peak_bytes(self) -> int:
        """No plan has a lower peak: the largest single op with all that is certainly live while it runs, or the end."""
        program = self.program
        forward = [v for v, kind in enumerate(program.kind) if kind not in _UNPAID and not program.is_backward[v]]
        sizes = [program.static_bytes + self._around_op(v) for v in forward if self.is_certain(v)]
        met = [(self._around_op(v), v) for v in range(len(program)) if self.is_met(v)]
        sizes += [
            self.fixed_bytes + live + self._moments.live_gradients(self._moments.around(v))
            for live, v in heapq.nlargest(PEAK_MOMENTS, met)
        ]
        return max([self.fixed_bytes, self._end_bytes, *sizes])

    @property
    def _end_bytes(self) -> int:
        """Live while the last op of the backward runs: what is always there, and all that is returned."""
        program, returned = self.program, self._returned - self._outputs
        is_made = any(program.is_backward[r] and program.kind[r] not in _UNPAID for r in returned)
        return self.fixed_bytes + sum(program.size_bytes[r] for r in returned) if is_made else 0

    @cached_property
    def heaviest(self) -> int | None:
        """Of the backward's ops that others depend on, the one that reads and writes most; None for none."""
        sizes, root, inputs = self.program.size_bytes, self.program.root, self.program.inputs
        leading = (v for v in range(len(self.program)) if self.is_met(v) and self.leads_on(v))
        return max(
            leading, key=lambda v: self._own(v) + sum(sizes[r] for r in {root[u] for u in inputs[v]}), default=None
        )

    def _around_op(self, v: int) -> int:
        """Bytes of what op v writes, works with and reads: gradients that the backward reads are counted elsewhere."""
        program = self.program
        reads = {program.root[u] for u in program.inputs[v]} - self._outputs
        if program.is_backward[v]:
            reads = {r for r in reads if not program.is_backward[r]}
        return self._own(v) + sum(program.size_bytes[r] for r in reads)

    @cached_property
    def _outputs(self) -> set[int]:
        return {self.program.root[v] for v in self.program.forward_outputs}

    @cached_property
    def fixed_bytes(self) -> int:
        """Live throughout the backward: the graph's inputs and the forward's outputs."""
        return self.program.static_bytes + sum(self.program.size_bytes[r] for r in self._outputs)

    def is_certain(self, v: int) -> bool:
        """Whether what op v reads and writes is in memory while it runs."""
        return self.program.kind[v] is Kind.EXTERN or not self.program.is_fusing

    def _own(self, v: int) -> int:
        """Result and scratch of op v; an output of the forward is counted elsewhere."""
        size = 0 if v in self._outputs and self.program.is_backward[v] else self.program.size_bytes[v]
        return size + self.program.workspace_bytes[v]

    def leads_on(self, v: int) -> bool:
        """Whether other ops of the backward depend on op v: the more that do, the more is known of its moment."""
        return self.program.root[v] not in self._returned

    @cached_property
    def _returned(self) -> set[int]:
        return {self.program.root[v] for v in self.program.backward_outputs}

    @cached_property
    def _moments(self) -> _core.Moments:
        return _core.Moments(self.program.core)

    @cached_property
    def _whole(self) -> tuple[ClosureProblem, list[int]]:
        """The closure over all forward values for the whole backward; its values by index."""
        return whole_problem(self.program)

    @cached_property
    def _place(self) -> IntArray:
        """Per op, its index among the values of the closure; -1 for none."""
        place = np.full(len(self.program), -1)
        values = self._whole[1]
        place[values] = np.arange(len(values))
        return place

    def _places(self, ops: list[int]) -> IntArray:
        """Indices of those of `ops` that are values of the closure."""
        places: IntArray = self._place[np.array(ops, dtype=np.int64)]
        return places[places >= 0]

    @cached_property
    def _needs(self) -> tuple[IntArray, IntArray]:
        """Per op and value of the closure that it needs: the op, and the index of the value."""
        needs = self.program.needs
        readers = np.repeat(np.arange(len(needs)), [len(values) for values in needs])
        places: IntArray = self._place[np.array([u for values in needs for u in values], dtype=np.int64)]
        return readers[places >= 0], places[places >= 0]

    @cached_property
    def _may_be_there(self) -> BoolArray:
        """Which values of the closure may be in memory in the middle of the backward."""
        program = self.program
        values = self._whole[1]
        return np.array([program.kind[v] is not Kind.VIEW and v not in program.parts for v in values], dtype=bool)

    def _problem_at(self, k: int, to_come: BoolArray) -> ClosureProblem:
        """Any forward value may be in memory then, kept or computed just before; what op k reads certainly is."""
        program = self.program
        problem, values = self._whole
        wanted = np.zeros(len(values), dtype=bool)
        readers, needed = self._needs
        wanted[needed[to_come[readers]]] = True
        wanted[self._places([v for v in program.backward_outputs if not program.is_backward[v]])] = True
        held = self._places([program.root[u] for u in program.inputs[k]])
        held = held[self._may_be_there[held]]
        may_recompute = problem.may_recompute
        may_recompute[held], wanted[held] = False, True
        return problem.with_sides(wanted, self._may_be_there, may_recompute)

    @cached_property
    def _start(self) -> _Case:
        return _Case(Hull(self._whole[0]), 0)

    @cached_property
    def _cases(self) -> dict[_Moment, _Case]:
        """Moments looked at so far."""
        return {}

    @cached_property
    def _met_beside(self) -> dict[int, tuple[_Moment, ...]]:
        """Per op looked at so far, what `_find_rival` says."""
        return {}

    def _line(self, case: _Case, budget_bytes: int | None) -> Line:
        room = None if budget_bytes is None else budget_bytes - self.fixed_bytes - case.forced_bytes
        if room is not None:  # what is kept is a sum of sizes
            room -= room % case.hull.problem.keep_unit
        return Line(case.hull.problem, room, *case.hull.near(room))


class _Moment(NamedTuple):
    """While an op of the backward runs, some others before it, and some after."""

    op: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class _Case(NamedTuple):
    """What is known of a moment: values it asks for, and bytes of gradients and results that are live for certain."""

    hull: Hull
    forced_bytes: int


@dataclass(frozen=True)
class Line:
    """What a closure asks for at the bytes that are left: a point on the line between two neighbours of its hull."""

    problem: ClosureProblem
    room_bytes: int | None
    upper: Closure
    lower: Closure

    @cached_property
    def least_ns(self) -> float:
        """Extra time of fractions of values."""
        step = self.problem.recompute_unit  # what is spent is a sum of durations
        return float(math.ceil(interpolate(self.upper, self.lower, self.room_bytes) / step) * step)

    def least_of_whole(self, known_ns: int) -> float:
        """Extra time of whole values, at most `known_ns`."""
        if self.room_bytes is None or not self.lower.kept_bytes < self.room_bytes < self.upper.kept_bytes:
            return self.least_ns
        whole = self.problem.least_of_whole(self.upper, self.lower, self.room_bytes, known_ns)
        return max(self.least_ns, float(whole))


def _least(lines: Sequence[Line]) -> float:
    """What any plan takes that meets one of the lines."""
    return min((line.least_ns for line in lines), default=0.0)


def interpolate(upper: Closure, lower: Closure, room_bytes: int | None) -> Fraction:
    """Extra time on the line between two neighbours of the hull."""
    if room_bytes is None or room_bytes >= upper.kept_bytes:
        return Fraction(upper.extra_ns)
    if room_bytes <= lower.kept_bytes:
        return Fraction(lower.extra_ns)
    share = Fraction(upper.kept_bytes - room_bytes, upper.kept_bytes - lower.kept_bytes)
    return upper.extra_ns + share * (lower.extra_ns - upper.extra_ns)


def whole_problem(program: Program) -> tuple[ClosureProblem, list[int]]:
    """The closure over all forward values for the whole backward; its values by index."""
    wanted = {u for v in range(len(program)) if program.is_backward[v] for u in program.needs[v]}
    wanted |= {v for v in program.backward_outputs if not program.is_backward[v]}
    scope = [v for v in range(len(program)) if is_forward_side(program, v)]
    return closure_problem(program, scope, wanted, ())


def is_forward_side(program: Program, v: int) -> bool:
    """Whether v is computed and does not depend on a gradient."""
    return not program.is_backward[v] and program.kind[v] not in _UNPAID


def values_of(values: Sequence[int], chosen: BoolArray) -> list[int]:
    """The values a closure chose."""
    return [values[i] for i in np.flatnonzero(chosen).tolist()]
