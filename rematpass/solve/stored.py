"""Which results reach memory under a fusing executor, and what is read for them in the end.

In: a `Program` and a `Trace`. Out: per instance whether it is stored; per stored pointwise result its loads. Never
counts bytes. The model is the one described in `liveness`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence, Set

import numpy as np

from .flow import BoolArray, IntArray
from .program import Addend, Kind, Program
from .trace import Trace

# Inductor stores a pointwise result that reads more than 4 buffers and has several readers
# (`realize_reads_threshold`), or more than `Program.most_reads` whoever reads it; torch 2.13 defaults.
SHARED_READS = 4
# A function that reads one tensor and has one reader may be this long, whatever `Program.most_operations` says
# (`GraphLowering.run_node`, torch 2.13).
LONGEST = 100
# What a result without its bias, and the bias, are to their readers.
LOADS_APART = 2


def find_stored(
    program: Program, trace: Trace, is_final: BoolArray
) -> tuple[BoolArray, dict[int, Sequence[int] | Set[int]]]:
    """Which instances reach memory under fusion, and what each pointwise one that does reads in the end."""
    tables, count = program.tables, len(trace.ops)
    readers = np.bincount(trace.reads, minlength=count)
    needed = is_final | read_by_externs(program, trace)
    kind = tables.kind[trace.ops]
    kind[: trace.given] = Kind.INPUT
    pointwise = np.flatnonzero(kind == Kind.POINTWISE)
    most_reads = np.where(readers > 1, SHARED_READS, program.most_reads)
    if program.reads_often:
        often = trace.reads[tables.reads_often[trace.ops[trace.readers]]]
        most_reads[often] = np.minimum(most_reads[often], 1)
    most_reads[needed] = -1  # stored whatever it reads
    starts = np.searchsorted(trace.readers, pointwise).tolist()
    stops = np.searchsorted(trace.readers, pointwise, side="right").tolist()
    flat, width, own = trace.reads.tolist(), count + 1, tables.length.tolist()
    ways, is_plain = trace.access.tolist(), not trace.access.any()
    ops, shared = trace.ops[pointwise].tolist(), (readers[pointwise] > 1).tolist()
    sources: dict[int, Sequence[int] | Set[int]] = {}
    apart = _find_apart(program, trace, kind, needed)
    fused: dict[int, Sequence[int] | Set[int]] = dict(apart)
    heavy: set[int] = set()
    longest = max(LONGEST, program.most_operations)
    # Per fused one at most so many steps, what several read counted several times.
    length = dict.fromkeys(apart, 1 + LOADS_APART)
    rows = zip(pointwise.tolist(), ops, starts, stops, most_reads[pointwise].tolist(), shared, strict=True)
    for i, op, start, stop, most, is_shared in rows:
        read: Sequence[int] | Set[int] = (*flat[start:stop], *program.outside[op])
        is_costly = program.is_heavy[op] or not heavy.isdisjoint(read)
        is_direct = fused.keys().isdisjoint(read)
        steps = own[op] + (len(read) if is_direct else sum([length.get(u, 1) for u in read]))
        if not is_plain and any(ways[start:stop]):
            pairs = zip(flat[start:stop], ways[start:stop], strict=True)
            seen = (_seen_through(program, way, fused.get(u, (u,)), width) for u, way in pairs)
            read = set(program.outside[op]).union(*seen)
        elif not is_direct:
            read = set().union(*(fused.get(u, (u,)) for u in read))
        most_steps = program.most_operations if is_shared or len(read) > 1 else longest
        if steps > most_steps and len(read) <= most:
            steps = len(read) + _count_operations(program, trace, i, fused, apart)
        is_short = len(read) <= most and steps <= most_steps
        if is_short and not (is_costly and is_shared) and not program.is_drawn[op]:
            fused[i] = read
            length[i] = steps
            if is_costly:
                heavy.add(i)
        else:
            sources[i] = read
    is_stored = np.ones(count, dtype=bool)
    is_stored[list(fused)] = False
    is_stored[list(apart)] = True
    return is_stored, sources


def _find_apart(program: Program, trace: Trace, kind: IntArray, needed: BoolArray) -> dict[int, tuple[int, int]]:
    """Results to which their readers add a bias, each with the two loads it stands for: itself and that bias."""
    if not program.addend:
        return {}
    addend = program.tables.addend[trace.ops]
    addend[: trace.given] = Addend.BY_OP  # what is handed over is complete
    addend[needed] = Addend.BY_OP
    is_mixed = np.zeros(len(trace.ops), dtype=bool)
    is_mixed[trace.reads[kind[trace.readers] != Kind.POINTWISE]] = True
    found = np.flatnonzero((addend == Addend.BY_READERS) | ((addend == Addend.BY_POINTWISE) & ~is_mixed))
    return {i: (i, -1 - op) for i, op in zip(found.tolist(), trace.ops[found].tolist(), strict=True)}


def _count_operations(program: Program, trace: Trace, i: int, fused: Container[int], apart: Container[int]) -> int:
    """Steps and constants of what instance `i` computes with all that is fused into it, each once.

    Of what is in `apart` that is the addition of its bias: one step.
    """
    todo = [(i, 0)]
    seen = set(todo)
    constants: set[int] = set()
    steps = 0
    while todo:
        u, ways = todo.pop()
        if u in apart:
            steps += 1
            continue
        op = trace.ops[u]
        steps += program.operations[op] if program.operations else 1
        constants.update(program.constants[op] if program.constants else ())
        start, stop = np.searchsorted(trace.readers, [u, u + 1])
        for read, way in zip(trace.reads[start:stop].tolist(), trace.access[start:stop].tolist(), strict=True):
            found = (read, program.combine(way, ways) if way else ways)
            if read in fused and found not in seen:
                seen.add(found)
                todo.append(found)
    return steps + len(constants)


def straight(loads: Sequence[int] | Set[int], width: int) -> Iterable[int]:
    """Storages that `loads` address element for element and in no other way."""
    if max(loads, default=0) < width:
        return [u for u in loads if u >= 0]
    askew = {u % width for u in loads if u >= width}
    return [u for u in loads if 0 <= u < width and u not in askew]


def _seen_through(
    program: Program, way: int, loads: Sequence[int] | Set[int], width: int
) -> Sequence[int] | Set[int] | list[int]:
    """`loads`, each a storage and how it is addressed, addressed once more in `way`.

    A load is storage + `width` * place of its way, or -1 - value - count * place for what is outside.
    """
    if not way:
        return loads
    combine, count = program.combine, len(program)
    return [
        u % width + width * combine(u // width, way)
        if u >= 0
        else -1 - (-1 - u) % count - count * combine((-1 - u) // count, way)
        for u in loads
    ]


def read_by_externs(program: Program, trace: Trace) -> BoolArray:
    """Which instances an op reads that is not generated."""
    needed = np.zeros(len(trace.ops), dtype=bool)
    needed[trace.reads[program.tables.is_extern[trace.ops[trace.readers]]]] = True
    return needed
