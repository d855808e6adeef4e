"""Sums over the uses of a parameter, term by term.

In: a joint graph. Out: its partial sums that are worth having in memory. Never changes the graph.

Where layers share a parameter, as the steps of a loop do, its gradient is a sum of a product for each. In float32
Inductor adds each to the sum where it is computed (`addmm`). In mixed precision a cast stands between the two, and by
itself Inductor adds up in one function at the end, for which all products wait: the smallest plan of a GRU of twelve
steps took twice what it takes with the partial sums stored (2026-11, torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from ..solve.program import Kind
from .capture import JointProgram
from .op_traits import base_name, kind_of
from .sizes import concrete
from .words import words

_CASTS = words("convert_element_type _to_copy")


def find_partial_sums(joint: JointProgram) -> frozenset[fx.Node]:
    """Sums of two or more products, each cast, that only the next such sum reads; the last of them is returned."""
    sums: set[fx.Node] = set()
    for node, is_backward in zip(joint.nodes, joint.is_backward, strict=True):
        if is_backward and _adds_a_product(node, sums):
            sums.add(node)
    returned = {joint.nodes[o] for o in joint.backward_outputs if o is not None}
    found: set[fx.Node] = set()
    for node in reversed(joint.nodes):
        reader = next(iter(node.users), None)
        if node in sums and len(node.users) == 1 and reader in sums and _ends_in(reader, found, returned):
            found.add(node)
    return frozenset(found)


def _adds_a_product(node: fx.Node, sums: set[fx.Node]) -> bool:
    if base_name(node.target) != "add" or len(node.all_input_nodes) != 2 or node.kwargs:
        return False
    first, second = node.all_input_nodes
    shapes = {tuple(map(concrete, value.shape)) for value in _tensors(node, first, second)}
    return len(shapes) == 1 and (first in sums or _is_cast_product(first)) and _is_cast_product(second)


def _tensors(*nodes: fx.Node) -> Iterator[torch.Tensor]:
    values = (node.meta.get("val") for node in nodes)
    return (value for value in values if isinstance(value, torch.Tensor))


def _is_cast_product(node: fx.Node) -> bool:
    if base_name(node.target) not in _CASTS or len(node.users) != 1:
        return False
    product = node.all_input_nodes[0]
    return kind_of(product) in (Kind.EXTERN, Kind.PART) and len(product.users) == 1


def _ends_in(reader: fx.Node, found: set[fx.Node], returned: set[fx.Node]) -> bool:
    """Whether a sum is a partial one itself, or returned, as it is or in another shape."""
    return reader in found or reader in returned or any(kind_of(r) is Kind.VIEW and r in returned for r in reader.users)
