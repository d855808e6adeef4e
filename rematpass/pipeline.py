"""The steps from a joint graph to two halves and a plan, in order.

In: the joint graph as AOTAutograd hands it over, and settings. Out: forward, backward, `Plan`. Never does a step's work
itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from . import torch_compat
from .check.schedule import check_schedule
from .check.split import check_split
from .check.timeline import check_timeline
from .cost.device_model import DeviceModel
from .cost.op_prices import PriceBook
from .cost.values import price_values
from .declared import DeclaredOp
from .emit.layouts import plan_layout
from .emit.split import split_program
from .errors import BudgetTooSmall
from .garbage import uncollected
from .graph.assemble import build_program, describe_work
from .graph.capture import JointProgram
from .graph.constraints import collect_constraints
from .graph.facts import Facts, collect_facts
from .lives import record_lives
from .op_times import measured_ns
from .plan_types import Curve, Plan
from .record import NS, Inputs, Request, record_alive, record_curve, record_plan
from .replay import replay_decision
from .report.table import format_line
from .shares import Offer, held_bytes, leaves_half
from .solve.descent import FrontierPoint
from .solve.effort import Effort
from .solve.program import Decision
from .solve.search import Frontier

logger = logging.getLogger(__name__)

# Among so many plans of falling peaks, and as many that keep less and less, graphs choose that share a budget.
OFFERS = 10


@dataclass(frozen=True)
class Settings:
    """What the steps need to know, resolved once.

    Attributes:
        budget_bytes: the budget, None for no limit.
        is_budget_above_inputs: the budget counts what may come on top of the graph's own inputs ("auto").
        device: prices.
        is_fusing: the halves go to a compiler that fuses.
        on_infeasible: "error" or "warn"; "smallest": the smallest peak without a word, room may be made elsewhere.
        time_limit: seconds for the search, counted in work (see `Effort`).
        save, recompute: the user's globs.
        declared: what the user said of custom operators.
        book: measured times of operators; None for the roofline alone.
        fingerprint: of everything above and of the code.
        device_type: of the device that will run the step, None for the one that the graph was traced on.
        notes: sentences for the reader of the plan.
        replay: the plan to follow instead of making one.
        correction_bytes: by how much a measured step exceeded its prediction; left free where some plan can.
        beside_bytes: of the budget, what is live throughout the step without being the graph's.
        offer: the plan to follow, one of `trace_offers`; None for the fastest that keeps the budget.
        is_followed: graphs of the same step come after this one, of which nothing is known: the plan that holds least
            for its backward, unless the fastest leaves them half of the budget.
    """

    budget_bytes: int | None
    is_budget_above_inputs: bool
    device: DeviceModel
    is_fusing: bool
    on_infeasible: str
    time_limit: float
    save: tuple[str, ...]
    recompute: tuple[str, ...]
    fingerprint: str
    declared: tuple[DeclaredOp, ...] = ()
    book: PriceBook | None = None
    device_type: str | None = None
    notes: tuple[str, ...] = ()
    replay: Plan | None = None
    correction_bytes: int = 0
    beside_bytes: int = 0
    offer: Offer | None = None
    is_followed: bool = False


@dataclass(frozen=True)
class Planned:
    """The outcome: both halves and the plan they follow."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    plan: Plan


def needs_plan(joint: JointProgram) -> bool:
    """Whether there is a backward to plan for."""
    return any(o is not None and joint.is_backward[o] for o in joint.backward_outputs)


def plan_and_split(joint: JointProgram, settings: Settings, graph_name: str) -> Planned:
    """All steps. Raises BudgetTooSmall before anything is emitted."""
    plan, inputs, decision = make_plan(joint, settings, graph_name)
    forward, backward = split_program(joint, inputs.program, decision)
    plan_layout(forward, is_relaid=inputs.facts.is_relaid)
    check_split(forward, backward, joint.num_fwd_outputs)
    return Planned(forward, backward, plan)


def room_beside_inputs(plan: Plan, *, is_backward: bool) -> int:
    """Bytes that may be live beside the inputs of a half, also without a budget: what is predicted is to be measured.

    Copies of the graph's inputs in another layout are made in the forward and handed to the backward in their place.
    """
    with_copies = sum(row.bytes for row in plan.alive_at_peak if row.role == "input")
    return plan.peak_bytes - (with_copies if is_backward else plan.static_bytes)


def make_plan(joint: JointProgram, settings: Settings, graph_name: str) -> tuple[Plan, Inputs, Decision]:
    """The steps before the first node is written: the plan, what it was made from, and the decision it records."""
    plan, inputs, decision = find_plan(joint, settings, graph_name)
    logger.info("%s%s", format_line(plan), "" if settings.replay is None else ", replayed")
    return plan, inputs, decision


@uncollected()
def find_plan(joint: JointProgram, settings: Settings, graph_name: str) -> tuple[Plan, Inputs, Decision]:
    """As `make_plan`, for a plan that may not be followed: without a word."""
    start = time.perf_counter()
    inputs = collect_inputs(joint, settings)  # what is there, what it costs, what is forbidden
    request = _request(inputs.facts, settings, graph_name)
    if settings.replay is not None:
        return _follow(settings.replay, inputs, request)
    frontier = Frontier(inputs.program, Effort(seconds=settings.time_limit))  # one curve of plans for any budget
    point = choose_point(frontier, inputs, request, settings)
    plan = record_plan(request, inputs, frontier, point, time.perf_counter() - start)
    names = [value.name for value in inputs.facts.values]
    check_schedule(inputs.program, point.decision, names)  # before a single node is written
    live = [moment.live_bytes for moment in plan.timeline]
    check_timeline(inputs.program, point.decision.schedule, live, plan.peak_bytes, names)
    return plan, inputs, point.decision


