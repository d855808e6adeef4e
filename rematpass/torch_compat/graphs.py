"""Joint graphs: what torch writes on their nodes, and how a graph is cut.

In: torch, 2.11 to 2.15. Out: small functions with stable names and meanings. Never decides anything, never holds state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._functorch.partitioners import (  # 2.11-2.15
    _extract_fwd_bwd_modules,
    thread_graphsafe_rng_from_hops,
)
from torch._ops import OpOverload

from ..declared import kernel_name

# Key of `node.meta`: the runtime hands this value to the backward without looking whether it was changed in place
# (2.13; where torch knows no such key, every kept tensor is checked).
NO_VERSION_CHECK = "saved_tensor_with_no_vc_check"


def leaves(tree: object) -> list[object]:
    """The leaves of nested tuples, lists and dicts, None included (2.11-2.15)."""
    from torch.utils import _pytree

    return _pytree.tree_leaves(tree, is_leaf=lambda leaf: leaf is None)


def extract_halves(
    joint: fx.GraphModule,
    kept: list[fx.Node],
    kept_symbols: list[fx.Node],
    *,
    num_fwd_outputs: int,
    static_inputs: Collection[fx.Node],
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Cut a joint graph whose recomputations are already explicit nodes (2.11-2.15).

    The helper keeps node order, so what is planned is what is emitted. It sorts the kept values as the runtime wants
    them, adds the symbols their shapes need, and drops dead code on both sides.
    """
    from torch.utils._ordered_set import OrderedSet

    halves = _extract_fwd_bwd_modules(
        joint,
        kept,
        saved_sym_nodes=kept_symbols,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_nodes=OrderedSet(static_inputs),
    )
    forward = thread_graphsafe_rng_from_hops(halves[0], is_backward=False)
    backward = thread_graphsafe_rng_from_hops(halves[1], is_backward=True)
    return forward, backward


def plain_partition(
    gm: fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int, static_indices: list[int] | None
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Torch's own partition (2.11-2.15), for graphs without a backward and for `on_error="fallback"`."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition(
        gm, inputs, num_fwd_outputs=num_fwd_outputs, static_lifetime_input_indices=static_indices
    )


def side_tag(node: fx.Node) -> str | None:
    """Where AOTAutograd met the node: "is_forward", "is_backward", "must_be_in_...", or None (2.11-2.15)."""
    return cast("str | None", node.meta.get("partitioner_tag"))


def half_tag(*, is_backward: bool) -> dict[str, str]:
    """What a node of ours says in its meta for `extract_halves` to put it into that half only (2.11-2.15).

    Without it torch copies into both whatever it can compute there, and drops only what is dead and pure: a random
    operator whose inputs are kept would draw again in the backward, an assertion or a collective run twice.
    """
    return {"partitioner_tag": "must_be_in_backward" if is_backward else "must_be_in_forward"}


def is_mutable(node: fx.Node) -> bool:
    """Whether the operator writes to one of its inputs."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def is_must_be_in_forward(node: fx.Node) -> bool:
    """AOTAutograd's rule (2.11-2.15): tagged so, or mutating and not tagged as backward."""
    tag = side_tag(node)
    if tag == "must_be_in_forward":
        return True
    return tag not in ("is_backward", "must_be_in_backward") and is_mutable(node)


def is_must_be_in_backward(node: fx.Node) -> bool:
    """AOTAutograd's rule (2.11-2.15), and: what the backward draws at random or does to the world, it does itself."""
    tag = side_tag(node)
    return tag == "must_be_in_backward" or (tag == "is_backward" and (is_mutable(node) or node.is_impure()))


def makes_unbacked_size(node: fx.Node) -> bool:
    """Whether the node brings a size into the world that depends on data (2.11-2.15)."""
    return bool(node.meta.get("unbacked_bindings"))


_LABEL = "rematpass.name"


def name_traced(x: torch.Tensor, label: str) -> torch.Tensor:
    """A view of `x` whose node in a traced graph carries `label` (2.11-2.15).

    `expand` to its own shape costs nothing and is the one view that no pass before the partitioner takes out.
    """
    from torch.fx.traceback import annotate

    with annotate({_LABEL: label}):
        return x.expand_as(x)


def user_label(node: fx.Node) -> str:
    """What `name_traced` wrote on a node, "" elsewhere (2.11-2.15)."""
    return str((node.meta.get("custom") or {}).get(_LABEL, ""))


def triton_kernel_name(node: fx.Node) -> str | None:
    """The name of the user's Triton kernel that a node launches, None for any other node (2.11-2.15)."""
    if not str(getattr(node.target, "__name__", "")).startswith("triton_kernel_wrapper"):
        return None
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_name(kernel_side_table.get_kernel(cast("int", node.kwargs["kernel_idx"])))


def checkpoint_region(node: fx.Node) -> object:
    """Which checkpointed region of the user made the node, None outside of all (2.11-2.15)."""
    return node.meta.get("ac_graph_id")


def user_policy(node: fx.Node) -> str | None:
    """The user's checkpoint policy on `node`, as its name ("MUST_SAVE", ...), or None (2.11-2.15)."""
    policy = node.meta.get("recompute")
    return getattr(policy, "name", None)


def mutated_input_positions(gm: fx.GraphModule) -> tuple[int, ...]:
    """Positions among the primals of inputs that the step writes to, from AOTAutograd's metadata (2.11-2.15)."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    if metadata is not None:
        return tuple(i for i, info in enumerate(metadata.input_info) if info.mutates_data)
    return tuple(sorted(_mutations_described(gm)))


def _mutations_described(gm: fx.GraphModule) -> set[int]:
    """The same from the descriptions on the joint graph's output and inputs, where AOTAutograd is used on its own."""
    output = next(n for n in gm.graph.nodes if n.op == "output")
    written = [getattr(d, "mutated_input", None) for d in leaves(output.meta.get("desc", ()))]
    primals = [n for n in gm.graph.nodes if n.op == "placeholder" and "tangents" not in str(n.target)]
    return {i for i, n in enumerate(primals) if n.meta.get("desc") in [w for w in written if w is not None]}


def order_strides() -> OpOverload:
    """`f(tensor, strides)`: the tensor, its elements in memory in the order of such strides (2.11-2.15)."""
    from torch._inductor import inductor_prims

    return cast("OpOverload", inductor_prims.force_stride_order)


def storage_key(tensor: torch.Tensor) -> object:
    """Equal for tensors that share a storage, fake ones included (2.11-2.15). A sparse tensor has none to share."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata
