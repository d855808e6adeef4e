"""Bytes live at every position of a schedule, as the allocator would count them.

In: a `Program` and a `Schedule`. Out: `Timeline`, byte-exact for its model of the executor. Never chooses.

Model of a fusing executor (Inductor's lowering, torch 2.13, `graph.py` and `ir.py`): a pointwise result is computed
inside its readers unless something needs it in memory - an op that is not generated (matmul, convolution, attention),
the graph's output, several uses of an expensive function or of many inputs, a function of too many steps - or it is
random numbers. Its own inputs then live until those readers have run. So do those of what is stored for one of the
latter reasons and read by the very next kernel alone: the two are one. A pointwise result may take over a dying input
of the same size that it reads element for element. An executor that does not fuse stores everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from .flow import BoolArray, IntArray
from .program import Kind, Program, Schedule
from .stored import find_stored, read_by_externs, straight
from .trace import Trace, kept_values, link_executions, trace_sequence

# What is no larger is read alike in any loops.
SCALAR_BYTES = 8
# Forwards that are remembered per program.
FORWARDS = 16
# Backwards that are: of those asked for again, 6 in 10 are asked for at once, 9 in 10 within eight others (2026-11).
BACKWARDS = 8


@dataclass(frozen=True)
class Timeline:
    """Live bytes per executed op, forward then backward, the forward's inputs counted."""

    forward_bytes: tuple[int, ...]
    backward_bytes: tuple[int, ...]
    peak_bytes: int
    peak_position: int


@dataclass(frozen=True)
class Lives:
    """Per instance of a trace, how it uses memory.

    Attributes:
        size: bytes of the storage it allocates.
        is_stored: whether it reaches memory.
        runs_at: moment its reads happen: its own, or that of the last reader it is fused into.
        end: last moment its storage is needed; -1: never.
        taken: bytes of a dying input whose place it takes over.
    """

    size: IntArray
    is_stored: BoolArray
    runs_at: IntArray
    end: IntArray
    taken: IntArray


def simulate(program: Program, schedule: Schedule) -> Timeline:
    """Live bytes at every position of both halves; the peak counts the forward's inputs."""
    live = [program.static_bytes + live_bytes(program, *half) for half in find_lives(program, schedule)]
    both = np.concatenate(live)
    peak, position = (int(both.max()), int(both.argmax())) if len(both) else (program.static_bytes, 0)
    return Timeline(tuple(live[0].tolist()), tuple(live[1].tolist()), peak, position)


def list_alive(program: Program, schedule: Schedule, position: int) -> tuple[tuple[int, int], ...]:
    """(value, bytes) of every storage alive while the op at `position` of the timeline runs, largest first."""
    forward, backward = find_lives(program, schedule)
    split = len(forward[0].ops) - forward[0].given
    trace, lives = forward if position < split else backward
    at = trace.given + (position if position < split else position - split)
    owner = trace.root == np.arange(len(trace.ops))
    there = owner & lives.is_stored & (lives.size > 0) & (np.arange(len(trace.ops)) <= at) & (lives.end >= at)
    if at < len(trace.ops):
        there[at] = owner[at] and lives.is_stored[at] and lives.size[at] > 0
    alive = zip(trace.ops[there].tolist(), lives.size[there].tolist(), strict=True)
    return tuple(sorted(alive, key=lambda pair: (-pair[1], pair[0])))


def local_peak(program: Program, sequence: Sequence[int], returned: Set[int], outside: Set[int]) -> int:
    """Highest bytes live while `sequence` runs on its own.

    What it reads without computing it is there from the start until its last use, but for the storages in `outside`,
    which somebody else pays for. What is in `returned` stays until the end.
    """
    tangents = dict.fromkeys(u for v in sequence for u in program.inputs[v] if program.tables.is_tangent[u])
    given = [v for v in kept_values(program, sequence, ()) if program.kind[v] is not Kind.SYMBOL]
    given += [v for v in tangents if v not in given]
    trace = trace_sequence(program, sequence, given)
    free = np.isin(program.tables.root[trace.ops[: trace.given]], list(outside))
    lives = _find_lives(program, trace, _roots_of(trace, returned), np.flatnonzero(free))
    return int(live_bytes(program, trace, lives).max(initial=0))


