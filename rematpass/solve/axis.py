"""A plan on one axis of moments: the forward's executions, then the backward's.

In: a `Program` and a plan. Out: `Axis`: who reads what, when each storage dies, live bytes. Never changes the plan.
"""

from __future__ import annotations

import bisect
from collections.abc import Set

import numpy as np

from .liveness import find_lives, live_bytes
from .program import Decision, Kind, Program


class Axis:
    """Executions 0..n-1 in order; `n` as a reader means "needed when the step is over".

    Attributes:
        ops: op of each execution.
        split: executions of the forward.
        stored: whether its result reaches memory.
        end: last moment its storage is needed.
        runs_at: moment its reads happen (later than its place when it is fused into a reader).
        reads: executions it reads, views included.
        readers: executions that read it.
        before: the previous execution of the same op, where there is one.
        parts: executions of its parts, for an op that returns several tensors.
        live: bytes at each moment, the graph's inputs left out.
    """

    def __init__(self, program: Program, decision: Decision) -> None:
        self.program = program
        (first, first_lives), (second, second_lives) = find_lives(program, decision.schedule)
        self.split = len(first.ops)
        shift = self.split - second.given
        live = [live_bytes(program, first, first_lives), live_bytes(program, second, second_lives)]
        self.live = np.concatenate(live)
        self.ops: list[int] = [*first.ops.tolist(), *second.ops[second.given :].tolist()]
        self.stored = [*first_lives.is_stored.tolist(), *second_lives.is_stored[second.given :].tolist()]
        self.end = [*first_lives.end.tolist(), *(second_lives.end[second.given :] + shift).tolist()]
        self.runs_at = [*range(self.split), *(second_lives.runs_at[second.given :] + shift).tolist()]
        given = zip(first.last_of(second.ops[: second.given]).tolist(), second_lives.end.tolist(), strict=False)
        for i, end in given:
            if i >= 0 and end >= 0:
                self.end[i] = max(self.end[i], end + shift)
        self._link()

    def _link(self) -> None:
        """Who reads what, and the computation before each."""
        program, latest = self.program, dict[int, int]()
        inputs, kind = program.inputs, program.kind
        reads: list[list[int]] = []
        readers: list[set[int]] = [set() for _ in self.ops]
        before: dict[int, int] = {}
        runs: dict[int, list[int]] = {}
        parts: dict[int, list[int]] = {}
        for i, op in enumerate(self.ops):
            seen = [latest[u] for u in inputs[op] if u in latest]
            reads.append(seen)
            for u in seen:
                readers[u].add(i)
            if seen and kind[op] is Kind.PART:
                parts.setdefault(seen[0], []).append(i)
            if op in latest:
                before[i] = latest[op]
                runs[op].append(i)
            else:
                runs[op] = [i]
            latest[op] = i
        self.reads, self.readers, self.before, self.parts, self._runs = reads, readers, before, parts, runs
        for v in {*program.forward_outputs, *program.backward_outputs}:
            if v in latest:
                self.readers[latest[v]].add(len(self.ops))

    def latest(self, op: int, moment: int) -> int:
        """The last execution of `op` before a moment; -1: none."""
        runs = self._runs.get(op, [])
        place = bisect.bisect_left(runs, moment)
        return runs[place - 1] if place else -1

    def size(self, i: int) -> int:
        """Bytes of the storage execution `i` allocates; 0 for a view."""
        op = self.ops[i]
        return 0 if self.program.kind[op] is Kind.VIEW else self.program.size_bytes[op]

    def owner(self, i: int) -> int:
        """The execution in whose storage `i` lives; -1 for a view of a graph input."""
        while self.program.kind[self.ops[i]] is Kind.VIEW:
            if not self.reads[i]:
                return -1
            i = self.reads[i][0]
        return i

    def last_need(self, owner: int, removed: Set[int]) -> int:
        """Last moment somebody outside `removed` reads the storage of `owner`, through views as well."""
        last, stack = owner, [owner]
        while stack:
            for r in self.readers[stack.pop()] - removed:
                if r == len(self.ops):
                    last = r
                elif self.program.kind[self.ops[r]] is Kind.VIEW:
                    stack.append(r)
                else:
                    last = max(last, self.runs_at[r])
        return last
