"""Closures against brute force over every (available, recomputed) assignment, and against networkx."""

from fractions import Fraction
from itertools import pairwise, product

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.solve._core import ClosureProblem
from rematpass.solve.closure import closure_near, fill_between, sweep_closures

SIZES = st.sampled_from([0, 2**10, 2**12, 3 * 2**11, 2**14, 5000])
QUICK = settings(deadline=None, max_examples=60, derandomize=True)


def problem(keep, again, wanted, arcs, may_keep=None, may_recompute=None):
    n = len(keep)
    return ClosureProblem(
        keep_bytes=np.array(keep, dtype=np.int64),
        recompute_ns=np.array(again, dtype=np.int64),
        wanted=np.array(wanted, dtype=bool),
        may_keep=np.array(may_keep or [True] * n, dtype=bool),
        may_recompute=np.array(may_recompute or [True] * n, dtype=bool),
        tails=np.array([t for t, _ in arcs], dtype=np.int64),
        heads=np.array([h for _, h in arcs], dtype=np.int64),
    )


@st.composite
def problems(draw, most=6, sizes=SIZES):
    """Values read earlier ones; most may be both kept and recomputed."""
    n = draw(st.integers(1, most))

    def column(values):
        return draw(st.lists(values, min_size=n, max_size=n))

    arcs = [(v, u) for v in range(1, n) for u in draw(st.sets(st.integers(0, v - 1), max_size=2))]
    limits = column(st.sampled_from(["both"] * 5 + ["keep", "again"]))
    wanted = column(st.booleans())
    return problem(
        column(sizes),
        column(st.sampled_from([0, 1, 5, 30, 1000])),
        wanted,
        arcs,
        [limit != "again" for limit in limits],
        [limit != "keep" for limit in limits],
    )


def all_points(p):
    """(kept bytes, extra ns) of every valid assignment: free, kept or recomputed per value."""
    n = len(p.wanted)
    found = set()
    for states in product("fkr", repeat=n):
        available = [s != "f" for s in states]
        if any(w and not a for w, a in zip(p.wanted, available, strict=True)):
            continue
        if any(states[t] == "r" and not available[h] for t, h in zip(p.tails, p.heads, strict=True)):
            continue
        if any((s == "k" and not p.may_keep[i]) or (s == "r" and not p.may_recompute[i]) for i, s in enumerate(states)):
            continue
        kept = sum(int(p.keep_bytes[i]) for i, s in enumerate(states) if s == "k")
        found.add((kept, sum(int(p.recompute_ns[i]) for i, s in enumerate(states) if s == "r")))
    return found


def lower_hull(points):
    """Corners from least time to fewest bytes (Andrew's monotone chain)."""
    fastest = min(points, key=lambda q: (q[1], q[0]))
    smallest = min(points)
    hull = []
    for q in sorted({q for q in points if smallest[0] <= q[0] <= fastest[0]}):
        while len(hull) > 1 and (hull[-1][0] - hull[-2][0]) * (q[1] - hull[-2][1]) <= (hull[-1][1] - hull[-2][1]) * (
            q[0] - hull[-2][0]
        ):
            hull.pop()
        if not hull or hull[-1][0] != q[0]:
            hull.append(q)
    return hull[::-1]


def check_valid(p, c):
    assert not (p.wanted & ~c.available).any()
    assert not (c.recomputed & ~c.available).any()
    assert not (c.recomputed[p.tails] & ~c.available[p.heads]).any()
    assert not (c.kept & ~p.may_keep).any()
    assert not (c.recomputed & ~p.may_recompute).any()
    assert c.kept_bytes == p.keep_bytes[c.kept].sum()
    assert c.extra_ns == p.recompute_ns[c.recomputed].sum()


@QUICK
@given(problems())
def test_hull_is_that_of_brute_force(p):
    points = all_points(p)
    if not points:
        return
    found = sweep_closures(p)
    for c in found:
        check_valid(p, c)
    assert [(c.kept_bytes, c.extra_ns) for c in found] == lower_hull(points)


@QUICK
@given(problems(most=6, sizes=st.integers(0, 12)))
def test_hull_is_exact_for_tiny_sizes_too(p):
    """Prices are ratios of bytes and ns: rounding them to whole bytes must not lose a corner."""
    points = all_points(p)
    if points:
        assert [(c.kept_bytes, c.extra_ns) for c in sweep_closures(p)] == lower_hull(points)


@pytest.mark.parametrize("length", [2, 5, 100])
def test_a_chain_that_must_not_be_kept_is_recomputed_from_what_must_be(length):
    """However many costs that nobody can avoid add up, they do not pass for infinite."""
    inner, arcs = [False] * length, [(v + 1, v) for v in range(length)]
    p = problem(
        [100] * (length + 1), [1] * (length + 1), [*inner, True], arcs, [True, *inner], [False] + [True] * length
    )
    (only,) = sweep_closures(p)
    check_valid(p, only)
    assert (only.kept_bytes, only.extra_ns) == (100, length)


@QUICK
@given(problems(most=24))
def test_nested(p):
    if not may_be_solved(p):
        return
    for fast, small in pairwise(sweep_closures(p)):
        assert not (fast.available & ~small.available).any()
        assert not (fast.recomputed & ~small.recomputed).any()


