"""Write down a chosen decision as a `Plan`: a reason, a size and a line for every value.

In: facts, constraints, prices, the frontier and the place chosen on it. Out: `Plan`. Never decides.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from .cost.values import Prices
from .graph.constraints import Constraints
from .graph.facts import Facts
from .lives import find_role, record_lives
from .mistakes import Dominating, find_flags, find_notes, idle_gradient_bytes
from .plan_types import (
    AliveRecord,
    Curve,
    CurvePoint,
    Decision,
    Neighbour,
    Phase,
    Plan,
    Role,
    TimelinePoint,
    ValueRecord,
    relative_gap,
)
from .report.sizes import format_bytes
from .solve.descent import FrontierPoint
from .solve.liveness import Timeline, list_alive, simulate
from .solve.program import Kind, Program
from .solve.search import Frontier

NS = 1e-9
# Below this share of a span that the budget could move, memory is said to be dominated by what cannot be planned.
FLAT_SHARE = 0.1


@dataclass(frozen=True)
class Request:
    """What was asked: the graph's name, fingerprints, the device, the budget (None: no limit); notes to pass on."""

    graph_name: str
    fingerprint: str
    graph_fingerprint: str
    device: str
    torch_version: str
    budget_bytes: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """Everything the planner knew about the graph."""

    facts: Facts
    constraints: Constraints
    prices: Prices
    program: Program


def record_plan(
    request: Request, inputs: Inputs, frontier: Frontier, point: FrontierPoint, plan_seconds: float
) -> Plan:
    """The plan at `point` of the frontier."""
    timeline = simulate(inputs.program, point.decision.schedule)
    alive = record_alive(inputs, point)
    bound_ns = frontier.bound_ns(request.budget_bytes, point)
    return Plan(
        graph_name=request.graph_name,
        fingerprint=request.fingerprint,
        device=request.device,
        torch_version=request.torch_version,
        budget_bytes=request.budget_bytes,
        peak_bytes=point.peak_bytes,
        fastest_peak_bytes=frontier.fastest.peak_bytes,
        smallest_peak_bytes=frontier.smallest.peak_bytes,
        bound_peak_bytes=frontier.bound.peak_bytes,
        static_bytes=inputs.facts.static_bytes,
        gradient_bytes=gradient_bytes(inputs.program),
        recompute_seconds=point.extra_ns * NS,
        step_seconds=sum(inputs.prices.run_ns) * NS,
        bound_seconds=min(bound_ns, point.extra_ns) * NS,
        values=_flagged(inputs, point),
        timeline=_timeline(inputs, point, timeline),
        peak_position=timeline.peak_position,
        alive_at_peak=alive,
        cheaper=_neighbour(frontier.next_faster(point)),
        smaller=_neighbour(frontier.next_smaller(point)),
        notes=_notes(inputs, frontier, request, idle_gradient_bytes(inputs.facts, inputs.program, alive)),
        graph_fingerprint=request.graph_fingerprint,
        lives=record_lives(inputs.program, inputs.facts, point.decision),
        plan_seconds=plan_seconds,
    )


def record_curve(request: Request, inputs: Inputs, frontier: Frontier, points: Sequence[FrontierPoint]) -> Curve:
    """The plans of a frontier, each with its bound."""
    step_ns = sum(inputs.prices.run_ns)
    # What no plan beats at a budget, none beats at a smaller one.
    bounds = itertools.accumulate((frontier.bound_ns(point.peak_bytes, point) for point in points), max)
    return Curve(
        device=request.device,
        torch_version=request.torch_version,
        static_bytes=inputs.facts.static_bytes,
        step_seconds=step_ns * NS,
        bound_peak_bytes=frontier.bound.peak_bytes,
        points=tuple(_curve_point(p, min(bound, p.extra_ns), step_ns) for p, bound in zip(points, bounds, strict=True)),
    )


def _curve_point(point: FrontierPoint, bound_ns: float, step_ns: int) -> CurvePoint:
    return CurvePoint(
        peak_bytes=point.peak_bytes,
        recompute_seconds=point.extra_ns * NS,
        recompute_fraction=point.extra_ns / step_ns if step_ns else 0.0,
        bound_seconds=bound_ns * NS,
        gap=relative_gap(point.extra_ns, bound_ns),
    )


def gradient_bytes(program: Program) -> int:
    """Bytes of the distinct storages that the backward returns."""
    roots = {program.root[v] for v in program.backward_outputs if program.is_backward[v]}
    return sum(program.size_bytes[r] for r in roots)


def record_values(inputs: Inputs, point: FrontierPoint) -> tuple[ValueRecord, ...]:
    """A record per forward value with memory of its own that the backward keeps or recomputes."""
    runs = Counter(point.decision.schedule.backward)
    program = inputs.program
    records = []
    for v, value in enumerate(inputs.facts.values):
        is_candidate = not program.is_backward[v] and program.size_bytes[v] and value.kind is not Kind.INPUT
        if not is_candidate:
            continue
        if v in point.decision.kept:
            because = _why_both(inputs, v, runs[v]) if runs[v] else _why_kept(inputs, v, point.decision.kept)
            records.append(_record(inputs, v, Decision.KEEP, because))
        elif runs[v] and program.in_forward[v]:
            records.append(_record(inputs, v, Decision.RECOMPUTE, _why_again(inputs, v, runs[v])))
    return tuple(records)


def _flagged(inputs: Inputs, point: FrontierPoint) -> tuple[ValueRecord, ...]:
    """The records of all values, with what is usually a mistake."""
    records = record_values(inputs, point)
    numbers = {value.name: v for v, value in enumerate(inputs.facts.values)}
    of_records = [numbers[record.name] for record in records]
    flags = find_flags(inputs.facts, inputs.program, point.decision, of_records, point.peak_bytes)
    return tuple(
        replace(record, flags=flags[v]) if v in flags else record for v, record in zip(of_records, records, strict=True)
    )


def _record(inputs: Inputs, v: int, decision: Decision, because: str) -> ValueRecord:
    value = inputs.facts.values[v]
    return ValueRecord(
        name=value.name,
        bytes=inputs.program.size_bytes[v],
        shape=value.shape,
        dtype=value.dtype,
        decision=decision,
        because=because,
        op=value.op,
        module=value.module,
        source=value.source,
        label=", ".join(value.labels),
    )


def _why_kept(inputs: Inputs, v: int, kept: Collection[int]) -> str:
    reason = inputs.constraints.no_recompute[v]
    if reason is not None:
        return reason
    if v in {inputs.program.root[o] for o in inputs.program.forward_outputs}:
        return "an output of the forward: its memory is held anyway"
    again = inputs.program.duration_ns[v]
    if again == 0 and inputs.program.from_inputs[v]:
        return "takes next to nothing, and with it at hand what is made of it takes less memory"
    if again == 0 and {inputs.program.root[u] for u in inputs.program.needs[v]} & {*kept}:
        return "what it is made from is larger, and can go earlier with it at hand"
    if again == 0:
        return "what it is made from would have to be kept instead"
    wish = inputs.constraints.wishes[v]
    beside = f" ({wish}; the budget has room)" if wish is not None and wish.endswith("RECOMPUTE") else ""
    return f"{_time(again)} to compute again buys only {format_bytes(inputs.program.size_bytes[v])}{beside}"


def _why_both(inputs: Inputs, v: int, runs: int) -> str:
    """Kept for the readers before the peak, computed again for those after it."""
    program = inputs.program
    times = f", {runs} times" if runs > 1 else ""
    cost = f"{_time(program.duration_ns[v])}{times}" if program.duration_ns[v] else "nothing"
    saved = format_bytes(program.size_bytes[v])
    return f"kept for its first readers, then freed and computed again: saves {saved} for {cost}"


def _why_again(inputs: Inputs, v: int, runs: int) -> str:
    reason = inputs.constraints.no_keep[v]
    if reason is not None:
        return reason
    program = inputs.program
    times = f", {runs} times" if runs > 1 else ""
    if program.duration_ns[v] == 0:
        return f"free: computing it again costs no more than keeping it{times}"
    wish = inputs.constraints.wishes[v]
    beside = f" ({wish}; the budget has no room)" if wish is not None and wish.endswith("SAVE") else ""
    return f"saves {format_bytes(program.size_bytes[v])} for {_time(program.duration_ns[v])}{times}{beside}"


