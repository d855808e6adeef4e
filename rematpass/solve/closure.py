"""Which values to keep and which to recompute, for all values together, by minimum cuts.

In: a `Program` and the part of it to decide. Out: nested decisions from "fastest" to "fewest kept bytes", exact for
their class (each value recomputed at most once, memory measured as the sum of kept bytes). Never looks at the order.

Two 0/1 variables per value: a(v) = available in the backward, r(v) = recomputed; kept = a - r. Minimise
sum bytes(v) (a(v) - r(v)) + mu t(v) r(v) with a(v) = 1 where the backward reads v and r(v) <= a(u) for inputs u of v: a
minimum-weight closure (Picard 1976), parametric in mu and monotone, so solutions are nested (Gallo, Grigoriadis,
Tarjan 1989).
"""

from __future__ import annotations

from ._core import Closure, ClosureProblem


def closure_near(problem: ClosureProblem, room_bytes: int | None) -> tuple[Closure, Closure]:
    """The neighbours of the hull around `room_bytes` of kept values, the faster one first; twice the same at an end.

    None is no limit. Walks down the hull as a binary search does: a cut per step instead of one per vertex.
    """
    upper = problem.solve(None, None, None)
    if room_bytes is None or room_bytes >= upper.kept_bytes:
        return upper, upper
    lower = least_kept(problem, upper)
    while lower.kept_bytes < room_bytes:
        middle = problem.vertex_between(upper, lower)
        if middle is None:
            return upper, lower
        if middle.kept_bytes > room_bytes:
            upper = middle
        else:
            lower = middle
    return lower, lower


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
