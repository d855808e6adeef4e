"""Whether Inductor stores what `cat` returns.

In: a `cat` or a padding in its graph. Out: a yes or no. Never decides about memory, never changes the graph.

On a CPU it always does. On a GPU it computes many concatenations inside their readers, as it does with pointwise
functions, and stores the others (`cat` in torch/_inductor/lowering.py, read in torch 2.13). A padding at the end of one
dimension is a concatenation there (`_pad_as_cat`).
"""

from __future__ import annotations

import torch
from torch import fx

from ..solve.program import Kind
from ..torch_compat import OpOverload
from .op_traits import base_name, kind_of

# Of more parts than these, each with a function of its own, Inductor makes no single function
# (`max_complex_pointwise_cat_inputs` in torch/_inductor/config.py, 2.13).
MOST_PARTS = 8
# Readers that count as pointwise though torch does not tag them so.
_LIKE_POINTWISE = frozenset(("cat", "constant_pad_nd"))


def joined_parts(node: fx.Node, device_type: str) -> int:
    """How many parts Inductor joins into the result; 0 where it joins none."""
    if base_name(node.target) == "cat":
        return len(_tensors(node))
    if base_name(node.target) != "constant_pad_nd" or device_type == "cpu":
        return 0
    widths = node.args[1]
    if not isinstance(widths, (tuple, list)) or not all(isinstance(width, int) and width >= 0 for width in widths):
        return 0
    return 2 if not any(widths[::2]) and sum(map(bool, widths[1::2])) == 1 else 0


def is_stored_whole(node: fx.Node, device_type: str) -> bool:
    """Whether `node` is a concatenation, and a tensor in memory of which each part is written by itself.

    Args:
        node: of any operator.
        device_type: of the device that will run it.
    """
    if not joined_parts(node, device_type):
        return False
    parts = _tensors(node)
    if device_type == "cpu" or len(parts) > MOST_PARTS:
        return True
    if any(_is_read_besides(part, node) for part in parts):
        return True
    computed = [_is_computed_in_reader(part) for part in parts]
    if any(computed) and all(reads_pointwise(reader) for reader in node.users):
        return False
    return not all(computed) or any(_has_reduction(part) for part in parts)


def _tensors(node: fx.Node) -> list[fx.Node]:
    return [part for part in node.all_input_nodes if isinstance(part.meta.get("val"), torch.Tensor)]


def _owner(node: fx.Node) -> fx.Node:
    """What a view is a view of."""
    while kind_of(node) is Kind.VIEW and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _is_computed_in_reader(part: fx.Node) -> bool:
    """Whether Inductor would have to copy the part into the whole, or computes it there."""
    return kind_of(_owner(part)) in (Kind.POINTWISE, Kind.INPUT)


def _is_read_besides(part: fx.Node, node: fx.Node) -> bool:
    """Whether the part has readers that would compute it a second time."""
    others = [reader for reader in part.users if reader is not node]
    if not others:
        return False
    return kind_of(_owner(part)) is Kind.POINTWISE or any(reads_pointwise(reader) for reader in others)


def reads_pointwise(reader: fx.Node) -> bool:
    """Whether the reader, or everything that reads it if it is a view, is computed element for element.

    Inductor's own `is_pointwise_use` knows only the views that are left in its graph; the joint graph has more.
    """
    if kind_of(reader) is Kind.VIEW:
        return all(reads_pointwise(user) for user in reader.users)
    if not isinstance(reader.target, OpOverload):
        return False
    return torch.Tag.pointwise in reader.target.tags or base_name(reader.target) in _LIKE_POINTWISE


def _has_reduction(part: fx.Node) -> bool:
    """Whether the part is made from sums or the like, which Inductor does not compute once per part."""
    owner = _owner(part)
    return any(kind_of(_owner(n)) is Kind.REDUCTION for n in (owner, *owner.all_input_nodes))
