"""Closures, bounds and plans against an exact integer programme (HiGHS through scipy)."""

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from rematpass import BudgetTooSmall
from rematpass.solve import Problem, solve
from rematpass.solve.bound import interpolate
from rematpass.solve.closure import closure_near, fill_between
from rematpass.solve.moments import whole_problem
from tests.programs import Layer, layered


def rows_to_matrix(rows, width):
    entries = [(r, column, factor) for r, row in enumerate(rows) for column, factor in row.items()]
    r, c, f = zip(*entries, strict=True)
    return coo_array((f, (r, c)), shape=(len(rows), width)).tocsr()


def least_time(problem, room):
    """The closure as an integer programme: least extra time with at most `room` bytes kept."""
    n = len(problem.wanted)
    rows, high = [], []
    for v in range(n):
        rows.append({n + v: 1, v: -1})  # recomputed only if available
        high.append(0)
    for tail, head in zip(problem.tails.tolist(), problem.heads.tolist(), strict=True):
        rows.append({n + tail: 1, head: -1})
        high.append(0)
    budget = {v: float(problem.keep_bytes[v]) for v in range(n)}
    rows.append({**budget, **{n + v: -b for v, b in budget.items()}})
    high.append(room)
    low = np.concatenate([problem.wanted, ~problem.may_keep & False]).astype(float)
    top = np.concatenate([np.ones(n), problem.may_recompute]).astype(float)
    only_again = [{v: 1, n + v: -1} for v in range(n) if not problem.may_keep[v]]
    rows += only_again
    high += [0] * len(only_again)
    cost = np.concatenate([np.zeros(n), problem.recompute_ns])
    constraint = LinearConstraint(rows_to_matrix(rows, 2 * n), ub=np.array(high))
    result = milp(cost, constraints=constraint, bounds=Bounds(low, top), integrality=np.ones(2 * n))
    assert result.status == 0, result.message
    return result.fun


CASES = [
    pytest.param(layered([Layer()] * 24), id="equal"),
    pytest.param(layered([Layer(wide=700 + 90 * i, wide_ns=10 + 3 * (i % 5)) for i in range(40)]), id="unequal"),
    pytest.param(layered([Layer(narrow=80 + 7 * i) for i in range(30)], is_residual=True), id="residual"),
]


@pytest.mark.parametrize("program", CASES)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_bound_is_below_the_integer_programme_and_the_filled_hull_just_above(program, share):
    problem, values = whole_problem(program)
    assert 60 <= len(values) <= 200
    fastest, _ = closure_near(problem, None)
    smallest, _ = closure_near(problem, 0)
    room = round(smallest.kept_bytes + share * (fastest.kept_bytes - smallest.kept_bytes))
    exact = least_time(problem, room)
    upper, lower = closure_near(problem, room)
    bound = interpolate(upper, lower, room)
    found = [upper, *fill_between(problem, upper, lower), lower]
    filled = min(c.extra_ns for c in found if c.kept_bytes <= room)
    assert bound <= exact + 1e-6
    whole = problem.least_of_whole(upper, lower, room, lower.extra_ns) if upper is not lower else bound
    assert bound - 1 <= whole <= exact + 1e-6
    assert exact <= filled + 1e-6
    assert filled - bound <= max(program.duration_ns) * 2, "a point of the hull, or between two, is near"


