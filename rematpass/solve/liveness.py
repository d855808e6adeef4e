"""Bytes live at every position of a schedule, as the allocator would count them.

In: a `Program` and a `Schedule`. Out: `Timeline`, byte-exact for its model of the executor. Never chooses.

Model of a fusing executor (Inductor's lowering, torch 2.13, `graph.py` and `ir.py`): a pointwise result is computed
inside its readers unless something needs it in memory - an op that is not generated (matmul, convolution, attention),
the graph's output, several readers of an expensive function or of many inputs. Its own inputs then live until those
readers have run. A pointwise result may take over a dying input of the same size. An executor that does not fuse stores
everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from .program import Kind, Program, Schedule

# Inductor stores a pointwise result that reads more than 4 buffers and has several readers
# (`realize_reads_threshold`), or more than 8 whoever reads it (`realize_acc_reads_threshold`); torch 2.13 defaults.
SHARED_READS = 4
READS = 8

_UNSIZED = (Kind.SYMBOL, Kind.VIEW)


@dataclass(frozen=True)
class Timeline:
    """Live bytes per executed op, forward then backward; `alive` lists (value, bytes) at the peak, largest first."""

    forward_bytes: tuple[int, ...]
    backward_bytes: tuple[int, ...]
    peak_bytes: int
    peak_position: int
    alive: tuple[tuple[int, int], ...]


@dataclass
class _Half:
    """One half being simulated. Instances 0..n-1 are what is given, then one per executed op."""

    ops: list[int]
    operands: list[tuple[int, ...]]
    root: list[int]
    given: int
    size: list[int]
    end: list[int]
    reads: list[tuple[int, ...]]
    stored: list[bool]


def kept_values(program: Program, backward: Iterable[int], outputs: Iterable[int] | None = None) -> tuple[int, ...]:
    """What a backward sequence reads before computing it, inputs of the forward included, in order of first use.

    `outputs` are read at the end; the backward's own when None.
    """
    computed: set[int] = set()
    kept: dict[int, None] = {}
    for op in backward:
        for u in program.inputs[op]:
            if u not in computed and not _is_tangent(program, u):
                kept[u] = None
        computed.add(op)
    final = program.backward_outputs if outputs is None else outputs
    kept.update((v, None) for v in final if v not in computed and not program.is_backward[v])
    return tuple(kept)


def simulate(program: Program, schedule: Schedule) -> Timeline:
    """Live bytes at every position of both halves; the peak counts the forward's inputs."""
    kept = [v for v in kept_values(program, schedule.backward) if program.kind[v] not in (Kind.INPUT, Kind.SYMBOL)]
    tangents = [v for v in range(len(program)) if _is_tangent(program, v)]
    forward = _resolve(program, schedule.forward, ())
    forward_live = _run(program, forward, {*kept, *program.forward_outputs})
    held = tuple(dict.fromkeys([*kept, *program.forward_outputs, *tangents]))
    backward = _resolve(program, schedule.backward, held)
    backward_live = _run(program, backward, set(program.backward_outputs), set(program.forward_outputs))
    live = [program.static_bytes + b for b in forward_live + backward_live]
    peak = max(live, default=program.static_bytes)
    position = live.index(peak) if live else 0
    half, offset = (forward, 0) if position < len(forward_live) else (backward, len(forward_live))
    alive = _alive(half, position - offset) if live else ()
    split = len(forward_live)
    return Timeline(tuple(live[:split]), tuple(live[split:]), peak, position, alive)


def local_peak(program: Program, sequence: Sequence[int], returned: Set[int], outside: Set[int]) -> int:
    """Highest bytes live while `sequence` runs on its own.

    What it reads without computing it is there from the start until its last use, but for the storages in `outside`,
    which somebody else pays for. What is in `returned` stays until the end.
    """
    tangents = dict.fromkeys(u for v in sequence for u in program.inputs[v] if _is_tangent(program, u))
    given = [v for v in kept_values(program, sequence, ()) if program.kind[v] is not Kind.SYMBOL]
    given += [v for v in tangents if v not in given]
    half = _resolve(program, sequence, tuple(given))
    for i in range(half.given):
        if program.root[half.ops[i]] in outside:
            half.size[i] = 0
    return max(_run(program, half, returned), default=0)


def _is_tangent(program: Program, value: int) -> bool:
    return program.kind[value] is Kind.INPUT and program.is_backward[value]


def _resolve(program: Program, sequence: Iterable[int], held: tuple[int, ...]) -> _Half:
    """Give every executed op an instance, and every read the instance it sees."""
    latest: dict[int, int] = {}
    ops: list[int] = []
    operands: list[tuple[int, ...]] = []
    root: list[int] = []
    owner: dict[int, int] = {}
    for v in held:
        instance = len(ops)
        latest[v] = instance
        ops.append(v)
        operands.append(())
        root.append(owner.setdefault(program.root[v], instance))
    for op in sequence:
        if program.kind[op] in (Kind.INPUT, Kind.SYMBOL):
            continue
        seen = tuple(latest[u] for u in program.inputs[op] if u in latest)
        instance = len(ops)
        ops.append(op)
        operands.append(seen)
        root.append(_instance_root(program, op, instance, latest, root))
        latest[op] = instance
    size = [0 if program.kind[v] in _UNSIZED and i >= len(held) else program.size_bytes[v] for i, v in enumerate(ops)]
    _size_of_held_views(program, ops, root, len(held), size)
    return _Half(ops, operands, root, len(held), size, [-1] * len(ops), [()] * len(ops), [True] * len(ops))


