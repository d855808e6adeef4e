"""The problem as ints: ops in order, one value per op, and what each costs.

In: figures from graph/ and cost/, or a published instance. Out: `Program`, read by every room of solve/.
Never imports torch, never holds names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

from . import _core

if TYPE_CHECKING:
    from .urgency import Urgency


class Kind(IntEnum):
    """How an op executes, as far as memory is concerned.

    INPUT: given to the graph. SYMBOL: a scalar, no memory. VIEW: shares its root's storage. PART: one tensor out of an
    op that returns several. POINTWISE: a fusing executor may compute it inside its readers. REDUCTION: reads may be
    fused into it, its result is stored. EXTERN: reads and writes stored tensors only.
    """

    INPUT = 0
    SYMBOL = 1
    VIEW = 2
    PART = 3
    POINTWISE = 4
    REDUCTION = 5
    EXTERN = 6


class Addend(IntEnum):
    """Where a tensor that an EXTERN op adds to its result (a bias) is added by a fusing executor.

    BY_OP: in the op, or there is none. BY_POINTWISE: in the op's readers if all are POINTWISE. BY_READERS: in whatever
    reads it. A result that other ops read from memory, or that is returned, is complete.
    """

    BY_OP = 0
    BY_POINTWISE = 1
    BY_READERS = 2


Way = tuple[tuple[int, ...], int]
"""How a storage is addressed: what picks or reorders elements, one after the other, and how often all of it is repeated
(a bias once per row). Elements that follow each other and are equal do not count: with the size of the reader they
follow from the rest.

Each way of picking is a number n, and ~n puts back what n picked. What is put and picked again was never moved; what is
picked and put back only if n leaves nothing out between its first and last (a slice in steps does): n is a multiple of
`TURN_KINDS` then. One more than that are all others; `CLOSED_UP` more is a shape in which slices follow each other that
were apart, which says nothing of anything but slices.