class Checkmate:
    """Least duration in the given order, any recomputation (Jain et al. 2020); stage t runs op t for the first time.

    R[t, i]: op i runs in stage t; S[t, i]: value i is held into stage t. What is held into a stage or made in it stays
    until the stage is over, so its optimum is one that a finer account of memory must reach or beat.
    """

    def __init__(self, problem, budget):
        n = self.count = len(problem.duration)
        self.problem = problem
        self.place = {key: p for p, key in enumerate((k, t, i) for t in range(n) for i in range(t + 1) for k in "RS")}
        self.rows, self.low, self.high = [], [], []
        for t in range(n):
            self.add({("R", t, t): 1}, 1, 1)
            self.add({("S", t, t): 1}, 0, 0)
            for i in range(t):
                self.add({("S", t, i): 1, ("R", t - 1, i): -1, ("S", t - 1, i): -1}, -np.inf, 0)
                self.add({("R", t, i): 1}, 0, int(problem.is_forward[i]))
            for reader, u in [(v, u) for v in range(t + 1) for u in problem.inputs[v]]:
                self.add({("R", t, reader): 1, ("R", t, u): -1, ("S", t, u): -1}, -np.inf, 0)
            self.add({(k, t, i): float(problem.bytes[i]) for i in range(t + 1) for k in "RS"}, 0, budget)
        for v in problem.outputs:
            self.add({("R", n - 1, v): 1, ("S", n - 1, v): 1}, 1, 2)

    def add(self, row, least, most):
        self.rows.append({self.place[key]: factor for key, factor in row.items()})
        self.low.append(least)
        self.high.append(most)

    def solve(self):
        """None when nothing fits."""
        width = len(self.place)
        cost = np.array([self.problem.duration[i] * (kind == "R") for kind, _, i in self.place])
        constraint = LinearConstraint(rows_to_matrix(self.rows, width), np.array(self.low), np.array(self.high))
        result = milp(cost, constraints=constraint, bounds=Bounds(0, 1), integrality=np.ones(width))
        return result.fun if result.status == 0 else None


@pytest.mark.parametrize("seed", range(6))
def test_no_longer_than_the_integer_programme_on_short_chains(seed):
    random = np.random.default_rng(seed)
    steps = 5
    forward = [[i - 1] if i else [] for i in range(steps)]
    backward = [[*([steps + k - 1] if k else []), steps - 1 - k] for k in range(steps)]
    count = 2 * steps
    problem = Problem(
        random.integers(1, 9, count).tolist(),
        random.integers(1, 9, count).tolist(),
        forward + backward,
        [True] * steps + [False] * steps,
        [count - 1],
    )
    everything = sum(problem.bytes)
    for budget in (everything, everything * 3 // 4, everything * 5 // 8, everything // 2):
        exact = Checkmate(problem, budget).solve()
        if exact is not None:
            solution = solve(problem, budget)
            assert solution.bound_duration <= exact + 1e-6
            assert solution.duration <= exact + 1e-6


def u_net(levels):
    """A convolution a level down and up, with skips across: sizes halve downwards. Forward, then backward."""
    inputs, sizes, times = [], [], []

    def add(read, size, time):
        inputs.append(read)
        sizes.append(size)
        times.append(time)
        return len(inputs) - 1

    last, skips = add([], 2**levels, 2 * 2**levels), []
    for size in (2 ** (levels - level) for level in range(1, levels)):
        skips.append(last)
        last = add([add([last], size, 1)], size, 4 * size)
    for skip in reversed(skips):
        last = add([add([last], sizes[skip], 2), skip], sizes[skip], 8 * sizes[skip])
    count = len(inputs)
    gradient = {}
    for v in reversed(range(count)):
        given = [gradient[r] for r in range(count) if v in inputs[r]] or [v]
        gradient[v] = add([*given, *inputs[v]], sizes[v], 2 * times[v])
    is_forward = [v < count for v in range(len(inputs))]
    return Problem(times, sizes, inputs, is_forward, [gradient[0]])


@pytest.mark.parametrize("share", [0.2, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("levels", [3, 4])
def test_as_fast_as_the_integer_programme_on_u_nets(levels, share):
    """Where the bound is far below, as for U-Nets at small budgets, it is the bound that is loose."""
    problem = u_net(levels)
    with pytest.raises(BudgetTooSmall) as refused:
        solve(problem, 1)
    fastest, smallest = solve(problem, sum(problem.bytes)).peak_bytes, refused.value.minimum_bytes
    budget = int(smallest + share * (fastest - smallest))
    exact = Checkmate(problem, budget).solve()
    solution = solve(problem, budget)
    assert exact is not None
    assert solution.bound_duration <= exact + 1e-6
    assert solution.duration <= exact + 1e-6