@QUICK
@given(problems(most=24))
def test_between_neighbours_all_points_are_valid_and_on_the_line(p):
    if not may_be_solved(p):
        return
    for high, low in pairwise(sweep_closures(p)):
        filled = fill_between(p, high, low)
        assert all(a.kept_bytes >= b.kept_bytes for a, b in pairwise([high, *filled, low]))
        for c in filled:
            check_valid(p, c)
            saved, spent = high.kept_bytes - low.kept_bytes, low.extra_ns - high.extra_ns
            assert (high.kept_bytes - c.kept_bytes) * spent == (c.extra_ns - high.extra_ns) * saved


def may_be_solved(p):
    """Some assignment exists: the network of what must hold lets no flow through."""
    return networkx_value(p, 0, 0) is not None


def networkx_value(p, numerator, denominator):
    """min of kept bytes * denominator + extra ns * numerator; None when nothing is allowed."""
    n = len(p.wanted)
    graph = networkx.DiGraph()
    graph.add_nodes_from(["s", "t"])

    def arc(tail, head, capacity):
        """Without a capacity networkx takes an arc as uncuttable."""
        graph.add_edge(tail, head, **({} if capacity is None else {"capacity": capacity}))

    for v in range(n):
        if p.wanted[v]:
            arc("s", ("a", v), None)
        arc(("a", v), ("r", v), int(p.keep_bytes[v]) * denominator if p.may_keep[v] else None)
        arc(("r", v), "t", int(p.recompute_ns[v]) * numerator if p.may_recompute[v] else None)
    for t, h in zip(p.tails.tolist(), p.heads.tolist(), strict=True):
        arc(("r", t), ("a", h), None)
    try:
        return networkx.minimum_cut_value(graph, "s", "t")
    except networkx.NetworkXUnbounded:
        return None


@QUICK
@given(problems(most=24), st.fractions(Fraction(1, 1000), 1000, max_denominator=1000))
def test_best_point_at_any_price_is_networkx_minimum_cut(p, price):
    exact = networkx_value(p, price.numerator, price.denominator)
    if exact is None:
        return
    assert exact == min(c.kept_bytes * price.denominator + c.extra_ns * price.numerator for c in sweep_closures(p))


def test_equal_layers_are_moved_one_by_one():
    n = 8
    arcs = [(2 * i + 1, 2 * i) for i in range(n)]
    p = problem([2**20, 2**20] * n, [100, 7] * n, [False, True] * n, arcs)
    high, *_ = hull = sweep_closures(p)
    assert [(c.kept_bytes, c.extra_ns) for c in hull] == [(n * 2**20, 0), (0, n * 107)]
    filled = fill_between(p, high, hull[-1])
    assert [c.kept_bytes for c in filled] == [2**20 * k for k in range(n - 1, 0, -1)]


@pytest.mark.parametrize("size", [2**33, 2**40])
def test_sizes_beyond_32_bits(size):
    p = problem([size, size, size // 2], [10, 100, 1], [True, True, True], [(1, 0), (2, 1)])
    assert [(c.kept_bytes, c.extra_ns) for c in sweep_closures(p)] == lower_hull(all_points(p))


def test_nothing_wanted():
    assert [(c.kept_bytes, c.extra_ns) for c in sweep_closures(problem([5], [5], [False], []))] == [(0, 0)]


def test_must_keep_and_must_recompute():
    p = problem([2**20, 2**10], [1, 10**9], [True, True], [(1, 0)], [True, False], [False, True])
    for c in sweep_closures(p):
        assert c.kept.tolist() == [True, False]


@QUICK
@given(problems(), st.sampled_from([0, 1, 2**11, 7000, 20_000]), st.integers(0, 2500))
def test_whole_values_take_what_brute_force_finds(p, room, known):
    """Between two neighbours of the hull, not the line but the best assignment that fits."""
    upper, lower = closure_near(p, room)
    if not lower.kept_bytes < room < upper.kept_bytes:
        return
    least = min(extra for kept, extra in all_points(p) if kept <= room)
    if known <= lower.extra_ns:
        assert p.least_of_whole(upper, lower, room, known) == min(least, known)
    assert p.least_of_whole(upper, lower, room, 10 * lower.extra_ns) == least


def test_whole_values_of_many_layers_take_one_layer_more():
    """Half a layer's room is worth nothing: with 24 equal layers and room for 10.5, 14 are computed again."""
    n = 24
    p = problem([1000] * n, [70] * n, [True] * n, [])
    upper, lower = closure_near(p, 10_500)
    assert p.least_of_whole(upper, lower, 10_500, 10_000) == 14 * 70
    assert p.least_of_whole(upper, lower, 10_500, 14 * 70 - 20) == 14 * 70 - 20


def test_too_many_choices_leave_a_bound_below_the_least():
    """40 values none of which are alike: sums of sizes are far more than are looked at."""
    random = np.random.default_rng(0)
    n, spread = 40, 1000
    keep = (10**9 + random.integers(0, 10**9, n)).tolist()
    again = [b // 10**4 + int(x) for b, x in zip(keep, random.integers(-spread, spread, n), strict=True)]
    p = problem(keep, again, [True] * n, [])
    room = sum(keep) // 2
    upper, lower = closure_near(p, room)
    line = upper.extra_ns + (upper.kept_bytes - room) * (lower.extra_ns - upper.extra_ns) / (
        upper.kept_bytes - lower.kept_bytes
    )
    possible = [c.extra_ns for c in (*fill_between(p, upper, lower), lower) if c.kept_bytes <= room]
    assert line <= p.least_of_whole(upper, lower, room, lower.extra_ns) <= min(possible)
