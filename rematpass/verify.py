"""Is the plan kept? One real step of a compiled graph, measured and compared.

In: a compiled graph and its plan. Out: the same graph, and once one line in the log, or a warning, or a record for
whoever asked; over budget, what was learned is noted, and the next step follows a new plan. Never changes what is
computed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import torch_compat
from .check.measure import storage_bytes
from .check.step_meter import StepMeter, make_meter
from .check.verdict import Measurement, measured
from .lessons import Lessons
from .plan_types import Plan
from .report.sizes import format_bytes, format_range

logger = logging.getLogger(__name__)

# The first step may compile, tune kernels, and fill caches, and is not measured. Steps whose backward never runs are
# not tried for ever.
TRIES = 7
# How far above a compiled graph's backward one of its results may be: views of results.
_DEPTH = 3

Listener = Callable[[Measurement], object]
PlanAgain = Callable[[int], tuple[Callable[..., Any], Plan]]
"""From bytes measured above the prediction to the graph compiled anew, and its plan, which leaves room for them."""


@dataclass(frozen=True)
class Remedy:
    """What to do over budget: where the excess is noted, and how the graph is planned again, if it can be."""

    lessons: Lessons
    again: PlanAgain | None


def verified(
    compiled: Callable[..., Any],
    plans: Sequence[Plan],
    inputs: Iterable[object],
    listener: Listener | None = None,
    remedy: Remedy | None = None,
) -> Callable[..., Any]:
    """`compiled`, which measures one of its steps, once.

    Args:
        compiled: a compiled graph.
        plans: what it follows, inner graphs included.
        inputs: of a call; they tell the device.
        listener: told of the measured step; the log when None.
        remedy: for a step over budget; None where its plan must stay.
    """
    if len(plans) > 1:
        logger.info("rematpass: %s and what is inside it are not verified one by one", plans[0].graph_name)
        return compiled
    types = {i.device for i in inputs if isinstance(i, torch.Tensor)}
    device = next((d for d in types if d.type == "cuda"), torch.device("cpu"))
    return Verified(compiled, plans[0], device, listener or _report, remedy)


class Verified:
    """A compiled graph that measures one training step of its own, the second or one of the next few.

    Over budget, it is planned and compiled anew before the step after that, once, and measured once more.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        plan: Plan,
        device: torch.device,
        listener: Listener,
        remedy: Remedy | None = None,
    ) -> None:
        self._compiled = compiled
        self._remedy = remedy
        self._excess_bytes = 0
        self._plan = plan
        self._device = device
        self._listener = listener
        self._has_run = self._is_done = False
        self._tries = self._beside_bytes = 0
        self._handles: list[Any] = []

    def __call__(self, *inputs: Any) -> Any:
        """One forward; it is measured if it is the step's turn."""
        if torch_compat.is_in_backward():  # a checkpoint of the user's own: part of the step that is going on
            return self._compiled(*inputs)
        if self._excess_bytes and torch.is_grad_enabled():
            self._plan_again()
        if self._is_done or not torch.is_grad_enabled() or torch_compat.is_profiling():
            return self._compiled(*inputs)
        self._drop_watch()  # blocks that share a graph run their forwards one after the other
        return self._measured(inputs) if self._has_run else self._awaited(inputs)

    def _drop_watch(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _awaited(self, inputs: tuple[Any, ...]) -> Any:
        """Wait for a first backward: it may be compiled when it runs, and a step counts after that."""
        outputs = self._compiled(*inputs)
        node = backward_of(tensors_in(outputs))

        def after(*_: object) -> None:
            self._has_run = True
            self._drop_watch()

        if node is not None:
            self._handles = [node.register_hook(after)]
        return outputs

    def _measured(self, inputs: tuple[Any, ...]) -> Any:
        self._tries += 1
        self._is_done = self._tries >= TRIES
        self._beside_bytes = bytes_kept_beside(inputs, self._device)
        meter = make_meter(self._device)
        meter.begin()
        tensors: list[torch.Tensor] = []
        try:
            outputs = self._compiled(*inputs)
            tensors += tensors_in(outputs)
        finally:
            meter.end(tensors)
        node = backward_of(tensors)
        if node is not None:
            self._watch(node, meter)
        return outputs

    def _watch(self, node: Any, meter: StepMeter) -> None:
        """Measure the backward, should it ever run."""
        is_begun = is_open = False

        def before(gradients: Iterable[torch.Tensor | None]) -> None:
            nonlocal is_begun, is_open
            if is_begun or torch_compat.is_profiling():
                return
            is_begun = is_open = True
            meter.begin_backward(g for g in gradients if g is not None)
            torch_compat.when_backward_is_gone(give_up)

        def after(*_: object) -> None:
            nonlocal is_open
            self._drop_watch()
            if is_open:
                is_open, self._is_done = False, True
                self._judge(measured(self._plan, *meter.end_backward()))

        def give_up() -> None:
            nonlocal is_open
            if is_open:  # the backward failed
                is_open = False
                meter.give_up()

        self._handles = [node.register_prehook(before), node.register_hook(after)]

    def _judge(self, found: Measurement) -> None:
        """Tell what was measured; over budget, learn from it first."""
        remedy, self._remedy = self._remedy, None  # and with it the graph
        if remedy is not None and not found.is_kept:
            excess = found.least_bytes - found.predicted_bytes
            remedy.lessons.note(excess)
            if remedy.again is not None and self._plan.peak_bytes > self._plan.smallest_peak_bytes:
                self._remedy, self._excess_bytes = remedy, excess
                logger.warning("%s, which is over budget; the next step follows a new plan", _in_words(found))
                return
        self._listener(found)
        if found.is_kept:
            _warn_of_company(found, self._beside_bytes)

    def _plan_again(self) -> None:
        """Compile the graph anew with what was learned; its first steps are measured as those of the old one were."""
        remedy, excess, self._excess_bytes = self._remedy, self._excess_bytes, 0
        assert remedy is not None, "an excess is noted only where there is a remedy"
        assert remedy.again is not None, "and planning again possible"
        self._remedy = Remedy(remedy.lessons, None)
        try:
            self._compiled, self._plan = remedy.again(excess)
        except Exception as error:  # the step that is there is right, and better than none
            warnings.warn(
                f"rematpass: {self._plan.graph_name} could not be planned again and stays over budget: {error}",
                stacklevel=2,
            )
            return
        self._tries, self._has_run, self._is_done = 0, False, False
        logger.warning(
            "rematpass: %s: planned again with %s left free: predicted %s",
            *(self._plan.graph_name, format_bytes(excess), format_bytes(self._plan.peak_bytes)),
        )


def _in_words(found: Measurement) -> str:
    budget = "" if found.budget_bytes is None else f" of {format_bytes(max(0, found.budget_bytes))}"
    size = format_range(found.least_bytes, found.most_bytes)
    predicted = format_bytes(found.predicted_bytes)
    return f"rematpass: {found.graph_name}: measured {size}{budget} (predicted {predicted})"


def _report(found: Measurement) -> None:
    """One line in the log if the budget was kept, as far as can be known; else a warning."""
    if found.budget_bytes is None or found.is_kept:
        logger.info("%s", _in_words(found))
        return
    lower = max(1, 2 * found.budget_bytes - found.least_bytes)
    if found.predicted_bytes > found.budget_bytes:  # said when it was planned, and no fault of the prediction
        advice = "and no plan of it is as small as the budget. Try: a larger memory_budget; a smaller batch"
    else:
        advice = f"which is over budget. Try: memory_budget={lower}, which leaves room for the difference"
    warnings.warn(f"{_in_words(found)}, {advice}", stacklevel=2)


def bytes_kept_beside(inputs: Iterable[object], device: torch.device) -> int:
    """What code that is not compiled has kept on a device for its backward when a graph of the step is called."""
    tensors = [i for i in inputs if torch_compat.has_storage(i)]
    kept = [t for t in torch_compat.kept_uncompiled(tensors) if t.device.type == device.type]
    return storage_bytes([*tensors, *kept]) - storage_bytes(tensors)


def _warn_of_company(found: Measurement, beside_bytes: int) -> None:
    """A graph that keeps its budget does not help where code that is not compiled takes what is left, and more."""
    if found.budget_bytes is None or replace(found, least_bytes=found.least_bytes + beside_bytes).is_kept:
        return
    warnings.warn(
        f"{_in_words(found)}, but code that runs before it and is not compiled keeps {format_bytes(beside_bytes)} for "
        "its backward, of which no plan knows. Try: fullgraph=True, which says where torch.compile breaks off; a "
        "memory_budget smaller by as much",
        stacklevel=2,
    )


def tensors_in(outputs: Any) -> list[torch.Tensor]:
    """Those among what a compiled graph returns."""
    several = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
    return [o for o in several if isinstance(o, torch.Tensor)]


def backward_of(outputs: Iterable[torch.Tensor]) -> Any | None:
    """The autograd node of the compiled backward behind some outputs; None where no gradient is wanted."""
    nodes = [o.grad_fn for o in outputs if o.grad_fn is not None]
    for _ in range(_DEPTH):
        found = next((node for node in nodes if node.name() == torch_compat.COMPILED_NODE), None)
        if found is not None:
            return found
        nodes = [above for node in nodes for above, _ in node.next_functions if above is not None]
    return None