def _time(ns: int) -> str:
    if ns >= 1_000_000:
        return f"{ns / 1e6:.1f} ms"
    return f"{ns / 1e3:.1f} us"


def _timeline(inputs: Inputs, point: FrontierPoint, timeline: Timeline) -> tuple[TimelinePoint, ...]:
    names = [value.name for value in inputs.facts.values]
    skipped = (Kind.INPUT, Kind.SYMBOL)
    rows = []
    halves: tuple[tuple[Phase, tuple[int, ...], Sequence[int]], ...] = (
        ("forward", point.decision.schedule.forward, timeline.forward_bytes),
        ("backward", point.decision.schedule.backward, timeline.backward_bytes),
    )
    for phase, sequence, live in halves:
        ops = [v for v in sequence if inputs.program.kind[v] not in skipped]
        rows += [TimelinePoint(phase, names[v], b) for v, b in zip(ops, live, strict=True)]
    return tuple(rows)


def record_alive(inputs: Inputs, point: FrontierPoint) -> tuple[AliveRecord, ...]:
    """Tensors alive at the peak, largest first; the graph's inputs as one line."""
    program = inputs.program
    gradients = {program.root[v] for v in program.backward_outputs}
    rows = [AliveRecord("parameters, buffers and batch", inputs.facts.static_bytes, "input", "", "")]
    if inputs.facts.relaid_bytes:
        rows.append(AliveRecord("batch, laid out channels last", inputs.facts.relaid_bytes, "input", "", ""))
    timeline = simulate(program, point.decision.schedule)
    is_backward_now = timeline.peak_position >= len(timeline.forward_bytes)
    for v, size in list_alive(program, point.decision.schedule, timeline.peak_position):
        value = inputs.facts.values[v]
        role: Role = (
            "gradient" if v in gradients else find_role(program, point.decision, v, is_backward=is_backward_now)
        )
        rows.append(AliveRecord(value.name, size, role, value.module, value.source))
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _neighbour(point: FrontierPoint | None) -> Neighbour | None:
    return None if point is None else Neighbour(point.peak_bytes, point.extra_ns * NS)


def _dominating(inputs: Inputs, frontier: Frontier) -> Dominating | None:
    """What memory consists of where a budget hardly lowers it."""
    program, fastest, smallest = inputs.program, frontier.fastest, frontier.smallest
    if fastest.peak_bytes - smallest.peak_bytes >= FLAT_SHARE * fastest.peak_bytes:
        return None
    schedule = smallest.decision.schedule
    at = simulate(program, schedule).peak_position
    ops = [v for v in (*schedule.forward, *schedule.backward) if program.kind[v] not in (Kind.INPUT, Kind.SYMBOL)]
    op = ops[at] if ops else 0
    gradients = gradient_bytes(program)
    return Dominating(
        fastest.peak_bytes, program.static_bytes, gradients, inputs.facts.values[op].name, program.workspace_bytes[op]
    )


def _notes(inputs: Inputs, frontier: Frontier, request: Request, idle_bytes: int) -> tuple[str, ...]:
    notes = list(request.notes)
    smallest = frontier.smallest
    if not frontier.is_complete:
        notes.append(
            f"time_limit ended the search after {frontier.simulated} plans; a longer one may find a better plan"
        )
    notes += find_notes(inputs.constraints, _dominating(inputs, frontier), idle_bytes)
    notes += [
        f"{size.symbol} is a dynamic size without an upper bound, planned for {size.planned}; above it the step may "
        "need more than planned. Try: torch._dynamo.mark_dynamic(tensor, dim, max=...)"
        for size in inputs.facts.open_sizes
    ]
    notes += [
        f"{name} ({calls} calls) is a custom operator whose purity is not known; its results are kept. "
        "Try: rematpass.register_op(...)"
        for name, calls in inputs.constraints.unknown_ops
    ]
    budget = request.budget_bytes
    if budget is not None and smallest.peak_bytes > budget:
        notes.append("the budget cannot be met; this is the smallest peak found (on_infeasible='warn')")
    return tuple(notes)
