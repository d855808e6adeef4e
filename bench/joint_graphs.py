"""Joint graphs as `torch.compile(model, backend="rematpass")` sees them, and what torch's own partitioner keeps.

In: a model and its inputs. Out: the planner's `Inputs`, and kept sets of the incumbent. Never compiles, never runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy

from bench.hand_strategies import Regions, is_keepable
from rematpass import torch_compat
from rematpass.cost.device_model import DeviceModel
from rematpass.device import CUDNN_FIRST
from rematpass.graph.capture import JointProgram
from rematpass.partitioner import take_apart
from rematpass.pipeline import Settings, collect_inputs
from rematpass.record import Inputs


@dataclass(frozen=True)
class Captured:
    """A joint graph and what the planner knows of it."""

    joint: JointProgram
    inputs: Inputs


class _Captured(torch_compat.ShortenTraceback):
    """Carries us out of the compiler once the graph is captured."""

    def __init__(self) -> None:
        super().__init__("captured", first_useful_frame=None)


class _Capturer(torch_compat.CustomPartitionerFn):
    """Notes the joint graph and leaves."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.found: Captured | None = None

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **facts: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Inductor's hook."""
        del joint_inputs  # shapes are on the graph
        static = facts.get("static_lifetime_input_indices")
        joint = take_apart(gm, facts["num_fwd_outputs"], static, self._settings)
        self.found = Captured(joint, collect_inputs(joint, self._settings))
        raise _Captured

    def uuid(self) -> str:
        """Never used: no cache is read."""
        return "plan-quality"


def capture(
    model: nn.Module, arguments: Sequence[Tensor], device: DeviceModel, device_type: str | None = None
) -> Captured:
    """Trace and differentiate one training step as the backend does, and stop where it would be planned.

    For a `device_type` of "cuda" attention and bytes are those of such a device, whatever the graph was traced on.
    """
    capturer = _Capturer(make_settings(device, device_type))

    def stop_at_the_joint_graph(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        is_cudnn_first = device.name in CUDNN_FIRST
        with torch_compat.as_on_gpu(gm, is_cudnn_first=is_cudnn_first) if device_type == "cuda" else nullcontext():
            return torch_compat.compile_fx(gm, inputs, {"custom_partitioner_fn": capturer})

    torch._dynamo.reset()
    try:
        with torch_compat.compile_uncached(), torch.enable_grad():
            torch.compile(model, backend=stop_at_the_joint_graph, fullgraph=True, dynamic=False)(*arguments)
    except _Captured:
        assert capturer.found is not None
        return capturer.found
    raise RuntimeError("the model was compiled without a joint graph: nothing in it needs a gradient")


def make_settings(device: DeviceModel, device_type: str | None = None) -> Settings:
    """Settings without a budget, for an executor that fuses, priced for `device`."""
    return Settings(
        budget_bytes=None,
        is_budget_above_inputs=False,
        device=device,
        device_type=device_type,
        is_fusing=True,
        on_infeasible="error",
        time_limit=60.0,
        save=(),
        recompute=(),
        fingerprint="plan-quality",
    )


def kept_by_torch(captured: Captured, ratio: float, regions: Regions | None = None) -> frozenset[int]:
    """What the forward saves when torch's `min_cut_rematerialization_partition` splits the graph.

    Args:
        captured: the graph; a copy of it is split.
        ratio: torch's `activation_memory_budget`.
        regions: marked for recomputation as `torch.utils.checkpoint` under torch.compile marks them.

    Raises:
        Exception: whatever torch raises on a graph that it cannot handle.
    """
    joint, program = captured.joint, captured.inputs.program
    copy = fx.GraphModule(joint.gm, _copy_graph(joint, regions))
    primals = [n for n in joint.nodes if n.op == "placeholder" and "tangents" not in str(n.target)]
    static = {joint.nodes[v] for v in joint.static_inputs}
    context = TracingContext(_fake_mode(joint))  # torch asks it for the mode when it recomputes what draws at random
    with tracing(context), functorch_config.patch(activation_memory_budget=ratio):
        forward, _ = min_cut_rematerialization_partition(
            copy,
            None,
            num_fwd_outputs=joint.num_fwd_outputs,
            static_lifetime_input_indices=[i for i, n in enumerate(primals) if n in static],
        )
    saved = _saved_names(forward, joint.num_fwd_outputs)
    number = {n.name: v for v, n in enumerate(joint.nodes) if not joint.is_backward[v]}
    unknown = sorted(saved - number.keys())
    if unknown:
        raise RuntimeError(f"torch saves {unknown[:3]}, which the joint graph's forward does not have")
    bases = {program.root[number[name]] for name in saved}
    return frozenset(v for v in bases if is_keepable(program, v))


def _saved_names(forward: fx.GraphModule, num_fwd_outputs: int) -> set[str]:
    """Names of the values that the forward returns for the backward, states of random generators left out."""
    output = next(n for n in forward.graph.nodes if n.op == "output")
    saved = [n for n in output.args[0][num_fwd_outputs:] if isinstance(n, fx.Node)]
    return {n.name for n in saved if not _is_random_state(n)}


def _is_random_state(node: fx.Node) -> bool:
    """Torch adds these to run a random op again with the same draws; a few KiB that joint graphs do not have."""
    return node.target is operator.getitem and str(node.all_input_nodes[0].target) == "run_and_save_rng_state"


def _copy_graph(joint: JointProgram, regions: Regions | None) -> fx.Graph:
    """The same graph with its own nodes and `meta`, those of regions marked."""
    graph = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(joint.gm.graph, twins)
    graph.output(result)
    for v, node in enumerate(joint.nodes):
        twin = twins[node]
        twin.meta = dict(node.meta)
        region = None if regions is None or not joint.in_forward[v] else regions[v]
        if region is not None and node.op == "call_function":
            twin.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
            twin.meta["ac_graph_id"] = region
    return graph


def _fake_mode(joint: JointProgram) -> FakeTensorMode | None:
    values = (node.meta.get("val") for node in joint.nodes)
    return next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
