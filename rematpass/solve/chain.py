"""Over the stages: which option each takes, which boundaries are kept, and which runs of stages are run again.

In: a `StageModel` per stage, models of longer runs, and the bytes each boundary adds. Out: Pareto-optimal (peak, extra
time) with recipes. Never looks inside a stage.

The dynamic programme of Beaumont et al., "Optimal re-materialization strategies for heterogeneous chains" (2019,
"rotor"), with many options per stage and per run of stages. It contains checkpointing every k stages (Chen et al. 2016)
and binomial checkpointing (Griewank and Walther 2000). Memory is counted in slots, as there: exactly when all sizes are
multiples of a slot, else rounded to the nearest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .flow import IntArray
from .frontier import StageModel, StageOption, StageRun

# Slots of memory. At 512, plans of a 24-block GPT take up to 22 % more extra time (the same option of 24 stages is then
# rounded 24 times alike); at 2048 at most 0.1 % less, and the programme takes twice as long (2026-11).
SLOTS = 1024
# Sizes with a common divisor are counted exactly up to this many slots. Half and twice matter to tests with unit sizes
# only: sizes of tensors rarely have so large a divisor (2026-11).
EXACT_SLOTS = 2048
# Finer slots are taken while boundaries and gradients together are off by more than this share of the least memory.
# Without that, 100 layers whose boundary is a twentieth of what is inside them end at twice the least peak (2026-11).
ROUNDING_SHARE = 0.1
_NEVER = 2**60


def _rounding(sizes: list[int], slot: int) -> float:
    """Bytes by which sizes are off when counted in slots."""
    values = np.array(sizes, dtype=np.float64)
    return float(np.abs(values - np.rint(values / slot) * slot).sum())


@dataclass(frozen=True)
class Keep:
    """Hold an option's values of stages start..stop-1 from their forward to their backward; `rest` covers the later."""

    start: int
    stop: int
    option: StageOption
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


@dataclass(frozen=True)
class _Moves:
    """Ways to run stages i..j, as columns: time(m) = spent + later(m - hold) + earlier(m - below), m >= floor.

    Tables are rows of `Chain`'s store; row 0 costs nothing and needs nothing.
    """

    spent: IntArray
    floor: IntArray
    hold: IntArray
    later: IntArray
    below: IntArray
    earlier: IntArray
    names: tuple[tuple[int, int], ...]


