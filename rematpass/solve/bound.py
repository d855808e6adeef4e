"""How good any plan could be: a lower bound on extra time at a budget.

In: the closures of the whole graph. Out: `HullBound`. Never looks at an order: what it says holds for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .closure import Closure
from .program import Program


@dataclass(frozen=True)
class HullBound:
    """Lower hull of (kept bytes, extra time) over all kept sets, and what is live besides when the backward starts.

    When the backward starts, everything kept is live at once, with the inputs and outputs of the forward. Whatever is
    needed and not kept is computed again at least once. So no plan, with any order and any number of recomputations,
    beats the linear-programming value of the closure at `budget - fixed_bytes` kept bytes: the hull there (Lagrangian
    duality; the constraint matrix of a closure is totally unimodular).
    """

    kept_bytes: tuple[int, ...]
    extra_ns: tuple[int, ...]
    fixed_bytes: int

    def extra_ns_at(self, budget_bytes: int | None) -> float:
        """Least extra time, in ns, of any plan whose peak fits the budget."""
        if budget_bytes is None:
            return float(self.extra_ns[0])
        room = budget_bytes - self.fixed_bytes
        if room >= self.kept_bytes[0]:
            return float(self.extra_ns[0])
        for i in range(1, len(self.kept_bytes)):
            if room >= self.kept_bytes[i]:
                span = self.kept_bytes[i - 1] - self.kept_bytes[i]
                share = (self.kept_bytes[i - 1] - room) / span
                return self.extra_ns[i - 1] + share * (self.extra_ns[i] - self.extra_ns[i - 1])
        return float(self.extra_ns[-1])


def hull_bound(program: Program, hull: Sequence[Closure]) -> HullBound:
    """The bound from closures sorted from fastest to fewest kept bytes; points above the hull are dropped."""
    outputs = {program.root[v] for v in program.forward_outputs}
    fixed = program.static_bytes + sum(program.size_bytes[v] for v in outputs)
    corners: list[tuple[int, int]] = []
    for closure in hull:
        point = (closure.kept_bytes, closure.extra_ns)
        while len(corners) > 1 and not _is_convex(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    return HullBound(tuple(b for b, _ in corners), tuple(t for _, t in corners), fixed)


def _is_convex(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    """Whether b lies strictly below the line from a to c (bytes fall, time rises)."""
    return (b[1] - a[1]) * (a[0] - c[0]) < (c[1] - a[1]) * (a[0] - b[0])
