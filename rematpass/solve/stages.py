"""Cut the forward into stages where few bytes cross, and give each backward op its stage.

In: a `Program`. Out: `Stages`. Finds boundaries from sizes and lifetimes alone, never from names.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import _core
from .arrays import IntArray
from .program import Kind, Program

# A boundary needs this many times its own bytes produced between it and a narrower (or equal) one. At 1, the inside of
# a normalisation becomes a stage and plans of an 8-block transformer take up to 1.9 times the extra time; at 4, between
# 20 % less and 1.5 % more (2026-11).
DISTANCE = 2.0
# A boundary is refused when one this many times narrower lies within REACH times its bytes: score matrices are no
# boundaries, while the levels of a U-Net, each half as wide as the last, are. At 1.25 one of nine plans changed (20 %
# less extra time), at 5 plans of an 8-block transformer take up to 1.7 times the extra time (2026-11).
WIDENING = 2.5
REACH = 8.0
# A value alive for more than this share of the forward (and for SKIP_OPS ops) is a skip connection: it is part of every
# boundary it crosses and not counted when looking for narrow places. Half and twice the value changed nothing on models
# without long skips (2026-11); with them, half hides short skips and twice lets the long ones hide narrow places.
SKIP_SHARE = 1 / 4
SKIP_OPS = 64
# The chain programme is cubic in the number of stages where stages differ. On a 100-layer chain 32 and 128 gave plans
# within 11 % of those at 64, and 128 took three times as long (2026-11).
MAX_STAGES = 64


@dataclass(frozen=True)
class Stages:
    """Stages 0..n-1 of the forward and the part of the backward that belongs to each.

    Attributes:
        forward: per stage, its forward-side ops in order (ops that only the backward wants included).
        backward: per stage, its backward ops in order; the backward runs stages from last to first.
        boundary: per stage, the values it reads from earlier stages (no graph inputs).
        stage_of: per op, its stage; -1 for inputs.
        backward_stage_of: per backward op, the stage whose backward it runs in; -1 for others.
    """

    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    boundary: tuple[tuple[int, ...], ...]
    stage_of: tuple[int, ...]
    backward_stage_of: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.forward)

    def added_bytes(self, size_bytes: Sequence[int]) -> IntArray:
        """Bytes of the boundary of stage k that are not in the boundary of stage i, at [i, k]."""
        place = {v: p for p, v in enumerate(dict.fromkeys(itertools.chain(*self.boundary)))}
        crosses = np.zeros((len(self), len(place)), dtype=np.int64)
        for stage, boundary in enumerate(self.boundary):
            crosses[stage, [place[v] for v in boundary]] = 1
        added: IntArray = (1 - crosses) @ (crosses * np.array([size_bytes[v] for v in place], dtype=np.int64)).T
        return added


def find_stages(program: Program, max_stages: int = MAX_STAGES) -> Stages:
    """Stages of `program`, at most `max_stages`; a graph without a narrow place is one stage."""
    order = [v for v in program.forward_ops if program.kind[v] not in (Kind.INPUT, Kind.SYMBOL)]
    place = {v: p for p, v in enumerate(order)}
    last = _last_forward_use(program, order, place)
    produced = np.cumsum([0, *(program.size_bytes[v] for v in order)])
    return _assemble(program, order, _choose_cuts(_crossing(program, order, place, last), produced, max_stages))


def _last_forward_use(program: Program, order: list[int], place: dict[int, int]) -> dict[int, int]:
    """Per storage root, the last place in the forward that reads it."""
    last: dict[int, int] = {}
    for p, v in enumerate(order):
        for u in program.inputs[v]:
            if program.root[u] in place:
                last[program.root[u]] = p
    return last


def _crossing(program: Program, order: list[int], place: dict[int, int], last: dict[int, int]) -> IntArray:
    """crossing[p] = bytes made before place p and read at or after it, skip connections left out."""
    delta = np.zeros(len(order) + 1, dtype=np.int64)
    longest = max(SKIP_OPS, int(len(order) * SKIP_SHARE))
    for r, end in last.items():
        if end - place[r] <= longest and not program.from_inputs[r]:
            delta[place[r] + 1] += program.size_bytes[r]
            delta[end + 1] -= program.size_bytes[r]
    crossing = np.cumsum(delta[:-1])
    is_part = np.array([program.kind[v] is Kind.PART for v in order], dtype=bool)
    crossing[is_part] = 0  # never between an op and its parts; 0 is no candidate
    return crossing


def _choose_cuts(crossing: IntArray, produced: IntArray, most: int) -> list[int]:
    """Narrow places first, each far enough from those already taken; fewer and farther until at most `most - 1`."""
    distance = DISTANCE
    cuts = _core.spread_cuts(crossing, produced, distance, WIDENING, REACH)
    while len(cuts) > most - 1:
        distance *= 1.3
        cuts = _core.spread_cuts(crossing, produced, distance, WIDENING, REACH)
    return cuts


def _assemble(program: Program, order: list[int], cuts: list[int]) -> Stages:
    stage_of = [-1] * len(program)
    bounds = [0, *cuts, len(order)]
    for s, (start, stop) in enumerate(itertools.pairwise(bounds)):
        for v in order[start:stop]:
            stage_of[v] = s
    count = len(bounds) - 1
    _place_backward_only(program, stage_of)
    forward = _group(stage_of, count, [not b for b in program.is_backward])
    of_backward = _backward_stages(program, stage_of, count)
    backward = _group(of_backward, count, list(program.is_backward))
    boundary = _boundaries(program, stage_of, of_backward, count)
    return Stages(forward, backward, boundary, tuple(stage_of), tuple(of_backward))


def _place_backward_only(program: Program, stage_of: list[int]) -> None:
    """Forward-side ops that the forward does not run belong to the last stage they read from."""
    for v in range(len(program)):
        is_free = not program.in_forward[v] and not program.is_backward[v]
        if is_free and program.kind[v] not in (Kind.INPUT, Kind.SYMBOL):
            stage_of[v] = max((stage_of[u] for u in program.inputs[v]), default=0)
            stage_of[v] = max(stage_of[v], 0)


def _backward_stages(program: Program, stage_of: list[int], count: int) -> list[int]:
    """A backward op runs no earlier than any later op allows: the stage falls along the backward.

    The stage of an op is the last forward stage that uses a value it reads: a boundary belongs to the stage that
    reads it. Values that many stages share (masks, skip connections) say nothing about the place of their readers.
    What an op returns stays with it.
    """
    from_inputs = program.from_inputs
    last_stage = _last_stages(program, stage_of)
    shared = max(2, int(count * SKIP_SHARE))
    result = [-1] * len(program)
    running = 0
    for v in range(len(program) - 1, -1, -1):
        if not program.is_backward[v]:
            continue
        for u in program.inputs[v]:
            r = program.root[u]
            is_shared = from_inputs[u] or last_stage[r] - stage_of[r] > shared
            if not program.is_backward[u] and stage_of[r] >= 0 and not is_shared:
                running = max(running, last_stage[r])
        result[v] = running
    for v, kind in enumerate(program.kind):
        if kind is Kind.PART and program.is_backward[v]:
            result[v] = result[program.inputs[v][0]]
    return result


def _last_stages(program: Program, stage_of: list[int]) -> list[int]:
    """Per storage root, the last stage that reads it in the forward."""
    last = list(stage_of)
    for v in range(len(program)):
        if not program.is_backward[v] and program.in_forward[v]:
            for u in program.inputs[v]:
                last[program.root[u]] = max(last[program.root[u]], stage_of[v])
    return last


def _group(stage_of: list[int], count: int, wanted: list[bool]) -> tuple[tuple[int, ...], ...]:
    groups: list[list[int]] = [[] for _ in range(count)]
    for v, s in enumerate(stage_of):
        if s >= 0 and wanted[v]:
            groups[s].append(v)
    return tuple(tuple(g) for g in groups)


def _boundaries(
    program: Program, stage_of: list[int], of_backward: list[int], count: int
) -> tuple[tuple[int, ...], ...]:
    """Per stage, the storages made earlier that it or a later stage reads, forward or backward, inputs left out."""
    last = list(stage_of)
    for v in range(len(program)):
        stage = of_backward[v] if program.is_backward[v] else stage_of[v]
        for u in program.inputs[v]:
            last[program.root[u]] = max(last[program.root[u]], stage)
    from_inputs = program.from_inputs
    crossing: list[list[int]] = [[] for _ in range(count)]
    for v, s in enumerate(stage_of):
        if s >= 0 and program.in_forward[v] and program.root[v] == v and not from_inputs[v]:
            for group in crossing[s + 1 : last[v] + 1]:
                group.append(v)
    return tuple(tuple(c) for c in crossing)
