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
from torch.utils.weak import WeakIdKeyDictionary

from . import torch_compat
from .pipeline import Settings
from .plan_types import Plan
from .report.sizes import format_bytes
from .shares import Offer
from .verify import backward_of, tensors_in

logger = logging.getLogger(__name__)

# Parameters whose gradients were seen to stay from one backward to the next.
_accumulating: WeakIdKeyDictionary = WeakIdKeyDictionary()


@dataclass(frozen=True)
class Built:
    """A compiled graph, the plan it follows, and what this leaves of memory_budget to what is live beside the step."""

    compiled: Callable[..., Any]
    plan: Plan
    beside_bytes: int = 0

    @property
    def whole_bytes(self) -> int:
        """The budget of the step and of what is beside it."""
        assert self.plan.budget_bytes is not None, "only plans with a budget have something beside them"
        return self.plan.budget_bytes + self.beside_bytes

    def fits(self, beside_bytes: int) -> bool:
        """Whether the plan keeps the budget with so much beside it."""
        return self.plan.peak_bytes + beside_bytes <= self.whole_bytes

    def fits_forward(self, beside_bytes: int) -> bool:
        """Whether the forward does: of what is beside it, gradients may be cleared before the backward."""
        highest = max((moment.live_bytes for moment in self.plan.timeline if moment.phase == "forward"), default=0)
        return highest + beside_bytes <= self.whole_bytes

    def may_fit(self, beside_bytes: int) -> bool:
        """Whether the smallest plan does."""
        return self.plan.smallest_peak_bytes + beside_bytes <= self.whole_bytes


@dataclass(frozen=True)
class Company:
    """What a graph runs beside, and what that asks of its plan.

    Attributes:
        gradients: bytes of gradients of earlier backwards.
        others: bytes of other graphs of the step.
        offer: the plan to follow; None for the fastest that fits.
        is_followed: more graphs of the step come, of which nothing is known yet.
    """

    gradients: int = 0
    others: int = 0
    offer: Offer | None = None
    is_followed: bool = False

    @property
    def total(self) -> int:
        """Bytes that are not there for the graph."""
        return self.gradients + self.others


BuildBeside = Callable[[Company], Built]
"""The graph compiled for what it runs beside."""


def gradient_bytes(inputs: Iterable[object]) -> int:
    """Bytes of the gradients that the parameters among `inputs` have or will have, once one of them has one; else 0.

    All of them, since ranks of a job, of which some have not used every parameter yet, shall come to one plan.
    """
    learning = _learning(inputs)
    if all(p.grad is None for p in learning):
        return 0
    return sum(p.nbytes for p in learning)


def gradient_bytes_to_come(inputs: Iterable[object]) -> int:
    """The same for a graph that cannot be planned again, as with dynamic sizes: also those that will be there.

    They will where gradients of one of these parameters were seen to stay from one backward to the next.
    """
    learning = _learning(inputs)
    is_accumulating = any(p in _accumulating for p in learning)
    return sum(p.nbytes for p in learning) if is_accumulating else gradient_bytes(learning)


def _learning(inputs: Iterable[object]) -> list[torch.nn.Parameter]:
    return [p for p in inputs if isinstance(p, torch.nn.Parameter) and p.requires_grad]


def beside(settings: Settings, company: Company, *, has_run: bool) -> Settings:
    """Settings for a plan that leaves something of the budget to what is live beside the step.

    Args:
        settings: for a plan that has the whole budget.
        company: what that is.
        has_run: steps were run by that plan: where nothing fits, training goes on with the smallest peak, and a
            warning. Where only other graphs are in the way, they may yet make room: no warning then.
    """
    gradients, others, total = company.gradients, company.others, company.total
    if not (total or company.offer or company.is_followed) or settings.budget_bytes is None:
        return settings
    notes = []
    if gradients and total > 0:
        notes.append(
            f"{format_bytes(gradients)} of memory_budget are left to gradients of earlier backwards, which stay beside "
            "the step until the optimizer has taken them"
        )
    if others > 0:
        notes.append(f"{format_bytes(others)} of memory_budget are left to other graphs of the step")
    infeasible = "warn" if has_run else settings.on_infeasible
    told = f"{settings.fingerprint} beside {company} {has_run}"
    return dataclasses.replace(
        settings,
        beside_bytes=total,
        offer=company.offer,
        is_followed=company.is_followed,
        on_infeasible="smallest" if others > 0 and not gradients else infeasible,
        fingerprint=hashlib.sha256(told.encode()).hexdigest(),
        notes=(*settings.notes, *notes),
    )


class Accumulating:
    """A compiled graph that has a second form for steps beside gradients of earlier backwards, made when one comes.

    Args:
        alone: the graph as it was compiled first; its plan has a budget.
        inputs: of a call; they tell where parameters are.
        again: plans and compiles it beside more; None where that cannot be done.

    Attributes:
        is_shared: other graphs run in the same step, and whoever knows of them makes room for gradients, too.
    """

    def __init__(self, alone: Built, inputs: Sequence[object], again: BuildBeside | None) -> None:
        self._alone = alone
        self._beside: Built | None = None
        self.is_shared = False
        self._parameters = [i for i, p in enumerate(inputs) if isinstance(p, torch.nn.Parameter) and p.requires_grad]
        self._again = again
        self._have_stayed: bool | None = None  # from forward to backward, the last time that there were some

    @property
    def plan(self) -> Plan:
        """What steps follow that find no gradients."""
        return self._alone.plan

    @property
    def whole_bytes(self) -> int:
        """The budget of the step and of what is beside it."""
        return self._alone.whole_bytes

    def follow(self, offer: Offer | None) -> None:
        """Follow another plan; what it leaves of the budget is for other graphs of the step. None: there are none."""
        assert self._again is not None, "what cannot be planned again offers no other plan"
        others = 0 if offer is None else self.whole_bytes - offer.peak_bytes
        self._alone = self._again(Company(others=others, offer=offer))

    def __call__(self, *inputs: Any) -> Any:
        """One forward, in the form that has room for what is there."""
        if self.is_shared or not torch.is_grad_enabled() or torch_compat.is_in_backward():
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
        if self._have_stayed:
            _accumulating.update((p, True) for p in parameters if p not in _accumulating)

    def _form(self, gradients: int) -> Built:
        """What a forward beside these bytes of gradients follows."""
        alone = self._alone
        is_cleared = self._have_stayed is False and alone.fits_forward(gradients)
        if is_cleared or alone.fits(gradients):
            return alone
        is_possible = alone.may_fit(gradients) and self._again is not None
        if self._beside is None and (is_possible or self._have_stayed):
            self._beside = self._build_beside(gradients)
        return self._beside or alone

    def _build_beside(self, gradients: int) -> Built:
        """A plan for what is left of the budget."""
        name, size = self._alone.plan.graph_name, format_bytes(gradients)
        if self._again is None:
            warnings.warn(
                f"rematpass: {name}: gradients of earlier backwards take {size} beside the step, for which its plan "
                f"has no room, and it cannot be planned again. Try: a memory_budget smaller by {gradients} bytes",
                stacklevel=2,
            )
            return self._alone
        made = self._again(Company(gradients))
        logger.info(
            "rematpass: %s: planned again beside %s of gradients of earlier backwards: predicted %s of %s",
            *(name, size, format_bytes(made.plan.peak_bytes), format_bytes(made.plan.budget_bytes or 0)),
        )
        return made
