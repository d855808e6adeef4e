"""Which values to keep and which to recompute, for all values together, by minimum cuts.

In: a `Program` and the part of it to decide. Out: nested decisions from "fastest" to "fewest kept bytes", exact for
their class (each value recomputed at most once, memory measured as the sum of kept bytes). Never looks at the order.

Two 0/1 variables per value: a(v) = available in the backward, r(v) = recomputed; kept = a - r. Minimise
sum bytes(v) (a(v) - r(v)) + mu t(v) r(v) with a(v) = 1 where the backward reads v and r(v) <= a(u) for inputs u of v: a
minimum-weight closure (Picard 1976), parametric in mu and monotone, so solutions are nested (Gallo, Grigoriadis,
Tarjan 1989).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import numpy as np

from ._core import Closure, ClosureProblem
from .arrays import BoolArray


class Hull:
    """The lower hull of (kept bytes, extra time), worked out where it is asked for, and remembered."""

    def __init__(self, problem: ClosureProblem) -> None:
        self.problem = problem
        self._found = [problem.solve(None, None, None)]  # fewer and fewer bytes
        self._is_edge = [False]  # per vertex found, whether none lies between the one before and it

    def near(self, room_bytes: int | None) -> tuple[Closure, Closure]:
        """The neighbours around `room_bytes` of kept values, the faster one first; twice the same at an end.

        None is no limit. Walks down the hull as a binary search does: a cut per step instead of one per vertex.
        """
        fastest = self._found[0]
        if room_bytes is None or room_bytes >= fastest.kept_bytes:
            return fastest, fastest
        if len(self._found) == 1:
            self._add(1, least_kept(self.problem, fastest))
        if self._found[-1].kept_bytes >= room_bytes:
            return self._found[-1], self._found[-1]
        while True:
            at = bisect.bisect_left(self._found, -room_bytes, key=lambda c: -c.kept_bytes)
            upper, lower = self._found[at - 1], self._found[at]
            if lower.kept_bytes == room_bytes:
                return lower, lower
            middle = None if self._is_edge[at] else self.problem.vertex_between(upper, lower)
            if middle is None:
                self._is_edge[at] = True
                return upper, lower
            self._add(at, middle)

    def _add(self, at: int, vertex: Closure) -> None:
        self._found.insert(at, vertex)
        self._is_edge.insert(at, False)


def closure_near(problem: ClosureProblem, room_bytes: int | None) -> tuple[Closure, Closure]:
    """The neighbours of the hull around `room_bytes` of kept values: see `Hull.near`."""
    return Hull(problem).near(room_bytes)


def least_kept(problem: ClosureProblem, fastest: Closure) -> Closure:
    """The end of the hull with the fewest kept bytes, given the other one."""
    return problem.solve((0, 1), fastest, None)


def sweep_closures(problem: ClosureProblem, resolution: int | None = None) -> tuple[Closure, ...]:
    """Vertices of the lower hull of (kept bytes, extra time), fastest first; solutions are nested.

    Args:
        problem: what to decide.
        resolution: vertices closer than this share (1 / resolution) of the hull's bytes or time are not looked for;
            all vertices when None.
    """
    return tuple(problem.sweep(resolution or 0))


def fill_between(
    problem: ClosureProblem, upper: Closure, lower: Closure, most: int | None = None
) -> tuple[Closure, ...]:
    """Solutions strictly between two neighbours of the hull, by moving independent parts one by one.

    The values that differ fall into parts that no arc connects (equal layers, mostly). Any union of parts is valid, and
    since both ends are optimal at one price, each part lies on the line between them. Parts of early values move first:
    their kept bytes would live longest. With `most`, parts move in groups so that no more solutions come out.
    """
    return tuple(problem.fill_between(upper, lower, most or 0))


def filled_hull(problem: ClosureProblem, most: int) -> list[Closure]:
    """All vertices of the hull, fastest first, and up to `most` closures between two neighbours."""
    hull = sweep_closures(problem)
    filled: list[Closure] = []
    for upper, lower in itertools.pairwise(hull):
        filled += [upper, *fill_between(problem, upper, lower, most)]
    return [*filled, hull[-1]]


def values_of(values: Sequence[int], chosen: BoolArray) -> list[int]:
    """The values a closure chose."""
    return [values[i] for i in np.flatnonzero(chosen).tolist()]
