"""How good any plan could be: lower bounds on extra time at a budget, and on the peak itself.

In: a `Program`. Out: `Bound`. Never looks at a plan: what it says holds for every plan, whatever it keeps, however
often it recomputes, and in whatever order it runs the ops of the backward.

Take one moment, while backward op k runs. What k and the ops that certainly are to come need and is not live then (see
`moments.py`) is computed again at least once. So no plan is faster than the linear-programming value of the closure
over these ops at the bytes that are left (Lagrangian duality; the constraint matrix of a closure is totally
unimodular). Values are kept whole, which may ask for more: see core/whole.cpp.

Of k and a rival, an op that reads one of its gradients, neither needs the other. The rival runs before k, and what it
returns is there; or after k, and what it needs is still wanted; or, if that says more: between k and a later op that
needs k, or after that, and the gradient that both read is there until then. Each case has a moment of which more is
certain than of k's alone, and the least of their bounds holds.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from ._core import Closure, ClosureProblem
from .moments import UNPAID, Case, Moment, Moments
from .program import Program

# Backward ops at whose moments the peak is bounded, those that read and write most first; each costs a walk through the
# graph. 96 changed no bound on eight models, 4 made three of them up to 6 % lower (2026-11).
PEAK_MOMENTS = 24


@dataclass(frozen=True)
class Bound:
    """Lower bounds for a program."""

    program: Program

    def extra_ns_at(self, budget_bytes: int | None, moments: Iterable[int] = (), known_ns: int | None = None) -> float:
        """Least extra time in ns of any plan whose peak fits the budget.

        Args:
            budget_bytes: None for no limit.
            moments: backward ops to look at, besides the start of the backward. More give a better bound; of those of
                which nothing is certain nothing is asked.
            known_ns: what a plan takes that fits. Where given, values are kept whole or not at all at the moment that
                says most, which says more yet, up to `known_ns`; takes up to two tenths of a second.
        """
        best = [self._line(self.moments.start, budget_bytes)]
        if budget_bytes is not None:
            found = [Moment(k) for k in moments if self.moments.is_known(k)]
            best = max([best, *([self._line_at(budget_bytes, moment)] for moment in found)], key=_least)
            for moment in found:
                best = max(best, self._lines_beside_rival(budget_bytes, moment.op, _least(best)), key=_least)
        if known_ns is None or _least(best) >= known_ns:
            return _least(best)
        return min(line.least_of_whole(known_ns) for line in best)

    @cached_property
    def moments(self) -> Moments:
        """What is certain while ops run."""
        return Moments(self.program)

    def _lines_beside_rival(self, budget_bytes: int, k: int, enough: float) -> list[Line]:
        """What moments of op k, of one beside it, and of one that needs k ask, one of which a plan meets.

        Empty if one of them does not ask for more than `enough`.
        """
        beside = self.moments.beside(k) if self.moments.is_met(k) else None
        if beside is None:
            return []
        rival, later = beside
        before = self._lines_of(budget_bytes, (Moment(k, before=(rival,)),), enough)
        if not before:
            return []
        after = self._lines_of(budget_bytes, (Moment(k, after=(rival,)),), enough)
        if _least(after) < _least(before):
            apart = (Moment(later, after=(rival,)), Moment(rival, before=(k,), after=(later,)))
            after = max(after, self._lines_of(budget_bytes, apart, enough), key=_least)
        return [*before, *after] if after else []

    def _lines_of(self, budget_bytes: int, cases: Sequence[Moment], enough: float) -> list[Line]:
        """What moments ask one of which a plan meets; empty if one of them does not ask for more than `enough`."""
        lines = list[Line]()
        for moment in cases:
            lines.append(self._line_at(budget_bytes, moment))
            if lines[-1].least_ns <= enough:
                return []
        return lines

    def _line_at(self, budget_bytes: int, moment: Moment) -> Line:
        return self._line(self.moments.case_at(moment), budget_bytes)

    def _line(self, case: Case, budget_bytes: int | None) -> Line:
        room = None if budget_bytes is None else budget_bytes - self.fixed_bytes - case.forced_bytes
        if room is not None:  # what is kept is a sum of sizes
            room -= room % case.hull.problem.keep_unit
        return Line(case.hull.problem, room, *case.hull.near(room))

    @cached_property
    def peak_bytes(self) -> int:
        """No plan has a lower peak: the largest single op with all that is certainly live while it runs, or the end."""
        program, moments = self.program, self.moments
        forward = [v for v, kind in enumerate(program.kind) if kind not in UNPAID and not program.is_backward[v]]
        sizes = [program.static_bytes + self._around_op(v) for v in forward if moments.is_certain(v)]
        met = [(self._around_op(v), v) for v in range(len(program)) if moments.is_met(v)]
        sizes += [self.fixed_bytes + live + moments.live_gradients(v) for live, v in heapq.nlargest(PEAK_MOMENTS, met)]
        return max([self.fixed_bytes, self._end_bytes, *sizes])

    @property
    def _end_bytes(self) -> int:
        """Live while the last op of the backward runs: what is always there, and all that is returned."""
        program = self.program
        returned = {program.root[v] for v in program.backward_outputs} - self.moments.outputs
        is_made = any(program.is_backward[r] and program.kind[r] not in UNPAID for r in returned)
        return self.fixed_bytes + sum(program.size_bytes[r] for r in returned) if is_made else 0

    def _around_op(self, v: int) -> int:
        """Bytes of what op v writes, works with and reads: gradients that the backward reads are counted elsewhere."""
        program = self.program
        reads = {program.root[u] for u in program.inputs[v]} - self.moments.outputs
        if program.is_backward[v]:
            reads = {r for r in reads if not program.is_backward[r]}
        return self.moments.own_bytes(v) + sum(program.size_bytes[r] for r in reads)

    @cached_property
    def fixed_bytes(self) -> int:
        """Live throughout the backward: the graph's inputs and the forward's outputs."""
        return self.program.static_bytes + sum(self.program.size_bytes[r] for r in self.moments.outputs)


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
