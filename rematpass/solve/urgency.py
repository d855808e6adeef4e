"""When the ops of a backward should run: at their place, when asked for, or at the end.

In: a `Program`. Out: `Urgency`, the same for all its plans. Never looks at a plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from .program import Kind, Program

_UNPAID = (Kind.INPUT, Kind.SYMBOL)
_WAITING = (Kind.EXTERN, Kind.POINTWISE)  # products, and casts of them


@dataclass(frozen=True)
class Urgency:
    """Per op of a program.

    Attributes:
        is_anchor: runs in the given order.
        is_late: waits for the end.
        may_wait: may run anywhere later: what it computes is returned, as it is or in another type or shape, and nobody
            reads it.
        may_join: waits for the next kernel that is generated, while what it sums up is there: the gradient of a bias.
    """

    is_anchor: list[bool]
    is_late: list[bool]
    may_wait: list[bool]
    may_join: list[bool]


def find_urgency(program: Program) -> Urgency:
    """Anchors free what they allocate or are read by nobody; late is what is larger than all it is made from."""
    count = len(program)
    freed_by, read_bytes = _freed_by(program)
    returned = set(program.backward_outputs)
    readers = [0] * count
    for v in range(count):
        for u in program.inputs[v]:
            readers[u] += program.is_backward[v]
    is_leaf = [False] * count
    for v in range(count - 1, -1, -1):
        is_leaf[v] = program.is_backward[v] and not readers[v]
    only_returned, only_cast = _only_returned(program, returned)
    is_late = _late(program, only_returned, read_bytes)
    is_anchor = [
        program.is_backward[v] and program.kind[v] not in _UNPAID and (is_leaf[v] or freed_by[v] >= size)
        for v, size in enumerate(program.size_bytes)
    ]
    may_wait = [
        only and program.is_backward[v] and program.kind[v] in _WAITING and not program.is_fixed[v]
        for v, only in enumerate(only_cast)
    ]
    may_join = _joining(program, only_cast)
    is_anchor = [
        anchor and not (late or joins)
        for anchor, late, joins in zip(is_anchor, is_late, _with_casts(program, may_join), strict=True)
    ]
    return Urgency(is_anchor, is_late, may_wait, may_join)


def _joining(program: Program, only_cast: list[bool]) -> list[bool]:
    """Sums that are returned, over a gradient that a product reads, too, and so runs without being asked for.

    Between the products an executor would run each in a call of its own; beside another kernel it is part of its call.
    """
    of_backward = [
        is_backward and kind not in _UNPAID for is_backward, kind in zip(program.is_backward, program.kind, strict=True)
    ]
    runs_there = (own or not first for own, first in zip(of_backward, program.in_forward, strict=True))
    if any(fixed and there for fixed, there in zip(program.is_fixed, runs_there, strict=True)):
        return [False] * len(program)  # nothing moves past what has effects
    reads = [{program.root[u] for u in inputs} for inputs in program.inputs]
    multiplied = {
        r for v, roots in enumerate(reads) if of_backward[v] and program.kind[v] is Kind.EXTERN for r in roots
    }
    return [
        kind is Kind.REDUCTION
        and of_backward[v]
        and only_cast[v]
        and len(reads[v]) == 1
        and all(of_backward[r] and r in multiplied for r in reads[v])
        for v, kind in enumerate(program.kind)
    ]


def _with_casts(program: Program, chosen: list[bool]) -> list[bool]:
    """Those chosen, and what is nothing but one of them in another type or shape."""
    found = list(chosen)
    for v, inputs in enumerate(program.inputs):
        found[v] |= _is_made_of_one(program, v) and any(found[u] for u in inputs)
    return found


def _freed_by(program: Program) -> tuple[list[int], list[int]]:
    """Per backward op: bytes of storages it is the last to read, and of all it reads, inputs of the graph left out."""
    last: dict[int, int] = {}
    for v in range(len(program)):
        if program.is_backward[v] and program.kind[v] is not Kind.VIEW:
            last.update((program.root[u], v) for u in program.inputs[v])
    kept = {program.root[v] for v in program.backward_outputs}
    freed, read = [0] * len(program), [0] * len(program)
    for r, v in last.items():
        freed[v] += program.size_bytes[r] if r not in kept else 0
    for v in range(len(program)):
        read[v] = sum(program.size_bytes[r] for r in {program.root[u] for u in program.inputs[v]})
    return freed, read


def _only_returned(program: Program, returned: set[int]) -> tuple[list[bool], list[bool]]:
    """Per op of the backward, whether its result is returned and read by nothing but views that are returned.

    And the same with casts besides views.
    """
    readers: dict[int, list[int]] = {}
    for v in filter(program.is_backward.__getitem__, range(len(program))):
        for u in program.inputs[v]:
            readers.setdefault(u, []).append(v)
    as_it_is, cast = [False] * len(program), [False] * len(program)
    for v in filter(program.is_backward.__getitem__, range(len(program) - 1, -1, -1)):
        after = readers.get(v, [])
        is_end = v in returned or bool(after)
        as_it_is[v] = is_end and all(as_it_is[r] and program.kind[r] is Kind.VIEW for r in after)
        cast[v] = is_end and all(cast[r] and _is_made_of_one(program, r) for r in after)
    return as_it_is, cast


def _is_made_of_one(program: Program, v: int) -> bool:
    kind = program.kind[v]
    return kind is Kind.VIEW or (kind is Kind.POINTWISE and len(program.inputs[v]) == 1)


def _late(program: Program, only_returned: list[bool], read_bytes: list[int]) -> list[bool]:
    """Gradients larger than all they are made from, and the views of them that are returned."""
    is_late = [False] * len(program)
    for v, kind in enumerate(program.kind):
        if not program.is_backward[v] or program.is_fixed[v] or not only_returned[v] or kind in _UNPAID:
            continue
        is_large = kind is not Kind.PART and program.size_bytes[v] > read_bytes[v]
        is_late[v] = any(is_late[u] for u in program.inputs[v]) if kind is Kind.VIEW else is_large
    return is_late
