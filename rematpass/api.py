"""What a user calls besides torch.compile.

In: models, arguments, options. Out: plans, hooks, option dicts. Never plans itself.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from . import torch_compat
from .backend import Halves, Partitioner, compile_patches, device_type, errors_pass, plan_topic, plans_of
from .device import make_settings
from .errors import OptionError, RematError
from .graph.capture import JointProgram, capture_joint
from .options import Options, parse_options
from .pipeline import Settings, needs_plan, plan_and_split, trace_curve
from .plan_types import Curve, CurvePoint, Plan
from .report.progress import Tick, open_progress

T = TypeVar("T")

__all__ = ["Curve", "CurvePoint", "frontier", "inductor_options", "partition_fn", "plan", "plans"]


def _read(memory_budget: object, options: Mapping[str, object]) -> Options:
    return parse_options({"memory_budget": memory_budget, **options}, inductor_keys=torch_compat.inductor_keys())


def plan(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory_budget: object = "auto",
    **options: object,
) -> Plan:
    """Plan one training step of `model(*args, **kwargs)` without running it.

    The model is traced and differentiated exactly as `torch.compile(model, backend="rematpass")` would do it, then
    planned; no kernel runs, nothing is compiled, and no cache is read or written.

    Args:
        model: a module or function whose outputs need gradients.
        args: its positional arguments; shapes, dtypes and devices count, values do not.
        kwargs: its keyword arguments.
        memory_budget: bytes of the measured peak, in any accepted form.
        **options: further options as in `torch.compile(..., options=...)`.

    Returns:
        The plan; `print` it.

    Raises:
        OptionError: a wrong option.
        BudgetTooSmall: no plan fits; `minimum_bytes` says what would.
        RematError: nothing needs a gradient, or the model does not trace into one graph.
    """

    def use(joint: JointProgram, settings: Settings) -> Plan:
        return plan_and_split(joint, settings, "graph 0").plan

    return _trace(model, args, kwargs, _read(memory_budget, options), use)


def frontier(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    count: int = 32,
    progress: bool | None = None,
    **options: object,
) -> Curve:
    """Extra time over peak memory for one training step: the plans at `count` budgets, each with its bound.

    `print` it for a table, `curve.plot("curve.png")` for a picture, `curve.to_json()` for scripts. A plan on it is what
    `rematpass.plan(..., memory_budget=point.peak_bytes)` gives.

    Args:
        model: a module or function whose outputs need gradients.
        args: its positional arguments; shapes, dtypes and devices count, values do not.
        kwargs: its keyword arguments.
        count: budgets, spread evenly between the fastest plan and the smallest; equal plans are listed once.
        progress: a progress bar on stderr; on a terminal when None.
        **options: as in `torch.compile(..., options=...)`, without memory_budget. `time_limit` has no effect here.

    Raises:
        OptionError: a wrong option, or a count below 2.
        RematError: nothing needs a gradient, or the model does not trace into one graph.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise OptionError(f"count is {count!r}; it must be an integer of at least 2")
    if "memory_budget" in options:
        raise OptionError(
            "frontier() takes no memory_budget: it shows what every budget costs. Try: rematpass.plan(...)"
        )
    is_shown = sys.stderr.isatty() if progress is None else progress

    def use(joint: JointProgram, settings: Settings) -> Curve:
        if not is_shown:
            return trace_curve(joint, settings, count)
        with open_progress(sys.stderr, count) as advance:
            return trace_curve(joint, settings, count, lambda done: advance(Tick("plans", done, count)))

    return _trace(model, args, kwargs, _read("none", options), use)


