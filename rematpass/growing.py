"""Dynamic sizes that nothing bounds: how far a plan goes.

In: a joint graph, settings. Out: both halves, and a guard: above the sizes that the plan holds for, dynamo compiles
again and another plan is made. Never plans itself.

A plan for the sizes of the first batch says nothing of a longer one. A plan for any size would recompute all it can.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress

from .errors import BudgetTooSmall
from .graph.capture import JointProgram
from .graph.sizes import GrowingSize, growing_sizes, guard_limits, next_power, plan_up_to
from .pipeline import Planned, Settings, find_plan, plan_and_split

# Where the fastest plan still fits at so many times the sizes seen, it is the plan for all of them: dynamo compiles a
# function at most eight times.
AMPLE_GROWTH = (32, 4)
# Else up to the next power of two, so that ranks with batches of their own make one plan; of the way there, so much
# where nothing fits further up.
SHARES = (1.0, 0.5, 0.25, 0.0)


def plan_growing(joint: JointProgram, settings: Settings, graph_name: str) -> Planned:
    """All steps, for sizes somewhat larger than those seen.

    Raises:
        BudgetTooSmall: nothing fits at the sizes seen.
    """
    sizes = growing_sizes(node.meta.get("val") for node in joint.nodes)
    if not sizes or settings.budget_bytes is None or settings.replay is not None:
        return plan_and_split(joint, settings, graph_name)
    seen = {symbol: size.seen for symbol, size in sizes.items()}
    limits = _limits(joint, settings, graph_name, sizes, seen)
    plan_up_to(sizes, limits or seen)
    told = ", ".join(f"{symbol} <= {limit}" for symbol, limit in sorted((limits or seen).items()))
    above = "a larger one is compiled once more, with a plan of its own" if limits else "a larger one needs more"
    note = (
        f"dynamic sizes without an upper bound, planned for {told}; {above}. "
        "Try: torch._dynamo.mark_dynamic(tensor, dim, max=...)"
    )
    planned = plan_and_split(joint, dataclasses.replace(settings, notes=(*settings.notes, note)), graph_name)
    guard_limits(sizes, limits or {})
    return planned


def _limits(
    joint: JointProgram,
    settings: Settings,
    graph_name: str,
    sizes: Mapping[str, GrowingSize],
    seen: Mapping[str, int],
) -> dict[str, int] | None:
    """Per symbol the largest size to plan for; None where nothing fits at the sizes seen."""
    strict = dataclasses.replace(settings, on_infeasible="error")
    for limits, must_be_fastest in _candidates(seen):
        plan_up_to(sizes, limits)
        with suppress(BudgetTooSmall):
            plan, _, _ = find_plan(joint, strict, graph_name)
            if plan.peak_bytes == plan.fastest_peak_bytes or not must_be_fastest:
                return limits
    return None


def _candidates(seen: Mapping[str, int]) -> Iterator[tuple[dict[str, int], bool]]:
    """Limits to try, and whether nothing must be recomputed there."""
    whole = {symbol: next_power(size) for symbol, size in seen.items()}
    for growth in AMPLE_GROWTH:
        yield {symbol: growth * size for symbol, size in whole.items()}, True
    for share in SHARES:
        yield {symbol: size + int(share * (whole[symbol] - size)) for symbol, size in seen.items()}, False
