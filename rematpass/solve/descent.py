"""Find a budget's place on a curve of plans while simulating only the plans on the way.

In: ordered plans, some not made yet, and a way to simulate one. Out: the two neighbours around a budget.
Never decides what to recompute.

A binary search tree over plans, fastest first. Which plan stands at a node, and whether it counts, depends on the nodes
above it only, never on the budget: every budget walks down the same tree. So the plans a tree can return form one list,
peaks falling and extra time rising along it, and a smaller budget never gets a higher peak or less extra time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .program import Decision


@dataclass(frozen=True)
class FrontierPoint:
    """A simulated plan: its peak and its extra time.

    `start` is where a search for other plans goes on from: the same executions, but functions that free memory run at
    their place (core/hurry.cpp), unless a gradient waits besides. What they read early may be computed again later in
    a plan that keeps less.
    """

    peak_bytes: int
    extra_ns: int
    decision: Decision
    start: Decision


@dataclass(frozen=True)
class Box:
    """Two neighbours on a curve: `fast` has the higher peak, `small` takes longer."""

    fast: FrontierPoint
    small: FrontierPoint

    def holds(self, point: FrontierPoint) -> bool:
        """Whether a plan lies between the two: smaller than `fast`, no faster; faster than `small`, and larger."""
        is_smaller = self.small.peak_bytes < point.peak_bytes < self.fast.peak_bytes
        return is_smaller and self.fast.extra_ns <= point.extra_ns < self.small.extra_ns


Evaluate = Callable[[Decision], FrontierPoint | None]


@dataclass(frozen=True)
class PlanList:
    """A tree over plans start..stop-1 of a list, in order of their extra time, made when asked for."""

    make: Callable[[int], Decision]
    start: int
    stop: int

    def open(self) -> tuple[PlanList | None, Decision, PlanList | None]:
        """The faster plans, the one in the middle, the slower ones."""
        middle = (self.start + self.stop) // 2
        return self._part(self.start, middle), self.make(middle), self._part(middle + 1, self.stop)

    def _part(self, start: int, stop: int) -> PlanList | None:
        return PlanList(self.make, start, stop) if start < stop else None


def descend(
    tree: PlanList | None,
    box: Box,
    is_small: Callable[[FrontierPoint], bool],
    evaluate: Evaluate,
    is_worth: Callable[[FrontierPoint], bool] | None = None,
) -> Box:
    """Walk down to the two neighbours between which `is_small` turns true.

    A plan outside its box is no neighbour of anything: the walk goes on with the faster plans, as on a curve whose
    peaks fall at first and rise again where too little is kept.

    Args:
        tree: plans inside `box`.
        box: its `fast` is not small, its `small` is.
        is_small: whether a plan fits (or takes a certain time): false for faster plans, true for slower ones.
        evaluate: simulates a plan; None when there is no time left, which ends the walk.
        is_worth: plans that it refuses count as outside.
    """
    while tree is not None:
        faster, decision, slower = tree.open()
        point = evaluate(decision)
        if point is None:
            return box
        if not box.holds(point) or (is_worth is not None and not is_worth(point)):
            tree = faster
        elif is_small(point):
            box, tree = Box(box.fast, point), faster
        else:
            box, tree = Box(point, box.small), slower
    return box
