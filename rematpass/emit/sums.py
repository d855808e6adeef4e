"""Sums of the forward leave their products where the plan has them.

In: a half. Out: the same, some sums written otherwise. Never changes what is computed, never moves a node.
"""

from __future__ import annotations

import torch
from torch import fx

from ..graph.fold import leave_apart, may_fold


def keep_products_in_place(half: fx.GraphModule) -> None:
    """Where Inductor would put a product off until what it is added to is there, keep the two apart, in place.

    Of two summands it takes the second for the product if it is one (`addmm` in fx_passes/post_grad.py, 2.11 to 2.15).
    Sums of the backward are written so before they are planned (`graph.fold`); those of the forward keep their names in
    the plan. What the product of a small network reads, a long function of its input, lived until a later product was
    there: 6 % above its smallest plan (2026-11).
    """
    place = {node: i for i, node in enumerate(half.graph.nodes)}
    for node in half.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
        if node.kwargs or len(node.args) != 2 or not all(isinstance(operand, fx.Node) for operand in node.args):
            continue
        first, second = node.args
        product, other = (second, first) if may_fold(second, first) else (first, second)
        if may_fold(product, other) and place[product] < place[other]:
            leave_apart(node, product, other)
    half.recompile()
