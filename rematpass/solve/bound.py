"""How good any plan could be: lower bounds on extra time at a budget, and on the peak itself.

In: a `Program`. Out: `Bound`. Never looks at a plan: what it says holds for every plan that runs the backward's own ops
in the given order, whatever it keeps and however often it recomputes.

Take one moment, while backward op k runs. Certainly live are the graph's inputs, the forward's outputs, gradients made
before and read later, what op k reads, writes and uses as scratch. All else that is live then are forward values; what
the backward needs from k on and is not among them is computed again at least once. So no plan is faster than the
linear-programming value of the closure over the ops from k on at the bytes that are left (Lagrangian duality; the
constraint matrix of a closure is totally unimodular).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .closure import Closure, ClosureProblem, closure_near
from .flow import BoolArray, IntArray
from .frontier import closure_problem
from .program import Kind, Program

# The line between two neighbours is worked out in floating point.
ROUNDING = 1e-9
_UNPAID = (Kind.INPUT, Kind.SYMBOL)
# What certainly reaches memory, also under fusion.
_STORED = (Kind.EXTERN, Kind.REDUCTION, Kind.PART)


@dataclass(frozen=True)
class Bound:
    """Lower bounds for a program. `from_inputs` marks values made anywhere from graph inputs at no cost."""

    program: Program
    from_inputs: tuple[bool, ...]

    def extra_ns_at(self, budget_bytes: int | None, moments: Iterable[int] = ()) -> float:
        """Least extra time in ns of any plan whose peak fits the budget.

        Args:
            budget_bytes: None for no limit.
            moments: backward ops to look at, besides the start of the backward. More give a better bound.
        """
        best = self._least(self._start, budget_bytes, 0)
        if budget_bytes is None:
            return best
        for k in moments:
            if self.is_certain(k):
                forced = int(self._live_backward[k]) + self._own(k)
                best = max(best, self._least(self._problem_at(k), budget_bytes, forced))
        return best

    @cached_property
    def peak_bytes(self) -> int:
        """No plan has a lower peak: the largest single op with all that is certainly live while it runs."""
        program = self.program
        peaks = [self.fixed_bytes]
        for v, kind in enumerate(program.kind):
            if kind in _UNPAID or not self.is_certain(v):
                continue
            reads = {program.root[u] for u in program.inputs[v]} - self._outputs
            if program.is_backward[v]:
                reads = {r for r in reads if not program.is_backward[r]}
                rest = self.fixed_bytes + int(self._live_backward[v])
            else:
                rest = program.static_bytes
            peaks.append(rest + self._own(v) + sum(program.size_bytes[r] for r in reads))
        return max(peaks)

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

    @cached_property
    def _live_backward(self) -> IntArray:
        """Per op k: bytes of gradients made before k and needed at k or later, tangents included."""
        program = self.program
        count = len(program)
        last = [-1] * count
        for v in range(count):
            if program.kind[v] is not Kind.VIEW:
                for u in program.inputs[v]:
                    last[program.root[u]] = v
        returned = {program.root[v] for v in program.backward_outputs}
        change = np.zeros(count + 1, dtype=np.int64)
        for r, end in enumerate(last):
            stop = count - 1 if r in returned else end
            is_stored = not program.is_fusing or program.kind[r] in _STORED or r in returned
            is_tangent = program.kind[r] is Kind.INPUT
            if program.is_backward[r] and (is_stored or is_tangent) and stop > r:
                change[0 if is_tangent else r + 1] += program.size_bytes[r]
                change[stop + 1] -= program.size_bytes[r]
        return np.cumsum(change)[:count]

    @cached_property
    def _start(self) -> ClosureProblem:
        return self._closure(range(len(self.program)))[0]

    def _closure(self, ops: Iterable[int]) -> tuple[ClosureProblem, list[int]]:
        """What the backward ops among `ops` need, over all forward values."""
        return whole_problem(self.program, self.from_inputs, ops)

    def _problem_at(self, k: int) -> ClosureProblem:
        """Any forward value may be in memory then, kept or computed just before; what op k reads certainly is."""
        program = self.program
        problem, values = self._closure(range(k, len(program)))
        may_keep = np.array([program.kind[v] is not Kind.VIEW and v not in program.parts for v in values], dtype=bool)
        place = {v: i for i, v in enumerate(values)}
        roots = {program.root[u] for u in program.inputs[k]}
        held = [place[r] for r in roots if r in place and may_keep[place[r]]]
        may_recompute, wanted = problem.may_recompute.copy(), problem.wanted.copy()
        may_recompute[held], wanted[held] = False, True
        return replace(problem, may_keep=may_keep, may_recompute=may_recompute, wanted=wanted)

    def _least(self, problem: ClosureProblem, budget_bytes: int | None, forced_bytes: int) -> float:
        room = None if budget_bytes is None else budget_bytes - self.fixed_bytes - forced_bytes
        if room is not None:  # what is kept is a sum of sizes, and what is spent one of durations
            room -= room % max(1, math.gcd(*problem.keep_bytes.tolist()))
        upper, lower = closure_near(problem, room)
        step = max(1, math.gcd(*problem.recompute_ns.tolist()))
        return float(math.ceil(interpolate(upper, lower, room) / step - ROUNDING) * step)


def interpolate(upper: Closure, lower: Closure, room_bytes: int | None) -> float:
    """Extra time on the line between two neighbours of the hull."""
    if room_bytes is None or room_bytes >= upper.kept_bytes:
        return float(upper.extra_ns)
    if room_bytes <= lower.kept_bytes:
        return float(lower.extra_ns)
    share = (upper.kept_bytes - room_bytes) / (upper.kept_bytes - lower.kept_bytes)
    return upper.extra_ns + share * (lower.extra_ns - upper.extra_ns)


def whole_problem(
    program: Program, from_inputs: Sequence[bool], ops: Iterable[int] | None = None
) -> tuple[ClosureProblem, list[int]]:
    """The closure over all forward values for the backward ops among `ops` (all when None); its values by index."""
    chosen = range(len(program)) if ops is None else ops
    wanted = {
        u
        for v in chosen
        if program.is_backward[v]
        for u in program.inputs[v]
        if not program.is_backward[u] and program.kind[u] not in _UNPAID
    }
    wanted |= {v for v in program.backward_outputs if not program.is_backward[v]}
    scope = [v for v in range(len(program)) if is_forward_side(program, v) and not from_inputs[v]]
    return closure_problem(program, scope, wanted, (), from_inputs)


def is_forward_side(program: Program, v: int) -> bool:
    """Whether v is computed and does not depend on a gradient."""
    return not program.is_backward[v] and program.kind[v] not in _UNPAID


def values_of(values: Sequence[int], chosen: BoolArray) -> list[int]:
    """The values a closure chose."""
    return [values[i] for i in np.flatnonzero(chosen).tolist()]
