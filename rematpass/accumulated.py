"""Gradients of earlier backwards, live while a step runs: a budget is for both.

In: a compiled graph, its plan, its inputs. Out: the same graph; steps that find such gradients follow a plan for what
these leave of the budget. Never changes what is computed, never holds a tensor longer than autograd does.

Who accumulates gradients over several backwards has none before the first of them, so the graph is compiled without.
Others clear gradients between forward and backward: theirs are there for the forward alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import torch_compat
from .pipeline import Settings, room_beside_inputs
from .plan_types import Plan
from .report.sizes import format_bytes
from .verify import backward_of, tensors_in

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Built:
    """A compiled graph and the plan it follows."""

    compiled: Callable[..., Any]
    plan: Plan


def gradient_bytes(inputs: Iterable[object]) -> int:
    """Bytes of the gradients that the parameters among `inputs` have or will have, once one of them has one; else 0.

    All of them, since ranks of a job, of which some have not used every parameter yet, shall come to one plan.
    """
    learning = [p for p in inputs if isinstance(p, torch.nn.Parameter) and p.requires_grad]
    if all(p.grad is None for p in learning):
        return 0
    return sum(p.nbytes if p.grad is None else p.grad.nbytes for p in learning)


def beside(settings: Settings, gradients: int, *, has_run: bool) -> Settings:
    """Settings for a plan that leaves so many bytes to gradients of earlier backwards.

    Args:
        settings: for a plan that has the whole budget.
        gradients: bytes.
        has_run: steps were run by that plan: where nothing fits, training goes on with the smallest peak, and a
            warning.
    """
    if not gradients or settings.budget_bytes is None:
        return settings
    digest = hashlib.sha256(f"{settings.fingerprint} beside {gradients} {has_run}".encode()).hexdigest()
    note = (
        f"{format_bytes(gradients)} of memory_budget are left to gradients of earlier backwards, which stay beside the "
        "step until the optimizer has taken them"
    )
    return dataclasses.replace(
        settings,
        beside_bytes=gradients,
        on_infeasible="warn" if has_run else settings.on_infeasible,
        fingerprint=digest,
        notes=(*settings.notes, note),
    )


class Accumulating:
    """A compiled graph that has a second form for steps beside gradients of earlier backwards, made when one comes.

    Args:
        alone: the graph, planned as if there were none; its plan has a budget.
        inputs: of a call; they tell where parameters are.
        again: from bytes of such gradients to the graph planned and compiled beside them; None where that cannot be
            done.
    """

    def __init__(self, alone: Built, inputs: Sequence[object], again: Callable[[int], Built] | None) -> None:
        self._alone = alone
        self._beside: Built | None = None
        self._parameters = [i for i, p in enumerate(inputs) if isinstance(p, torch.nn.Parameter) and p.requires_grad]
        self._again = again
        self._have_stayed: bool | None = None  # from forward to backward, the last time that there were some

    def __call__(self, *inputs: Any) -> Any:
        """One forward, in the form that has room for what is there."""
        if not torch.is_grad_enabled() or torch_compat.is_in_backward():
            return self._alone.compiled(*inputs)
        parameters = [inputs[i] for i in self._parameters]
        gradients = gradient_bytes(parameters)
        if not gradients:
            return self._alone.compiled(*inputs)
        outputs = self._form(gradients).compiled(*inputs)
        node = backward_of(tensors_in(outputs))
        if node is not None:
            node.register_prehook(lambda _: self._note(parameters))
        return outputs

    def _note(self, parameters: Sequence[torch.Tensor]) -> None:
        """As a backward begins."""
        self._have_stayed = gradient_bytes(parameters) > 0

    def _form(self, gradients: int) -> Built:
        """What a forward beside these bytes of gradients follows."""
        plan = self._alone.plan
        is_cleared = self._have_stayed is False and _fits_forward(plan, gradients)
        if is_cleared or still_fits(plan, gradients):
            return self._alone
        is_possible = plan.smallest_peak_bytes + gradients <= (plan.budget_bytes or 0) and self._again is not None
        if self._beside is None and (is_possible or self._have_stayed):
            self._beside = self._make_room(gradients)
        return self._beside or self._alone

    def _make_room(self, gradients: int) -> Built:
        """A plan for what is left of the budget."""
        again, self._again = self._again, None  # and with it the graph
        name, size = self._alone.plan.graph_name, format_bytes(gradients)
        if again is None:
            warnings.warn(
                f"rematpass: {name}: gradients of earlier backwards take {size} beside the step, for which its plan "
                f"has no room, and it cannot be planned again. Try: a memory_budget smaller by {gradients} bytes",
                stacklevel=2,
            )
            return self._alone
        made = again(gradients)
        logger.info(
            "rematpass: %s: planned again beside %s of gradients of earlier backwards: predicted %s of %s",
            *(name, size, format_bytes(made.plan.peak_bytes), format_bytes(made.plan.budget_bytes or 0)),
        )
        return made


def still_fits(plan: Plan, gradients: int) -> bool:
    """Whether a plan keeps its budget with these bytes beside it, compiled as it is."""
    if plan.budget_bytes is None:
        return True
    left = dataclasses.replace(plan, budget_bytes=plan.budget_bytes - gradients)
    is_ample = room_beside_inputs(plan, is_backward=False) is None
    return plan.peak_bytes <= plan.budget_bytes - gradients and (
        not is_ample or room_beside_inputs(left, is_backward=False) is None
    )


def _fits_forward(plan: Plan, gradients: int) -> bool:
    """Whether the forward of a plan keeps the budget beside gradients that are cleared before the backward."""
    highest = max((moment.live_bytes for moment in plan.timeline if moment.phase == "forward"), default=0)
    return plan.budget_bytes is None or highest + gradients <= plan.budget_bytes