A single element that many read is repeated 0 times: it is the same one whatever the many are picked from.
"""
STRAIGHT: Way = ((), 1)
TURN_KINDS, CLOSED_UP = 4, 2

DEPTHS = 64


def through(first: Way, then: Way) -> Way:
    """What is addressed in the first way, addressed in another."""
    if not first[1]:
        return first
    turns = [*first[0]]
    for turn in then[0]:
        last = turns[-1] if turns else -1
        is_of_slice = last >= 0 and last % TURN_KINDS == 0
        if turns and turn == ~last and (last < 0 or is_of_slice):
            turns.pop()
        elif is_of_slice or turn < 0 or turn % TURN_KINDS != CLOSED_UP:
            turns.append(turn)
    return tuple(turns), first[1] * then[1]


@dataclass(frozen=True)
class Program:
    """Forward and backward of one step, ops numbered in their given order, value i made by op i.

    Attributes:
        kind: per op.
        inputs: per op, the values it reads.
        root: per op, the op whose storage its value lives in (itself unless VIEW).
        size_bytes: per op, bytes of the storage it allocates (0 for VIEW, SYMBOL and forward INPUT).
        cuts: per way of picking, n // `TURN_KINDS`, how many elements lie together of what is picked: part of something
            larger. 0: all of them; -1: it is otherwise, or unknown. Empty: all unknown.
        elements: per op, of its result. Empty: as many as bytes.
        loops: per op, which loops go through its result, a number that leaves how deep they are if divided by `DEPTHS`.
            Equally deep ones through other sizes never become one kernel. Empty: loops are merged first, all may.
        duration_ns: per op, time of running it once more.
        workspace_bytes: per op, scratch while it runs.
        is_backward: per op, depends on a gradient: runs once, in the backward.
        in_forward: per op, the forward runs it whatever the plan. Neither: runs only where the backward wants it.
        may_recompute: per op; False forces its value to be kept when the backward needs it.
        may_keep: per op; False forces its value to be recomputed from its inputs.
        is_fixed: per op, has effects or draws numbers: other ops of the backward stay on their side of it.
        is_heavy: per op, an expensive pointwise function: what has one inside is stored when it has several readers.
        is_drawn: per op, random numbers: stored.
        is_summed: per op, a sum that takes up a further product: stored, so that the product need not wait. Empty:
            none.
        is_scattered: per op, written into what is there already: no result takes its place. Empty: none.
        is_joined: per op, written part by part: no result of the same half takes its place. Empty: none.
        reads_often: per op, reads each element several times: what it reads is stored if made from more than one
            tensor. Empty: none.
        forward_outputs, backward_outputs: values returned to the caller.
        static_bytes: inputs of the forward, live throughout.
        is_fusing: the executor fuses pointwise ops (a compiler), or runs one op at a time.
        most_reads: a fusing executor stores a pointwise result that is made from more tensors.
        access: per op and input, how it addresses the storage behind that input, as a place in `ways`. One tensor read
            in two ways counts as two. Empty: all 0.
        broadcasts: per op and input, whether it goes through each element of it several times. A fusing executor takes
            that for several readers where the function is expensive or long, or if `is_broadcast_shared` always.
            Empty: none.
        ways: how a storage is addressed; at 0 stands element for element, `STRAIGHT`.
        operations: per op, steps of its function for one element, reads and constants not counted; of a reduction, or
            one of its results, those with which readers go on from what is stored. Empty: 1 each, none of reductions.
        constants: per op, the scalars in its function, a number for each distinct one; a negative number for one that
            is another wherever the op is addressed otherwise. Empty: none.
        most_operations: a fusing executor stores a pointwise result whose function has more steps, reads and constants.
        addend: per op, who adds its bias. Empty: all ops theirs.
        is_ahead: per op, the forward runs it for the backward alone, right behind what it is made of. Empty: none.
    """

    kind: tuple[Kind, ...]
    inputs: tuple[tuple[int, ...], ...]
    root: tuple[int, ...]
    size_bytes: tuple[int, ...]
    duration_ns: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    is_backward: tuple[bool, ...]
    in_forward: tuple[bool, ...]
    may_recompute: tuple[bool, ...]
    may_keep: tuple[bool, ...]
    is_fixed: tuple[bool, ...]
    is_heavy: tuple[bool, ...]
    is_drawn: tuple[bool, ...]
    forward_outputs: tuple[int, ...]
    backward_outputs: tuple[int, ...]
    static_bytes: int
    is_fusing: bool
    most_reads: int = 8
    is_summed: tuple[bool, ...] = ()
    is_scattered: tuple[bool, ...] = ()
    is_joined: tuple[bool, ...] = ()
    reads_often: tuple[bool, ...] = ()
    access: tuple[tuple[int, ...], ...] = ()
    broadcasts: tuple[tuple[bool, ...], ...] = ()
    is_broadcast_shared: bool = False
    ways: tuple[Way, ...] = (STRAIGHT,)
    cuts: tuple[int, ...] = ()
    elements: tuple[int, ...] = ()
    loops: tuple[int, ...] = ()
    operations: tuple[int, ...] = ()
    constants: tuple[tuple[int, ...], ...] = ()
    most_operations: int = 50
    addend: tuple[Addend, ...] = ()
    is_ahead: tuple[bool, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def urgency(self) -> Urgency:
        """When backward ops should run."""
        from .urgency import find_urgency

        return find_urgency(self)

    @cached_property
    def core(self) -> _core.Program:
        """The same in the compiled core."""
        return _core.Program(self)

    @cached_property
    def is_paid(self) -> tuple[bool, ...]:
        """Per op, whether it is neither INPUT nor SYMBOL."""
        return tuple(kind not in (Kind.INPUT, Kind.SYMBOL) for kind in self.kind)

    @cached_property
    def from_inputs(self) -> tuple[bool, ...]:
        """Per op, made anywhere from graph inputs at no cost: masks, positions, casts of weights. Never kept."""
        simple = (Kind.INPUT, Kind.SYMBOL, Kind.VIEW, Kind.POINTWISE)
        result: list[bool] = []
        for v, kind in enumerate(self.kind):
            is_free = kind in simple[:2] or (self.may_recompute[v] and not self.duration_ns[v])
            may = kind in simple and not self.is_backward[v] and is_free
            result.append(may and all(result[u] for u in self.inputs[v]))
        return tuple(result)

    @cached_property
    def free_functions(self) -> frozenset[int]:
        """Pointwise results of graph inputs alone that the forward may hand to the backward."""
        may = zip(self.kind, self.from_inputs, self.in_forward, self.may_keep, strict=True)
        return frozenset(v for v, (kind, *is_so) in enumerate(may) if kind is Kind.POINTWISE and all(is_so))

    @cached_property
    def forward_ops(self) -> tuple[int, ...]:
        """What the forward runs, in the given order but for what is ahead; the rest is left to the backward."""
        given = [v for v in range(len(self)) if self.in_forward[v] and not self.is_backward[v]]
        return tuple(self.in_place(given))

    def in_place(self, values: Iterable[int]) -> list[int]:
        """Values in the given order, those that are ahead right behind the last that they are made of."""
        if not self.is_ahead:
            return sorted(values)
        # Parts stay with their op: nothing comes between.
        last_part = {self.inputs[v][0]: v for v, kind in enumerate(self.kind) if kind is Kind.PART}
        behind: dict[int, int] = {}

        def end(u: int) -> int:
            op = self.inputs[u][0] if self.kind[u] is Kind.PART else u
            return behind.get(u, last_part.get(op, u))

        for v, is_ahead in enumerate(self.is_ahead):
            if is_ahead:
                behind[v] = max(map(end, self.inputs[v]), default=v)
        return sorted(values, key=lambda v: (behind.get(v, v), v))

    @cached_property
    def backward_ops(self) -> tuple[int, ...]:
        """The backward's own ops in the given order."""
        return tuple(v for v in range(len(self)) if self.is_backward[v] and self.kind[v] is not Kind.INPUT)

    @cached_property
    def figures(self) -> tuple[int, ...]:
        """Per op, a number for all that is not structure: ops of equal numbers and neighbours are interchangeable."""
        of_roots = [self.size_bytes[r] for r in self.root]
        # Steps of a loop that take different slices of one sequence are equal.
        is_askew = [tuple(map(bool, access)) for access in self.access] or [()] * len(self)
        columns = (
            self.kind,
            self.size_bytes,
            self.elements or self.size_bytes,
            self.loops or (0,) * len(self),
            of_roots,
            self.duration_ns,
            self.workspace_bytes,
            self.is_backward,
            self.in_forward,
            self.may_recompute,
            self.may_keep,
            self.is_heavy,
            self.is_drawn,
            self.is_summed or (False,) * len(self),
            self.is_scattered or (False,) * len(self),
            self.is_joined or (False,) * len(self),
            self.reads_often or (False,) * len(self),
            tuple(map(len, self.outside)),
            is_askew,
            self.broadcasts or [()] * len(self),
            self.operations or (1,) * len(self),
            tuple(map(len, self.constants)) or (0,) * len(self),
            self.addend or (Addend.BY_OP,) * len(self),
            self.inputs,
        )
        rows = zip(*columns, strict=True)
        numbers: dict[tuple[object, ...], int] = {}
        return tuple(numbers.setdefault((*row, len(reads)), len(numbers)) for *row, reads in rows)

    @cached_property
    def outside(self) -> tuple[tuple[int, ...], ...]:
        """Per op, the inputs of the forward it reads, also through views, one number below 0 per input and access."""
        is_outside = [k is Kind.INPUT and not b for k, b in zip(self.kind, self.is_backward, strict=True)]
        root, count = self.root, len(self)
        access = self.access or [(0,) * len(reads) for reads in self.inputs]
        return tuple(
            tuple(dict.fromkeys(-1 - root[u] - count * w for u, w in zip(*row, strict=True) if is_outside[root[u]]))
            for row in zip(self.inputs, access, strict=True)
        )

    @cached_property
    def needs(self) -> tuple[tuple[int, ...], ...]:
        """Per op, the inputs that were computed on the forward side: what must be kept or computed again for it."""
        unpaid = (Kind.INPUT, Kind.SYMBOL)
        is_needed = [not b and k not in unpaid for b, k in zip(self.is_backward, self.kind, strict=True)]
        return tuple(tuple(u for u in reads if is_needed[u]) for reads in self.inputs)

    @cached_property
    def parts(self) -> dict[int, tuple[int, ...]]:
        """Per op that returns several tensors, its forward-side parts."""
        parts: dict[int, list[int]] = {}
        for v, kind in enumerate(self.kind):
            if kind is Kind.PART and not self.is_backward[v]:
                parts.setdefault(self.inputs[v][0], []).append(v)
        return {op: tuple(found) for op, found in parts.items()}


@dataclass(frozen=True)
class Schedule:
    """A plan as executed: ops of the forward in order, then ops of the backward in order.

    An op of the forward side may appear in `backward`, once or several times: each appearance recomputes its value.
    A use reads the last computation before it. What `backward` reads before computing it was kept from the forward.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]


@dataclass(frozen=True)
class Decision:
    """A kept set and the schedule that uses it.

    Attributes:
        kept: values saved from the forward for the backward (graph inputs not listed).
        schedule: the ops as executed.
        recompute_ns: time of every op executed beyond once.
    """

    kept: frozenset[int]
    schedule: Schedule
    recompute_ns: int