def _trace(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: Options,
    use: Callable[[JointProgram, Settings], T],
) -> T:
    """Trace and differentiate one step as torch.compile would, and hand the joint graph to `use`."""
    made: list[T] = []

    def stop_at_joint_graph(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        settings = make_settings(options, device_type(inputs), plan_topic(gm, inputs, options))
        torch_compat.compile_fx(gm, inputs, compile_patches(options, _Look(Partitioner(settings), use, made)))
        raise torch_compat.as_compile_error(
            RematError("nothing to plan: no output of the model needs a gradient. Try: model.train(), requires_grad")
        )

    def call(*a: object, **k: object) -> object:
        return model(*a, **k)

    try:
        with torch_compat.compile_uncached(), torch.enable_grad():
            torch.compile(call, backend=stop_at_joint_graph, fullgraph=True, dynamic=False)(*args, **(kwargs or {}))
    except _Seen:
        return made[-1]
    except torch_compat.Unsupported as error:
        raise RematError(
            f"the model does not trace into one graph: {error}\n"
            "Try: remove the graph break, or compile the model and read rematpass.plans(compiled) after a step"
        ) from error
    raise RematError("nothing was traced: the model ran no tensor operation. Try: check the arguments")


class _Seen(torch_compat.ShortenTraceback):
    """Carries us out of the compiler once the joint graph was looked at."""

    def __init__(self) -> None:
        super().__init__("seen", first_useful_frame=None)


class _Look(torch_compat.CustomPartitionerFn):
    """Looks at the joint graph and leaves."""

    def __init__(self, partitioner: Partitioner, use: Callable[[JointProgram, Settings], Any], made: list[Any]) -> None:
        self._partitioner = partitioner
        self._use = use
        self._made = made

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **facts: Any) -> Halves:
        """Note what `use` makes of the graph, stop compiling."""
        del joint_inputs  # shapes are on the graph
        self._made.append(self._partitioner.look(gm, self._use, **facts))
        raise _Seen

    def uuid(self) -> str:
        """Never used: looking reads no cache."""
        return "rematpass-look-only"


def plans(compiled: object) -> list[Plan]:
    """The plans of a compiled model, one per graph, in the order they were compiled; also after a cache hit.

    Warns when no graph was planned, which mostly means that the model never ran or was never compiled.
    """
    found = plans_of(compiled)
    if not found:
        warnings.warn(
            "rematpass: 0 graphs planned. Run a training step first; compile with torch.compile(model, "
            "backend='rematpass') rather than model.compile() on a built-in module class such as nn.Sequential, which "
            "torch never compiles; with inductor_options() a step that Inductor took from its cache has no plan; where "
            "torch runs what it compiled for another model of the same class and options, that one has the plan.",
            stacklevel=2,
        )
    return found


def partition_fn(memory_budget: object = "auto", **options: object) -> PartitionFn:
    """A partition function for `functorch.compile.aot_function` and `aot_module`, with any compilers.

    The halves are priced and simulated for an executor that runs one op at a time and frees a value after its last
    use, as the generated code of an FX graph does.

    Args:
        memory_budget: bytes of the peak of forward and backward, in any accepted form.
        **options: further options of ours.

    Example:
        >>> import torch, rematpass
        >>> from functorch.compile import aot_function, nop
        >>> split = rematpass.partition_fn(memory_budget="none")
        >>> f = aot_function(lambda x: x.sin().exp().sum(), nop, nop, partition_fn=split)
        >>> x = torch.ones(3, requires_grad=True)
        >>> f(x).backward()
        >>> torch.allclose(x.grad, x.detach().cos() * x.detach().sin().exp())
        True
    """
    parsed = _read(memory_budget, options)

    return PartitionFn(parsed)


class PartitionFn:
    """What `partition_fn` returns: splits joint graphs; `plans` lists the plans made, in order."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.plans: list[Plan] = []

    def __call__(
        self,
        gm: fx.GraphModule,
        joint_inputs: Sequence[object],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
        **_: object,
    ) -> Halves:
        """AOTAutograd's call: (joint graph, its inputs) -> (forward, backward)."""
        with errors_pass():
            return self._split(gm, joint_inputs, num_fwd_outputs, static_lifetime_input_indices)

    def _split(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], num_fwd_outputs: int, static: list[int] | None
    ) -> Halves:
        flat = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
        topic = plan_topic(gm, flat, self._options)
        settings = make_settings(self._options, device_type(flat), topic, is_fusing=False)
        joint = capture_joint(gm, num_fwd_outputs, static)
        if not needs_plan(joint):
            return torch_compat.plain_partition(
                gm, joint_inputs, num_fwd_outputs=num_fwd_outputs, static_indices=static
            )
        planned = plan_and_split(joint, settings, f"graph {len(self.plans)}")
        self.plans.append(planned.plan)
        return planned.forward, planned.backward


def inductor_options(memory_budget: object = "auto", **options: object) -> dict[str, Any]:
    """Options that make Inductor itself use our partition, for trainers that only take `backend="inductor"`.

    Args:
        memory_budget: as for torch.compile.
        **options: further options, ours and Inductor's.

    Returns:
        A dict for `torch.compile(model, options=...)`; deep-copyable and comparable.
    """
    parsed = _read(memory_budget, options)
    settings = make_settings(parsed, "cuda" if torch.cuda.is_available() else "cpu", parsed.fingerprint())
    return compile_patches(parsed, Partitioner(settings, parsed.on_error))