def find_lives(program: Program, schedule: Schedule) -> tuple[tuple[Trace, Lives], tuple[Trace, Lives]]:
    """Forward and backward, each with the lives of its instances. The backward is handed what is kept."""
    kept, backward = _live_backward(program, schedule.backward)
    return _live_forward(program, schedule.forward, kept), backward


def _live_backward(program: Program, sequence: tuple[int, ...]) -> tuple[list[int], tuple[Trace, Lives]]:
    """What a backward is handed, and its lives. The last ones are remembered: a search asks for most plans again."""
    memory, tables = program.backward_lives, program.tables
    found = memory.pop(sequence, None)
    if found is None:
        kept = [v for v in kept_values(program, sequence) if tables.is_paid[v]]
        tangents = np.flatnonzero(tables.is_tangent).tolist()
        trace = trace_sequence(program, sequence, tuple(dict.fromkeys([*kept, *program.forward_outputs, *tangents])))
        given_on = trace.root[: trace.given][np.isin(trace.ops[: trace.given], program.forward_outputs)]
        ends = np.concatenate([_roots_of(trace, program.backward_outputs), given_on])
        found = kept, (trace, _find_lives(program, trace, ends))
    memory[sequence] = found
    if len(memory) > BACKWARDS:
        del memory[next(iter(memory))]
    return found


def _live_forward(program: Program, sequence: tuple[int, ...], kept: Iterable[int]) -> tuple[Trace, Lives]:
    """The forward, which many plans share: those of the last calls are remembered."""
    key = (sequence, frozenset(kept).union(program.forward_outputs))
    memory = program.forward_lives
    if key not in memory:
        if len(memory) == FORWARDS:
            memory.clear()
        trace = trace_sequence(program, sequence)
        memory[key] = trace, _find_lives(program, trace, _roots_of(trace, key[1]))
    return memory[key]


def find_put_off(program: Program, schedule: Schedule) -> tuple[frozenset[int], frozenset[int]]:
    """What an executor may compute later than the schedule says: values of the forward, positions in the backward.

    The model has them in memory from where the schedule computes them. An executor that is not told so may put them off
    until somebody needs them there, and their own inputs live as long: pointwise results that an op reads which is not
    generated, and those of which it sees only one reader, a view that may have several; and what is in memory whoever
    reads it and a scatter does, which may not be generated. Or lay out otherwise, so that it cannot take the place of
    what it is made of: both of such a pair.
    """
    if not program.is_fusing:
        return frozenset(), frozenset()
    forward, backward = find_lives(program, schedule)
    position = np.flatnonzero(program.tables.is_paid[np.array(schedule.backward, dtype=np.int64)])
    values = forward[0].ops[forward[0].given :][_put_off(program, *forward)]
    return frozenset(values.tolist()), frozenset(position[_put_off(program, *backward)].tolist())


def _put_off(program: Program, trace: Trace, lives: Lives) -> BoolArray:
    """Which of the executed ops."""
    tables = program.tables
    kind = tables.kind[trace.ops]
    is_stored = (kind == Kind.POINTWISE) & lives.is_stored
    put_off = read_by_externs(program, trace) & (kind == Kind.POINTWISE)
    put_off |= _seen_by_one_view(program, trace) & is_stored
    scattered = trace.reads[tables.is_scattered[trace.ops[trace.readers]]]
    put_off[scattered] |= kind[scattered] == Kind.REDUCTION
    paired = _in_one_place(program, trace, lives)
    put_off[paired] |= np.isin(kind[paired], (Kind.POINTWISE, Kind.REDUCTION))
    result: BoolArray = put_off[trace.given :]
    return result


def _in_one_place(program: Program, trace: Trace, lives: Lives) -> list[int]:
    """Instances that write over another, and those written over."""
    _, sources = find_stored(program, trace, lives.end == len(trace.ops))
    sizes, found = lives.size.tolist(), set[int]()
    for i, dying in _find_dying(program, trace, lives, sources):
        found.update(pair for d in dying if sizes[d] == sizes[i] > 0 for pair in (i, d))
    return sorted(found)


def _seen_by_one_view(program: Program, trace: Trace) -> BoolArray:
    """Which instances nothing but one view has as its input."""
    reader, source, _ = link_executions(program, trace.ops)
    reader, source = reader[reader >= trace.given], source[reader >= trace.given]
    seen = np.bincount(source, minlength=len(trace.ops)) == 1
    by_views = np.zeros(len(trace.ops), dtype=bool)
    by_views[source[program.tables.is_view[trace.ops[reader]]]] = True
    result: BoolArray = seen & by_views
    return result


