"""When each piece of memory comes and goes in a plan.

In: what the planner knew, and a decision. Out: a `LifeRecord` per storage. Never decides, never simulates itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from .graph.facts import Facts
from .plan_types import LifeRecord, Role
from .solve.liveness import Half, find_lives
from .solve.program import Decision, Program


def record_lives(program: Program, facts: Facts, decision: Decision) -> tuple[LifeRecord, ...]:
    """Every storage of forward and backward; at each position they add up to what is live, less scratch and inputs."""
    forward, backward = find_lives(program, decision.schedule)
    split = len(forward.ops) - forward.given
    gradients = {program.root[v] for v in program.backward_outputs}
    records = []
    for half, start in ((forward, 0), (backward, split)):
        for v, size, first, last in _spans(half):
            is_backward = half is backward
            role: Role = "gradient" if v in gradients else find_role(program, decision, v, is_backward=is_backward)
            value = facts.values[v]
            records.append(LifeRecord(value.name, size, role, value.module, start + first, start + last))
    return tuple(records)


def find_role(program: Program, decision: Decision, v: int, *, is_backward: bool) -> Role:
    """What a storage is there for while one half runs, gradients aside."""
    if v in decision.kept:
        return "kept"
    if not is_backward or program.is_backward[v]:
        return "temporary"
    is_returned = v in {program.root[output] for output in program.forward_outputs}
    return "kept" if is_returned and v not in decision.schedule.backward else "recomputed"


def _spans(half: Half) -> Iterator[tuple[int, int, int, int]]:
    """(value, bytes, first position, last position) of the half's storages, what is never there left out."""
    end_of_half = len(half.ops) - half.given - 1
    columns = (half.ops, half.root, half.size, half.is_stored, half.end, half.taken)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for i, (op, root, size, is_stored, end, taken) in enumerate(rows):
        if root != i or not is_stored or not size:
            continue
        # What takes the place of a dying input comes when that is gone.
        first = max(0, i - half.given) + bool(taken)
        last = min((i if end < 0 else end) - half.given, end_of_half)
        if last >= first:
            yield op, size, first, last