def _follow(plan: Plan, inputs: Inputs, request: Request) -> tuple[Plan, Inputs, Decision]:
    """A plan from a file: the same decision, or none."""
    decision = replay_decision(plan, inputs.program, inputs.facts, request.graph_fingerprint)
    return dataclasses.replace(plan, graph_name=request.graph_name), inputs, decision


def trace_curve(
    joint: JointProgram, settings: Settings, count: int, on_point: Callable[[int], object] | None = None
) -> Curve:
    """Plans at `count` budgets between the two ends. `on_point` is called with the number of budgets done."""
    inputs = collect_inputs(joint, settings)
    frontier = Frontier(inputs.program)
    return record_curve(_request(inputs.facts, settings, "graph 0"), inputs, frontier, frontier.curve(count, on_point))


def trace_offers(joint: JointProgram, settings: Settings) -> list[Offer]:
    """What plans of a graph would take that runs beside others."""
    inputs = collect_inputs(joint, settings)
    frontier = Frontier(inputs.program, Effort(seconds=settings.time_limit))
    return [offer for _, offer in _offered(frontier, inputs)]


def _offered(frontier: Frontier, inputs: Inputs) -> list[tuple[FrontierPoint, Offer]]:
    """Plans of small peaks and plans that keep little; of two with the same figures the first."""
    found: dict[Offer, FrontierPoint] = {}
    for point in (*frontier.curve(OFFERS), *frontier.sparing(OFFERS)):
        lives = record_lives(inputs.program, inputs.facts, point.decision)
        ops = sum(inputs.program.is_paid[v] for v in point.decision.schedule.forward)
        found.setdefault(Offer(point.peak_bytes, held_bytes(lives, ops), point.extra_ns * NS), point)
    return [(point, offer) for offer, point in found.items()]


def collect_inputs(joint: JointProgram, settings: Settings) -> Inputs:
    """Facts, constraints, prices and the solver's program of a joint graph."""
    declared = {op.name: op for op in settings.declared}
    facts = collect_facts(joint, declared, settings.device_type, is_fusing=settings.is_fusing)
    constraints = collect_constraints(joint, facts, settings.save, settings.recompute, settings.declared)
    work = describe_work(joint, facts, is_fusing=settings.is_fusing)
    measured = {} if settings.book is None else measured_ns(joint, facts, settings.book, declared)
    prices = price_values(work, settings.device, measured)
    program = build_program(joint, facts, constraints, prices, is_fusing=settings.is_fusing)
    return Inputs(facts, constraints, prices, program)


def _request(facts: Facts, settings: Settings, graph_name: str) -> Request:
    budget = settings.budget_bytes
    if budget is not None and settings.is_budget_above_inputs:
        budget += facts.static_bytes
    if budget is not None:
        budget -= settings.beside_bytes
    graph = hashlib.sha256()
    for value in facts.values:
        graph.update(repr((value.name, value.op, value.inputs, value.shape, value.dtype)).encode())
    own = graph.hexdigest()
    graph.update(settings.fingerprint.encode())
    return Request(
        graph_name=graph_name,
        fingerprint=graph.hexdigest(),
        graph_fingerprint=own,
        device=settings.device.name,
        torch_version=torch_compat.torch_version(),
        budget_bytes=budget,
        notes=settings.notes,
    )


def _with_room(
    point: FrontierPoint, frontier: Frontier, inputs: Inputs, budget_bytes: int, settings: Settings
) -> FrontierPoint:
    """Of plans that keep the budget, `point` or one that leaves more: for what was measured, for graphs to come."""
    wanted = budget_bytes - settings.correction_bytes
    if settings.is_followed and not leaves_half(frontier.fastest.peak_bytes, budget_bytes, settings.beside_bytes):
        fitting = [(p, offer) for p, offer in _offered(frontier, inputs) if offer.peak_bytes <= wanted]
        least = min(fitting, key=lambda found: (found[1].held_bytes, found[1].extra_seconds), default=None)
        return frontier.smallest if least is None else least[0]
    if not settings.correction_bytes:
        return point
    return frontier.choose(wanted) or frontier.smallest


def choose_point(frontier: Frontier, inputs: Inputs, request: Request, settings: Settings) -> FrontierPoint:
    """The plan for the budget.

    Raises:
        BudgetTooSmall: nothing fits and `on_infeasible` is "error".
    """
    if settings.offer is not None:
        found = next((point for point, offer in _offered(frontier, inputs) if offer == settings.offer), None)
        assert found is not None, "equal graphs and settings offer equal plans"
        return found
    point = frontier.choose(request.budget_bytes)
    smallest = frontier.smallest
    if request.budget_bytes is None:
        assert point is not None, "without a budget everything fits"
        return point
    if point is not None:
        return _with_room(point, frontier, inputs, request.budget_bytes, settings)
    pinned = sum(inputs.program.size_bytes[v] for v in inputs.constraints.pinned & smallest.decision.kept)
    beside = settings.beside_bytes
    error = BudgetTooSmall(
        request.budget_bytes + beside, smallest.peak_bytes + beside, record_alive(inputs, smallest), pinned, beside
    )
    if settings.on_infeasible == "error":
        raise error
    if settings.on_infeasible == "warn":
        warnings.warn(f"{error}\nGoing on with the smallest peak.", stacklevel=2)
    return smallest
