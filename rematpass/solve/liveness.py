"""Bytes live at every position of a schedule, as the allocator would count them.

In: a `Program` and a `Schedule`. Out: `Timeline`, byte-exact for its model of the executor. Never chooses.

Model of a fusing executor (Inductor's lowering, torch 2.13, `graph.py` and `ir.py`): a pointwise result is computed
inside its readers unless something needs it in memory - an op that is not generated (matmul, convolution, attention),
the graph's output, several uses of an expensive function or of many inputs, a function of too many steps - or it is
random numbers. Its own inputs then live until those readers have run. So do those of what is stored for one of the
latter reasons and read by the very next kernel alone: the two are one. A pointwise result may take over a dying input
of the same size that it reads element for element, unless the caller handed it to the backward. An executor that does
not fuse stores everything.

The counting itself is compiled: core/trace.cpp (which execution each read sees), core/stored.cpp (what reaches memory)
and core/lives.cpp (when it comes and goes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import _core
from .arrays import BoolArray, IntArray
from .program import Program, Schedule


@dataclass(frozen=True)
class Timeline:
    """Live bytes per executed op, forward then backward, the forward's inputs counted."""

    forward_bytes: tuple[int, ...]
    backward_bytes: tuple[int, ...]
    peak_bytes: int
    peak_position: int


@dataclass(frozen=True)
class Half:
    """One half as executed. Instances 0..given-1 are what it is handed, then one per executed op.

    Attributes:
        ops: op of each instance.
        given: how many are handed over.
        root: instance in whose storage each instance lives; -1 outside (graph inputs).
        size: bytes of the storage it allocates.
        is_stored: whether it reaches memory.
        runs_at: moment its reads happen: its own, or that of the last reader it is fused into.
        end: last moment its storage is needed; -1: never.
        taken: bytes of a dying input whose place it takes over.
        core: the same in the core.
    """

    ops: IntArray
    given: int
    root: IntArray
    size: IntArray
    is_stored: BoolArray
    runs_at: IntArray
    end: IntArray
    taken: IntArray
    core: _core.Half

    @classmethod
    def of(cls, half: _core.Half) -> Half:
        """What the core found."""
        columns = (half.root(), half.size(), half.is_stored(), half.runs_at(), half.end(), half.taken())
        return cls(half.ops(), half.given, *columns, half)


def simulate(program: Program, schedule: Schedule) -> Timeline:
    """Live bytes at every position of both halves; the peak counts the forward's inputs."""
    live = [program.static_bytes + half.live_bytes(program.core) for half in _find_halves(program, schedule)]
    both = np.concatenate(live)
    peak, position = (int(both.max()), int(both.argmax())) if len(both) else (program.static_bytes, 0)
    return Timeline(tuple(live[0].tolist()), tuple(live[1].tolist()), peak, position)


def find_peak(program: Program, schedule: Schedule) -> tuple[int, int]:
    """The peak of both halves, the forward's inputs counted, and the op that runs then; -1 where nothing does."""
    above_inputs, op = program.core.peak_above_inputs(schedule.forward, schedule.backward)
    return program.static_bytes + above_inputs, op


def list_alive(program: Program, schedule: Schedule, position: int) -> tuple[tuple[int, int], ...]:
    """(value, bytes) of every storage alive while the op at `position` of the timeline runs, largest first."""
    forward, backward = find_lives(program, schedule)
    split = len(forward.ops) - forward.given
    half = forward if position < split else backward
    at = half.given + (position if position < split else position - split)
    owner = half.root == np.arange(len(half.ops))
    there = owner & half.is_stored & (half.size > 0) & (np.arange(len(half.ops)) <= at) & (half.end >= at)
    if at < len(half.ops):
        there[at] = owner[at] and half.is_stored[at] and half.size[at] > 0
    alive = zip(half.ops[there].tolist(), half.size[there].tolist(), strict=True)
    return tuple(sorted(alive, key=lambda pair: (-pair[1], pair[0])))


def kept_values(program: Program, backward: Sequence[int]) -> tuple[int, ...]:
    """What a backward reads before computing it, inputs of the forward included, in order of first use."""
    return program.core.kept_values(backward)


def find_lives(program: Program, schedule: Schedule) -> tuple[Half, Half]:
    """Forward and backward, each with the lives of its instances. The backward is handed what is kept."""
    forward, backward = _find_halves(program, schedule)
    return Half.of(forward), Half.of(backward)


def _find_halves(program: Program, schedule: Schedule) -> tuple[_core.Half, _core.Half]:
    kept = [v for v in kept_values(program, schedule.backward) if program.is_paid[v]]
    core = program.core
    return core.find_forward(schedule.forward, kept), core.find_backward(schedule.backward)


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
    forward, backward = _find_halves(program, schedule)
    position = np.flatnonzero(np.array(program.is_paid)[np.array(schedule.backward, dtype=np.int64)])
    values = forward.ops()[forward.given :][forward.find_put_off(program.core)]
    return frozenset(values.tolist()), frozenset(position[backward.find_put_off(program.core)].tolist())


def find_spans(half: Half) -> tuple[BoolArray, IntArray, IntArray]:
    """Per instance: whether it is a storage in memory, the first moment it is there, the first it is not any more."""
    return half.core.spans()


def find_heirs(program: Program, half: Half) -> dict[int, tuple[int, ...]]:
    """Pointwise results in memory, each with the dying inputs whose place it takes if one is as large as itself."""
    return {i: tuple(dying) for i, dying in half.core.find_heirs(program.core)}
