"""The solver by itself: what it takes, what it refuses, and that its answers are right."""

import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rematpass
from rematpass import BudgetTooSmall, Problem, ProblemError
from rematpass.errors import SolverError
from rematpass.solve import replay, solve


def chain(steps, size=1):
    """x -> ... -> x and back: backward op i reads the gradient and the input of forward op i."""
    forward = [[i - 1] if i else [] for i in range(steps)]
    backward = []
    for i in reversed(range(steps)):
        gradient = steps + len(backward) - 1
        backward.append([gradient] * (i < steps - 1) + [i])
    count = 2 * steps
    return Problem([1] * count, [size] * count, forward + backward, [True] * steps + [False] * steps, [count - 1])


@st.composite
def problems(draw, most=7):
    """Random forward ops, then backward ops that read the one before and some forward values."""
    forward = draw(st.integers(1, most))
    inputs = [sorted(draw(st.sets(st.integers(0, v - 1), max_size=2))) if v else [] for v in range(forward)]
    for v in range(forward, forward + draw(st.integers(1, 4))):
        reads = draw(st.sets(st.integers(0, forward - 1), min_size=1, max_size=2))
        inputs.append(sorted(reads | ({v - 1} if v > forward else {forward - 1})))
    count = len(inputs)
    small = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    return Problem(draw(small), draw(small), inputs, [v < forward for v in range(count)], [count - 1])


def every_sequence(problem):
    """(peak, duration) with any subset of forward ops repeated before each op, given order otherwise."""
    forward = [v for v, again in enumerate(problem.is_forward) if again]
    steps = []
    for v in range(len(problem.duration)):
        earlier = [u for u in forward if u < v] if not problem.is_forward[v] else []
        steps.append(
            [
                (*(u for u, on in zip(earlier, chosen, strict=True) if on), v)
                for chosen in product((0, 1), repeat=len(earlier))
            ]
        )
    for parts in product(*steps):
        yield replay(problem, [v for part in parts for v in part])


def solution_or_none(problem, budget):
    try:
        return solve(problem, budget)
    except BudgetTooSmall:
        return None


@settings(deadline=None, max_examples=40, derandomize=True)
@given(problems(most=4))
def test_between_the_bound_and_the_best(problem):
    if sum(not f for f in problem.is_forward) > 2:
        return
    found = sorted(set(every_sequence(problem)))
    peaks = {peak for peak, _ in found}
    for budget in {min(peaks), max(peaks), (min(peaks) + max(peaks)) // 2}:
        best = min((duration for peak, duration in found if peak <= budget), default=None)
        solution = solution_or_none(problem, budget)
        if solution is None:
            continue
        assert replay(problem, solution.sequence) == (solution.peak_bytes, solution.duration)
        assert solution.peak_bytes <= budget
        assert solution.bound_duration <= best
        assert solution.duration >= best


@settings(deadline=None, max_examples=40, derandomize=True)
@given(problems(most=4))
def test_the_smallest_peak_is_nearly_always_found(problem):
    """The smallest over every sequence tried, or the error names a budget that really works."""
    if sum(not f for f in problem.is_forward) > 2:
        return
    smallest = min(peak for peak, _ in every_sequence(problem))
    with pytest.raises(BudgetTooSmall) as refused:
        solve(problem, smallest - 1)
    assert refused.value.minimum_bytes >= smallest
    assert solve(problem, refused.value.minimum_bytes).peak_bytes <= refused.value.minimum_bytes


@pytest.mark.parametrize(("steps", "slots", "extra"), [(4, 4, 0), (4, 3, 1), (10, 11, 0)])
def test_a_uniform_chain(steps, slots, extra):
    """A state, a gradient and the result of an op are live at once; each further state is one unit."""
    solution = solve(chain(steps), slots + 1)
    assert solution.duration == 2 * steps + extra


def test_a_long_chain_fits_into_little_memory_at_few_repeats():
    """100 steps in 16 units: about two sweeps more would do for Chen's square root, binomial needs fewer."""
    problem = chain(100)
    solution = solve(problem, 16)
    assert solution.peak_bytes <= 16
    assert solution.duration <= 200 + 2 * 100


def test_equal_calls_give_equal_answers():
    problem = chain(12, size=3)
    assert solve(problem, 21) == solve(problem, 21)


def test_every_op_may_repeat():
    """No forward and backward: op 0 is cheap and big, its second use is far away."""
    problem = Problem([1, 5, 5, 5, 1], [10, 6, 6, 6, 1], [[], [0], [1], [2], [0, 3]], [True] * 5, [4])
    assert replay(problem, range(5))[0] == 22
    solution = solve(problem, 17)
    assert solution.sequence == (0, 1, 2, 3, 0, 4)
    assert (solution.peak_bytes, solution.duration, solution.bound_duration) == (17, 18, 17)
    assert solution.gap == pytest.approx(1 / 17)


def test_outputs_stay():
    problem = Problem([1, 1, 1], [4, 4, 4], [[], [0], [1]], [True, True, True], [0, 2])
    assert replay(problem, (0, 1, 2))[0] == 12
    assert replay(replace(problem, outputs=[2]), (0, 1, 2))[0] == 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bytes": [1]}, "bytes has 1 entries, duration has 3"),
        ({"duration": [1, -2, 1]}, r"duration\[1\] is -2"),
        ({"bytes": [1, 1.5, 1]}, r"bytes\[1\] is 1.5"),
        ({"inputs": [[], [2], [1]]}, "op 1 reads value 2"),
        ({"outputs": [3]}, "outputs has value 3; there are ops 0..2"),
    ],
)
def test_refuses_what_is_no_problem(change, words):
    columns = {
        "duration": [1, 1, 1],
        "bytes": [1, 1, 1],
        "inputs": [[], [0], [1]],
        "is_forward": [True] * 3,
        "outputs": [2],
    }
    with pytest.raises(ProblemError, match=words):
        Problem(**{**columns, **change})


@pytest.mark.parametrize(
    ("budget", "limit", "words"), [("1GiB", 1, "budget_bytes"), (True, 1, "bool|True"), (5, 0, "time_limit")]
)
def test_refuses_what_is_no_budget(budget, limit, words):
    with pytest.raises(ProblemError, match=words):
        solve(chain(3), budget, time_limit=limit)


@pytest.mark.parametrize(
    ("sequence", "words"),
    [
        ((0, 1, 2, 3, 3, 4, 5), "op 3 runs twice"),
        ((0, 2, 1, 3, 4, 5), "op 2 runs before op 1"),
        ((0, 1, 2, 3, 4), "op 5 never"),
    ],
)
def test_a_wrong_sequence_is_refused(sequence, words):
    with pytest.raises(SolverError, match=words):
        replay(chain(3), sequence)


def test_time_is_kept_and_told():
    solution = solve(chain(60), 12, time_limit=1e-6)
    assert not solution.is_complete
    assert solution.peak_bytes <= 12


def test_rounds_are_told():
    rounds = []
    solve(chain(20), 9, on_round=rounds.append)
    assert rounds == list(range(1, len(rounds) + 1))


def test_the_room_is_called_like_its_function():
    assert rematpass.solve(chain(3), 8) == rematpass.solve.solve(chain(3), 8)


def test_works_without_torch():
    code = """import sys; sys.modules["torch"] = None
import rematpass.solve as s; print(s(s.Problem([1], [1], [[]], [True], [0]), 1))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "sequence=(0,)" in done.stdout
