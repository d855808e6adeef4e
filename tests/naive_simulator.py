"""Live bytes of a schedule for an executor that runs one op at a time, worked out the slow way.

Written from the docstrings of `rematpass.solve`, not from its code: no sweep, no events. Each half is a list of
moments; for every moment the set of live storages is found from scratch by looking into the past and into the future.
"""

from __future__ import annotations

from rematpass.solve.program import Kind, Program, Schedule

START = -1  # the moment before the first op of a half

Storage = tuple[int, int]  # (root value, moment it was allocated)


class Half:
    """One half: which storage each op writes and which ones it reads."""

    def __init__(self, program: Program, sequence: tuple[int, ...], given: set[int]) -> None:
        self.program = program
        self.ops = [v for v in sequence if program.kind[v] not in (Kind.INPUT, Kind.SYMBOL)]
        self.given = given

    def storage(self, value: int, moment: int) -> Storage | None:
        """Where `value` lives as seen by an op at `moment`; None for what costs nothing (inputs, scalars)."""
        program = self.program
        for earlier in range(moment - 1, -1, -1):
            if self.ops[earlier] == value:
                if program.kind[value] is Kind.VIEW:
                    return self.storage(program.inputs[value][0], earlier)
                return (value, earlier)
        if value in self.given:
            return self.given_storage(value)
        return None

    def given_storage(self, value: int) -> Storage | None:
        """Where something handed to this half lives."""
        root = self.program.root[value]
        is_static = self.program.kind[root] is Kind.INPUT and not self.program.is_backward[root]
        return None if is_static else (root, START)

    def live_bytes(self, held: set[Storage | None]) -> list[int]:
        """Bytes live while each op runs; somebody holds the storages `held` to the end."""
        return [self._at(moment, held) for moment in range(len(self.ops))]

    def final(self, values: set[int]) -> set[Storage | None]:
        """Where values live when the half is over."""
        return {self.storage(v, len(self.ops)) for v in values}

    def _at(self, moment: int, held: set[Storage | None]) -> int:
        program = self.program
        future = {
            self.storage(u, later)
            for later in range(moment, len(self.ops))
            if program.kind[self.ops[later]] is not Kind.VIEW
            for u in program.inputs[self.ops[later]]
        }
        there = {self.given_storage(v) for v in self.given}
        there |= {(self.ops[m], m) for m in range(moment + 1) if program.kind[self.ops[m]] is not Kind.VIEW}
        live = {s for s in there - {None} if s in future or s in held or s[1] == moment}
        return sum(program.size_bytes[root] for root, _ in live) + program.workspace_bytes[self.ops[moment]]


def read_before_made(program: Program, schedule: Schedule) -> set[int]:
    """What the backward takes over from the forward (inputs of the graph left out)."""
    kept = set()
    reads = [(m, u) for m, v in enumerate(schedule.backward) for u in program.inputs[v]]
    reads += [(len(schedule.backward), v) for v in program.backward_outputs]
    for moment, u in reads:
        is_free = program.is_backward[u] or program.kind[u] in (Kind.INPUT, Kind.SYMBOL)
        if not is_free and u not in schedule.backward[:moment]:
            kept.add(u)
    return kept


def naive_timeline(program: Program, schedule: Schedule) -> tuple[list[int], list[int]]:
    """Live bytes per op of the forward and of the backward, the graph's inputs counted."""
    kept = read_before_made(program, schedule)
    tangents = {v for v, kind in enumerate(program.kind) if kind is Kind.INPUT and program.is_backward[v]}
    outputs = set(program.forward_outputs)
    first = Half(program, schedule.forward, set())
    second = Half(program, schedule.backward, kept | outputs | tangents)
    # What the forward returned stays, whoever reads it; the same value computed again is another storage.
    held = {second.given_storage(v) for v in outputs} | second.final(set(program.backward_outputs))
    halves = (first.live_bytes(first.final(kept | outputs)), second.live_bytes(held))
    forward, backward = ([program.static_bytes + n for n in live] for live in halves)
    return forward, backward
