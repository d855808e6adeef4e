"""Merge computations that are the same: the last time on the whole road that anything is merged.

In: the joint graph as traced. Out: the same graph without dead code, without a pure computation done twice, and
without reshapes back to the shape there was. Never merges what draws random numbers, has effects, or is returned under
two names.

Where an activation writes in place to a view, as behind a norm over single images, the view is traced anew, there and
back. Inductor drops such a pair only if nothing else reads what is between (`pointless_view_pair` in
fx_passes/joint_graph.py, 2.11 to 2.15), and copies images at the pair if it stays.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import fx

from .. import torch_compat
from ..torch_compat import OpOverload
from .flops import tensors_in
from .op_traits import base_name, is_builtin, is_random, is_reshape

# Their contents are whatever was there before; nothing is gained by sharing them.
_UNINITIALIZED = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
APART = "rematpass_apart"
"""In a node's `meta`: it stays apart from what it is equal to."""

# Modules of the plain functions that stand in graphs: arithmetic on sizes, and `getitem`.
_ARITHMETIC = ("_operator", "math", "torch")


def merge_equal(gm: fx.GraphModule) -> None:
    """Remove dead code and repeated computations from `gm`, in place.

    AOTAutograd's own pass (`fx_graph_cse`) is not used: its list of random operators is incomplete (2.13: two
    `randn_like`, `uniform` or `exponential` of one shape became one draw), and it takes 0.0 for -0.0.
    """
    graph = gm.graph
    graph.eliminate_dead_code()
    returned = _returned_storages(graph)
    first_of: dict[Hashable, fx.Node] = {}
    writes = 0
    for node in list(graph.nodes):
        writes += torch_compat.is_mutable(node)  # what is read after it may differ from what was read before
        key = _key(node, returned)
        if key is None:
            continue
        first = _shown(node) or first_of.setdefault((writes, key), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    gm.recompile()


def _shown(view: fx.Node) -> fx.Node | None:
    """What is shown in another shape, then by `view` in its own again; None for anything else."""
    source, found, labels = view, None, _labels(view)
    while is_reshape(source) and isinstance(source.args[0], fx.Node):
        source = source.args[0]
        if _labels(source) != labels:  # what a user has named or wished for stays
            break
        if _is_shown_alike(source, view):
            found = source
    return found


def _is_shown_alike(x: fx.Node, y: fx.Node) -> bool:
    """Whether two have one shape and the same strides, whatever their dynamic sizes become."""
    tensors = [tensor for node in (x, y) for tensor in tensors_in(node.meta.get("val"))]
    if any(tensor.layout is not torch.strided for tensor in tensors):
        return False
    sizes, others = ((*tensor.shape, *tensor.stride()) for tensor in tensors)
    return len(sizes) == len(others) and all(map(torch_compat.is_known_equal, sizes, others))


def _returned_storages(graph: fx.Graph) -> set[object]:
    """Storages of what is returned: two results that are equal but separate stay separate."""
    output = next(n for n in graph.nodes if n.op == "output")
    values = (n.meta.get("val") for n in output.all_input_nodes)
    return {torch_compat.storage_key(v) for v in values if isinstance(v, torch.Tensor)}


def _key(node: fx.Node, returned: set[object]) -> Hashable | None:
    """Equal for computations that are the same; None for those that must stay as they are."""
    if node.op != "call_function" or APART in node.meta or not _may_merge(node):
        return None
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and torch_compat.storage_key(value) in returned:
        return None
    try:
        return (node.target, _frozen(node.args), _frozen(node.kwargs), _labels(node))
    except TypeError:  # an argument that has no identity by value, such as a generator
        return None


def _labels(node: fx.Node) -> tuple[object, ...]:
    """What users and torch wrote on a node, which those that become one must share."""
    return torch_compat.user_policy(node), torch_compat.user_label(node), _bound_side(node)


def _bound_side(node: fx.Node) -> bool | None:
    """The half a node must stay in; None for most, which either half may share."""
    is_bound = (torch_compat.is_must_be_in_forward(node), torch_compat.is_must_be_in_backward(node))
    return is_bound[1] if any(is_bound) else None


def _may_merge(node: fx.Node) -> bool:
    if torch_compat.makes_unbacked_size(node):
        return False
    target = node.target
    if not isinstance(target, OpOverload):
        return getattr(target, "__module__", None) in _ARITHMETIC
    return is_builtin(target) and not (
        is_random(node) or target._schema.is_mutable or base_name(target) in _UNINITIALIZED
    )


def _frozen(argument: object) -> Hashable:
    """An argument by value and type: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(argument, (tuple, list)):
        return (type(argument).__name__, *(_frozen(a) for a in argument))
    if isinstance(argument, dict):
        return ("dict", *((k, _frozen(v)) for k, v in argument.items()))
    if isinstance(argument, slice):
        return ("slice", _frozen(argument.start), _frozen(argument.stop), _frozen(argument.step))
    if isinstance(argument, (float, complex)):
        return (type(argument), repr(argument))
    hash(argument)
    return (type(argument), argument)
