"""What a user calls besides torch.compile.

In: models, arguments, options. Out: plans, hooks, option dicts. Never plans itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from . import torch_compat
from .backend import Halves, Partitioner, compile_patches, device_type, plans_of
from .device import make_settings
from .errors import RematError
from .graph.capture import capture_joint
from .options import Options, parse_options
from .pipeline import needs_plan, plan_and_split
from .plan import Plan


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
    parsed = _read(memory_budget, options)
    made: list[Plan] = []

    def stop_after_planning(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        settings = make_settings(parsed, device_type(inputs))
        patches = compile_patches(parsed, _PlanOnly(Partitioner(settings), made))
        torch_compat.compile_fx(gm, inputs, patches)
        raise torch_compat.as_compile_error(
            RematError("nothing to plan: no output of the model needs a gradient. Try: model.train(), requires_grad")
        )

    def call(*a: object, **k: object) -> object:
        return model(*a, **k)

    try:
        with torch_compat.compile_uncached(), torch.enable_grad():
            torch.compile(call, backend=stop_after_planning, fullgraph=True, dynamic=False)(*args, **(kwargs or {}))
    except _Planned:
        return made[-1]
    except torch_compat.Unsupported as error:
        raise RematError(
            f"the model does not trace into one graph: {error}\n"
            "Try: remove the graph break, or compile the model and read rematpass.plans(compiled) after a step"
        ) from error
    raise RematError("nothing was traced: the model ran no tensor operation. Try: check the arguments")


class _Planned(torch_compat.ShortenTraceback):
    """Carries us out of the compiler once the plan is made."""

    def __init__(self) -> None:
        super().__init__("planned", first_useful_frame=None)


class _PlanOnly(torch_compat.CustomPartitionerFn):
    """Plans and leaves."""

    def __init__(self, partitioner: Partitioner, made: list[Plan]) -> None:
        self._partitioner = partitioner
        self._made = made

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **facts: Any) -> Halves:
        """Plan, note the plan, stop compiling."""
        del joint_inputs  # shapes are on the graph
        self._made.append(self._partitioner.plan_only(gm, **facts))
        raise _Planned

    def uuid(self) -> str:
        """Never used: planning reads no cache."""
        return "rematpass-plan-only"


def plans(compiled: object) -> list[Plan]:
    """The plans of a compiled model, one per graph, in the order they were compiled; also after a cache hit.

    Warns when no graph was planned, which mostly means that the model never ran or was never compiled.
    """
    found = plans_of(compiled)
    if not found:
        warnings.warn(
            "rematpass: 0 graphs planned. Run a training step first; compile with torch.compile(model, "
            "backend='rematpass') rather than model.compile() on a built-in module class such as nn.Sequential, which "
            "torch never compiles; with inductor_options() a step that Inductor took from its cache has no plan.",
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
        flat = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
        settings = make_settings(self._options, device_type(flat), is_fusing=False)
        joint = capture_joint(gm, num_fwd_outputs, static_lifetime_input_indices)
        if not needs_plan(joint):
            return torch_compat.plain_partition(
                gm, joint_inputs, num_fwd_outputs=num_fwd_outputs, static_indices=static_lifetime_input_indices
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
    settings = make_settings(parsed, "cuda" if torch.cuda.is_available() else "cpu")
    return compile_patches(parsed, Partitioner(settings, parsed.on_error))
