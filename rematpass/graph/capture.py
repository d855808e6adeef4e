"""Take the joint graph apart into sides.

In: the joint GraphModule that AOTAutograd made, after Inductor's joint passes. Out: `JointProgram`, its nodes in order
with the side each belongs to. Never prices, never decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from .. import torch_compat
from ..solve.program import Kind
from .fold import fold_sums
from .merge import merge_equal
from .op_traits import is_random, kind_of


@dataclass(frozen=True)
class JointProgram:
    """A joint graph in order.

    Attributes:
        gm: the module; its graph has had dead code and common subexpressions removed.
        nodes: all nodes but the output, in order; a `ValueId` is an index into it.
        forward_outputs, backward_outputs: value ids, None where the graph returns no tensor.
        is_backward: depends on a tangent, or is tagged as backward only.
        in_forward: an ancestor of a forward output (the forward runs it whatever the plan).
        static_inputs: value ids of parameters and buffers that live outside the step.
        mutated_inputs: value ids of inputs that the step writes to.
    """

    gm: fx.GraphModule
    nodes: tuple[fx.Node, ...]
    forward_outputs: tuple[int | None, ...]
    backward_outputs: tuple[int | None, ...]
    is_backward: tuple[bool, ...]
    in_forward: tuple[bool, ...]
    static_inputs: tuple[int, ...]
    mutated_inputs: tuple[int, ...]

    @property
    def num_fwd_outputs(self) -> int:
        """How many of the joint outputs belong to the forward."""
        return len(self.forward_outputs)


def capture_joint(
    gm: fx.GraphModule,
    num_fwd_outputs: int,
    static_indices: list[int] | None,
    *,
    is_fusing: bool = False,
    device_type: str | None = None,
) -> JointProgram:
    """Clean the joint graph and tell forward from backward.

    Args:
        gm: joint module; placeholders named primals* and tangents*; its graph is replaced by the cleaned one.
        num_fwd_outputs: how many of the outputs the forward returns.
        static_indices: positions among the primals of parameters and buffers.
        is_fusing: Inductor runs the halves.
        device_type: of the device that will, None for the one that the graph was traced on.
    """
    merge_equal(gm)
    _gather_parts(gm)
    nodes, ids = _number(gm)
    if is_fusing:  # sums of the forward stay: users name, pin and tag its products
        fold_sums(gm, find_backward(gm), device_type)
        nodes, ids = _number(gm)
    output = next(n for n in gm.graph.nodes if n.op == "output")
    outputs = tuple(ids[leaf] if isinstance(leaf, fx.Node) else None for leaf in torch_compat.leaves(output.args))
    primals = _primals(nodes)
    forward_outputs = outputs[:num_fwd_outputs]
    is_backward = _backward_side(nodes, ids)
    return JointProgram(
        gm=gm,
        nodes=nodes,
        forward_outputs=forward_outputs,
        backward_outputs=outputs[num_fwd_outputs:],
        is_backward=is_backward,
        in_forward=_forward_side(nodes, ids, forward_outputs, is_backward),
        static_inputs=tuple(primals[i] for i in static_indices or [] if i < len(primals)),
        mutated_inputs=_mutated(gm, nodes, ids, primals),
    )


def find_gradients(
    gm: fx.GraphModule, num_fwd_outputs: int, static_indices: Sequence[int] | None
) -> dict[fx.Node, fx.Node]:
    """Per parameter, the gradient that a joint graph returns for it; arguments as for `capture_joint`."""
    nodes, _ = _number(gm)
    primals, returned = _primals(nodes), torch_compat.leaves(gm.graph.output_node().args)[num_fwd_outputs:]
    pairs = ((nodes[primals[i]], returned[i]) for i in static_indices or () if i < min(len(primals), len(returned)))
    return {parameter: gradient for parameter, gradient in pairs if isinstance(gradient, fx.Node)}


def find_forward(gm: fx.GraphModule) -> list[fx.Node]:
    """Nodes of a joint graph that depend on no gradient."""
    nodes, ids = _number(gm)
    return [node for node, is_backward in zip(nodes, _backward_side(nodes, ids), strict=True) if not is_backward]


def find_backward(gm: fx.GraphModule) -> list[fx.Node]:
    """Nodes of a joint graph that depend on a gradient."""
    nodes, ids = _number(gm)
    return [node for node, is_backward in zip(nodes, _backward_side(nodes, ids), strict=True) if is_backward]


def device_of(nodes: Sequence[fx.Node]) -> str:
    """The device that a graph with these nodes was traced on ("cpu", "cuda")."""
    tensors = (n.meta.get("val") for n in nodes if n.op == "placeholder")
    kinds = {v.device.type for v in tensors if isinstance(v, torch.Tensor)}
    return next((k for k in ("cuda", "xpu", "mps") if k in kinds), "cpu")


def find_overwritten(gm: fx.GraphModule) -> list[fx.Node]:
    """Inputs that the step writes to and the backward reads, themselves or a view of them.

    Inductor's joint passes put an input in place of its `clone`, also where it is written to later.
    """
    nodes, ids = _number(gm)
    written = _mutated(gm, nodes, ids, _primals(nodes))
    if not written:
        return []
    late = set(find_backward(gm))

    def is_read_late(node: fx.Node) -> bool:
        return any(r in late or (kind_of(r) is Kind.VIEW and is_read_late(r)) for r in node.users)

    return [nodes[i] for i in written if is_read_late(nodes[i])]


def _gather_parts(gm: fx.GraphModule) -> None:
    """Put every tensor out of an op that returns several right behind it: it takes memory from there on."""
    for node in gm.graph.nodes:
        place = node
        for reader in sorted(node.users):
            if kind_of(reader) is Kind.PART:
                place.append(reader)
                place = reader


def _number(gm: fx.GraphModule) -> tuple[tuple[fx.Node, ...], dict[fx.Node, int]]:
    nodes = tuple(n for n in gm.graph.nodes if n.op != "output")
    return nodes, {node: i for i, node in enumerate(nodes)}


def _primals(nodes: tuple[fx.Node, ...]) -> list[int]:
    return [i for i, n in enumerate(nodes) if n.op == "placeholder" and not _is_backward_input(n)]


def _is_backward_input(node: fx.Node) -> bool:
    name = str(node.target)
    return any(mark in name for mark in ("tangents", "bwd_seed", "bwd_base_offset", "bwd_rng_state"))


def _backward_side(nodes: tuple[fx.Node, ...], ids: dict[fx.Node, int]) -> tuple[bool, ...]:
    side = [False] * len(nodes)
    has_begun = False
    for i, node in enumerate(nodes):
        if node.op == "placeholder":
            side[i] = _is_backward_input(node)
            continue
        side[i] = torch_compat.is_must_be_in_backward(node) or any(side[ids[u]] for u in node.all_input_nodes)
        has_begun = has_begun or side[i]
        # A custom backward may draw numbers that depend on nothing: traced after its first op, not during the forward.
        side[i] = side[i] or (has_begun and is_random(node) and torch_compat.side_tag(node) is None)
    return tuple(side)


def _forward_side(
    nodes: tuple[fx.Node, ...],
    ids: dict[fx.Node, int],
    outputs: tuple[int | None, ...],
    is_backward: tuple[bool, ...],
) -> tuple[bool, ...]:
    needed = [False] * len(nodes)
    for i in outputs:
        if i is not None:
            needed[i] = True
    for i in range(len(nodes) - 1, -1, -1):
        # An impure op of the backward (attention of GPUs, which may draw) asks nothing of the forward.
        is_effect = nodes[i].op != "placeholder" and not is_backward[i] and nodes[i].is_impure()
        needed[i] = needed[i] or is_effect
        if needed[i]:
            for u in nodes[i].all_input_nodes:
                needed[ids[u]] = True
    return tuple(needed)


def _mutated(
    gm: fx.GraphModule, nodes: tuple[fx.Node, ...], ids: dict[fx.Node, int], primals: list[int]
) -> tuple[int, ...]:
    found = {primals[p] for p in torch_compat.mutated_input_positions(gm) if p < len(primals)}
    for node in nodes:
        if str(node.target) == "aten.copy_.default" and isinstance(node.args[0], fx.Node):
            found.add(ids[node.args[0]])
    return tuple(sorted(i for i in found if nodes[i].op == "placeholder"))