def _roots_of(trace: Trace, values: Set[int] | Sequence[int]) -> IntArray:
    """Instances in whose storage the final computations of `values` live."""
    root = trace.root[trace.final(sorted(values))]
    return root[root >= 0]


def _find_lives(program: Program, trace: Trace, final: IntArray, free: IntArray | None = None) -> Lives:
    """Ends of all storages; those of `final` stay to the end, the given ones in `free` cost nothing."""
    count = len(trace.ops)
    size = _sizes(program, trace)
    if free is not None:
        size[free] = 0
    is_final = np.zeros(count, dtype=bool)
    is_final[final] = True
    taken = np.zeros(count, dtype=np.int64)
    if not program.is_fusing:
        end = np.full(count, -1)
        np.maximum.at(end, trace.reads, trace.readers)
        end[is_final] = count
        return Lives(size, np.ones(count, dtype=bool), np.arange(count), end, taken)
    is_stored, sources = find_stored(program, trace, is_final)
    runs_at, end = _find_ends(trace, is_stored, is_final)
    passing = _find_passing(program, trace, size, is_stored, sources, end)
    if passing:
        is_stored[passing] = False
        runs_at, end = _find_ends(trace, is_stored, is_final)
    lives = Lives(size, is_stored, runs_at, end, taken)
    sizes = size.tolist()
    for i, dying in _find_dying(program, trace, lives, sources):
        if any(sizes[d] == sizes[i] > 0 for d in dying):
            taken[i] = sizes[i]
    return lives


def _find_dying(
    program: Program, trace: Trace, lives: Lives, sources: dict[int, Sequence[int] | Set[int]]
) -> Iterator[tuple[int, list[int]]]:
    """Pointwise results in memory, each with the storages it reads last and could write over.

    Also those that a result of the same kernel could write over, which this one then writes over: what that one alone
    reads there.
    """
    may_take = lives.is_stored.copy()
    if program.is_scattered:
        may_take[trace.given :] &= ~program.tables.is_scattered[trace.ops[trace.given :]]
    is_stored, may, end, width = lives.is_stored.tolist(), may_take.tolist(), lives.end.tolist(), len(trace.ops) + 1
    inner: dict[int, list[int]] = {}
    for p in sources:
        if not is_stored[p]:
            inner.setdefault(int(lives.runs_at[p]), []).append(p)
    last = set(lives.end[may_take].tolist())  # moments at which something dies
    for i, read in sources.items():
        if is_stored[i] and i in last:
            dying = [d for d in straight(read, width) if end[d] == i and may[d]]
            for p in set(inner.get(i, ())).intersection(straight(read, width)):
                others = {u % width for q in (i, *inner[i]) if q != p for u in sources[q] if u >= 0}
                dying += [d for d in straight(sources[p], width) if end[d] == i and may[d] and d not in others]
            yield i, dying


def _sizes(program: Program, trace: Trace) -> IntArray:
    """What is held as a view keeps its whole base alive, counted once per base; views of inputs cost nothing."""
    tables = program.tables
    size = np.where(tables.is_view[trace.ops], 0, tables.size_bytes[trace.ops])
    base = tables.root[trace.ops[: trace.given]]
    is_outside = (tables.kind[base] == Kind.INPUT) & ~tables.is_backward[base]
    is_owner = trace.root[: trace.given] == np.arange(trace.given)
    size[: trace.given] = np.where(is_outside | ~is_owner, 0, tables.size_bytes[base])
    return size


def _find_passing(
    program: Program,
    trace: Trace,
    size: IntArray,
    is_stored: BoolArray,
    sources: dict[int, Sequence[int] | Set[int]],
    end: IntArray,
) -> list[int]:
    """Results that only the very next kernel reads, element for element: the two become one, and so do more.

    Not where one of them reads slices or the like, or what both read of fewer elements they read differently: their
    loops are others, then.
    """
    kernels = np.flatnonzero(is_stored & (trace.root == np.arange(len(trace.ops))))
    sizes, ends, width = size.tolist(), end.tolist(), len(trace.ops) + 1
    found: list[int] = []
    one: list[int] = []  # what becomes one kernel, the last first
    for i in reversed(kernels[kernels >= trace.given].tolist()):
        is_next = i in sources and ends[i] in one
        readers = [r for r in one if is_next and any(u >= 0 and u % width == i for u in sources[r])]
        is_even = bool(readers) and all(i in straight(sources[r], width) for r in readers)
        is_even = is_even and _have_same_loops([_loops(program, sources[r], sizes, r) for r in (i, *readers)])
        if is_even and _is_as_long(program.is_drawn[trace.ops[i]], sizes[i], sizes[one[0]]):
            found.append(i)
            one.append(i)
        else:
            one = [i] if i in sources else []
    return found


