"""Is the plan kept? One real step of a compiled graph, measured and compared.

In: a compiled graph and its plan. Out: the same graph, and once one line in the log, or a warning, or a record for
whoever asked. Never changes what is computed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from . import torch_compat
from .check.step_meter import StepMeter, make_meter
from .check.verdict import Measurement, measured
from .plan_types import Plan
from .report.sizes import format_bytes, format_range

logger = logging.getLogger(__name__)

# The first step may compile, tune kernels, and fill caches. Steps whose backward never runs are not tried for ever.
FIRST_STEP, LAST_STEP = 2, 8
# How far above a compiled graph's backward one of its results may be: views of results.
_DEPTH = 3

Listener = Callable[[Measurement], object]


def verified(
    compiled: Callable[..., Any], plans: Sequence[Plan], inputs: Iterable[object], listener: Listener | None = None
) -> Callable[..., Any]:
    """`compiled`, which measures one of its steps, once, and tells `listener`; the log when None."""
    if len(plans) > 1:
        logger.info("rematpass: %s and what is inside it are not verified one by one", plans[0].graph_name)
        return compiled
    types = {i.device for i in inputs if isinstance(i, torch.Tensor)}
    device = next((d for d in types if d.type == "cuda"), torch.device("cpu"))
    return Verified(compiled, plans[0], device, listener or _report)


class Verified:
    """A compiled graph that measures one training step of its own, the second or one of the next few."""

    def __init__(self, compiled: Callable[..., Any], plan: Plan, device: torch.device, listener: Listener) -> None:
        self._compiled = compiled
        self._plan = plan
        self._device = device
        self._listener = listener
        self._steps = 0
        self._is_done = False
        self._open: StepMeter | None = None

    def __call__(self, *inputs: Any) -> Any:
        """One forward; it is measured if it is the step's turn."""
        if self._open is not None and not torch_compat.is_in_backward():  # the last backward failed
            self._open.give_up()
            self._open = None
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
                self._listener(measured(self._plan, *meter.end_backward()))

        handles += [node.register_prehook(before), node.register_hook(after)]


def _report(found: Measurement) -> None:
    """One line in the log if the budget was kept, as far as can be known; else a warning."""
    predicted = f"(predicted {format_bytes(found.predicted_bytes)})"
    words = f"rematpass: {found.graph_name}: measured {format_range(found.least_bytes, found.most_bytes)}"
    if found.budget_bytes is None:
        logger.info("%s %s", words, predicted)
        return
    words = f"{words} of {format_bytes(found.budget_bytes)} {predicted}"
    if found.is_kept:
        logger.info("%s", words)
        return
    lower = max(1, 2 * found.budget_bytes - found.least_bytes)
    warnings.warn(
        f"{words}, which is over budget. Try: memory_budget={lower}, which leaves room for the difference",
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
