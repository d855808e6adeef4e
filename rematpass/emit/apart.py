"""Gradients that a sum of each row and what is made of that sum read, computed for each of them.

In: the joint graph, for Inductor. Out: the same graph, in which the sum reads a computation of its own. Never changes
what is computed.

The gradient of a softmax is what arrives times the softmax, less the softmax times the sum of these products. One
kernel computes it all, yet Inductor stores a result that has several readers and reads more than four tensors
(`realize_reads_threshold`), and that many the product reads once the softmax is computed again inside it: the scores, a
mask, the largest of each row and the sum. So it was stored, in float32: of a layer with written-out attention in
bfloat16 half of what is live while the gradient of its scores is computed. Computed for each it is stored nowhere, and
not computed more often: a kernel that has several passes over a row works on what it reads anew in each.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from ..graph.merge import APART
from ..graph.op_traits import is_heavy, kind_of
from ..solve.program import Kind

aten = torch.ops.aten


def compute_apart(gm: fx.GraphModule, nodes: Iterable[fx.Node]) -> None:
    """Give sums over rows whose summands are read by what is made of them a copy of these, in place.

    Args:
        gm: where equal computations were merged; the copies must not be.
        nodes: where to look, the backward's: users name, pin and tag what the forward computes.
    """
    place = {node: i for i, node in enumerate(gm.graph.nodes)}

    def is_made_of(reader: fx.Node, total: fx.Node) -> bool:
        """Whether a pointwise op reads a sum, itself or by way of other pointwise ops."""
        todo, seen = [reader], set[fx.Node]()
        while todo:
            node = todo.pop()
            if node in seen or place[node] < place[total] or kind_of(node) not in (Kind.POINTWISE, Kind.VIEW):
                continue
            if total in node.all_input_nodes:
                return True
            seen.add(node)
            todo += node.all_input_nodes
        return False

    for total in nodes:
        summand = _summand(total)
        if summand is None or kind_of(summand) is not Kind.POINTWISE or is_heavy(summand):
            continue
        others = [reader for reader in summand.users if reader is not total]
        if others and all(is_made_of(reader, total) for reader in others):
            with gm.graph.inserting_before(total):
                copy = gm.graph.node_copy(summand)
            copy.meta = {**summand.meta, APART: True}
            place[copy] = place[total]
            total.replace_input_with(summand, copy)
    gm.recompile()


def _summand(node: fx.Node) -> fx.Node | None:
    """What a sum over the last dimensions adds up; None for anything else."""
    if node.op != "call_function" or node.target != aten.sum.dim_IntList:
        return None
    summand, dims = node.args[:2]
    if not isinstance(summand, fx.Node) or not isinstance(dims, (list, tuple)):
        return None
    rank = summand.meta["val"].ndim
    places = sorted(dim % rank for dim in dims) if rank else []
    return summand if places and places == list(range(rank - len(places), rank)) else None
