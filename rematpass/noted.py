"""Plans made while torch compiles, and where to find them afterwards.

In: plans of the graphs that are being compiled. Out: the plans of a compiled model or function. Never plans.
"""

from __future__ import annotations

import dataclasses
from contextvars import ContextVar

from . import torch_compat
from .plan_types import Plan

# Plans made while one dynamo graph is being compiled, for whoever asked for the compilation.
NOTED: ContextVar[list[Plan] | None] = ContextVar("rematpass_noted", default=None)
_PLANS = "_rematpass_plans"
# What the reader of a plan is told of all graphs but the first.
_SEVERAL_GRAPHS = "one of several graphs; those of one step share memory_budget"


def noted() -> list[Plan]:
    """Where plans made now are noted: the compilation in progress, or the torch.compile object itself."""
    noted = NOTED.get()
    if noted is not None:
        return noted
    return plans_of_wrapper(torch_compat.current_compile_wrapper())


def plans_of_wrapper(wrapper: object | None) -> list[Plan]:
    """Where plans are noted for what torch.compile made; a list of its own where that is not known."""
    if wrapper is None:
        return []
    if not hasattr(wrapper, _PLANS):
        setattr(wrapper, _PLANS, [])
    found: list[Plan] = getattr(wrapper, _PLANS)
    return found


def plans_of(compiled: object) -> list[Plan]:
    """The plans noted for a compiled module or function, in the order the graphs were compiled."""
    return list(plans_of_wrapper(torch_compat.compile_wrapper_of(compiled)))


def numbered(plan: Plan, place: int) -> Plan:
    """The plan of the graph that was compiled after so many others of the same `torch.compile`."""
    notes = tuple(note for note in plan.notes if note != _SEVERAL_GRAPHS)
    notes = (_SEVERAL_GRAPHS, *notes) if place else notes
    return dataclasses.replace(plan, graph_name=f"graph {place}", notes=notes)
