"""Use the memory a plan leaves: take recomputations back, one by one.

In: a `Program` and a plan. Out: the plan with more and more recomputations left out, the ones that raise the peak least
first. Never adds a recomputation.

Leaving out a recomputation means that its readers read the computation before it: the value stays alive from there.
Ops that only served the recomputation go as well, and what they read may die earlier.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .axis import Axis
from .order import make_decision
from .program import Decision, Kind, Program, Schedule


@dataclass(frozen=True)
class _Step:
    """One recomputation left out.

    Attributes:
        again: the execution left out.
        removed: with all that goes with it.
        saved_ns: time that takes off.
        peak_bytes: highest live bytes afterwards.
        changes: (first moment, last moment, bytes) added to the timeline.
        ends: (storage, moment it is now needed last).
    """

    again: int
    removed: tuple[int, ...]
    saved_ns: int
    peak_bytes: int
    changes: tuple[tuple[int, int, int], ...]
    ends: tuple[tuple[int, int], ...]


# Recomputations that are looked at, the dearest first: each look walks along the whole timeline. Up to some 4,000 ops
# these are all there are; on 10,000, half and twice changed the extra time of plans by less than 0.1 % (2026-11).
MAX_CANDIDATES = 1000


class _Queue:
    """Steps waiting: those that do not raise the peak, most time saved first; then by the peak they lead to."""

    def __init__(self, steps: Iterable[_Step]) -> None:
        self._free: list[tuple[int, int, _Step]] = []
        self._dear = [(step.peak_bytes, -step.saved_ns, step.again, step) for step in steps]
        heapq.heapify(self._dear)

    def push(self, step: _Step) -> None:
        """Add a step."""
        heapq.heappush(self._dear, (step.peak_bytes, -step.saved_ns, step.again, step))

    def pop(self, peak_bytes: int) -> _Step | None:
        """The next step where the peak is `peak_bytes`; None when nothing waits."""
        while self._dear and self._dear[0][0] <= peak_bytes:
            *_, step = heapq.heappop(self._dear)
            heapq.heappush(self._free, (-step.saved_ns, step.again, step))
        if self._free:
            return heapq.heappop(self._free)[-1]
        return heapq.heappop(self._dear)[-1] if self._dear else None


class Polisher:
    """Steps from one plan, found by estimate; what they lead to is simulated before it counts.

    Which results reach memory is taken as in the plan at hand. `axis` is the plan's, where it is known; steps change
    it.
    """

    def __init__(self, program: Program, decision: Decision, axis: Axis | None = None) -> None:
        self._program = program
        self._axis = axis or Axis(program, decision)
        self.peak_bytes = int(self._axis.live.max(initial=0))
        self.removed: list[tuple[int, ...]] = []

    def steps(self) -> Iterator[tuple[int, int]]:
        """(peak in bytes above the graph's inputs, ns saved) after each step, until nothing is left to take back.

        What raises the peak not at all goes first, most time saved first; then what raises it least.
        """
        dearest = heapq.nlargest(MAX_CANDIDATES, self.repeated(), key=self._duration)
        waiting = _Queue(step for i in dearest if (step := self._step(i)) is not None)
        gone: set[int] = set()
        while (best := waiting.pop(self.peak_bytes)) is not None:
            fresh = None if best.again in gone else self._step(best.again)
            if fresh is None:
                continue
            if (fresh.peak_bytes, fresh.saved_ns) != (best.peak_bytes, best.saved_ns):
                waiting.push(fresh)  # the timeline has moved since
                continue
            self._take(fresh)
            gone.update(fresh.removed)
            yield self.peak_bytes, fresh.saved_ns

    def repeated(self) -> list[int]:
        """Executions that cost time and repeat an earlier one."""
        return [i for i in self._axis.before if self._duration(i)]

    def _duration(self, execution: int) -> int:
        """What it takes by itself, its parts included: they cost nothing."""
        return self._program.duration_ns[self._axis.ops[execution]]

    def without(self, executions: Iterable[int]) -> Decision:
        """The plan without some repeated executions and what goes with each."""
        steps = [step for i in executions if (step := self._step(i)) is not None]
        return self._leave_out({i for step in steps for i in step.removed})

    def decision(self, count: int) -> Decision:
        """The plan after the first `count` steps."""
        return self._leave_out({i for step in self.removed[:count] for i in step})

    def _leave_out(self, gone: set[int]) -> Decision:
        backward = tuple(op for i, op in enumerate(self._axis.ops) if i >= self._axis.split and i not in gone)
        return make_decision(self._program, Schedule(tuple(self._axis.ops[: self._axis.split]), backward))

    def _step(self, again: int) -> _Step | None:
        """What leaving out execution `again` does; None when it saves no time or is not possible."""
        group = [again, *self._axis.parts(again)]
        if not self._may_leave_out(group):
            return None
        removed = self._cascade(group)
        saved = sum(self._program.duration_ns[self._axis.ops[i]] for i in removed)
        if saved <= 0:
            return None
        changes, ends = self._changes(group, removed)
        peak = self._peak_after(changes)
        return _Step(again, tuple(sorted(removed)), saved, peak, tuple(changes), tuple(ends))

    def _may_leave_out(self, group: list[int]) -> bool:
        """Whether all readers may read the computation before instead."""
        program = self._program
        for i in group:
            op = self._axis.ops[i]
            if program.kind[op] is Kind.VIEW or i not in self._axis.before:
                return False
            if self._axis.readers[i] - set(group) and not program.may_keep[op]:
                return False
        return True

    def _cascade(self, group: list[int]) -> set[int]:
        """The group and all executions that nobody reads any more."""
        removed = set(group)
        stack = [u for i in group for u in self._axis.reads[i]]
        while stack:
            i = stack.pop()
            is_own = i in self._axis.before and not self._program.is_backward[self._axis.ops[i]]
            if i in removed or not is_own or self._axis.readers[i] - removed:
                continue
            removed.add(i)
            stack.extend(self._axis.reads[i])
        return removed

    def _changes(self, group: list[int], removed: set[int]) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
        """Storages that live longer, shorter, or not at all."""
        changes: list[tuple[int, int, int]] = []
        ends: list[tuple[int, int]] = []
        for i in group:
            if not self._axis.readers[i] - removed:
                continue
            before, size = self._axis.before[i], self._program.size_bytes[self._axis.ops[i]]
            start = self._axis.end[before] + 1 if self._axis.stored[before] else before
            stop = i - 1 if self._axis.stored[i] else self._axis.end[i]
            changes.append((start, stop, size))
            ends.append((before, max(self._axis.end[before], self._axis.end[i])))
        stored = [i for i in removed.difference(group) if self._axis.stored[i]]
        changes += [(i, self._axis.end[i], -self._axis.size(i)) for i in stored]
        for u in {self._axis.owner(u) for i in removed for u in self._axis.reads[i]} - removed - {-1}:
            end = self._axis.last_need(u, removed)
            if end < self._axis.end[u] and self._axis.stored[u]:
                changes.append((max(end, u) + 1, self._axis.end[u], -self._axis.size(u)))
                ends.append((u, end))
        return changes, ends

    def _peak_after(self, changes: list[tuple[int, int, int]]) -> int:
        live = self._axis.live.copy()
        for start, stop, size in changes:
            live[start : stop + 1] += size
        return int(live.max(initial=0))

    def _take(self, step: _Step) -> None:
        for start, stop, size in step.changes:
            self._axis.live[start : stop + 1] += size
        self.peak_bytes = int(self._axis.live.max(initial=0))
        for i, end in step.ends:
            self._axis.end[i] = end
        gone = set(step.removed)
        for i in (step.again, *self._axis.parts(step.again)):
            before = self._axis.before[i]
            self._axis.stored[before] = True
            self._axis.readers[before] |= self._axis.readers[i] - gone
            for r in self._axis.readers[i] - gone:
                if r < len(self._axis.ops):
                    self._axis.reads[r] = [before if u == i else u for u in self._axis.reads[r]]
        for i in gone:
            for u in self._axis.reads[i]:
                self._axis.readers[u].discard(i)
        for i in self._axis.before:
            while self._axis.before[i] in gone:
                self._axis.before[i] = self._axis.before[self._axis.before[i]]
        self.removed.append(step.removed)
