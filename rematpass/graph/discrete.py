"""Discrete choices: where a rounding difference in an input could change the result by a jump.

A compiler may fuse a recomputed value otherwise than the first one, so the two can differ in the last bit. Through a
router, a quantiser or a sort that bit becomes another choice, and the gradient that of another function.

In: a `JointProgram` and its `Facts`, in order. Out: a reason per value that must not be computed again from inputs that
might differ. Never looks at prices.
"""

from __future__ import annotations

import torch
from torch import fx

from ..solve.program import Kind
from .capture import JointProgram
from .facts import Facts
from .op_traits import base_name
from .ties import tied_values
from .words import words

# They choose among elements or name places, wherever they stand.
_CHOOSING = words(
    "argmax argmin argsort bucketize histc kthvalue median mode msort multinomial nonzero searchsorted",
    "sort topk unique unique2 _unique2 unique_consecutive unique_dim",
)
# They jump where their input crosses a value. A mask that only the backward computes is the derivative of a continuous
# function (ReLU, clamp): at its kink either side is a subgradient, and eager's is no better.
_JUMPING = words(
    "eq ne lt le gt ge isclose sign sgn heaviside ceil floor round trunc fix frac floor_divide fmod remainder",
    "logical_not logical_and logical_or logical_xor",
)
_COMPARING = words("lt le gt ge")
# Their values are continuous; the places they return beside them are a choice once the forward uses them.
_WITH_PLACES = words(
    "max min cummax cummin aminmax max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d",
    "adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d _low_memory_max_pool_with_offsets",
)
# What they return are elements of their inputs, or depends on no rounding: exact if the inputs are.
_EXACT = words(
    "abs neg clone copy cat stack where gather index index_select embedding take masked_fill maximum minimum clamp",
    "clamp_min clamp_max amax amin max min any all tril triu constant_pad_nd flip roll repeat select_scatter",
    "slice_scatter scatter lift_fresh_copy bitwise_and bitwise_or bitwise_not bitwise_xor isnan isinf relu",
    "arange iota full full_like zeros zeros_like ones ones_like scalar_tensor eye new_full new_zeros new_ones one_hot",
    "inductor_lookup_seed inductor_random inductor_randint _unsafe_index _unsafe_masked_index reflection_pad2d",
    "_to_copy convert_element_type",
)


class Exactness:
    """Walks through the graph once: which values come out bit by bit alike however they are computed again."""

    def __init__(self, joint: JointProgram, facts: Facts) -> None:
        self._joint = joint
        self._facts = facts
        self._exact: list[bool] = []
        self._tied = tied_values(joint)
        self._in_forward = {n for n, is_in in zip(joint.nodes, joint.in_forward, strict=True) if is_in}

    def reason(self, i: int) -> str | None:
        """Why value i, the next in order, is a choice that could flip; None where it is none, or cannot."""
        node, value = self._joint.nodes[i], self._facts.values[i]
        if node in self._tied and not self._stays_exact(i):
            return "the backward looks for its maximum or minimum, which rounding could hide"
        if node.op != "call_function" or all(self._exact[u] for u in value.inputs):
            return None
        name = value.op
        is_jump = node in self._in_forward and _jumps(node) and not self._is_kink(node)
        if name in _CHOOSING or is_jump or (name in _WITH_PLACES and self._uses_places(node)):
            return f"{name} is a discrete choice that rounding could flip"
        return None

    def note(self, i: int, *, is_fixed: bool) -> None:
        """Value i is done: `is_fixed` when it is never computed again, and so the same for every reader.

        Short floats are not: what reads them inside the kernel that makes them sees them before they are rounded.
        """
        is_same = is_fixed and not _is_short_float(self._joint.nodes[i])
        self._exact.append(is_same or self._stays_exact(i))

    def _stays_exact(self, i: int) -> bool:
        node, value = self._joint.nodes[i], self._facts.values[i]
        if value.kind in (Kind.INPUT, Kind.SYMBOL):
            return not self._joint.is_backward[i]
        if not all(self._exact[u] for u in value.inputs):
            return False
        if value.is_view or value.kind is Kind.PART:
            return True
        name = value.op
        if name in ("_to_copy", "convert_element_type"):
            return not _narrows(node)
        return name in _EXACT or name in _CHOOSING or name in _JUMPING or _is_integer_arithmetic(node)

    def _uses_places(self, node: fx.Node) -> bool:
        """Whether the forward reads the places that an operator returns beside its values."""
        return any(user in self._in_forward for part in node.users if _is_integer(part) for user in part.users)

    def _is_kink(self, node: fx.Node) -> bool:
        """The condition of an activation such as `where(x > 0, x, 0.1 * x)`: both branches are functions of x alone."""
        name, threshold = base_name(node.target), node.args[1] if len(node.args) > 1 else None
        if name not in _COMPARING or isinstance(threshold, bool) or threshold != 0:
            return False
        return all(
            base_name(user.target) == "where" and user.args[0] is node and _depends_on(user.args[1:], node.args[0])
            for user in node.users
            if user in self._in_forward
        )


def _jumps(node: fx.Node) -> bool:
    name = base_name(node.target)
    if name in ("_to_copy", "convert_element_type"):
        return _is_integer(node) and not any(map(_is_integer, node.all_input_nodes))
    if name in _JUMPING and not all(map(_is_integer, node.all_input_nodes)):
        return True
    return node.kwargs.get("rounding_mode") is not None


def _depends_on(branches: object, x: object, depth: int = 8) -> bool:
    """Whether nodes are made from `x` and constants only, element by element."""
    for branch in branches if isinstance(branches, (tuple, list)) else ():
        if not isinstance(branch, fx.Node) or branch is x:
            continue
        is_elementwise = torch.Tag.pointwise in getattr(branch.target, "tags", ())
        is_constant = not branch.all_input_nodes and branch.op == "call_function"
        if not is_constant and not (is_elementwise and depth and _depends_on(branch.args, x, depth - 1)):
            return False
    return True


def _is_integer(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex())


def _is_integer_arithmetic(node: fx.Node) -> bool:
    return _is_integer(node) and all(map(_is_integer, node.all_input_nodes))


def _is_short_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.element_size() < 4


def _narrows(node: fx.Node) -> bool:
    """A cast to a shorter float: inside a fused kernel the compiler may leave it out."""
    value = node.meta.get("val")
    sources = [u.meta.get("val") for u in node.all_input_nodes]
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    return any(isinstance(s, torch.Tensor) and s.element_size() > value.element_size() for s in sources)
