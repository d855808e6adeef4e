"""What a user calls besides torch.compile.

In: models, arguments, options. Out: plans, hooks, option dicts. Never plans itself.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from . import torch_compat
from .backend import compile_patches, device_type, plan_topic
from .device import make_settings
from .errors import OptionError
from .graph.capture import JointProgram
from .look import Step, look_at_step
from .noted import plans_of
from .options import Options, parse_options
from .partitioner import Halves, Partitioner, errors_pass, take_apart
from .pipeline import Settings, needs_plan, plan_and_split, trace_curve
from .plan_types import Curve, CurvePoint, Plan
from .report.progress import Tick, open_progress
from .resize import SizedArguments
from .sized.planned import plan_step
from .sized.steps import read_arguments, resized_steps
from .sizing import MaxSize, find_max_size

__all__ = [
    "Curve",
    "CurvePoint",
    "MaxSize",
    "frontier",
    "inductor_options",
    "max_size",
    "partition_fn",
    "plan",
    "plans",
]


def _read(memory_budget: object, options: Mapping[str, object]) -> Options:
    return parse_options({"memory_budget": memory_budget, **options}, inductor_keys=torch_compat.inductor_keys())


def plan(
    model: Callable[..., Any],
    args: Sequence[Any] | Callable[..., Sequence[Any]] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory_budget: object = "auto",
    loss: Callable[[Any], Any] | None = None,
    device: str | None = None,
    dtype: object = None,
    sizes: Mapping[str, int] | None = None,
    **options: object,
) -> Plan:
    """Plan one training step of `model(*args, **kwargs)` without running it.

    The model is traced and differentiated exactly as `torch.compile(model, backend="rematpass")` would do it, then
    planned; no kernel runs, nothing is compiled, and no cache is read or written.

    With `device`, with `dtype`, or where a tensor is fake or on the meta device, the step is traced on tensors without
    memory: a model of any size can be planned anywhere. Build it under `with torch.device("meta")`.

    Args:
        model: a module or function whose outputs need gradients.
        args: its positional arguments; shapes, dtypes and devices count, values do not. Or a function from `sizes` to
            them, for `plan.formula` and `plan.crossover` where other sizes cannot be told from shapes.
        kwargs: its keyword arguments.
        memory_budget: bytes of the measured peak, in any accepted form; of `device`, if that is given.
        loss: what is differentiated, made of the model's outputs inside the step; None: the outputs themselves.
        device: a declared device (`rematpass devices` lists them) that the step will run on, or "cpu"; None: the one
            that is here.
        dtype: "bf16", torch.bfloat16, ...: what floating-point parameters, buffers and arguments will be; None: as
            they are.
        sizes: where `args` is a function: what it is called with, {"batch": 8, "sequence": 1024} or a batch alone.
        **options: further options as in `torch.compile(..., options=...)`.

    Returns:
        The plan; `print` it. It holds the model and the arguments, to look at the step at other sizes; copies and files
        do not.

    Raises:
        OptionError: a wrong option.
        BudgetTooSmall: no plan fits; `minimum_bytes` says what would.
        RematError: nothing needs a gradient, or the model does not trace into one graph.

    Example:
        >>> import torch, rematpass
        >>> with torch.device("meta"):
        ...     model, x = torch.nn.Linear(8192, 8192), torch.empty(64, 8192)
        >>> plan = rematpass.plan(model, (x,), loss=lambda y: y.sum(), device="h100-sxm", dtype="bf16")
        >>> plan.gradient_bytes  # of weight and bias, in bfloat16
        134234112
    """
    step = Step(model, read_arguments(args, sizes), kwargs, loss, device, dtype)
    return plan_step(step, _read(memory_budget, options), lambda: resized_steps(step, args, sizes))


def frontier(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    count: int = 32,
    progress: bool | None = None,
    loss: Callable[[Any], Any] | None = None,
    device: str | None = None,
    dtype: object = None,
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
        loss: as for `plan`.
        device: as for `plan`.
        dtype: as for `plan`.
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

    return look_at_step(Step(model, args, kwargs, loss, device, dtype), _read("none", options), use)


def max_size(
    model: Callable[..., Any],
    args: Sequence[Any] | Callable[[int], Sequence[Any]] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    vary: str,
    memory_budget: object = "auto",
    step: int = 1,
    most: int = 2**20,
    **options: Any,
) -> MaxSize:
    """The largest batch, or the longest sequence, for which some plan fits the budget; with its plan.

    A size is planned exactly for every answer that is tried; peaks are taken to grow with the size, and straight lines
    through them tell what to try next. The answer fits, and the next size does not.

    Args:
        model: as for `plan`.
        args: positional arguments at one size, from which others are made; or a function from a size to them.
        kwargs: keyword arguments; their tensors are resized as those of `args`.
        vary: "batch": the first dimension of every tensor that has the first tensor's; "sequence": every later
            dimension that is as large as the second one of the first tensor that has two.
        memory_budget: as for `plan`.
        step: sizes are multiples of it.
        most: no larger size is tried.
        **options: `loss`, `device`, `dtype` and options as for `plan`.

    Raises:
        OptionError: a wrong option, or arguments whose sizes do not tell what to vary.
        BudgetTooSmall: not even one step fits.
        RematError: as for `plan`.

    Example:
        >>> import torch, rematpass
        >>> with torch.device("meta"):
        ...     model, x = torch.nn.Linear(1024, 1024), torch.empty(1, 1024)
        >>> found = rematpass.max_size(
        ...     model, (x,), vary="batch", memory_budget="16MiB", device="l4", loss=lambda y: y.sum()
        ... )
        >>> found.size, found.above, found.plan.peak_bytes <= 16 * 2**20
        (1535, 1536, True)
    """
    if memory_budget == "none":
        raise OptionError("memory_budget='none' has no largest size. Try: bytes, '80%' or 'auto'")
    sized = SizedArguments(args, kwargs or {}, vary)

    def plan_at(size: int) -> Plan:
        args_there, kwargs_there = sized.at(size)
        return plan(model, args_there, kwargs_there, memory_budget=memory_budget, **options)

    return find_max_size(plan_at, vary, start=sized.sizes[0], step=step, most=most)


def plans(compiled: object) -> list[Plan]:
    """The plans of a compiled model, one per graph, in the order they were compiled; also after a cache hit.

    Warns when no graph was planned, which mostly means that the model never ran or was never compiled.
    """
    found = plans_of(compiled)
    if not found:
        warnings.warn(
            "rematpass: 0 graphs planned. Run a training step first; compile with torch.compile(model, "
            "backend='rematpass') rather than model.compile() on a built-in module class such as nn.Sequential, which "
            "torch never compiles; torch compiles no nn.LSTM, nn.GRU or nn.RNN, and no module around one, unless "
            "torch._dynamo.config.allow_rnn is True; with inductor_options() a step that Inductor took from its cache "
            "has no plan; where torch runs what it compiled for another model of the same class and options, that one "
            "has the plan.",
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
        joint = take_apart(gm, num_fwd_outputs, static, settings)
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
        A dict for `torch.compile(model, options=...)`; deep-copyable and comparable. With `save=` or `recompute=`,
        steps are not taken from torch's caches: what globs find hangs on names that the caches do not look at.
    """
    parsed = _read(memory_budget, options)
    settings = make_settings(parsed, "cuda" if torch.cuda.is_available() else "cpu", parsed.fingerprint())
    has_globs = bool(parsed.save or parsed.recompute)
    return compile_patches(parsed, Partitioner(settings, parsed.on_error, may_cache=not has_globs))
