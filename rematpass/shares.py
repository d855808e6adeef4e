"""One budget for several graphs: which plan each of them follows.

In: what plans of each graph take and hold, and at which moments which graphs hold something. Out: a plan per graph.
Never makes a plan.

A step of several graphs runs their forwards one after the other and their backwards in the opposite order, mostly.
While one of them runs, those whose forward is over and whose backward is not hold what they keep.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .plan_types import LifeRecord, Plan

# So many combinations of plans are all looked at; of more, each graph is made faster where that costs least memory.
MOST_COMBINATIONS = 20_000


@dataclass(frozen=True)
class Offer:
    """What one plan of a graph takes.

    Attributes:
        peak_bytes: while the graph runs, its inputs counted.
        held_bytes: what its forward keeps for its backward, between the two.
        extra_seconds: recomputation and traffic of what is kept.
    """

    peak_bytes: int
    held_bytes: int
    extra_seconds: float


@dataclass(frozen=True)
class Moment:
    """While one graph runs.

    Attributes:
        graph: its number.
        waiting: numbers of the graphs that hold what they keep then, one as often as it does.
        beside_bytes: what else is live that is not the graph's own.
        budget_bytes: for all of that.
    """

    graph: int
    waiting: tuple[int, ...]
    beside_bytes: int
    budget_bytes: int


def held_bytes(lives: Iterable[LifeRecord], forward_ops: int) -> int:
    """What a backward is handed: bytes kept that are there as it begins, at position `forward_ops` of the timeline."""
    return sum(life.bytes for life in lives if life.role == "kept" and life.first == forward_ops)


def offer_of(plan: Plan) -> Offer:
    """The plan that a graph follows now."""
    forward_ops = sum(moment.phase == "forward" for moment in plan.timeline)
    return Offer(plan.peak_bytes, held_bytes(plan.lives, forward_ops), plan.recompute_seconds)


def leaves_half(peak_bytes: int, budget_bytes: int, beside_bytes: int) -> bool:
    """Whether a graph leaves half of the memory to graphs that come after it, of which nothing is known yet.

    Args:
        peak_bytes: of the graph.
        budget_bytes: what it may take itself.
        beside_bytes: what is live beside it, which the budget has been lowered by.
    """
    return 2 * (peak_bytes + beside_bytes) <= budget_bytes + beside_bytes


def excess_bytes(moment: Moment, offers: Sequence[Offer]) -> int:
    """By how much a moment is over its budget; `offers` has the plan of each graph."""
    held = sum(offers[graph].held_bytes for graph in moment.waiting)
    return offers[moment.graph].peak_bytes + held + moment.beside_bytes - moment.budget_bytes


def choose_together(offers: Sequence[Sequence[Offer]], runs: Sequence[int], moments: Sequence[Moment]) -> list[int]:
    """Per graph, which of its offers, so that every moment keeps its budget at the least extra time.

    The best choice where there are few graphs; for more, a good one: from plans that hold least on, the plan that saves
    most time per byte of the moments' growth is taken, as long as one fits. Where nothing fits, what exceeds least.

    Args:
        offers: of each graph.
        runs: how often each graph runs in a step.
        moments: what must be kept.
    """
    if math.prod(map(len, offers)) <= MOST_COMBINATIONS:
        combinations = itertools.product(*(range(len(those)) for those in offers))
        best = min(
            combinations, key=lambda picks: (max(0, _excess(offers, picks, moments)), _seconds(offers, runs, picks))
        )
        return list(best)
    starts = [
        [min(range(len(those)), key=lambda i: (those[i].held_bytes, those[i].peak_bytes)) for those in offers],
        [min(range(len(those)), key=lambda i: (those[i].peak_bytes, those[i].held_bytes)) for those in offers],
    ]
    start = min(starts, key=lambda picks: _excess(offers, picks, moments))
    return _climb(offers, runs, moments, start) if _fits(offers, start, moments) else start


def _climb(
    offers: Sequence[Sequence[Offer]], runs: Sequence[int], moments: Sequence[Moment], start: list[int]
) -> list[int]:
    """One change after the other from `start` on, which fits."""

    def rate(picks: list[int]) -> float:
        saved = _seconds(offers, runs, present) - _seconds(offers, runs, picks)
        return saved / max(1, _used(offers, picks, moments) - _used(offers, present, moments))

    present = start
    while True:
        changes = [[*present[:g], i, *present[g + 1 :]] for g, those in enumerate(offers) for i in range(len(those))]
        best = max((picks for picks in changes if _fits(offers, picks, moments)), key=rate)
        if rate(best) <= 0:
            return present
        present = best


def _fits(offers: Sequence[Sequence[Offer]], picks: Sequence[int], moments: Sequence[Moment]) -> bool:
    return _excess(offers, picks, moments) <= 0


def _excess(offers: Sequence[Sequence[Offer]], picks: Sequence[int], moments: Sequence[Moment]) -> int:
    chosen = _chosen(offers, picks)
    return max((excess_bytes(moment, chosen) for moment in moments), default=0)


def _used(offers: Sequence[Sequence[Offer]], picks: Sequence[int], moments: Sequence[Moment]) -> int:
    chosen = _chosen(offers, picks)
    return sum(excess_bytes(moment, chosen) for moment in moments)


def _seconds(offers: Sequence[Sequence[Offer]], runs: Sequence[int], picks: Sequence[int]) -> float:
    return sum(offer.extra_seconds * count for offer, count in zip(_chosen(offers, picks), runs, strict=True))


def _chosen(offers: Sequence[Sequence[Offer]], picks: Sequence[int]) -> list[Offer]:
    return [those[place] for those, place in zip(offers, picks, strict=True)]
