"""Sums of a matrix product: decided here what Inductor would decide later, out of sight.

In: the joint graph, for Inductor, and some of its nodes. Out: the same graph, sums of products written as they will
run. Never makes or moves a node.

Inductor turns `add(mm(a, b), c)` into `addmm(c, a, b)` where the sum stands (`addmm` in fx_passes/post_grad.py, 2.11 to
2.15). If c is there when the product is due, that spares its buffer, and is written so from the start: planning knows.
If c is made later, the product would be put off until then, and all it reads would live that long: in a language model
with tied embeddings, the gradient of the logits through the whole backward. Such a sum is written as
`sub(c, mm(a, b), alpha=-1)`, which gives the same bits and which Inductor leaves alone. So is one that a GPU would not
leave in the product (`should_prefer_unfused_addmm`): its readers would add c, which would live until they do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from .joins import reads_pointwise
from .op_traits import adds_in_product

aten = torch.ops.aten
MATRIX_RANK = 2


def fold_sums(gm: fx.GraphModule, nodes: Sequence[fx.Node], device_type: str | None = None) -> None:
    """Rewrite the sums among `nodes`, in the order of the graph, that Inductor would merge with a product, in place.

    `device_type`: of the device that will run them, None for the one that they were traced on.
    """
    place = {node: i for i, node in enumerate(gm.graph.nodes)}
    for node in reversed(nodes):  # readers first: what they become decides
        if node.op != "call_function" or node.target != aten.add.Tensor or node.kwargs or len(node.args) != 2:
            continue
        left, right = node.args
        if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
            continue
        pairs = [pair for pair in ((left, right), (right, left)) if may_fold(*pair)]
        if pairs:
            product, other = max(pairs, key=lambda pair: place[pair[0]])
            _rewrite(node, product, other, is_early=place[other] < place[product] and _stays(node, device_type))
    gm.recompile()


def _stays(node: fx.Node, device_type: str | None) -> bool:
    """Whether a sum, once in the product, is left there."""
    value = node.meta["val"]
    is_kept = adds_in_product(value.dtype, device_type or value.device.type)
    return is_kept or not all(map(reads_pointwise, node.users))


def may_fold(product: fx.Node, other: fx.Node) -> bool:
    """Whether Inductor would (`is_valid_addmm_fusion`)."""
    if product.target != aten.mm.default or len(product.users) != 1 or product is other:
        return False
    made, added = product.meta.get("val"), other.meta.get("val")
    if not isinstance(made, torch.Tensor) or not isinstance(added, torch.Tensor):
        return False
    return (
        made.is_floating_point()
        and made.dtype == added.dtype
        and made.shape == added.shape
        and made.ndim == MATRIX_RANK
    )


def leave_apart(node: fx.Node, product: fx.Node, other: fx.Node) -> None:
    """Write a sum so that Inductor leaves the product where it is, in place; the bits are the same."""
    node.target, node.args, node.kwargs = aten.sub.Tensor, (other, product), {"alpha": -1}


def _rewrite(node: fx.Node, product: fx.Node, other: fx.Node, *, is_early: bool) -> None:
    if not is_early:
        leave_apart(node, product, other)
        return
    node.target, node.args = aten.addmm.default, (other, *product.args)
    node.graph.erase_node(product)
