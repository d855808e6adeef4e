"""When the ops of a backward run: as late as they can, unless running them frees memory.

In: a `Program` and a backward sequence. Out: the same executions in an order that holds less at once. Never adds or
drops one, never moves anything past what has effects.

A greedy list schedule. Three rules (see `Urgency` for the first two):
Ops of the backward that free what they allocate, and those nobody reads, run in the given order; whatever else they
need runs right before. So a value is computed again when its reader is next, not when its stage begins, and the
gradient of a weight, which sets an activation free, goes before that of the activation, which is yet another.
Gradients larger than all they are made from wait for the end: nobody but the optimizer reads them.
An execution all of whose inputs are there runs at once if, as their last reader, it frees what it allocates.
"""

from __future__ import annotations

from collections.abc import Sequence

from .program import Kind, Program, Schedule


def tidy_backward(program: Program, schedule: Schedule) -> Schedule:
    """The same executions, repeated ones included, the backward's in an order that mostly holds less."""
    urgency, backward = program.urgency, schedule.backward
    writer = _Writer(program, backward)
    settled = 0
    for i, op in enumerate(backward):
        if program.is_fixed[op]:
            writer.run_until(i + 1)
            settled = len(writer.order)
        elif urgency.is_anchor[op]:
            writer.run(i)
    writer.run_until(len(backward))
    ops = [backward[i] for i in writer.order]
    left = ops[settled:]
    early = [op for op in left if not urgency.is_late[op]]
    late = [op for op in left if urgency.is_late[op]]
    return Schedule(schedule.forward, (*ops[:settled], *early, *late))


class _Links:
    """Who reads what, execution by execution.

    Attributes:
        reads: executions it reads.
        readers: executions that read it.
        roots: distinct executions whose storage it reads; a view reads none.
        left: per execution, how many have yet to read its storage.
        parts: of an op that returns several tensors.
    """

    def __init__(self, program: Program, backward: Sequence[int]) -> None:
        inputs, kind = program.inputs, program.kind
        latest: dict[int, int] = {}
        owner: list[int] = []
        self.reads: list[list[int]] = []
        self.readers: list[list[int]] = [[] for _ in backward]
        self.roots: list[set[int]] = []
        self.left = [0] * len(backward)
        self.parts: dict[int, list[int]] = {}
        for i, op in enumerate(backward):
            seen = [latest[u] for u in inputs[op] if u in latest]
            is_view = kind[op] is Kind.VIEW
            owner.append(owner[seen[0]] if is_view and seen else i)
            roots = set() if is_view else {owner[u] for u in seen}
            for u in seen:
                self.readers[u].append(i)
            for root in roots:
                self.left[root] += 1
            if kind[op] is Kind.PART and seen:
                self.parts.setdefault(seen[0], []).append(i)
            self.reads.append(seen)
            self.roots.append(roots)
            latest[op] = i


class _Writer:
    """Writes executions down, each after what it reads, parts right behind the op that returns them."""

    def __init__(self, program: Program, backward: Sequence[int]) -> None:
        links = _Links(program, backward)
        returned = {program.root[v] for v in program.backward_outputs}
        self._links = links
        self._size = [program.size_bytes[op] for op in backward]
        self._freed = [0 if program.root[op] in returned else program.size_bytes[op] for op in backward]
        self._may_hurry = [not program.is_fixed[op] and not program.urgency.is_late[op] for op in backward]
        self._written = [False] * len(backward)
        self._first_left = 0
        fixed = [i for i, op in enumerate(backward) if program.is_fixed[op]]
        self._barriers = [*reversed(fixed)]
        self.order: list[int] = []

    def run(self, i: int) -> None:
        """Execution `i`, and before it what it needs and is not there yet, in the given order."""
        stack = [i]
        while stack:
            top = stack[-1]
            if self._written[top]:
                stack.pop()
                continue
            missing = [u for u in self._links.reads[top] if not self._written[u]]
            if missing:
                stack += sorted(missing, reverse=True)
                continue
            stack.pop()
            self._write(top)

    def run_until(self, end: int) -> None:
        """Everything left before `end`, in the given order."""
        for i in range(self._first_left, end):
            self.run(i)
        while self._barriers and self._barriers[-1] < end:
            self._barriers.pop()
        self._first_left = max(self._first_left, end)

    def _write(self, i: int) -> None:
        """Write `i` and its parts, and then what can only free memory."""
        pending = [i]
        while pending:
            now = pending.pop()
            if self._written[now]:
                continue
            group = [now, *self._links.parts.get(now, ())]
            for execution in group:
                self._written[execution] = True
                self.order.append(execution)
            for execution in group:
                pending += [r for r in reversed(self._links.readers[execution]) if self._should_hurry(r)]
                for root in self._links.roots[execution]:
                    self._links.left[root] -= 1

    def _should_hurry(self, i: int) -> bool:
        """Whether all it reads is there and running it frees at least what it allocates, nothing fixed in between."""
        if self._barriers and i > self._barriers[-1]:
            return False
        if self._written[i] or not self._may_hurry[i] or not all(map(self._written.__getitem__, self._links.reads[i])):
            return False
        left = self._links.left
        return sum(self._freed[root] for root in self._links.roots[i] if left[root] == 1) >= self._size[i]
