"""The solver by itself: any list of ops with durations, sizes and inputs, no torch, no graph.

In: a `Problem` and a budget. Out: `Solution`, a sequence that fits, with a bound on its duration. Never trusts the
search: every sequence is replayed op by op before it is returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..errors import BudgetTooSmall, ProblemError, SolverError
from .bound import Bound
from .effort import Effort
from .order import make_decision
from .program import Decision, Kind, Program, Schedule
from .repair import Limits, Repaired, repair
from .search import Frontier

# Rounds of the local search, and how many without a better plan end it. On the published resnet50 at 30 and 20 % of its
# memory, a tenth of both costs 2 and 8 % of the extra time; seven times as many rounds and ten times the patience gain
# 0 and 2 % and take a second more (2026-11).
ROUNDS = 3000
PATIENCE = 1000
# Steps by which the smallest peak is looked for, and rounds for each. On `layered_n100`, a fifth of the rounds ends at
# a smallest peak that is 2 % higher, twice the rounds and two more steps at one 1 % lower (2026-11).
SQUEEZES = 6
SQUEEZE_ROUNDS = 200


@dataclass(frozen=True)
class Problem:
    """Ops 0..n-1 in an order in which they can run; op i makes value i.

    Attributes:
        duration: time of each op, in any integer unit.
        bytes: size of each value.
        inputs: per op, the values it reads; all are made by earlier ops.
        is_forward: per op, it may run more than once. Others run exactly once, in the given order.
        outputs: values that are needed after the last op.

    Raises:
        ProblemError: columns of different lengths, negative figures, an op that reads a later one.
    """

    duration: Sequence[int]
    bytes: Sequence[int]
    inputs: Sequence[Sequence[int]]
    is_forward: Sequence[bool]
    outputs: Sequence[int]

    def __post_init__(self) -> None:
        count = len(self.duration)
        for name in ("bytes", "inputs", "is_forward"):
            if len(getattr(self, name)) != count:
                raise ProblemError(f"{name} has {len(getattr(self, name))} entries, duration has {count}")
        figures = [(name, v, figure) for name in ("duration", "bytes") for v, figure in enumerate(getattr(self, name))]
        for name, v, figure in figures:
            if not isinstance(figure, int) or figure < 0:
                raise ProblemError(f"{name}[{v}] is {figure!r}; it must be an integer of at least 0")
        for v, reads in enumerate(self.inputs):
            late = [u for u in reads if not 0 <= u < v]
            if late:
                raise ProblemError(f"op {v} reads value {late[0]}, which is not made by an earlier op")
        unknown = [v for v in self.outputs if not 0 <= v < count]
        if unknown:
            raise ProblemError(f"outputs has value {unknown[0]}; there are ops 0..{count - 1}")


@dataclass(frozen=True)
class Solution:
    """A sequence of ops that fits the budget.

    Attributes:
        sequence: ops as they run; each op at least once, the first time in the given order.
        peak_bytes: highest bytes live while one of them runs.
        duration: sum over the sequence.
        bound_duration: no sequence that runs the ops for the first time in the given order and fits is shorter.
        is_complete: False when `time_limit` ended the search.
    """

    sequence: tuple[int, ...]
    peak_bytes: int
    duration: int
    bound_duration: int
    is_complete: bool = field(default=True, compare=False)

    @property
    def gap(self) -> float:
        """(duration - bound) / bound: at most this share longer than the best."""
        return (self.duration - self.bound_duration) / self.bound_duration if self.bound_duration else 0.0


def solve(
    problem: Problem,
    budget_bytes: int,
    *,
    time_limit: float = 5.0,
    on_round: Callable[[int], object] | None = None,
) -> Solution:
    """A short sequence whose peak fits the budget.

    A value lives from its computation to its last use before it is computed again; while an op runs, its inputs and its
    result are live. Outputs stay to the end.

    Args:
        problem: what to run.
        budget_bytes: most bytes live at any time.
        time_limit: seconds; when they are over, the best sequence so far is returned. Equal calls give equal
            sequences as long as the limit does not strike.
        on_round: called with the number of each round of the local search, for a progress bar.

    Raises:
        BudgetTooSmall: no sequence found fits; `minimum_bytes` is the smallest budget one was found for.
        ProblemError: the budget or the limit is no number of bytes or seconds.

    Example:
        A forward of three ops and its backward. Kept values need 4 units; with 3, the first op runs twice:

        >>> inputs = [[], [0], [1], [2], [3, 1], [4, 0]]
        >>> chain = Problem([1] * 6, [1] * 6, inputs, [True] * 3 + [False] * 3, outputs=[5])
        >>> solve(chain, 4).sequence
        (0, 1, 2, 3, 4, 5)
        >>> tight = solve(chain, 3)
        >>> tight.sequence, tight.peak_bytes, tight.duration
        ((0, 1, 2, 3, 4, 0, 5), 3, 7)
    """
    if isinstance(budget_bytes, bool) or not isinstance(budget_bytes, int):
        raise ProblemError(f"budget_bytes is {budget_bytes!r}; it must be an integer number of bytes")
    if not time_limit > 0:
        raise ProblemError(f"time_limit is {time_limit!r}; it must be a number of seconds above 0")
    search = _Search(problem, time.monotonic() + time_limit)
    start = search.starting_point(budget_bytes)
    found = search.improve(start, budget_bytes, on_round)
    assert found.decision is not None, "the start fits"
    sequence = (*found.decision.schedule.forward, *found.decision.schedule.backward)
    peak, duration = replay(problem, sequence)
    if peak > budget_bytes:
        raise SolverError(f"the sequence found needs {peak} bytes, not {budget_bytes}")
    bound = search.bound_duration(budget_bytes, found.decision)
    return Solution(sequence, peak, duration, min(bound, duration), found.is_complete)


def replay(problem: Problem, sequence: Sequence[int]) -> tuple[int, int]:
    """Peak and duration of a sequence, op by op.

    Raises:
        SolverError: an op reads what was not computed, runs again though it must not, or never runs.
    """
    last_use: list[int] = [-1] * len(sequence)
    latest: dict[int, int] = {}
    for at, v in enumerate(sequence):
        if v in latest and not problem.is_forward[v]:
            raise SolverError(f"op {v} runs twice but must not")
        for u in problem.inputs[v]:
            if u not in latest:
                raise SolverError(f"op {v} runs before op {u}, which it reads")
            last_use[latest[u]] = at
        latest[v] = last_use[at] = at
    missing = [v for v in range(len(problem.duration)) if v not in latest]
    if missing:
        raise SolverError(f"op {missing[0]} never runs")
    for v in problem.outputs:
        last_use[latest[v]] = len(sequence)
    live = peak = 0
    ending: dict[int, int] = {}
    for at, v in enumerate(sequence):
        live += problem.bytes[v]
        peak = max(peak, live)
        ending[last_use[at]] = ending.get(last_use[at], 0) + problem.bytes[v]
        live -= ending.pop(at, 0)
    return peak, sum(problem.duration[v] for v in sequence)


class _Search:
    """The problem as a `Program`; a frontier to start from where there are a forward and a backward."""

    def __init__(self, problem: Problem, stop: float) -> None:
        self._problem = problem
        self._stop = stop
        self._total = sum(problem.duration)
        is_backward = _depends_on_backward(problem)
        first = is_backward.index(True) if any(is_backward) else 0
        has_two_halves = first > 0 and all(is_backward[first:])
        self._program = _to_program(problem, is_backward, has_two_halves=has_two_halves)
        self._bound = Bound(self._program)
        self._frontier: Frontier | None = None
        if has_two_halves:
            seconds = max(0.0, stop - time.monotonic())
            self._frontier = Frontier(self._program, Effort(seconds, is_local=False))

    def starting_point(self, budget_bytes: int) -> Decision:
        """A plan that fits. The way to it does not depend on the budget, only how far it is followed."""
        if self._frontier is None:
            start = make_decision(self._program, Schedule((), tuple(range(len(self._program)))))
            peak = replay(self._problem, start.schedule.backward)[0]
        else:
            point = self._frontier.choose(budget_bytes)
            start, peak = (point or self._frontier.smallest).decision, (point or self._frontier.smallest).peak_bytes
        lower = self._bound.peak_bytes
        for _ in range(SQUEEZES):
            if peak <= budget_bytes or lower >= peak:
                break
            target = (lower + peak) // 2
            found = repair(
                self._program, start, target, Limits(SQUEEZE_ROUNDS, SQUEEZE_ROUNDS, self._stop, self._total)
            )
            if found.decision is None:
                lower = target + 1
            else:
                start = found.decision
                peak = replay(self._problem, (*start.schedule.forward, *start.schedule.backward))[0]
        if peak > budget_bytes:
            raise BudgetTooSmall(budget_bytes, peak)
        return start

    def improve(self, start: Decision, budget_bytes: int, on_round: Callable[[int], object] | None) -> Repaired:
        """Local search from a plan that fits, until the bound is reached."""
        enough = self._bound_ns(budget_bytes, start, None)
        if start.recompute_ns <= enough:
            return Repaired(start, 0, is_complete=True)
        found = repair(self._program, start, budget_bytes, Limits(ROUNDS, PATIENCE, self._stop, enough), on_round)
        return found if found.decision is not None else Repaired(start, found.rounds, found.is_complete)

    def bound_duration(self, budget_bytes: int, decision: Decision) -> int:
        """No sequence is shorter: every op once, and what the closure says must run again."""
        return self._total + self._bound_ns(budget_bytes, decision, decision.recompute_ns)

    def _bound_ns(self, budget_bytes: int, decision: Decision, known_ns: int | None) -> int:
        if self._frontier is None:
            return 0
        return int(self._bound.extra_ns_at(budget_bytes, self._frontier.moments(decision), known_ns))


def _depends_on_backward(problem: Problem) -> list[bool]:
    """Ops that run once: the others may run again, and read only values that may."""
    result: list[bool] = []
    for is_forward, reads in zip(problem.is_forward, problem.inputs, strict=True):
        result.append(not is_forward or any(result[u] for u in reads))
    return result


def _to_program(problem: Problem, is_backward: list[bool], *, has_two_halves: bool) -> Program:
    """Every op stores its result. Without two halves all ops belong to one sequence, the "backward"."""
    count = len(problem.duration)
    return Program(
        kind=(Kind.EXTERN,) * count,
        inputs=tuple(tuple(dict.fromkeys(reads)) for reads in problem.inputs),
        root=tuple(range(count)),
        size_bytes=tuple(problem.bytes),
        duration_ns=tuple(problem.duration),
        workspace_bytes=(0,) * count,
        is_backward=tuple(is_backward),
        in_forward=tuple(has_two_halves and not b for b in is_backward),
        may_recompute=tuple(not b for b in is_backward),
        may_keep=(True,) * count,
        is_fixed=(True,) * count,  # sequences keep the given order
        is_heavy=(False,) * count,
        is_drawn=(False,) * count,
        forward_outputs=(),
        backward_outputs=tuple(problem.outputs),
        static_bytes=0,
        is_fusing=False,
    )