def _loops(program: Program, loads: Sequence[int] | Set[int], sizes: list[int], made: int) -> set[object] | None:
    """What distinguishes the loops of a kernel: how often it goes through what is smaller, or how small that is.

    None where it reads something in another order than it lies in, or in part.
    """
    width, found = len(sizes) + 1, set[object]()
    for u in loads:
        turns, times = program.combine.way(u // width if u >= 0 else (-1 - u) // len(program))
        if turns:
            return None
        size = sizes[u % width] if u >= 0 else 0
        if times > 1:
            found.add(times)
        elif size > SCALAR_BYTES and size not in [sizes[made] * n // 4 for n in (1, 2, 4, 8, 16)]:
            found.add((size,))
    return found


def _have_same_loops(loops: list[set[object] | None]) -> bool:
    """Those that go through all alike fit to any others."""
    special = [found for found in loops if found != set()]
    return all(found is not None and found == special[0] for found in special)


def _is_as_long(is_drawn: bool, given_bytes: int, result_bytes: int) -> bool:
    """Whether a result has as many elements: of 1, 2, 4 or 8 bytes where it is made of random numbers of 4 bytes."""
    if not is_drawn:
        return given_bytes == result_bytes
    return 4 * result_bytes in (given_bytes, 2 * given_bytes, 4 * given_bytes, 8 * given_bytes)


def _find_ends(trace: Trace, is_stored: BoolArray, is_final: BoolArray) -> tuple[IntArray, IntArray]:
    """When each instance reads, and the last moment each storage is needed.

    What is fused into a reader is needed when that reader runs.
    """
    count = len(trace.ops)
    fused = np.flatnonzero(~is_stored)
    order = np.argsort(trace.reads, kind="stable")
    reads, readers = trace.reads[order], trace.readers[order]
    starts = np.searchsorted(reads, fused).tolist()
    stops = np.searchsorted(reads, fused, side="right").tolist()
    moments, by = list(range(count)), readers.tolist()
    for i, start, stop in zip(reversed(fused.tolist()), reversed(starts), reversed(stops), strict=True):
        moments[i] = max((moments[r] for r in by[start:stop]), default=-1)
    runs_at = np.array(moments, dtype=np.int64)
    end = np.full(count, -1)
    np.maximum.at(end, reads, runs_at[readers])
    end[is_final] = count
    return runs_at, end


def live_bytes(program: Program, trace: Trace, lives: Lives) -> IntArray:
    """Bytes live while each executed op runs, graph inputs left out.

    Allocate at execution, free after the last need; a pointwise result may take over a dying input.
    """
    count = len(trace.ops)
    is_there, start, stop = find_spans(trace, lives)
    size = np.where(is_there, lives.size, 0)
    change = np.zeros(count + 2, dtype=np.int64)
    np.add.at(change, start, size)
    np.subtract.at(change, stop, size)
    live = np.cumsum(change)[:count] + program.tables.workspace_bytes[trace.ops] - lives.taken
    result: IntArray = live[trace.given :]
    return result


def find_spans(trace: Trace, lives: Lives) -> tuple[BoolArray, IntArray, IntArray]:
    """Per instance: whether it is a storage in memory, the first moment it is there, the first it is not any more."""
    count, given = len(trace.ops), trace.given
    moments = np.arange(count)
    # What is given and never read is gone before the first op.
    start = np.where(moments < given, given, moments)
    stop = np.maximum(np.where(lives.end < 0, moments, lives.end), start - (moments < given)) + 1
    return (trace.root == moments) & lives.is_stored, start, np.minimum(stop, count + 1)


def find_heirs(program: Program, trace: Trace, lives: Lives) -> dict[int, tuple[int, ...]]:
    """Pointwise results in memory, each with the dying inputs whose place it takes if one is as large as itself."""
    if not program.is_fusing:
        return {}
    _, sources = find_stored(program, trace, lives.end == len(trace.ops))
    return {i: tuple(dying) for i, dying in _find_dying(program, trace, lives, sources) if dying}