class Chain:
    """Tables by need. `first(i)`: stages i.. in the first forward. `again(i, j)`: stages i..j run once more."""

    def __init__(
        self,
        models: Sequence[StageModel],
        added_bytes: Callable[[int, int], int],
        runs: Sequence[StageRun] = (),
        passing_bytes: Callable[[int, int], int] | None = None,
    ) -> None:
        """Fill the tables.

        Args:
            models: one per stage.
            added_bytes: added_bytes(i, k) = bytes of the boundary of stage k that are not in the boundary of stage i.
            runs: longer runs of stages with options of their own.
            passing_bytes: passing_bytes(i, k) = bytes of gradients that cross stages i..k-1 untouched; none when None.
        """
        self._models = models
        self._count = n = len(models)
        self._runs: list[list[StageRun]] = [
            [StageRun(i, i + 1, m.kind, m.options, m.alone)] for i, m in enumerate(models)
        ]
        for run in runs:
            self._runs[run.start].append(run)
        spans = [(r.start, r.stop) for found in self._runs for r in found]
        self._passing = {span: passing_bytes(*span) if passing_bytes else 0 for span in spans}
        added = [[added_bytes(i, k) if i < k < n else 0 for k in range(n + 1)] for i in range(n)]
        gradients = np.cumsum([0, *(m.gradient_bytes for m in models)], dtype=np.int64)
        self._slot_bytes = self._choose_slot(added, gradients)
        self._added = self._slots(np.array(added, dtype=np.int64).reshape(n, n + 1))
        self._gradients = self._slots(gradients)
        self._advance_ns = np.cumsum([0, *(m.advance_ns for m in models)], dtype=np.int64)
        self._advance_peak = self._slots(np.array([m.advance_peak_bytes for m in models], dtype=np.int64))
        self._width = int(self._top(added, gradients)) // self._slot_bytes + 2
        self._time = np.zeros((64, self._width), dtype=np.int64)
        self._choice: list[IntArray] = [np.zeros(self._width, dtype=np.int64)]
        self._moves: list[_Moves | None] = [None]
        self._again = np.zeros((n + 1, n + 1), dtype=np.int64)
        self._first = np.zeros(n + 1, dtype=np.int64)
        self._fill()

    def points(self) -> tuple[ChainPoint, ...]:
        """All Pareto points of the whole chain, least memory first."""
        time = self._time[self._first[0]]
        falls = np.concatenate([[time[0] < _NEVER], time[1:] < time[:-1]])
        return tuple(
            ChainPoint(slot * self._slot_bytes, int(time[slot]))
            for slot in np.flatnonzero(falls & (time < _NEVER)).tolist()
        )

    def recipe(self, point: ChainPoint) -> Recipe | None:
        """How to run a point."""
        if not self._count:
            return None
        slot = point.peak_bytes // self._slot_bytes
        return self._recipe(int(self._first[0]), 0, self._count - 1, slot, is_first=True)

    def _top(self, added: list[list[int]], gradients: IntArray) -> int:
        """Bytes with which the fastest plan fits: everything held, every peak, all gradients."""
        n = self._count
        held = sum(max((o.kept_bytes for o in m.options), default=0) for m in self._models)
        held += sum(added[i][i + 1] for i in range(n))
        peaks = [
            max(o.backward_peak_bytes, o.forward_peak_bytes)
            for runs in self._runs
            for r in runs
            for o in (*r.options, r.alone)
        ]
        peaks += [m.advance_peak_bytes for m in self._models]
        passing = max(self._passing.values(), default=0)
        return held + max(peaks, default=0) + passing + int(gradients[-1]) if n else 0

    def _choose_slot(self, added: list[list[int]], gradients: IntArray) -> int:
        """A common divisor where there is one, else a slot that rounds what is held little.

        Many stages hold the same sizes, so their rounding errors add up: of the slots near top / SLOTS the one that
        rounds all of them least, and finer ones as long as boundaries and gradients together are off by more than a
        small share of the least memory there is.
        """
        n, top = self._count, self._top(added, gradients)
        always = [added[i][i + 1] for i in range(n)] + [m.gradient_bytes for m in self._models]
        options = [o for runs in self._runs for r in runs for o in (*r.options, r.alone)]
        peaks = [b for o in options for b in (o.backward_peak_bytes, o.forward_peak_bytes)]
        peaks += [m.advance_peak_bytes for m in self._models]
        exact = math.gcd(*always, *peaks, *(o.kept_bytes for o in options), *(b for row in added for b in row))
        if exact and top // exact <= EXACT_SLOTS:
            return exact
        held = always + [o.kept_bytes for o in options]
        least = sum(always) + max((r.alone.backward_peak_bytes for runs in self._runs for r in runs[:1]), default=0)
        slot = 1
        for count in (SLOTS, 2 * SLOTS, 4 * SLOTS):
            slots = [max(1, -(-top // c)) for c in range(count * 3 // 4, count * 5 // 4)]
            slot = min(slots, key=lambda size: _rounding(held, size))
            if _rounding(always, slot) <= ROUNDING_SHARE * least:
                break
        return slot

    def _slots(self, sizes: IntArray) -> IntArray:
        result: IntArray = (sizes + self._slot_bytes // 2) // self._slot_bytes
        return result

    def _fill(self) -> None:
        n = self._count
        seen: dict[tuple[object, ...], int] = {}
        name = np.zeros((n, n), dtype=np.int64)
        ends: list[list[StageRun]] = [[] for _ in range(n)]
        for run in (r for runs in self._runs for r in runs):
            ends[run.stop - 1].append(run)
        rows: dict[int, int] = {}
        for length in range(1, n + 1):
            for i in range(n - length + 1):
                j = i + length - 1
                inside = tuple((j - r.start, r.kind, self._passing[r.start, r.stop]) for r in ends[j] if r.start >= i)
                key = (int(name[i, j - 1]) if length > 1 else -1, int(self._added[i, j]), inside)
                name[i, j] = seen.setdefault(key, len(seen))
                if int(name[i, j]) not in rows:
                    rows[int(name[i, j])] = self._solve(self._ways(i, j, is_first=False))
                self._again[i, j] = rows[int(name[i, j])]
        for i in range(n - 1, -1, -1):
            self._first[i] = self._solve(self._ways(i, n - 1, is_first=True))

    def _ways(self, i: int, j: int, *, is_first: bool) -> _Moves:
        """All ways to run stages i..j: options of runs that start here, then splits."""
        columns: list[tuple[int, int, int, int, int, int]] = []
        names: list[tuple[int, int]] = []
        for r, run in enumerate(self._runs[i]):
            if run.stop > j + 1:
                continue
            passing = self._passing[run.start, run.stop]
            if run.stop == j + 1 and not is_first:
                columns.append((run.alone.extra_ns, self._slot(run.alone.backward_peak_bytes + passing), 0, 0, 0, 0))
                names.append((r, -1))
                continue
            own = self._slot(passing) + int(self._gradients[j + 1] - self._gradients[run.stop])
            rest = int(self._first[run.stop] if is_first else self._again[run.stop, j])
            for o, option in enumerate(run.options):
                spent = option.extra_ns + (0 if is_first else option.again_ns)
                floor = max(self._slot(option.forward_peak_bytes), own + self._slot(option.backward_peak_bytes))
                hold = self._slot(option.kept_bytes) + int(self._added[i, run.stop])
                columns.append((spent, floor, hold, rest, 0, 0))
                names.append((r, o))
        ways = np.array(columns, dtype=np.int64).reshape(-1, 6).T
        spent, floor, hold, later, below, earlier = np.concatenate(
            [ways, self._splits(i, j, is_first=is_first)], axis=1
        )
        return _Moves(spent, floor, hold, later, below, earlier, tuple(names))

    def _splits(self, i: int, j: int, *, is_first: bool) -> IntArray:
        """Keep the boundary of k, run k..j on top of it, then i..k-1 again with the gradients of k..j at hand."""
        k = np.arange(i + 1, j + 1)
        if not len(k):
            return np.zeros((6, 0), dtype=np.int64)
        spent = np.zeros(len(k), dtype=np.int64) if is_first else self._advance_ns[k] - self._advance_ns[i]
        floor = np.maximum.accumulate(self._advance_peak[i:j])
        later = self._first[k] if is_first else self._again[k, j]
        below = self._gradients[j + 1] - self._gradients[k]
        return np.stack([spent, floor, self._added[i, k], later, below, self._again[i, k - 1]])

    def _slot(self, size: int) -> int:
        return (size + self._slot_bytes // 2) // self._slot_bytes

    def _solve(self, ways: _Moves) -> int:
        """Best way per memory slot, as a new row of the store."""
        width = self._width
        time = np.full((len(ways.spent), width), _NEVER)
        columns = (ways.spent, ways.floor, ways.hold, ways.later, ways.below, ways.earlier)
        for way, figures in zip(time, zip(*(column.tolist() for column in columns), strict=True), strict=True):
            spent, floor, hold, later, below, earlier = figures
            start = max(floor, hold, below)
            way[start:] = self._time[later, start - hold : width - hold]
            way[start:] += self._time[earlier, start - below : width - below]
            way[start:] += spent
        choice = time.argmin(axis=0)
        row = len(self._choice)
        if row == len(self._time):
            self._time = np.concatenate([self._time, np.zeros_like(self._time)])
        self._time[row] = np.minimum(time.min(axis=0), _NEVER)
        self._choice.append(choice)
        self._moves.append(ways)
        return row

    def _recipe(self, row: int, i: int, j: int, slot: int, *, is_first: bool) -> Recipe:
        ways, place = self._moves[row], int(self._choice[row][slot])
        assert ways is not None
        later, above = int(ways.later[place]), slot - int(ways.hold[place])
        if place >= len(ways.names):
            k = i + 1 + place - len(ways.names)
            earlier = self._recipe(int(ways.earlier[place]), i, k - 1, slot - int(ways.below[place]), is_first=False)
            return Again(i, k, self._recipe(later, k, j, above, is_first=is_first), earlier)
        r, o = ways.names[place]
        run = self._runs[i][r]
        if o < 0:
            return Alone(i, run.stop)
        rest = self._recipe(later, run.stop, j, above, is_first=is_first) if run.stop <= j else None
        return Keep(i, run.stop, run.options[o], rest)
