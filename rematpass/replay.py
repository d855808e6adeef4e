"""A plan made elsewhere, followed here.

In: a plan read from a file, and the graph that is here. Out: the decision it records, or `PlanFileError` saying what
differs. Never plans, never repairs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from .check.schedule import check_schedule
from .errors import PlanFileError, SplitError
from .graph.facts import Facts
from .plan_types import Decision as Verdict
from .plan_types import Plan
from .solve.liveness import simulate
from .solve.order import make_decision
from .solve.program import Decision, Kind, Program, Schedule

MOST_DIFFERENCES = 4
"""Differences that a message names; more do not help to find the cause."""

_AGAIN = "Try: plan again here, or bring model, sizes, dtype and versions to what the plan was made for"


def replay_decision(plan: Plan, program: Program, facts: Facts, graph_fingerprint: str) -> Decision:
    """What `plan` decided, in terms of the graph that is here: the same kept values, the same order of the backward.

    Raises:
        PlanFileError: another graph, or a plan that this graph cannot follow; the message names what differs.
    """
    if plan.graph_fingerprint != graph_fingerprint:
        raise PlanFileError(_explain_graph(plan, program, facts))
    names = [value.name for value in facts.values]
    schedule = _read_schedule(plan, program, names)
    decision = make_decision(program, schedule)
    try:
        check_schedule(program, decision, names)
    except SplitError as error:
        raise PlanFileError(f"the plan is not safe to follow: {error}. {_AGAIN}") from error
    _check_memory(plan, program, decision)
    _check_kept(plan, program, decision, names)
    return decision


def _read_schedule(plan: Plan, program: Program, names: Sequence[str]) -> Schedule:
    numbers = {name: v for v, name in enumerate(names)}
    forward = program.forward_ops
    executed = [names[v] for v in forward if program.kind[v] not in (Kind.INPUT, Kind.SYMBOL)]
    recorded = [point.op for point in plan.timeline if point.phase == "forward"]
    if recorded != executed:
        raise PlanFileError(f"the plan's forward runs other ops: {_first(recorded, executed)}. {_AGAIN}")
    backward = [point.op for point in plan.timeline if point.phase == "backward"]
    unknown = [name for name in backward if name not in numbers]
    if unknown:
        raise PlanFileError(f"the plan's backward runs {unknown[0]}, which the graph does not have. {_AGAIN}")
    return Schedule(forward, tuple(numbers[name] for name in backward))


def _check_memory(plan: Plan, program: Program, decision: Decision) -> None:
    """The peak that was promised is the peak here."""
    timeline = simulate(program, decision.schedule)
    live = (*timeline.forward_bytes, *timeline.backward_bytes)
    pairs = zip(plan.timeline, live, strict=True)
    wrong = next(((point, here) for point, here in pairs if point.live_bytes != here), None)
    if wrong is not None:
        point, here = wrong
        raise PlanFileError(
            f"the plan was made for {plan.device}: it counts {point.live_bytes} bytes while the {point.phase} runs "
            f"{point.op}, but here {here} are live (another kind of device or number of threads). {_AGAIN}"
        )


def _check_kept(plan: Plan, program: Program, decision: Decision, names: Sequence[str]) -> None:
    """What the records call kept is what the schedule keeps."""
    recorded = {value.name for value in plan.values if value.decision is Verdict.KEEP}
    kept = {names[v] for v in decision.kept if program.size_bytes[v]}
    if recorded != kept:
        differing = ", ".join(sorted(recorded ^ kept)[:MOST_DIFFERENCES])
        raise PlanFileError(f"the plan contradicts itself about what is kept: {differing}. {_AGAIN}")


def _explain_graph(plan: Plan, program: Program, facts: Facts) -> str:
    found = list(itertools.islice(_differences(plan, program, facts), MOST_DIFFERENCES))
    what = "; ".join(found) or "its inputs, or how values are made of each other"
    is_elsewhere = plan.device.startswith("cpu") != (facts.device_type == "cpu")
    where = f", on {plan.device}: another kind of device runs another" if is_elsewhere else ""
    source = f" The plan is of {plan.source}." if plan.source else ""
    return f"the plan was made for another graph{where}.{source} What differs: {what}. {_AGAIN}"


def _differences(plan: Plan, program: Program, facts: Facts) -> Iterator[str]:
    """Sizes and dtypes of values of one name first: most often it is those; then ops that only one side has."""
    here = {value.name: value for value in facts.values}
    for value in plan.values:
        there = here.get(value.name)
        if there is not None and (value.shape, value.dtype) != (there.shape, there.dtype):
            yield f"{value.name} is {value.dtype} {value.shape} in the plan, {there.dtype} {there.shape} here"
    recorded = {point.op for point in plan.timeline}
    executed = {value.name for value in facts.values if value.kind not in (Kind.INPUT, Kind.SYMBOL)}
    never_run = {value.name for v, value in enumerate(facts.values) if not _is_needed(program, v)}
    for words, names in (
        ("only the plan has", recorded - executed),
        ("only the graph has", executed - recorded - never_run),
    ):
        counts = Counter(name.rstrip("0123456789").rstrip("_") for name in names)
        yield from (f"{words} {count} x {name}" for name, count in counts.most_common())
    if plan.static_bytes != facts.static_bytes:  # a batch handed over twice is one input, not two
        yield f"parameters, buffers and batch take {plan.static_bytes} bytes in the plan, {facts.static_bytes} here"


def _is_needed(program: Program, v: int) -> bool:
    return program.in_forward[v] or program.is_backward[v]


def _first(recorded: Sequence[str], executed: Sequence[str]) -> str:
    pairs = itertools.zip_longest(recorded, executed, fillvalue="nothing")
    place, (theirs, ours) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    return f"op {place} is {theirs} in the plan, {ours} here"