def _instance_root(program: Program, op: int, instance: int, latest: dict[int, int], root: list[int]) -> int:
    """A view lives where its first input lives; a view of a graph input lives outside (-1)."""
    if program.kind[op] is not Kind.VIEW:
        return instance
    base = program.inputs[op][0] if program.inputs[op] else op
    return root[latest[base]] if base in latest else -1


def _size_of_held_views(program: Program, ops: list[int], root: list[int], given: int, size: list[int]) -> None:
    """What is held as a view keeps its whole base alive, counted once per base; views of inputs cost nothing."""
    for i in range(given):
        base = program.root[ops[i]]
        is_outside = program.kind[base] is Kind.INPUT and not program.is_backward[base]
        size[i] = 0 if is_outside or root[i] != i else program.size_bytes[base]


def _run(program: Program, half: _Half, returned: Set[int], held_on: Set[int] = frozenset()) -> list[int]:
    """Fill in ends and reads, then sweep: live bytes while each executed op runs."""
    last = len(half.ops)
    final: dict[int, int] = {op: i for i, op in enumerate(half.ops)}
    kept_alive = {half.root[final[v]] for v in returned if v in final}
    kept_alive |= {half.root[i] for i in range(half.given) if half.ops[i] in held_on}
    stored = half.stored = _stored(program, half, kept_alive) if program.is_fusing else half.stored
    for i in range(last - 1, -1, -1):
        r = half.root[i]
        if r < 0:
            continue
        if r == i and i in kept_alive:
            half.end[i] = last
        runs_at = i if stored[i] or program.kind[half.ops[i]] in (Kind.REDUCTION, Kind.EXTERN) else half.end[i]
        if program.kind[half.ops[i]] is Kind.VIEW:
            continue
        for u in _storages(half, half.operands[i]):
            half.end[u] = max(half.end[u], runs_at)
    return _sweep(program, half)


def _storages(half: _Half, instances: tuple[int, ...]) -> list[int]:
    return [half.root[u] for u in instances if half.root[u] >= 0]


def _stored(program: Program, half: _Half, kept_alive: set[int]) -> list[bool]:
    """Which instances reach memory under fusion."""
    count = len(half.ops)
    readers = [0] * count
    needs_memory = [i in kept_alive for i in range(count)]
    for i in range(half.given, count):
        kind = program.kind[half.ops[i]]
        if kind is Kind.VIEW:
            continue
        for u in dict.fromkeys(_storages(half, half.operands[i])):
            readers[u] += 1
            needs_memory[u] = needs_memory[u] or kind in (Kind.EXTERN, Kind.PART)
    stored = [True] * count
    sources: list[frozenset[int]] = [frozenset((i,)) for i in range(count)]
    for i in range(half.given, count):
        op = half.ops[i]
        if program.kind[op] is not Kind.POINTWISE:
            continue
        read = frozenset().union(*(sources[u] for u in _storages(half, half.operands[i])))
        shared = readers[i] > 1 and (program.is_heavy[op] or len(read) > SHARED_READS)
        stored[i] = needs_memory[i] or shared or len(read) > READS
        half.reads[i] = tuple(read)
        if not stored[i]:
            sources[i] = read
    return stored


def _sweep(program: Program, half: _Half) -> list[int]:
    """Allocate at execution, free after the last read; a pointwise result may take over a dying input."""
    stored = half.stored
    dying: list[list[int]] = [[] for _ in range(len(half.ops) + 1)]
    live = 0
    for i, end in enumerate(half.end):
        if i < half.given:
            live += half.size[i]
        # What is given and never read is gone at once.
        last = half.given - 1 if end < 0 and i < half.given else end
        if last >= 0 and half.root[i] == i:
            dying[last].append(i)
    for i in range(half.given):
        live -= sum(half.size[d] for d in dying[i])
    trace = []
    for i in range(half.given, len(half.ops)):
        size = half.size[i] if stored[i] and half.root[i] == i else 0
        scratch = program.workspace_bytes[half.ops[i]]
        taken = _taken_over(program, half, i, size, dying[i])
        live += size - taken
        trace.append(live + scratch)
        live -= sum(half.size[d] for d in dying[i] if stored[d] or d < half.given) - taken
        if half.end[i] < 0:
            live -= size
    return trace


def _taken_over(program: Program, half: _Half, i: int, size: int, dying: list[int]) -> int:
    """Bytes of a dying input whose place the result of a generated pointwise kernel takes."""
    if not size or not program.is_fusing or program.kind[half.ops[i]] is not Kind.POINTWISE:
        return 0
    return size if any(half.size[d] == size and d in half.reads[i] for d in dying) else 0


def _alive(half: _Half, position: int) -> tuple[tuple[int, int], ...]:
    """(value, bytes) of every storage alive while the op at `position` runs, largest first."""
    at = half.given + position
    alive = [
        (half.ops[i], half.size[i])
        for i in range(min(at + 1, len(half.ops)))
        if half.root[i] == i and half.size[i] and half.stored[i] and (half.end[i] >= at or i == at)
    ]
    return tuple(sorted(alive, key=lambda pair: (-pair[1], pair[0])))
