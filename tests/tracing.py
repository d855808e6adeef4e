"""Joint graphs of small functions, as AOTAutograd hands them to a partitioner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import aot_function, default_partition, nop
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

from rematpass.cost.device_model import DeviceModel
from rematpass.graph.capture import JointProgram, capture_joint
from rematpass.pipeline import Settings

# Round figures: one float64 or float32 operation a nanosecond, one byte a nanosecond, a kernel costs 10 ns.
TOY = DeviceModel("toy", (("float32", 1e9), ("float64", 1e9)), 1e9, 10, 1e9, 2**34, "invented for tests")


def toy_settings(budget_bytes: int | None = None, *, is_fusing: bool = True, **changes: Any) -> Settings:
    """Settings on the toy device."""
    figures = {
        "budget_bytes": budget_bytes,
        "is_budget_above_inputs": False,
        "device": TOY,
        "is_fusing": is_fusing,
        "on_infeasible": "error",
        "time_limit": 60.0,
        "save": (),
        "recompute": (),
        "fingerprint": "toy",
    }
    return Settings(**{**figures, **changes})


class Catcher:
    """A partition function that notes the captured joint graph before the graph is split by torch's own partitioner."""

    def __init__(self, use: Callable[[JointProgram], Any]) -> None:
        self._use = use
        self.found: list[Any] = []

    def __call__(self, gm, joint_inputs, *, num_fwd_outputs, static_lifetime_input_indices=None, **more):
        self.found.append(self._use(capture_joint(gm, num_fwd_outputs, static_lifetime_input_indices)))
        return default_partition(
            gm,
            joint_inputs,
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=static_lifetime_input_indices,
            **more,
        )


def joint_of(function: Callable[..., Any], arguments: Sequence[Any]) -> JointProgram:
    """The joint graph of `function` through functorch's aot_function: no decompositions, no module paths."""
    catcher = Catcher(lambda joint: joint)
    aot_function(function, nop, nop, partition_fn=catcher)(*arguments)
    return catcher.found[0]


def dynamo_joint_of(function: Callable[..., Any], arguments: Sequence[Any]) -> JointProgram:
    """The joint graph of `function` through dynamo, as Inductor asks for it: with module paths and source lines."""
    catcher = Catcher(lambda joint: joint)
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=nop, bw_compiler=nop, partition_fn=catcher, keep_inference_input_mutations=True)
    torch.compile(function, backend=backend, fullgraph=True)(*arguments)
    return catcher.found[0]


def convolution_of(function: Callable[..., Any], *tensors: torch.Tensor) -> fx.Node:
    """The first convolution of a function, or gradient of one, with fake tensors."""
    return node_of("convolution", function, *tensors)


def node_of(name: str, function: Callable[..., Any], *tensors: torch.Tensor) -> fx.Node:
    """The first operator of a function whose name contains `name`, with fake tensors."""
    graph = make_fx(function, tracing_mode="fake")(*tensors)
    return next(node for node in graph.graph.nodes if name in str(node.target))
