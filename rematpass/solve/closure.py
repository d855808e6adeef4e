"""Which values to keep and which to recompute, for all values together, by minimum cuts.

In: a `Program` and the part of it to decide. Out: nested decisions from "fastest" to "fewest kept bytes", exact for
their class (each value recomputed at most once, memory measured as the sum of kept bytes). Never looks at the order.

Two 0/1 variables per value: a(v) = available in the backward, r(v) = recomputed; kept = a - r. Minimise
sum bytes(v) (a(v) - r(v)) + mu t(v) r(v) with a(v) = 1 where the backward reads v and r(v) <= a(u) for inputs u of v: a
minimum-weight closure (Picard 1976), parametric in mu and monotone, so solutions are nested (Gallo, Grigoriadis,
Tarjan 1989).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from .flow import MAX_CAPACITY, BoolArray, IntArray, minimum_cut


@dataclass(frozen=True)
class ClosureProblem:
    """Values 0..n-1 that may be kept or recomputed; what is always available (graph inputs) is left out.

    Attributes:
        keep_bytes: cost of keeping, per value.
        recompute_ns: cost of recomputing, per value.
        wanted: per value, the backward reads it.
        may_keep, may_recompute: per value; at least one must hold for every value that can be needed.
        tails, heads: arcs v -> u: recomputing v reads u, u < v.
    """

    keep_bytes: IntArray
    recompute_ns: IntArray
    wanted: BoolArray
    may_keep: BoolArray
    may_recompute: BoolArray
    tails: IntArray
    heads: IntArray

    @cached_property
    def is_forced(self) -> BoolArray:
        """Per value, every solution recomputes it: it must not be kept, and the backward or a forced value reads it."""
        forced: BoolArray = self.wanted & ~self.may_keep
        inner = ~self.may_keep[self.tails] & ~self.may_keep[self.heads]
        for tail, head in sorted(
            zip(self.tails[inner].tolist(), self.heads[inner].tolist(), strict=True), reverse=True
        ):
            forced[head] |= forced[tail]
        return forced


@dataclass(frozen=True)
class Closure:
    """One solution: `available` and `recomputed` per value, with what it keeps and what it costs."""

    available: BoolArray
    recomputed: BoolArray
    kept_bytes: int
    extra_ns: int

    @property
    def kept(self) -> BoolArray:
        """Available without being recomputed."""
        return self.available & ~self.recomputed


def closure_near(problem: ClosureProblem, room_bytes: int | None) -> tuple[Closure, Closure]:
    """The neighbours of the hull around `room_bytes` of kept values, the faster one first; twice the same at an end.

    None is no limit. Walks down the hull as a binary search does: a cut per step instead of one per vertex.
    """
    upper = _solve(problem, None, None, None)
    if room_bytes is None or room_bytes >= upper.kept_bytes:
        return upper, upper
    lower = _solve(problem, (0, 1), upper, None)
    while lower.kept_bytes < room_bytes:
        middle = _vertex_between(problem, upper, lower)
        if middle is None:
            return upper, lower
        if middle.kept_bytes > room_bytes:
            upper = middle
        else:
            lower = middle
    return lower, lower


def sweep_closures(problem: ClosureProblem, resolution: int | None = None) -> tuple[Closure, ...]:
    """Vertices of the lower hull of (kept bytes, extra time), fastest first; solutions are nested.

    Args:
        problem: what to decide.
        resolution: vertices closer than this share (1 / resolution) of the hull's bytes or time are not looked for;
            all vertices when None.
    """
    if not problem.wanted.any():
        empty = np.zeros(len(problem.wanted), dtype=bool)
        return (Closure(empty, empty, 0, 0),)
    fastest = _solve(problem, None, None, None)
    smallest = _solve(problem, (0, 1), fastest, None)
    points = [fastest, *_between(problem, fastest, smallest, resolution), smallest]
    distinct = [p for i, p in enumerate(points) if i == 0 or p.kept_bytes < points[i - 1].kept_bytes]
    return tuple(distinct)


def fill_between(
    problem: ClosureProblem, upper: Closure, lower: Closure, most: int | None = None
) -> tuple[Closure, ...]:
    """Solutions strictly between two neighbours of the hull, by moving independent parts one by one.

    The values that differ fall into parts that no arc connects (equal layers, mostly). Any union of parts is valid, and
    since both ends are optimal at one price, each part lies on the line between them. Parts of early values move first:
    their kept bytes would live longest. With `most`, parts move in groups so that no more solutions come out.
    """
    moved = lower.recomputed & ~upper.recomputed
    changed = moved | (lower.available & ~upper.available)
    index = np.flatnonzero(changed)
    if not len(index):
        return ()
    inner = changed[problem.tails] & changed[problem.heads] & lower.recomputed[problem.tails]
    place = np.full(len(changed), -1)
    place[index] = np.arange(len(index))
    arcs = (np.ones(int(inner.sum()), dtype=np.int8), (place[problem.tails[inner]], place[problem.heads[inner]]))
    count, label = connected_components(csr_array(arcs, shape=(len(index), len(index))), directed=False)
    available, recomputed = upper.available.copy(), upper.recomputed.copy()
    filled = []
    order = np.argsort(label, kind="stable")
    parts = np.split(index[order], np.flatnonzero(np.diff(label[order])) + 1)
    assert len(parts) == count
    group = 1 if most is None else -(-count // most)
    for n, members in enumerate(sorted(parts, key=lambda members: int(members[0]))[:-1], 1):
        available[members] = lower.available[members]
        recomputed[members] = lower.recomputed[members]
        if n % group == 0:
            filled.append(_closure(problem, available.copy(), recomputed.copy()))
    return tuple(filled)


def _closure(problem: ClosureProblem, available: BoolArray, recomputed: BoolArray) -> Closure:
    kept_bytes = int(problem.keep_bytes[available & ~recomputed].sum())
    return Closure(available, recomputed, kept_bytes, int(problem.recompute_ns[recomputed].sum()))


def _between(problem: ClosureProblem, upper: Closure, lower: Closure, resolution: int | None) -> list[Closure]:
    """Hull vertices between two solutions: solve where their lines cross, until nothing below the line appears."""
    found: list[Closure] = []
    stack = [(upper, lower)]
    while stack:
        high, low = stack.pop()
        is_narrow = (high.kept_bytes - low.kept_bytes) * (resolution or 0) < upper.kept_bytes - lower.kept_bytes
        is_flat = (low.extra_ns - high.extra_ns) * (resolution or 0) < lower.extra_ns - upper.extra_ns
        if resolution is not None and (is_narrow or is_flat):
            continue
        middle = _vertex_between(problem, high, low)
        if middle is not None:
            found.append(middle)
            stack += [(high, middle), (middle, low)]
    return sorted(found, key=lambda c: -c.kept_bytes)


def _vertex_between(problem: ClosureProblem, high: Closure, low: Closure) -> Closure | None:
    """The solution where the lines of two neighbours cross; None when nothing lies below the line between them."""
    saved, spent = high.kept_bytes - low.kept_bytes, low.extra_ns - high.extra_ns
    if saved <= 0 or spent <= 0:
        return None
    middle = _solve(problem, (saved, spent), high, low)
    line = high.kept_bytes * spent + high.extra_ns * saved
    if middle.kept_bytes * spent + middle.extra_ns * saved >= line:
        return None
    if middle.kept_bytes in (high.kept_bytes, low.kept_bytes):
        return None  # rounding of the capacities, not a vertex
    return middle


def _solve(
    problem: ClosureProblem, price: tuple[int, int] | None, upper: Closure | None, lower: Closure | None
) -> Closure:
    """The minimum cut at mu = price[0] / price[1] bytes per ns; None is an infinite mu.

    What the neighbours decided alike is contracted: `upper`'s sets are in, what `lower` leaves out is out.
    """
    n = len(problem.wanted)
    keep, again = _capacities(problem, price)
    fixed_a = upper.available if upper else np.zeros(n, dtype=bool)
    fixed_r = upper.recomputed if upper else np.zeros(n, dtype=bool)
    open_a = ~fixed_a & (lower.available if lower else True)
    open_r = ~fixed_r & (lower.recomputed if lower else True)
    side = _cut(problem, keep, again, (fixed_a, open_a), (fixed_r, open_r))
    return _closure(problem, side[:n], side[n:])


def _capacities(problem: ClosureProblem, price: tuple[int, int] | None) -> tuple[IntArray, IntArray]:
    """Arc capacities in a rounded unit: the sum of all keep arcs stays near a quarter of the solver's range."""
    total = max(1, int(problem.keep_bytes.sum()))
    unit = max(1, -(-total // (MAX_CAPACITY // 4)))
    scale = max(1, MAX_CAPACITY // 4 // total)  # small problems use the whole range, so that prices keep their digits
    keep = -(-problem.keep_bytes * scale // unit)
    limit = int(keep.sum()) + 1
    if price is None:
        again = np.where(problem.recompute_ns > 0, limit, 0)
    else:
        exact = problem.recompute_ns.astype(np.float64) * (price[0] * scale / (price[1] * unit))
        again = np.minimum(np.rint(exact), limit).astype(np.int64)
    again = np.where(problem.is_forced, 0, again)  # the same in every solution; many together would pass for infinite
    keep = np.where(problem.may_keep, keep, MAX_CAPACITY)
    return keep, np.where(problem.may_recompute, again, MAX_CAPACITY)


def _cut(
    problem: ClosureProblem,
    keep: IntArray,
    again: IntArray,
    a: tuple[BoolArray, BoolArray],
    r: tuple[BoolArray, BoolArray],
) -> BoolArray:
    """Build and cut the network over the open variables; fixed ones are merged into the source.

    Variables are numbered a(0..n-1), r(0..n-1); the result says which are 1.
    """
    n = len(keep)
    fixed, is_open = np.concatenate([a[0], r[0]]), np.concatenate([a[1], r[1]])
    values = np.arange(n)
    tails = np.concatenate([values[problem.wanted], values, values + n, problem.tails + n, values + n])
    heads = np.concatenate([values[problem.wanted], values + n, np.full(n, -1), problem.heads, values])
    infinite = np.full(len(problem.tails), MAX_CAPACITY)
    wanted_caps = np.full(int(problem.wanted.sum()), MAX_CAPACITY)
    caps = np.concatenate([wanted_caps, keep, again, infinite, np.full(n, MAX_CAPACITY)])
    source, sink = 2 * n, 2 * n + 1
    tails[: len(wanted_caps)] = source
    heads[heads == -1] = sink
    node = np.concatenate([np.where(is_open, np.arange(2 * n), np.where(fixed, source, sink)), [source, sink]])
    tails, heads = node[tails], node[heads]
    useful = (tails != heads) & (heads != source) & (tails != sink) & ~((tails == source) & (heads == sink))
    names, packed = np.unique(np.concatenate([tails[useful], heads[useful], [source, sink]]), return_inverse=True)
    count = int(useful.sum())
    side = minimum_cut(
        len(names), packed[:count], packed[count : 2 * count], caps[useful], int(packed[-2]), int(packed[-1])
    )
    result = fixed.copy()
    chosen = names[side]
    result[chosen[chosen < 2 * n]] = True
    return result
