"""The backward sequence: recomputation just in time, once or several times.

In: a `Program`, what is kept, and phases. Out: ops in the order they run. Never prices, never counts bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from ..errors import SolverError
from .program import Decision, Kind, Program, Schedule
from .trace import kept_values

_UNPAID = (Kind.INPUT, Kind.SYMBOL)


def forward_sequence(program: Program) -> tuple[int, ...]:
    """The ops the forward runs, in the given order; backward-only values are left to the backward."""
    return tuple(v for v in range(len(program)) if program.in_forward[v] and not program.is_backward[v])


class Recorder:
    """Writes a backward sequence while keeping track of what is available.

    `live` holds the forward-side values available now: kept ones always, recomputed ones until dropped.
    """

    def __init__(self, program: Program, kept: Iterable[int]) -> None:
        self._program = program
        self._kept = frozenset(kept)
        self.live: set[int] = set(self._kept)
        self.sequence: list[int] = []

    def demand(self, values: Iterable[int]) -> list[int]:
        """Compute what is missing of `values`, and what that needs, in the given order; returns what was computed."""
        program, live = self._program, self.live
        missing: set[int] = set()
        stack = [v for v in values if not program.is_backward[v] and program.kind[v] not in _UNPAID]
        while stack:
            v = stack.pop()
            if v in live or v in missing:
                continue
            if not program.may_recompute[v]:
                raise SolverError(f"value {v} is needed, was not kept, and must not be recomputed")
            missing.add(v)
            stack.extend(program.needs[v])
        for v in tuple(missing):
            missing.update(p for p in program.parts.get(v, ()) if p not in live)
        computed = sorted(missing)
        self.sequence.extend(computed)
        live.update(computed)
        return computed

    def run(self, ops: Iterable[int]) -> None:
        """Run backward ops, each right after what it misses was computed."""
        needs, live, sequence = self._program.needs, self.live, self.sequence
        for op in ops:
            if not live.issuperset(needs[op]):
                self.demand(needs[op])
            sequence.append(op)

    def drop(self, values: Iterable[int]) -> None:
        """Forget recomputed values; a later use computes them again."""
        self.live.difference_update(v for v in values if v not in self._kept)

    def finish(self) -> Decision:
        """The decision whose backward is what was recorded and read, the forward values that it returns at its end."""
        program = self._program
        self.demand(v for v in program.backward_outputs if not program.is_backward[v])
        first = forward_sequence(program)
        return make_decision(program, drop_unread(program, Schedule(first, tuple(self.sequence))))


def drop_unread(program: Program, schedule: Schedule) -> Schedule:
    """Without recomputations that nothing reads, such as boundaries whose later stages were kept after all.

    They would never run, but count as time, and what they alone read as kept. What has effects stays.
    """
    sequence = schedule.backward
    wanted = {v for v in program.backward_outputs if not program.is_backward[v]}
    stays = [True] * len(sequence)
    returned: dict[int, list[int]] = {}  # places of the parts met, by the op that returns them
    for i in range(len(sequence) - 1, -1, -1):
        op = sequence[i]
        if not program.is_backward[op]:
            of_op = returned.pop(op, [])
            if program.kind[op] is Kind.PART:
                returned.setdefault(program.inputs[op][0], []).append(i)
            if op not in wanted and not program.is_fixed[op]:
                stays[i] = False
                continue
            wanted.discard(op)
            for part in of_op:  # an op returns all its results at once
                stays[part] = True
        wanted.update(program.needs[op])
    return Schedule(schedule.forward, tuple(itertools.compress(sequence, stays)))


def make_decision(program: Program, schedule: Schedule) -> Decision:
    """Read off a schedule what it keeps and what it spends."""
    tables = program.tables
    kept = frozenset(v for v in kept_values(program, schedule.backward) if tables.is_paid[v])
    ops = np.asarray(schedule.backward, dtype=np.int64)
    ops = ops[~tables.is_backward[ops]]
    once = np.unique(ops[~tables.in_forward[ops]])
    return Decision(kept, schedule, int(tables.duration_ns[ops].sum() - tables.duration_ns[once].sum()))


def must_keep(program: Program, values: Iterable[int]) -> list[int]:
    """Of `values`, those that the backward can only have by keeping: not recomputable, or part of an op that is not."""

    def is_fixed(v: int) -> bool:
        return not program.may_recompute[program.inputs[v][0] if program.kind[v] is Kind.PART else v]

    return [
        v
        for v in values
        if program.in_forward[v] and not program.is_backward[v] and program.may_keep[v] and is_fixed(v)
    ]


def keep_instead(program: Program, values: Iterable[int]) -> set[int]:
    """What to keep so that `values` can be had: what must not be kept is computed again from what may be.

    Boundaries between stages and outputs of the forward cost nothing to keep, so they are chosen without asking.
    """
    found: set[int] = set()
    seen: set[int] = set()
    stack = list(values)
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if program.may_keep[v]:
            found.add(v)
        elif program.may_recompute[v]:  # of an op that may not run again, the results are kept instead
            stack.extend(program.needs[v])
    return found


def order_backward(program: Program, kept: Iterable[int]) -> Decision:
    """Each missing value is computed right before its first use and stays until its last."""
    recorder = Recorder(program, keep_instead(program, kept))
    recorder.run(v for v in range(len(program)) if program.is_backward[v] and program.kind[v] is not Kind.INPUT)
    return recorder.finish()
