"""All plans worth having for a program, and the cheapest that fits a budget.

In: a `Program`. Out: `Frontier`, simulated byte-exactly; one list for every budget, so a smaller budget never gets a
higher peak nor a shorter time. Never rounds, never estimates: what the chain promises is simulated before it counts.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .bound import HullBound, hull_bound
from .chain import solve_chain
from .closure import Closure, fill_between, sweep_closures
from .frontier import closure_problem, model_stages
from .liveness import Timeline, simulate
from .order import order_backward
from .program import Decision, Kind, Program
from .recipe import run_recipe
from .stages import Stages, find_stages

# Closures of the whole graph that are simulated beside the plans of the chain. They matter near the fastest plan, where
# no boundary need be kept. On two 8-block transformers and a 100-layer chain 6 changed nothing, and 24 only one plan,
# by 8 % of its extra time (2026-11).
WHOLE_CLOSURES = 12
# Simulated whatever the time limit: the smallest and the fastest plan.
FIRST_PLANS = 2


@dataclass(frozen=True)
class FrontierPoint:
    """A plan that no other beats in both peak and extra time."""

    peak_bytes: int
    extra_ns: int
    decision: Decision
    timeline: Timeline


@dataclass(frozen=True)
class Frontier:
    """Plans from the fastest (highest peak) to the smallest peak, and a bound on extra time.

    `is_complete` is False when the time limit cut the search short.
    """

    points: tuple[FrontierPoint, ...]
    bound: HullBound
    is_complete: bool = True

    def choose(self, budget_bytes: int | None) -> int | None:
        """Index of the cheapest plan whose peak fits, None when none does; no budget means the fastest."""
        if budget_bytes is None:
            return 0
        return next((i for i, p in enumerate(self.points) if p.peak_bytes <= budget_bytes), None)


def sweep_frontier(program: Program, time_limit: float = math.inf) -> Frontier:
    """Simulate the plans of the chain and of the whole-graph closures, keep the Pareto-optimal ones.

    Args:
        program: what to plan.
        time_limit: seconds for simulating plans beyond the first ones (the fastest and the smallest); what was found by
            then is used. Plans come coarse first, so that a short limit still covers the whole range.
    """
    stages = find_stages(program)
    hull, values = _whole_hull(program, stages)
    plans = itertools.chain(_chain_plans(program, stages), _closure_plans(program, hull, values))
    found: dict[tuple[int, ...], FrontierPoint] = {}
    start, is_complete = time.monotonic(), True
    for decision in plans:
        if len(found) >= FIRST_PLANS and time.monotonic() - start > time_limit:
            is_complete = False
            break
        if decision.schedule.backward not in found:
            timeline = simulate(program, decision.schedule)
            point = FrontierPoint(timeline.peak_bytes, decision.recompute_ns, decision, timeline)
            found[decision.schedule.backward] = point
    return Frontier(_pareto(found.values()), hull_bound(program, hull), is_complete)


def _whole_hull(program: Program, stages: Stages) -> tuple[tuple[Closure, ...], list[int]]:
    """Closures over the whole forward, no boundary forced."""
    mine = [v for ops in stages.forward for v in ops if not stages.from_inputs[v]]
    wanted = {
        u
        for v in range(len(program))
        if program.is_backward[v]
        for u in program.inputs[v]
        if not program.is_backward[u] and program.kind[u] not in (Kind.INPUT, Kind.SYMBOL)
    }
    wanted |= {v for v in program.backward_outputs if not program.is_backward[v]}
    problem, values = closure_problem(program, mine, wanted, (), stages.from_inputs)
    hull = sweep_closures(problem)
    filled: list[Closure] = []
    for upper, lower in itertools.pairwise(hull):
        filled += [upper, *fill_between(problem, upper, lower)]
    return (*filled, hull[-1]), values


def _chain_plans(program: Program, stages: Stages) -> Iterator[Decision]:
    boundary = [frozenset(b) for b in stages.boundary]

    def added_bytes(i: int, k: int) -> int:
        return sum(program.size_bytes[v] for v in boundary[k] - boundary[i])

    points = solve_chain(model_stages(program, stages), added_bytes)
    for place in coarse_first(len(points)):
        yield run_recipe(program, stages, points[place].recipe)


def coarse_first(count: int) -> list[int]:
    """0..count-1, both ends first, then ever finer steps between them.

    >>> coarse_first(6)
    [0, 5, 4, 2, 1, 3]
    """
    order = dict.fromkeys([0, count - 1]) if count else {}
    step = 1 << max(0, count - 1).bit_length()
    while step:
        order.update(dict.fromkeys(range(0, count, step)))
        step //= 2
    return list(order)


def _closure_plans(program: Program, hull: Sequence[Closure], values: list[int]) -> Iterator[Decision]:
    places = np.unique(np.linspace(0, len(hull) - 1, WHOLE_CLOSURES).round().astype(int))
    for place in places.tolist():
        yield order_backward(program, (values[i] for i in np.flatnonzero(hull[place].kept).tolist()))


def _pareto(points: Iterable[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """Fastest first; each next one has a strictly smaller peak."""
    best: list[FrontierPoint] = []
    for p in sorted(points, key=lambda p: (p.extra_ns, p.peak_bytes, len(p.decision.schedule.backward))):
        if not best or p.peak_bytes < best[-1].peak_bytes:
            best.append(p)
    return tuple(best)
