"""What people do by hand and what torch does by itself, simulated on the planner's terms.

In: a captured joint graph and its case. Out: peak, extra time and extra operations per strategy. Never plans.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from bench.architectures import Case
from bench.hand_strategies import Strategy, find_regions, kept_by_regions, strategies_of
from bench.joint_graphs import Captured, kept_by_torch
from rematpass.check.schedule import check_schedule
from rematpass.graph.facts import Facts
from rematpass.solve.liveness import simulate
from rematpass.solve.order import must_keep, order_backward
from rematpass.solve.program import Decision, Program, Schedule

# Torch's `activation_memory_budget`; 1.0 is what torch.compile does without being asked.
RATIOS = (1.0, 0.5, 0.3, 0.1)


@dataclass(frozen=True)
class Baseline:
    """A strategy as simulated: peak, kept bytes, and time and operations beyond running everything once."""

    strategy: str
    peak_bytes: int
    kept_bytes: int
    extra_ns: int
    extra_flops: int


@dataclass(frozen=True)
class Failure:
    """A strategy that torch could not follow on this graph, and what it said."""

    strategy: str
    reason: str


def collect_baselines(captured: Captured, case: Case) -> tuple[list[Baseline], list[Failure]]:
    """All strategies of the case, then torch's own ratios, each in its best light.

    `torch.utils.checkpoint` is simulated twice: as autograd would save, keeping outside of the regions whatever the
    backward reads; and as torch.compile does ("min cut"), which cuts the rest of the graph at its least width. Where
    torch saves values that only the backward wants, such as the mask of a ReLU, leaving these to the backward is
    simulated as well ("masks late"). Variants of a strategy that another one beats in peak and time are left out.
    """
    found: list[Baseline] = []
    failures: list[Failure] = []
    modules = [value.module for value in captured.inputs.facts.values]
    for strategy in strategies_of(case):
        variants = _simulate_strategy(captured, strategy, modules, failures)
        found += drop_dominated(variants)
    for ratio in RATIOS:
        found += drop_dominated(_simulate_torch(captured, f"torch budget {ratio}", ratio, None, failures))
    return found, failures


def _simulate_strategy(
    captured: Captured, strategy: Strategy, modules: Sequence[str], failures: list[Failure]
) -> list[Baseline]:
    regions = find_regions(modules, strategy)
    kept = kept_by_regions(captured.inputs.program, regions)
    by_hand = measure_kept(captured, strategy.name, kept)
    return [by_hand, *_simulate_torch(captured, f"{strategy.name}, min cut", 1.0, regions, failures)]


def _simulate_torch(
    captured: Captured, name: str, ratio: float, regions: tuple[int | None, ...] | None, failures: list[Failure]
) -> list[Baseline]:
    try:
        kept = kept_by_torch(captured, ratio, regions)
    except Exception as error:  # the failure of another tool is a result: listed by name, counted in the last line
        failures.append(Failure(name, f"{type(error).__name__}: {error}".splitlines()[0]))
        return []
    in_forward = frozenset(v for v in kept if captured.inputs.program.in_forward[v])
    late = [] if in_forward == kept else [measure_kept(captured, f"{name}, masks late", in_forward)]
    return [measure_kept(captured, name, kept), *late]


def drop_dominated(variants: Sequence[Baseline]) -> list[Baseline]:
    """Those that no other one beats or equals in peak and time; of equals the first."""
    left: list[Baseline] = []
    for one in sorted(variants, key=lambda b: (b.peak_bytes, b.extra_ns)):
        if not any(b.peak_bytes <= one.peak_bytes and b.extra_ns <= one.extra_ns for b in left):
            left.append(one)
    return [b for b in variants if b in left]


def measure_kept(captured: Captured, name: str, kept: Collection[int]) -> Baseline:
    """Simulate a kept set with its recomputations right before their use; what must not run again is kept as well."""
    program, facts = captured.inputs.program, captured.inputs.facts
    must = must_keep(program, range(len(program)))
    decision = order_backward(program, {*kept, *must})
    decision = with_early_helpers(program, decision)
    check_schedule(program, decision, [value.name for value in facts.values])
    return Baseline(
        strategy=name,
        peak_bytes=simulate(program, decision.schedule).peak_bytes,
        kept_bytes=sum(program.size_bytes[v] for v in {program.root[v] for v in decision.kept}),
        extra_ns=decision.recompute_ns,
        extra_flops=extra_flops(program, facts, decision),
    )


def with_early_helpers(program: Program, decision: Decision) -> Decision:
    """The same with a forward that computes everything kept.

    The planner leaves to the backward what only the backward wants; torch may save it. Each such value is put right
    behind the last one it reads, so that nothing waits for it.
    """
    missing = _missing(program, decision.kept, set(decision.schedule.forward))
    forward = list(decision.schedule.forward)
    for v in missing:
        place = max((forward.index(u) for u in program.inputs[v] if u in forward), default=-1)
        forward.insert(place + 1, v)
    return dataclasses.replace(decision, schedule=Schedule(tuple(forward), decision.schedule.backward))


def _missing(program: Program, kept: Iterable[int], made: set[int]) -> list[int]:
    """What must run for `kept` beyond `made`, in order."""
    missing: set[int] = set()
    stack = [v for v in kept if v not in made]
    while stack:
        v = stack.pop()
        if v not in missing:
            missing.add(v)
            stack += [u for u in program.inputs[v] if u not in made]
    return sorted(missing)


def extra_flops(program: Program, facts: Facts, decision: Decision) -> int:
    """Operations of everything executed beyond once."""
    again = [v for v in decision.schedule.backward if not program.is_backward[v]]
    first = {v for v in again if v not in set(decision.schedule.forward)}
    return sum(facts.values[v].flops for v in again) - sum(facts.values[v].flops for v in first)
