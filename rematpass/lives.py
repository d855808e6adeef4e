"""When each piece of memory comes and goes in a plan.

In: what the planner knew, and a decision. Out: a `LifeRecord` per storage. Never decides, never simulates itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .graph.facts import Facts
from .plan_types import LifeRecord, Role
from .solve.liveness import Lives, find_lives
from .solve.program import Decision, Program
from .solve.trace import Trace


@dataclass(frozen=True)
class _Half:
    """One half: where it starts on the timeline, whether it is the backward."""

    trace: Trace
    lives: Lives
    start: int
    is_backward: bool


def record_lives(program: Program, facts: Facts, decision: Decision) -> tuple[LifeRecord, ...]:
    """Every storage of forward and backward; at each position they add up to what is live, less scratch and inputs."""
    forward, backward = find_lives(program, decision.schedule)
    split = len(forward[0].ops) - forward[0].given
    halves = (_Half(*forward, 0, is_backward=False), _Half(*backward, split, is_backward=True))
    gradients = {program.root[v] for v in program.backward_outputs}
    records = []
    for half in halves:
        for v, size, first, last in _spans(half):
            role: Role = "gradient" if v in gradients else find_role(program, decision, v, is_backward=half.is_backward)
            value = facts.values[v]
            records.append(LifeRecord(value.name, size, role, value.module, half.start + first, half.start + last))
    return tuple(records)


def find_role(program: Program, decision: Decision, v: int, *, is_backward: bool) -> Role:
    """What a storage is there for while one half runs, gradients aside."""
    if v in decision.kept:
        return "kept"
    if not is_backward or program.is_backward[v]:
        return "temporary"
    is_returned = v in {program.root[output] for output in program.forward_outputs}
    return "kept" if is_returned and v not in decision.schedule.backward else "recomputed"


def _spans(half: _Half) -> Iterator[tuple[int, int, int, int]]:
    """(value, bytes, first position, last position) of the half's storages, what is never there left out."""
    trace, lives = half.trace, half.lives
    end_of_half = len(trace.ops) - trace.given - 1
    rows = zip(
        *(column.tolist() for column in (trace.ops, trace.root, lives.size, lives.is_stored, lives.end, lives.taken)),
        strict=True,
    )
    for i, (op, root, size, is_stored, end, taken) in enumerate(rows):
        if root != i or not is_stored or not size:
            continue
        # What takes the place of a dying input comes when that is gone.
        first = max(0, i - trace.given) + bool(taken)
        last = min((i if end < 0 else end) - trace.given, end_of_half)
        if last >= first:
            yield op, size, first, last
