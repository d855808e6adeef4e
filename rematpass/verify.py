"""Is the plan kept? One real step of a compiled graph, measured and compared.

In: a compiled graph and its plan. Out: the same graph, and once one line in the log, or a warning; over budget, what
was learned is noted, and the next step follows a new plan. Never changes what is computed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from . import torch_compat
from .check.step_meter import StepMeter, make_meter
from .lessons import Lessons
from .plan_types import Plan
from .report.sizes import format_bytes

logger = logging.getLogger(__name__)

# The first step may compile, tune kernels, and fill caches. Steps whose backward never runs are not tried for ever.
FIRST_STEP, LAST_STEP = 2, 8
# What Inductor may add without anybody's fault: rounding of blocks, scratch that no prediction knows.
TOLERANCE = 1.01
# How far above a compiled graph's backward one of its results may be: views of results.
_DEPTH = 3

PlanAgain = Callable[[int], tuple[Callable[..., Any], Plan]]
"""From bytes measured above the prediction to the graph compiled anew, and its plan, which leaves room for them."""


def verified(
    compiled: Callable[..., Any],
    plans: Sequence[Plan],
    inputs: Iterable[object],
    lessons: Lessons | None = None,
    again: PlanAgain | None = None,
) -> Callable[..., Any]:
    """`compiled`, which measures one of its steps, once.

    Args:
        compiled: a compiled graph.
        plans: what it follows, inner graphs included.
        inputs: of a call; they tell the device.
        lessons: where an excess is noted; None where nobody may learn from it.
        again: compiles the graph anew; None where that cannot be.
    """
    if len(plans) > 1:
        logger.info("rematpass: %s and what is inside it are not verified one by one", plans[0].graph_name)
        return compiled
    types = {i.device for i in inputs if isinstance(i, torch.Tensor)}
    device = next((d for d in types if d.type == "cuda"), torch.device("cpu"))
    return Verified(compiled, plans[0], device, lessons, again)


class Verified:
    """A compiled graph that measures one training step of its own, the second or one of the next few.

    Over budget, it is planned and compiled anew before the step after that, once, and measured once more.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        plan: Plan,
        device: torch.device,
        lessons: Lessons | None = None,
        again: PlanAgain | None = None,
    ) -> None:
        self._compiled = compiled
        self._plan = plan
        self._device = device
        self._lessons = lessons
        self._again = again
        self._excess_bytes = 0
        self._steps = 0
        self._is_done = False
        self._open: StepMeter | None = None

    def __call__(self, *inputs: Any) -> Any:
        """One forward; it is measured if it is the step's turn."""
        if self._open is not None and not torch_compat.is_in_backward():  # the last backward failed
            self._open.give_up()
            self._open = None
        if self._excess_bytes and not torch_compat.is_in_backward() and torch.is_grad_enabled():
            self._plan_again()
        if self._is_done or not torch.is_grad_enabled():
            return self._compiled(*inputs)
        self._steps += 1
        if self._steps < FIRST_STEP or torch_compat.is_profiling():
            return self._compiled(*inputs)
        self._is_done = self._steps >= LAST_STEP
        return self._measured(inputs)

    def _measured(self, inputs: tuple[Any, ...]) -> Any:
        meter = make_meter(self._device)
        meter.begin()
        tensors: list[torch.Tensor] = []
        try:
            outputs = self._compiled(*inputs)
            several = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
            tensors += [o for o in several if isinstance(o, torch.Tensor)]
        finally:
            meter.end(tensors)
        node = _backward_of(tensors)
        if node is not None:
            self._watch(node, meter)
        return outputs

    def _watch(self, node: Any, meter: StepMeter) -> None:
        """Measure the backward, should it ever run."""
        handles: list[Any] = []
        is_begun = False

        def before(gradients: Iterable[torch.Tensor | None]) -> None:
            nonlocal is_begun
            is_begun = not is_begun and not torch_compat.is_profiling()
            if is_begun:
                meter.begin_backward(g for g in gradients if g is not None)
                self._open = meter

        def after(*_: object) -> None:
            for handle in handles:
                handle.remove()
            if is_begun and self._open is meter:  # else another thread's forward took it for a failed one
                self._is_done, self._open = True, None
                self._judge(*(self._plan.static_bytes + peak for peak in meter.end_backward()))

        handles += [node.register_prehook(before), node.register_hook(after)]

    def _judge(self, least_bytes: int, most_bytes: int) -> None:
        """Say what was measured; over budget, learn from it."""
        if is_kept(self._plan, least_bytes):
            self._again = None  # and with it the graph
            _report(self._plan, least_bytes, most_bytes)
            return
        excess = least_bytes - self._plan.peak_bytes
        if self._lessons is not None:
            self._lessons.note(excess)
        may_shrink = self._again is not None and self._plan.peak_bytes > self._plan.smallest_peak_bytes
        self._excess_bytes = excess if may_shrink else 0
        _report(self._plan, least_bytes, most_bytes, is_planned_again=may_shrink)

    def _plan_again(self) -> None:
        """Compile the graph anew with what was learned; its first steps are measured as those of the old one were."""
        again, excess, self._again, self._excess_bytes = self._again, self._excess_bytes, None, 0
        assert again is not None, "an excess is noted only where planning again is possible"
        try:
            self._compiled, self._plan = again(excess)
        except Exception as error:  # the step that is there is right, and better than none
            warnings.warn(
                f"rematpass: {self._plan.graph_name} could not be planned again and stays over budget: {error}",
                stacklevel=2,
            )
            return
        self._steps, self._is_done = 0, False
        logger.warning(
            "rematpass: %s: planned again with %s left free: predicted %s",
            *(self._plan.graph_name, format_bytes(excess), format_bytes(self._plan.peak_bytes)),
        )


def is_kept(plan: Plan, measured_bytes: int) -> bool:
    """Whether a measured peak is within the plan's budget."""
    return plan.budget_bytes is None or measured_bytes <= TOLERANCE * plan.budget_bytes


def _report(plan: Plan, least_bytes: int, most_bytes: int, *, is_planned_again: bool = False) -> None:
    """One line in the log if the budget was kept, as far as can be known, or soon will be; else a warning."""
    predicted = f"(predicted {format_bytes(plan.peak_bytes)})"
    least, most = format_bytes(least_bytes), format_bytes(most_bytes)
    measured = f"rematpass: {plan.graph_name}: measured {most if least == most else f'{least} to {most}'}"
    if plan.budget_bytes is None:
        logger.info("%s %s", measured, predicted)
        return
    measured = f"{measured} of {format_bytes(plan.budget_bytes)} {predicted}"
    if is_kept(plan, least_bytes):
        logger.info("%s", measured)
        return
    if is_planned_again:
        logger.warning("%s, which is over budget; the next step follows a new plan", measured)
        return
    lower = max(1, 2 * plan.budget_bytes - least_bytes)
    warnings.warn(
        f"{measured}, which is over budget. Try: memory_budget={lower}, which leaves room for the difference",
        stacklevel=2,
    )


def _backward_of(outputs: Iterable[torch.Tensor]) -> Any | None:
    """The autograd node of the compiled backward behind some outputs; None where no gradient is wanted."""
    nodes = [o.grad_fn for o in outputs if o.grad_fn is not None]
    for _ in range(_DEPTH):
        found = next((node for node in nodes if node.name() == torch_compat.COMPILED_NODE), None)
        if found is not None:
            return found
        nodes = [above for node in nodes for above, _ in node.next_functions if above is not None]
    return None
