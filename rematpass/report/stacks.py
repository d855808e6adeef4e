"""Live bytes at every position of a plan, by what they belong to.

In: a `Plan`. Out: named rows of bytes that add up to its timeline. Never decides, never draws.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rematpass.plan_types import Plan

from .explain import alive_at_peak, fold_path

INPUTS = "parameters, buffers and batch"
OTHERS = "other modules"
SCRATCH = "scratch of the op that runs"


@dataclass(frozen=True)
class Stack:
    """One row: what it is called, and its bytes at each position of the timeline."""

    label: str
    live_bytes: NDArray[np.int64]


def stack_by_module(plan: Plan, most: int = 8) -> list[Stack]:
    """Rows from the bottom up: the graph's inputs, the `most` largest modules, all others, scratch.

    Modules count with equal layers folded, in the order of what they hold at the peak.
    """
    count = len(plan.timeline)
    at_peak: Counter[str] = Counter()
    for life in alive_at_peak(plan):
        at_peak[fold_path(life.module)] += life.bytes
    named = [path for path, _ in at_peak.most_common(most) if path]
    changes = {path: np.zeros(count + 1, dtype=np.int64) for path in (*named, OTHERS)}
    for life in plan.lives:
        path = fold_path(life.module)
        change = changes[path if path in changes else OTHERS]
        change[life.first] += life.bytes
        change[life.last + 1] -= life.bytes
    rows = [Stack(INPUTS, np.full(count, plan.static_bytes))]
    rows += [Stack(path, np.cumsum(change)[:count]) for path, change in changes.items()]
    total = np.array([point.live_bytes for point in plan.timeline], dtype=np.int64)
    scratch = total - sum((row.live_bytes for row in rows), np.zeros(count, dtype=np.int64))
    return [*rows, Stack(SCRATCH, scratch)]
