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
    return tuple(problem.fill_between(upper, lower, most or 0))


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
    return problem.solve(price, upper, lower)
