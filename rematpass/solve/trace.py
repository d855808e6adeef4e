"""Which execution of an op each read sees.

In: a `Program` and a sequence of ops. Out: `Trace`, one instance per execution, as arrays. Never counts bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .flow import BoolArray, IntArray
from .program import Kind, Program

_UNPAID = (Kind.INPUT, Kind.SYMBOL)


@dataclass(frozen=True)
class Trace:
    """One half as executed. Instances 0..given-1 are what it is handed, then one per executed op.

    Attributes:
        ops: op of each instance.
        given: how many are handed over.
        root: instance in whose storage each instance lives; -1 outside (graph inputs).
        readers, reads, access: (instance, storage it reads, in which way: `Program.access`), each once, sorted by
            reader; views read nothing.
        keys: (op, instance) pairs as sorted numbers, for lookups.
    """

    ops: IntArray
    given: int
    root: IntArray
    readers: IntArray
    reads: IntArray
    access: IntArray
    keys: IntArray

    def last_of(self, values: Iterable[int] | IntArray) -> IntArray:
        """The last instance of each of `values`, -1 for one that has none."""
        wanted = values if isinstance(values, np.ndarray) else np.fromiter(values, dtype=np.int64)
        found, instances = _instances_before(self.keys, wanted, np.full(len(wanted), len(self.ops)), len(self.ops))
        result = np.full(len(wanted), -1)
        result[found] = instances
        return result

    def final(self, values: Iterable[int]) -> IntArray:
        """The last instance of each of `values`; those without one are left out."""
        last = self.last_of(values)
        result: IntArray = last[last >= 0]
        return result


def trace_sequence(program: Program, sequence: Sequence[int] | IntArray, held: Sequence[int] = ()) -> Trace:
    """Follow `sequence`, with `held` at hand from the start. Inputs and symbols are no instances."""
    tables = program.tables
    wanted = np.asarray(sequence, dtype=np.int64)
    ops = np.concatenate([np.asarray(held, dtype=np.int64), wanted[tables.is_paid[wanted]]])
    count, given = len(ops), len(held)
    keys = _keys_of(ops)
    reader, value, starts, ways = _operands(program, ops, given)
    source = np.full(len(reader), -1)
    found, instances = _instances_before(keys, value, reader, count)
    source[found] = instances
    root = _roots(program, ops, given, source, starts)
    is_read = (source >= 0) & ~tables.is_view[ops[reader]]
    storage = root[source[is_read]]
    reader, access = reader[is_read][storage >= 0], ways[is_read][storage >= 0]
    most = int(access.max(initial=0)) + 1
    pairs, access = np.divmod(np.unique((reader * (count + 1) + storage[storage >= 0]) * most + access), most)
    return Trace(ops, given, root, pairs // (count + 1), pairs % (count + 1), access, keys)


def link_executions(program: Program, ops: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """(reader, execution it reads) of every read of an earlier one, by reader, views included; keys as in `Trace`."""
    keys = _keys_of(ops)
    reader, value, *_ = _operands(program, ops, 0)
    found, source = _instances_before(keys, value, reader, len(ops))
    return reader[found], source, keys


def kept_values(program: Program, backward: Sequence[int], outputs: Iterable[int] | None = None) -> tuple[int, ...]:
    """What a backward sequence reads before computing it, inputs of the forward included, in order of first use.

    `outputs` are read at the end; the backward's own when None.
    """
    tables = program.tables
    ops = np.asarray(backward, dtype=np.int64)
    first = np.full(len(program), len(ops))
    np.minimum.at(first, ops, np.arange(len(ops)))
    reader, value, *_ = _operands(program, ops, 0)
    early = value[(first[value] >= reader) & ~tables.is_tangent[value]]
    final = program.backward_outputs if outputs is None else outputs
    late = [v for v in final if first[v] == len(ops) and not program.is_backward[v]]
    return tuple(dict.fromkeys([*early.tolist(), *late]))


def _operands(program: Program, ops: IntArray, given: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(reader instance, value read) of every read of the executed instances; where each instance's reads start; how."""
    tables = program.tables
    counts = tables.input_start[ops + 1] - tables.input_start[ops]
    counts[:given] = 0
    starts = np.concatenate([[0], np.cumsum(counts)])
    reader = np.repeat(np.arange(len(ops)), counts)
    place = np.arange(len(reader)) - starts[reader] + tables.input_start[ops[reader]]
    return reader, tables.input_list[place], starts, tables.access[place]


def _keys_of(ops: IntArray) -> IntArray:
    """(op, instance) pairs as sorted numbers."""
    keys: IntArray = np.sort(ops * (len(ops) + 1) + np.arange(len(ops)))
    return keys


def _instances_before(keys: IntArray, values: IntArray, moments: IntArray, count: int) -> tuple[BoolArray, IntArray]:
    """Which of `values` were computed before their moment, and the latest instance of those that were."""
    place = np.searchsorted(keys, values * (count + 1) + moments) - 1
    if not len(keys):
        return np.zeros(len(values), dtype=bool), np.zeros(0, dtype=np.int64)
    found = (place >= 0) & (keys[place] // (count + 1) == values)
    return found, keys[place[found]] % (count + 1)


def _roots(program: Program, ops: IntArray, given: int, source: IntArray, starts: IntArray) -> IntArray:
    """A view lives where its first input lives; a view of a graph input lives outside."""
    tables = program.tables
    count = len(ops)
    root = np.arange(count)
    views = np.flatnonzero(tables.is_view[ops[given:]]) + given
    has_base = starts[views + 1] > starts[views]
    root[views] = -1
    based = views[has_base]
    root[based] = source[starts[based]]
    owner: dict[int, int] = {}
    for i, base in enumerate(tables.root[ops[:given]].tolist()):
        root[i] = owner.setdefault(base, i)
    while len(based):
        moved = np.where(root[based] >= 0, root[root[based]], -1)
        if (moved == root[based]).all():
            break
        root[based] = moved
    return root
