"""What readers of a reduction still do to what is stored of it: a mean is a sum that each of them divides.

In: a node. Out: steps and constants, counted as those of pointwise functions are (`op_traits`). Never decides what is
stored.

Inductor (2.13, `mean` and `var_mean_helper_` in lowering.py) makes both of a stored sum and a pointwise function, which
becomes a part of its readers' and makes them longer. The gradient of a layer norm whose statistics are computed again
has 31 steps with these, 26 without, and may have 30.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import cast

import torch
from torch import fx

from ..torch_compat import most_in_two_steps
from .op_traits import HALVES, base_name, tensor_at
from .sizes import concrete

NO_TAIL = (0, ())
# Of a variance in one pass: correct the number of elements, hold it at zero or above, divide.
ONE_PASS_STEPS = 3


def tail_of(node: fx.Node, device_type: str) -> tuple[int, tuple[str, ...]]:
    """Steps and constants with which readers go on from what a reduction stores; none of most reductions."""
    name = base_name(node.target)
    if name == "mean":
        return _mean(node)
    if name == "var":
        return _variance(node, node, device_type)
    if not is_of_variance(node):
        return NO_TAIL
    if node.args[1] == 0:
        return _variance(cast("fx.Node", node.args[0]), node, device_type)
    return int(_is_rounded(node.meta["val"])), ()


def is_of_variance(node: fx.Node) -> bool:
    """Whether this is a variance or the mean beside it, which look the same whatever they were made of."""
    return node.target is operator.getitem and base_name(cast("fx.Node", node.args[0]).target) == "var_mean"


def _mean(node: fx.Node) -> tuple[int, tuple[str, ...]]:
    value = node.meta["val"]
    return 1 + _is_rounded(value), (_count(_reduced(node), value),)


def _variance(source: fx.Node, node: fx.Node, device_type: str) -> tuple[int, tuple[str, ...]]:
    value, count = node.meta["val"], _reduced(source)
    given = source.kwargs.get("correction")
    correction = 1 if given is None else cast("float", given)  # `torch.std` makes 1.0 of 1
    is_one = concrete(value.numel()) == 1
    if count <= most_in_two_steps(device_type) and not is_one:
        return 1 + _is_rounded(value), (_count(max(count - correction, 0), value),)
    dtype = _computed(value)
    numbers = dict.fromkeys(f"{number} {dtype}" for number in (correction, count, 0))
    return ONE_PASS_STEPS + _is_rounded(value), tuple(numbers)


def _reduced(node: fx.Node) -> int:
    """Elements of which one is made."""
    tensor = tensor_at(node, 0)
    assert tensor is not None, "what is reduced is a tensor"
    given = cast("Sequence[int] | int | None", node.args[1] if len(node.args) > 1 else node.kwargs.get("dim"))
    axes = [given] if isinstance(given, int) else given or range(tensor.ndim)
    return math.prod(concrete(tensor.shape[axis]) for axis in axes)


def _computed(value: torch.Tensor) -> torch.dtype:
    return torch.float32 if value.dtype in HALVES else value.dtype


def _is_rounded(value: torch.Tensor) -> bool:
    return value.dtype in HALVES


def _count(number: float, value: torch.Tensor) -> str:
    return f"count {int(number) if number == int(number) else number} {_computed(value)}"
