"""Over the stages: which option each takes, which boundaries are kept, and which runs of stages are run again.

In: a run of each stage, longer ones, and the bytes each boundary adds. Out: Pareto-optimal (peak, extra
time) with recipes. Never looks inside a stage.

The dynamic programme of Beaumont et al., "Optimal re-materialization strategies for heterogeneous chains" (2019,
"rotor"), with many options per stage and per run of stages. It contains checkpointing every k stages (Chen et al. 2016)
and binomial checkpointing (Griewank and Walther 2000). Memory is counted in slots, as there: exactly when all sizes are
multiples of a slot, else rounded to the nearest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from . import _core
from .arrays import IntArray
from .frontier import StageOption, StageRun

# Slots of memory. At 512, plans of a 24-block GPT take up to 22 % more extra time (the same option of 24 stages is then
# rounded 24 times alike); at 2048 at most 0.1 % less, and the programme takes twice as long (2026-11).
SLOTS = 1024
# Sizes with a common divisor are counted exactly up to this many slots. Half and twice matter to tests with unit sizes
# only: sizes of tensors rarely have so large a divisor (2026-11).
EXACT_SLOTS = 2048
# Finer slots are taken while boundaries and gradients together are off by more than this share of the least memory.
# Without that, 100 layers whose boundary is a twentieth of what is inside them end at twice the least peak (2026-11).
ROUNDING_SHARE = 0.1
# Slots whose rounding is worked out at once: a thousand sizes stay in the cache.
TOGETHER = 32


def _rounding(sizes: Sequence[int], slots: Sequence[int]) -> IntArray:
    """Bytes by which sizes are off when counted in slots, per slot; exact below 2**53."""
    values, counts = np.unique(np.array(sizes, dtype=np.float64), return_counts=True)
    found: IntArray = np.zeros(len(slots), dtype=np.int64)
    for first in range(0, len(slots), TOGETHER):
        sized = np.array(slots[first : first + TOGETHER], dtype=np.float64)[:, None]
        off = np.abs(values - np.rint(values / sized) * sized)  # faster than remainders, and as whole
        found[first : first + TOGETHER] = (off * counts).sum(axis=1)
    return found


@dataclass(frozen=True)
class Keep:
    """Hold some values of stages start..stop-1 from their forward to their backward; `rest` covers the later stages."""

    start: int
    stop: int
    kept: tuple[int, ...]
    rest: Recipe | None


@dataclass(frozen=True)
class Again:
    """Keep only the boundary of `split`; `later` covers stages from there on, `earlier` those before, run again."""

    start: int
    split: int
    later: Recipe | None
    earlier: Recipe


@dataclass(frozen=True)
class Alone:
    """Run the backward of stages start..stop-1 from their input boundary, computing everything again."""

    start: int
    stop: int


Recipe = Keep | Again | Alone


@dataclass(frozen=True)
class ChainPoint:
    """A plan of the chain: its peak above what is always live, its extra time; `Chain.recipe` says how to run it."""

    peak_bytes: int
    extra_ns: int


class Chain:
    """The programme over some stages; its tables are compiled (core/chain.cpp)."""

    def __init__(
        self,
        stages: Sequence[StageRun],
        added_bytes: IntArray,
        runs: Sequence[StageRun] = (),
        passing_bytes: Callable[[int, int], int] | None = None,
    ) -> None:
        """Fill the tables.

        Args:
            stages: each stage for itself.
            added_bytes: at [i, k], bytes of the boundary of stage k that are not in the boundary of stage i < k.
            runs: longer runs of stages with options of their own.
            passing_bytes: passing_bytes(i, k) = bytes of gradients that cross stages i..k-1 untouched; none when None.
        """
        self._count = len(stages)
        self._runs = [[stage] for stage in stages]
        for run in runs:
            self._runs[run.start].append(run)
        self._models = {r.model.kind: r.model for found in self._runs for r in found}
        spans = [(r.start, r.stop) for found in self._runs for r in found]
        self._passing = {span: passing_bytes(*span) if passing_bytes else 0 for span in spans}
        added = np.pad(np.triu(added_bytes, 1), ((0, 0), (0, 1)))  # behind the last stage stands nothing
        models = [stage.model for stage in stages]
        gradients = np.cumsum([0, *(m.gradient_bytes for m in models)], dtype=np.int64)
        self._slot_bytes = self._choose_slot(added, gradients)
        options = {kind: [self._count_option(o) for o in m.options] for kind, m in self._models.items()}
        self._tables = _core.ChainTables(
            int(self._top(added, gradients)) // self._slot_bytes + 2,
            [[self._count_run(run, options[run.model.kind]) for run in runs] for runs in self._runs],
            self._slots(added).tolist(),
            self._slots(gradients).tolist(),
            np.cumsum([0, *(m.advance_ns for m in models)], dtype=np.int64).tolist(),
            [self._slot(m.advance_peak_bytes) for m in models],
        )

    def points(self) -> tuple[ChainPoint, ...]:
        """All Pareto points of the whole chain, least memory first."""
        time = self._tables.times(self._tables.first_row)
        falls = np.concatenate([[True], time[1:] < time[:-1]])
        return tuple(
            ChainPoint(slot * self._slot_bytes, int(time[slot]))
            for slot in np.flatnonzero(falls & (time < _core.ChainTables.NEVER)).tolist()
        )

    def recipe(self, point: ChainPoint) -> Recipe | None:
        """How to run a point."""
        if not self._count:
            return None
        slot = point.peak_bytes // self._slot_bytes
        return self._recipe(self._tables.first_row, 0, self._count - 1, slot)

    def _top(self, added: IntArray, gradients: IntArray) -> int:
        """Bytes with which the fastest plan fits: everything held, every peak, all gradients."""
        held = sum(max((o.kept_bytes for o in runs[0].model.options), default=0) for runs in self._runs)
        held += int(added.diagonal(1).sum())
        passing = max(self._passing.values(), default=0)
        return held + max(self._peaks(), default=0) + passing + int(gradients[-1]) if self._count else 0

    def _peaks(self) -> list[int]:
        """Of every option, of every run alone, and of advancing over each stage."""
        options = [o for m in self._models.values() for o in (*m.options, m.alone)]
        peaks = [peak for o in options for peak in (o.backward_peak_bytes, o.forward_peak_bytes)]
        return peaks + [runs[0].model.advance_peak_bytes for runs in self._runs]

    def _choose_slot(self, added: IntArray, gradients: IntArray) -> int:
        """A common divisor where there is one, else a slot that rounds what is held little.

        Many stages hold the same sizes, so their rounding errors add up: of the slots near top / SLOTS the one that
        rounds all of them least, and finer ones as long as boundaries and gradients together are off by more than a
        small share of the least memory there is.
        """
        top = self._top(added, gradients)
        stages = [runs[0].model for runs in self._runs]
        always = added.diagonal(1).tolist() + [m.gradient_bytes for m in stages]
        kept = {kind: [o.kept_bytes for o in m.options] for kind, m in self._models.items()}
        exact = math.gcd(*always, *self._peaks(), *itertools.chain(*kept.values(), added.ravel().tolist()))
        if exact and top // exact <= EXACT_SLOTS:
            return exact
        held = [*always, *itertools.chain(*(kept[r.model.kind] for runs in self._runs for r in runs))]
        least = sum(always) + max((m.alone.backward_peak_bytes for m in stages), default=0)
        slot = 1
        for count in (SLOTS, 2 * SLOTS, 4 * SLOTS):
            slots = [max(1, -(-top // c)) for c in range(count * 3 // 4, count * 5 // 4)]
            slot = slots[int(_rounding(held, slots).argmin())]
            if _rounding(always, [slot])[0] <= ROUNDING_SHARE * least:
                break
        return slot

    def _slots(self, sizes: IntArray) -> IntArray:
        result: IntArray = (sizes + self._slot_bytes // 2) // self._slot_bytes
        return result

    def _slot(self, size: int) -> int:
        return (size + self._slot_bytes // 2) // self._slot_bytes

    def _count_run(self, run: StageRun, options: list[_core.ChainOption]) -> _core.ChainRun:
        """A run in slots; what passes is counted where it is run alone, and apart from options."""
        passing, alone = self._passing[run.start, run.stop], run.model.alone
        peak = self._slot(alone.backward_peak_bytes + passing)
        return run.stop, run.model.kind, self._slot(passing), alone.extra_ns, peak, options

    def _count_option(self, option: StageOption) -> _core.ChainOption:
        kept, backward, forward = option.kept_bytes, option.backward_peak_bytes, option.forward_peak_bytes
        return option.extra_ns, option.again_ns, self._slot(kept), self._slot(backward), self._slot(forward)

    def _recipe(self, row: int, i: int, j: int, slot: int) -> Recipe:
        step = self._tables.step(row, slot)
        if step.run < 0:
            k = i + step.split
            earlier = self._recipe(step.earlier, i, k - 1, step.earlier_slot)
            return Again(i, k, self._recipe(step.later, k, j, step.later_slot), earlier)
        run = self._runs[i][step.run]
        if step.option < 0:
            return Alone(i, run.stop)
        rest = self._recipe(step.later, run.stop, j, step.later_slot) if run.stop <= j else None
        return Keep(i, run.stop, run.kept(run.model.options[step.option]), rest)
