"""Sums of a matrix product: decided here what Inductor would decide later, out of sight.

In: the joint graph, for Inductor, and some of its nodes. Out: the same graph, sums of products written as they will
run. Never makes or moves a node.

Inductor turns `add(mm(a, b), c)` into `addmm(c, a, b)` where the sum stands (`addmm` in fx_passes/post_grad.py, 2.11 to
2.15). If c is there when the product is due, that spares its buffer, and is written so from the start: planning knows.
If c is made later, the product would be put off until then, and all it reads would live that long: in a language model
with tied embeddings, the gradient of the logits through the whole backward. Such a sum is written as
`sub(c, mm(a, b), alpha=-1)`, which gives the same bits and which Inductor leaves alone.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

aten = torch.ops.aten
MATRIX_RANK = 2


def fold_sums(gm: fx.GraphModule, nodes: Collection[fx.Node]) -> None:
    """Rewrite the sums among `nodes` that Inductor would merge with a product, in place."""
    place = {node: i for i, node in enumerate(gm.graph.nodes)}
    for node in nodes:
        if node.op != "call_function" or node.target != aten.add.Tensor or node.kwargs or len(node.args) != 2:
            continue
        left, right = node.args
        if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
            continue
        pairs = [pair for pair in ((left, right), (right, left)) if _may_fold(*pair)]
        if pairs:
            product, other = max(pairs, key=lambda pair: place[pair[0]])
            _rewrite(node, product, other, place)
    gm.recompile()


def _may_fold(product: fx.Node, other: fx.Node) -> bool:
    """Whether Inductor would (`is_valid_addmm_fusion`); on a GPU it takes some of these apart again."""
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


def _rewrite(node: fx.Node, product: fx.Node, other: fx.Node, place: dict[fx.Node, int]) -> None:
    if place[other] > place[product]:
        node.target, node.args, node.kwargs = aten.sub.Tensor, (other, product), {"alpha": -1}
        return
    node.target, node.args = aten.addmm.default, (other, *product.args)
    node.graph.erase_node(product)
