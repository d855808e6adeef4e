"""Ties: values that the backward compares with their own maximum or minimum.

The gradient of `amax` goes to the elements that equal the maximum, divided by how many these are. If the elements are
computed again, differing in a last bit, and the maximum is not, or the other way round, then none is equal: 0 / 0.

In: a `JointProgram`. Out: the nodes that must be one and the same for both sides of such a comparison. Never asks
whether they would come out alike.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import combinations

from torch import fx

from .capture import JointProgram
from .op_traits import base_name
from .words import words

# What is returned stands among what is read; gradients are found by looking for it (FunctionsManual.cpp, 2.11 to 2.15).
_EXTREMES = words("amax amin aminmax cummax cummin max maximum min minimum _segment_reduce segment_reduce")
# Extremes only of some reductions and norms, which stand among the arguments.
_SOMETIMES_EXTREMES = words("scatter_reduce index_reduce linalg_vector_norm norm _cdist_forward _pdist_forward")
_EXTREME_ARGUMENTS = ("amax", "amin", "max", "min", float("inf"), float("-inf"))
# Moves elements, or changes nothing but a sign. At what makes a tensor of others the search ends: that is what is kept.
_MOVING = words(
    "abs alias detach diagonal expand flip gather index index_select _unsafe_index narrow neg permute repeat reshape",
    "roll select slice split squeeze t transpose unbind unsqueeze unfold _unsafe_view view",
)
_EQUALITY = words("eq ne")
# Backwards whose kernels look for the extreme themselves, among their operands.
_LOOKING = words("_cdist_backward _pdist_backward _segment_reduce_backward segment_reduce_backward")


def tied_values(joint: JointProgram) -> frozenset[fx.Node]:
    """Nodes of the forward that both sides of a comparison in the backward come from, one side through an extreme."""
    in_forward = {node for node, is_in in zip(joint.nodes, joint.in_forward, strict=True) if is_in}
    found: set[fx.Node] = set()
    for node in joint.nodes:
        name = base_name(node.target) if node.op == "call_function" else ""
        if node in in_forward or not (name in _EQUALITY or name in _LOOKING):
            continue
        sides = [_sources(operand) for operand in node.all_input_nodes]
        for (left, is_left_extreme), (right, is_right_extreme) in combinations(sides, 2):
            if is_left_extreme or is_right_extreme:
                found |= left & right & in_forward
    return frozenset(found)


def _sources(node: fx.Node) -> tuple[set[fx.Node], bool]:
    """What the elements of `node` were before they were moved or chosen, and whether an extreme was chosen."""
    sources, is_extreme = set(), False
    seen, ahead = {node}, [node]
    while ahead:
        current = ahead.pop()
        maker = current.all_input_nodes[0] if current.target is operator.getitem else current
        is_chosen = _is_extreme(maker)
        is_extreme |= is_chosen
        if not is_chosen and (maker.op != "call_function" or base_name(maker.target) not in _MOVING):
            sources.add(maker)
            continue
        new = [operand for operand in maker.all_input_nodes if operand not in seen]
        seen.update(new)
        ahead += new
    return sources, is_extreme


def _is_extreme(node: fx.Node) -> bool:
    name = base_name(node.target) if node.op == "call_function" else ""
    if name in _SOMETIMES_EXTREMES:
        return _names_extreme((*node.args, *node.kwargs.values()))
    return name in _EXTREMES


def _names_extreme(arguments: Sequence[object]) -> bool:
    return any(isinstance(argument, (str, float)) and argument in _EXTREME_ARGUMENTS for argument in arguments)
