"""A plan on one axis of moments: the forward's executions, then the backward's.

In: a `Program` and a plan. Out: `Axis`: who reads what, when each storage dies, live bytes. Never changes the plan.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Set
from typing import TypeVar

import numpy as np

from .flow import IntArray
from .liveness import find_lives, live_bytes
from .program import Decision, Kind, Program
from .trace import link_executions

T = TypeVar("T")


class _OnDemand(dict[int, T]):
    """What is asked for is made then, and stays; it may be changed."""

    def __init__(self, make: Callable[[int], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: int) -> T:
        self[key] = made = self._make(key)
        return made


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
        live: bytes at each moment, the graph's inputs left out.
    """

    def __init__(self, program: Program, decision: Decision) -> None:
        self.program = program
        (first, first_lives), (second, second_lives) = find_lives(program, decision.schedule)
        self.split = len(first.ops)
        shift = self.split - second.given
        live = [live_bytes(program, first, first_lives), live_bytes(program, second, second_lives)]
        self.live = np.concatenate(live)
        ops = np.concatenate([first.ops, second.ops[second.given :]])
        self.ops: list[int] = ops.tolist()
        self.stored = [*first_lives.is_stored.tolist(), *second_lives.is_stored[second.given :].tolist()]
        self.end = [*first_lives.end.tolist(), *(second_lives.end[second.given :] + shift).tolist()]
        self.runs_at = [*range(self.split), *(second_lives.runs_at[second.given :] + shift).tolist()]
        given = zip(first.last_of(second.ops[: second.given]).tolist(), second_lives.end.tolist(), strict=False)
        for i, end in given:
            if i >= 0 and end >= 0:
                self.end[i] = max(self.end[i], end + shift)
        self._link(ops)

    def _link(self, ops: IntArray) -> None:
        """Who reads what, and the computation before each."""
        count = len(ops)
        reader, source, keys = link_executions(self.program, ops)
        read, self._readers = _rows(reader, source, count), _rows(source, reader, count)
        self._keys: list[int] = keys.tolist()
        runs, place = np.divmod(keys, count + 1)
        again = np.flatnonzero(runs[1:] == runs[:-1])
        self.before = dict(sorted(zip(place[again + 1].tolist(), place[again].tolist(), strict=True)))
        returned = {*self.program.forward_outputs, *self.program.backward_outputs}
        final = {self.latest(v, count) for v in returned}
        self.reads = _OnDemand(read)
        self.readers = _OnDemand(lambda i: {*self._readers(i), count} if i in final else set(self._readers(i)))

    def latest(self, op: int, moment: int) -> int:
        """The last execution of `op` before a moment; -1: none."""
        width = len(self.ops) + 1
        place = bisect.bisect_left(self._keys, op * width + moment) - 1
        run, i = divmod(self._keys[place], width) if place >= 0 else (-1, -1)
        return i if run == op else -1

    def parts(self, i: int) -> list[int]:
        """Executions of its parts, for an op that returns several tensors."""
        return [r for r in self._readers(i) if self.program.kind[self.ops[r]] is Kind.PART]

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


def _rows(key: IntArray, value: IntArray, count: int) -> Callable[[int], list[int]]:
    """The values at each of the keys 0..count-1, in the order given; a fresh list each time."""
    order = np.argsort(key, kind="stable")
    flat: list[int] = value[order].tolist()
    starts: list[int] = np.searchsorted(key[order], np.arange(count + 1)).tolist()
    return lambda i: flat[starts[i] : starts[i + 1]]
