"""Is the predicted memory what the schedule needs? Counted again, op by op, before anything is emitted.

In: a `Program`, a `Schedule`, and the live bytes that were predicted. Out: nothing, or `SplitError` naming the op.
Never shares code with the simulator; the model of the executor is the one described in `solve/liveness.py`. Linear
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..errors import SplitError
from ..solve.program import DEPTHS, STRAIGHT, TURN_KINDS, Addend, Kind, Program, Schedule, Way, through

_FROM_MEMORY = (Kind.EXTERN, Kind.PART)
_REDUCED = (Kind.REDUCTION, Kind.PART)
# What Inductor stores though it could be fused: it has several readers and reads more than this (2.13).
_MOST_READS_SHARED = 4
# The longest function that Inductor leaves unstored where it reads one tensor for one reader (2.13).
_LONGEST = 100

# Bytes of what any loops read alike.
_SCALAR = 8

# A storage, or an input of the graph, and how it is addressed.
Load = tuple[int, Way]


def check_timeline(
    program: Program, schedule: Schedule, live_bytes: Sequence[int], peak_bytes: int, names: Sequence[str]
) -> None:
    """Compare the prediction with a count of its own.

    Args:
        program: the problem.
        schedule: what is executed.
        live_bytes: predicted bytes while each op runs, forward then backward, inputs and scalars left out.
        peak_bytes: the highest, as promised.
        names: of values, for the message.

    Raises:
        SplitError: a position or the peak differs.
    """
    counted = recount(program, schedule)
    ops = [v for v in (*schedule.forward, *schedule.backward) if _takes_part(program, v)]
    if len(counted) != len(live_bytes):
        raise SplitError(f"the timeline has {len(live_bytes)} positions, the schedule runs {len(counted)} ops")
    for op, own, predicted in zip(ops, counted, live_bytes, strict=True):
        if own != predicted:
            raise SplitError(f"while {names[op]} runs {own} bytes are live, but {predicted} were predicted")
    highest = max(counted, default=program.static_bytes)
    if highest != peak_bytes:
        raise SplitError(f"the peak is {highest} bytes, but {peak_bytes} were promised")


def recount(program: Program, schedule: Schedule) -> list[int]:
    """Live bytes while each op of forward and backward runs, the graph's inputs counted."""
    made: set[int] = set()
    kept: dict[int, None] = {}
    for v in schedule.backward:
        kept.update((u, None) for u in program.inputs[v] if u not in made and not program.is_backward[u])
        made.add(v)
    kept.update((v, None) for v in program.backward_outputs if v not in made and not program.is_backward[v])
    saved = [v for v in kept if _takes_part(program, v)]
    tangents = [v for v, kind in enumerate(program.kind) if kind is Kind.INPUT and program.is_backward[v]]
    forward, backward = _Half(program), _Half(program)
    forward.run(schedule.forward)
    backward.receive([*saved, *program.forward_outputs, *tangents])
    handed_on = {backward.place[v] for v in program.forward_outputs}  # the caller holds them, whoever reads them
    backward.run(schedule.backward)
    forward_live = forward.live_bytes({*forward.places([*saved, *program.forward_outputs])})
    backward_live = backward.live_bytes({*backward.places(program.backward_outputs), *handed_on})
    return [program.static_bytes + n for n in (*forward_live, *backward_live)]


def _takes_part(program: Program, v: int) -> bool:
    return program.kind[v] not in (Kind.INPUT, Kind.SYMBOL)


@dataclass
class _Storage:
    """A piece of memory: who made it and when (-1: it was given), what was read for it, who reads it."""

    op: int
    born: int
    size: int
    reads: set[Load]
    readers: list[int] = field(default_factory=list)
    is_broadcast: bool = False
    outside: set[Load] = field(default_factory=set)
    is_fused: bool = False
    is_heavy: bool = False
    steps: set[Load] = field(default_factory=set)  # whose functions it contains, its own and what is fused into it
    needed_until: int = -1


