"""What is certain while one op of the backward runs, in any order of the others.

In: a `Program`. Out: per moment, bytes that are certainly live and the closure over what may be there besides; other
moments, one of which is met by whoever meets the first. Never looks at a plan.

Certainly over are the ops that op k depends on, certainly to come those that depend on k. On every way of gradients
from what is over to what is to come or returned something is there: at least the smallest cut through all these ways.
Live are, besides, the graph's inputs, the forward's outputs, and what op k writes and uses as scratch. All else that is
live are forward values. What k reads is among them.

A generated function has such a moment, too: while a kernel computes it. What it reads may be computed in the kernel,
but not by a kernel of another kind, so that a product it is made of by way of functions is there, or one of these
functions in its place. Its result may take the place of what it reads, and counts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import cached_property
from typing import NamedTuple

import numpy as np

from . import _core
from ._core import ClosureProblem
from .arrays import BoolArray, IntArray
from .closure import Hull
from .frontier import closure_problem
from .program import Kind, Program

UNPAID = (Kind.INPUT, Kind.SYMBOL)


class Moment(NamedTuple):
    """While an op of the backward runs, some others before it, and some after."""

    op: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class Case(NamedTuple):
    """What is known of a moment: values it asks for, and bytes of gradients and results that are live for certain."""

    hull: Hull
    forced_bytes: int


class Moments:
    """Moments of a program; what was found of one is remembered."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._core = _core.Moments(program.core)
        self._cases: dict[Moment, Case] = {}
        self._beside: dict[int, tuple[int, int] | None] = {}

    @cached_property
    def start(self) -> Case:
        """Before the backward: nothing is certain but what it needs."""
        return Case(Hull(self._whole[0]), 0)

    def case_at(self, moment: Moment) -> Case:
        """What is known of a moment."""
        case = self._cases.get(moment)
        if case is None:
            around = self._core.around(moment.op, moment.before, moment.after)
            forced = self._core.live_gradients(around) + self.own_bytes(moment.op)
            case = self._cases[moment] = Case(Hull(self._problem_at(moment.op, around.to_come)), forced)
        return case

    def live_gradients(self, v: int) -> int:
        """Bytes of gradients that are certainly live while op v runs, its own result left out."""
        return self._core.live_gradients(self._core.around(v))

    def beside(self, k: int) -> tuple[int, int] | None:
        """A rival of op k, neither of which needs the other, and an op that needs k but not the rival; None for none.

        The rival reads a gradient that op k reads, as that of a weight beside that of an activation: it runs before k,
        between k and the later op, or after that, and what it reads is there until then.
        """
        if k not in self._beside:
            self._beside[k] = self._find_beside(k)
        return self._beside[k]

    def _find_beside(self, k: int) -> tuple[int, int] | None:
        around = self._core.around(k)
        rival = max(self._rivals(k, around), key=lambda v: self.program.size_bytes[v], default=None)
        if rival is None:
            return None
        aside = self._core.around(rival)
        is_later = around.to_come & ~aside.to_come & ~aside.is_over
        followers = (v for v in np.flatnonzero(is_later).tolist() if v != k and self.is_met(v))
        later = next(filter(self.leads_on, followers), None)
        return None if later is None else (rival, later)

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

    def is_certain(self, v: int) -> bool:
        """Whether what op v reads and writes is in memory while it runs."""
        return self.program.kind[v] is Kind.EXTERN or not self.program.is_fusing

    def is_known(self, v: int) -> bool:
        """Whether something is certain of the moment of op v."""
        return self.is_certain(v) or self._is_function(v)

    def is_met(self, v: int) -> bool:
        """Whether op v is one of the backward that runs once, with all it reads and makes in memory."""
        return self.program.is_backward[v] and self.program.is_paid[v] and self.is_certain(v)

    def leads_on(self, v: int) -> bool:
        """Whether other ops of the backward depend on op v: the more that do, the more is known of its moment."""
        return self.program.root[v] not in self._returned

    def first(self, ops: Iterable[int], count: int) -> list[int]:
        """The first `count` of `ops` that have a moment and on which others depend; without any, that have one."""
        leading, others = list[int](), list[int]()
        for v in filter(self.is_met, ops):
            (leading if self.leads_on(v) else others).append(v)
            if len(leading) == count:
                break
        return leading or others[:count]

    @cached_property
    def heaviest(self) -> list[int]:
        """Of the backward's ops that others depend on, the one that reads and writes most; likewise of functions."""
        program = self.program
        leading = [v for v in range(len(program)) if program.is_backward[v] and self.leads_on(v)]
        functions = (v for v in leading if self._is_function(v))
        found = (max(ops, key=self._moved_bytes, default=None) for ops in (filter(self.is_met, leading), functions))
        return [v for v in found if v is not None]

    def _is_function(self, v: int) -> bool:
        return self.program.kind[v] is Kind.POINTWISE and not self.is_certain(v)

    def _moved_bytes(self, v: int) -> int:
        sizes, root = self.program.size_bytes, self.program.root
        reads = {root[u] for u in self.program.inputs[v]}
        return sizes[v] + self.program.workspace_bytes[v] + sum(sizes[r] for r in reads)

    def own_bytes(self, v: int) -> int:
        """Result and scratch of op v; what the forward returned, or may take another's place, counts nothing."""
        is_elsewhere = self.program.is_backward[v] and (v in self.outputs or self._is_function(v))
        return (0 if is_elsewhere else self.program.size_bytes[v]) + self.program.workspace_bytes[v]

    @cached_property
    def outputs(self) -> set[int]:
        """Storages that the forward returns."""
        return {self.program.root[v] for v in self.program.forward_outputs}

    @cached_property
    def _returned(self) -> set[int]:
        return {self.program.root[v] for v in self.program.backward_outputs}

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

    def _places(self, ops: Iterable[int]) -> IntArray:
        """Indices of those of `ops` that are values of the closure."""
        places: IntArray = self._place[np.array([*ops], dtype=np.int64)]
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
        """Any forward value may be in memory then, kept or computed just before; some must be."""
        program, (problem, values) = self.program, self._whole
        readers, needed = self._needs
        wanted = np.zeros(len(values), dtype=bool)
        wanted[self._places(v for v in program.backward_outputs if not program.is_backward[v])] = True
        wanted[needed[to_come[readers] & (readers != k)]] = True
        if self._is_function(k):
            later = {values[i] for i in np.flatnonzero(wanted).tolist()}
            held = self._places(self._inside(k) - self._made_of(later))
        else:
            held = self._places(program.root[u] for u in program.inputs[k])
        held = held[self._may_be_there[held]]
        may_recompute = problem.may_recompute
        may_recompute[held] = False
        wanted[needed[readers == k]] = True
        wanted[held] |= not self._is_function(k)
        return problem.with_sides(wanted, self._may_be_there, may_recompute)

    def _inside(self, k: int) -> set[int]:
        """Forward values that no function computes and that a function is made of, itself or by way of others."""
        program = self.program
        seen, stack = set[int](), [k]
        while stack:
            for r in {program.root[u] for u in program.inputs[stack.pop()]} - seen:
                if is_forward_side(program, r):
                    seen.add(r)
                    stack += [r] if program.kind[r] is Kind.POINTWISE else []
        return {r for r in seen if program.kind[r] is not Kind.POINTWISE}

    def _made_of(self, values: Set[int]) -> set[int]:
        """Forward values and all that they are made of."""
        program = self.program
        seen = {program.root[v] for v in values}
        stack = [*values, *seen]
        while stack:
            for u in program.inputs[stack.pop()]:
                if program.root[u] not in seen and is_forward_side(program, u):
                    seen.add(program.root[u])
                    stack += {u, program.root[u]}
        return seen


def whole_problem(program: Program) -> tuple[ClosureProblem, list[int]]:
    """The closure over all forward values for the whole backward; its values by index."""
    wanted = {u for v in range(len(program)) if program.is_backward[v] for u in program.needs[v]}
    wanted |= {v for v in program.backward_outputs if not program.is_backward[v]}
    scope = [v for v in range(len(program)) if is_forward_side(program, v)]
    return closure_problem(program, scope, wanted, ())


def is_forward_side(program: Program, v: int) -> bool:
    """Whether v is computed and does not depend on a gradient."""
    return not program.is_backward[v] and program.kind[v] not in UNPAID