class _Half:
    """Executes one half; `place` is where each value lives now (None: outside, at no cost)."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._storages: list[_Storage] = []
        self._made_by: list[int | None] = []  # per executed op the storage it makes; a view makes none
        self._ops: list[int] = []
        self.place: dict[int, int | None] = {}

    def receive(self, values: Iterable[int]) -> None:
        """Values that are there from the start; those of one base share its storage."""
        owner: dict[int, int] = {}
        for v in dict.fromkeys(values):
            root = self._program.root[v]
            if root not in owner:
                owner[root] = len(self._storages)
                size = 0 if self._is_input(root) else self._program.size_bytes[root]
                self._storages.append(_Storage(v, -1, size, set()))
            self.place[v] = owner[root]

    def run(self, sequence: Iterable[int]) -> None:
        """Execute ops in order."""
        for v in sequence:
            if _takes_part(self._program, v):
                self._execute(v)

    def _execute(self, v: int) -> None:
        inputs = self._program.inputs[v]
        if self._program.kind[v] is Kind.VIEW:
            self.place[v] = self.place.get(inputs[0]) if inputs else None
            self._made_by.append(None)
        else:
            operands = [*zip(inputs, self._ways(v), strict=True)]
            reads = {(s, way) for u, way in operands if (s := self.place.get(u)) is not None}
            new = len(self._storages)
            for s, _ in reads:
                self._storages[s].readers.append(new)
            for u in self._broadcast(v):
                if (s := self.place.get(u)) is not None:
                    self._storages[s].is_broadcast = True
            storage = _Storage(v, len(self._ops), self._program.size_bytes[v], reads)
            storage.outside = {(root, way) for u, way in operands if self._is_input(root := self._program.root[u])}
            self._storages.append(storage)
            self.place[v] = new
            self._made_by.append(new)
        self._ops.append(v)

    def _ways(self, v: int) -> list[Way]:
        """How `v` addresses what it reads, input by input."""
        program = self._program
        return [program.ways[w] for w in program.access[v]] if program.access else [STRAIGHT] * len(program.inputs[v])

    def _broadcast(self, v: int) -> list[int]:
        """What `v` reads of which it goes through elements several times."""
        if not self._program.broadcasts:
            return []
        pairs = zip(self._program.inputs[v], self._program.broadcasts[v], strict=True)
        return [u for u, is_broadcast in pairs if is_broadcast]

    def _is_input(self, v: int) -> bool:
        return self._program.kind[v] is Kind.INPUT and not self._program.is_backward[v]

    def places(self, values: Iterable[int]) -> list[int]:
        """Where values live at the end, those outside left out."""
        return [s for v in values if (s := self.place.get(v)) is not None]

    def live_bytes(self, held: set[int | None]) -> list[int]:
        """Bytes while each op runs; the storages in `held` outlive the half."""
        ultimate = self._fuse(held) if self._program.is_fusing else {}
        sources = {i: reads for i, reads in ultimate.items() if not self._storages[i].is_fused}
        self._find_ends(held)
        if self._fuse_neighbours(ultimate):
            self._find_ends(held)
        inner: dict[int, list[int]] = {}
        for s in sources:
            if self._storages[s].is_fused:
                inner.setdefault(self._storages[s].needed_until, []).append(s)
        freed = [0] * (len(self._ops) + 1)
        live = 0
        for storage in self._storages:
            if storage.born < 0 and storage.needed_until >= 0:
                live += storage.size
                freed[min(storage.needed_until + 1, len(self._ops))] += storage.size
        result = []
        for moment, (op, made) in enumerate(zip(self._ops, self._made_by, strict=True)):
            live -= freed[moment]
            if made is not None and not self._storages[made].is_fused:
                storage = self._storages[made]
                live += storage.size
                freed[min(max(storage.needed_until, moment) + 1, len(self._ops))] += storage.size
            taken = self._taken_over(made, sources, inner.get(moment, []))
            result.append(live - taken + self._program.workspace_bytes[op])
        return result

    def _fuse(self, held: set[int | None]) -> dict[int, set[Load]]:
        """Mark what never reaches memory; returns, for pointwise results, what they read in the end."""
        program, ultimate = self._program, dict[int, set[Load]]()
        for i, storage in enumerate(self._storages):
            if storage.born < 0 or program.kind[storage.op] is not Kind.POINTWISE:
                continue
            apart = [(s, way) for s, way in storage.reads if self._is_apart(s, held)]
            storage.outside.update((self._storages[s].op, way) for s, way in apart)
            fused = [(s, way) for s, way in storage.reads if self._storages[s].is_fused]
            passed = [{(t, through(first, way)) for t, first in ultimate[s]} for s, way in fused]
            own = {(s, through(STRAIGHT, way)) for s, way in storage.reads - set(fused)}
            ultimate[i] = own.union(*passed)
            storage.outside.update(
                (t, through(first, way)) for s, way in fused for t, first in self._storages[s].outside
            )
            storage.is_heavy = program.is_heavy[storage.op] or any(self._storages[s].is_heavy for s, _ in fused)
            kinds = [program.kind[self._storages[r].op] for r in storage.readers]
            is_needed = i in held or any(kind in _FROM_MEMORY for kind in kinds)
            is_shared = len(kinds) > 1 or storage.is_broadcast
            has_few = len(kinds) <= 1 and not (storage.is_broadcast and program.is_broadcast_shared)
            most = program.most_reads if has_few else _MOST_READS_SHARED
            if program.reads_often and any(program.reads_often[self._storages[r].op] for r in storage.readers):
                most = min(most, 1)
            inner = ({(t, through(first, way)) for t, first in self._storages[s].steps} for s, way in fused)
            tails = ((s, through(STRAIGHT, way)) for s, way in storage.reads if self._has_tail(s, held))
            storage.steps = {(i, STRAIGHT), *apart, *tails}.union(*inner)
            reads = len(ultimate[i]) + len(storage.outside)
            longest = program.most_operations if is_shared or reads > 1 else max(_LONGEST, program.most_operations)
            is_short = reads + self._count_operations(storage.steps) <= longest
            is_fusible = is_short and reads <= most and not (is_shared and storage.is_heavy)
            is_stored = program.is_drawn[storage.op] or (program.is_summed and program.is_summed[storage.op])
            storage.is_fused = is_fusible and not is_needed and not is_stored
            storage.is_heavy = storage.is_heavy and storage.is_fused
        return ultimate

    def _is_apart(self, s: int, held: set[int | None]) -> bool:
        """Whether readers of a storage add a bias to what lies there: one more load, one more step."""
        storage, program = self._storages[s], self._program
        if storage.born < 0 or s in held or not program.addend or not program.addend[storage.op]:
            return False
        kinds = {program.kind[self._storages[r].op] for r in storage.readers}
        if kinds.intersection(_FROM_MEMORY):
            return False
        return program.addend[storage.op] is Addend.BY_READERS or kinds <= {Kind.POINTWISE}

    def _has_tail(self, s: int, held: set[int | None]) -> bool:
        """Whether readers of a storage go on from a reduction that is not stored as it is asked for."""
        storage, program = self._storages[s], self._program
        is_reduced = program.kind[storage.op] in _REDUCED and bool(program.operations)
        if storage.born < 0 or s in held or not is_reduced:
            return False
        if {program.kind[self._storages[r].op] for r in storage.readers}.intersection(_FROM_MEMORY):
            return False
        return program.operations[storage.op] > 0

    def _count_operations(self, steps: set[Load]) -> int:
        """Steps of a fused function and the scalars in it; what an op returns stands for the sum with its bias."""
        program = self._program
        inside = (Kind.POINTWISE, *_REDUCED)
        found = [(op, way) for i, way in steps if program.kind[op := self._storages[i].op] in inside]
        sums = len(steps) - len(found)
        own = sum(program.operations[op] for op, _ in found) if program.operations else len(found)
        constants = program.constants or ((),) * len(program)
        scalars = {(c, way if c < 0 else STRAIGHT) for op, way in found for c in constants[op]}
        return sums + own + len(scalars)

    def _fuse_neighbours(self, ultimate: dict[int, set[Load]]) -> bool:
        """Mark what only the kernel right behind it reads, element for element; says whether there is any."""
        together: list[int] = []
        copied: set[int] = set()  # into what is written part by part
        moments: list[int] = []  # at which the kernel, or what became one with it, runs
        found = []
        kernels = [i for i, storage in enumerate(self._storages) if storage.born >= 0 and not storage.is_fused]
        for i in reversed(kernels):
            storage = self._storages[i]
            readers = [r for r in together if any(s == i for s, _ in ultimate[r])]
            ways = {way for r in readers for s, way in ultimate[r] if s == i}
            is_only_reader = ways == {STRAIGHT} and storage.needed_until in moments and i not in copied
            is_alike = i in ultimate and self._have_same_loops([i, *readers], ultimate)
            if is_only_reader and is_alike and all(self._is_as_long(storage, self._storages[r]) for r in readers):
                found.append(storage)
                together.append(i)
                moments.append(storage.born)
            else:
                moments = [storage.born]
                together, copied = self._kernel_of(i, ultimate)
        for storage in found:
            storage.is_fused = True
        return bool(found)

    def _kernel_of(self, i: int, ultimate: dict[int, set[Load]]) -> tuple[list[int], set[int]]:
        """Functions that write a storage, one or part by part; what is copied into it, as it is or picked."""
        joined = self._program.is_joined
        if not joined or not joined[self._storages[i].op]:
            return ([i] if i in ultimate else []), set()
        reads = self._storages[i].reads
        parts = [s for s, way in reads if way == STRAIGHT and self._storages[s].is_fused]
        picked = {t for s, way in reads if way != STRAIGHT and self._storages[s].is_fused for t, _ in ultimate[s]}
        return parts, {s for s, _ in reads} | picked

    def _have_same_loops(self, kernels: Sequence[int], sources: dict[int, set[Load]]) -> bool:
        """Whether the loops of all are the same, the first of which is what the others read.

        Merged ones are where none reads anything turned, and what is smaller or a part is read alike, or by one of
        them only. Others are those through as many dimensions of the same sizes, where but one reads anything turned.
        """
        program = self._program
        found = [self._uneven_loads(k, sources[k]) for k in kernels]
        if not program.loops:
            return None not in found and len({loads for loads in found if loads}) <= 1
        first, *others = [program.loops[self._storages[k].op] for k in kernels]
        are_others = any(other != first and (other - first) % DEPTHS == 0 for other in others)
        return not are_others and found.count(None) <= 1

    def _uneven_loads(self, k: int, loads: Iterable[Load]) -> frozenset[tuple[int, int]] | None:
        """What a kernel reads that is smaller, or part of something; None if it reads anything turned."""
        size = self._storages[k].size
        like = [size * n // 4 for n in (1, 2, 4, 8, 16)]
        sized = [(self._storages[s].size, way) for s, way in loads]
        sized += [(0, way) for _, way in self._storages[k].outside]
        cuts = {self._cut(turns) for _, (turns, _) in sized if turns}
        if None in cuts or any(self._cut(turns) and times > 1 for _, (turns, times) in sized):
            return None
        whole = [(of, times) for of, (turns, times) in sized if not self._cut(turns)]
        uneven = {(times, 0) for _, times in whole if times > 1} | {(0, cut) for cut in cuts if cut}
        uneven |= {(1, small) for small, times in whole if times <= 1 and small > _SCALAR and small not in like}
        return frozenset(uneven)

    def _cut(self, turns: tuple[int, ...]) -> int | None:
        """How much lies together of what is picked, 0: all of it; None where elements are turned, or picked twice."""
        known = self._program.cuts
        cuts = [known[turn // TURN_KINDS] if 0 <= turn < TURN_KINDS * len(known) else -1 for turn in turns]
        parts = [cut for cut in cuts if cut]
        return None if min(cuts, default=0) < 0 or len(parts) > 1 else sum(parts)

    def _is_as_long(self, storage: _Storage, result: _Storage) -> bool:
        elements = self._program.elements or self._program.size_bytes
        return elements[storage.op] == elements[result.op]

    def _find_ends(self, held: set[int | None]) -> None:
        """The last moment each storage is read; a fused result is read when its readers run."""
        end = len(self._ops)
        for i in range(len(self._storages) - 1, -1, -1):
            storage = self._storages[i]
            readers = [self._storages[r] for r in storage.readers]
            moments = [r.needed_until if r.is_fused else r.born for r in readers]
            storage.needed_until = end if i in held else max(moments, default=-1)

    def _is_guarded(self, storage: _Storage) -> bool:
        """Whether no result of its half may be written over it: what the caller hands to the backward is not ours."""
        if storage.born < 0:
            return self._program.kind[storage.op] is Kind.INPUT
        marks = (self._program.is_scattered, self._program.is_joined)
        return any(mark[storage.op] for mark in marks if mark)

    def _taken_over(self, made: int | None, sources: dict[int, set[Load]], inner: Sequence[int]) -> int:
        """Bytes of a dying input whose place a pointwise result takes, itself or after one of `inner` of its kernel."""
        if made is None or made not in sources or self._storages[made].is_fused:
            return 0
        new = self._storages[made]
        donors = self._read_straight(made, sources)
        for between in donors.intersection(inner):
            others = {s for reader in (made, *inner) if reader != between for s, _ in sources[reader]}
            size = self._storages[between].size
            donors |= {s for s in self._read_straight(between, sources) - others if self._storages[s].size == size}
        dying = (s for d in donors if not (s := self._storages[d]).is_fused and not self._is_guarded(s))
        return new.size if any(s.needed_until == new.born and s.size == new.size for s in dying) else 0

    def _read_straight(self, reader: int, sources: dict[int, set[Load]]) -> set[int]:
        askew = {s for s, way in sources[reader] if way != STRAIGHT}
        return {s for s, way in sources[reader] if way == STRAIGHT} - askew
