"""Which nodes are alike: the same operator on equal arguments, so that what is said of one holds for the other.

In: the nodes of a joint graph, in order. Out: a key per node. Never looks at who reads a node, or at its name.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import fx

from ..torch_compat import OpOverload

# Arguments that are equal only if they mean the same. 1, 1.0 and True are equal, too, as are 0.0 and -0.0: they go by
# what they look like.
_HASHED = frozenset((int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))
_WRITTEN = frozenset((float, bool))


class Alike:
    """Keys for nodes, each noted after those it reads.

    A network of equal layers computes the same a hundred times; what takes longer to find out than a key takes to make
    is remembered under it.
    """

    def __init__(self) -> None:
        self._results: dict[Hashable, object] = {}
        self._shown: dict[fx.Node, object] = {}
        self._read: list[fx.Node] = []

    def note(self, node: fx.Node, operands: Sequence[fx.Node]) -> Hashable | None:
        """Equal for nodes that are alike; None for what is no operator of torch's dispatcher.

        Args:
            node: the next in order.
            operands: the distinct nodes it reads, in the order in which they first stand among its arguments.
        """
        result = self._shown[node] = self._result(node.meta.get("val"))
        if node.op != "call_function" or not (isinstance(node.target, OpOverload) or node.target is operator.getitem):
            return None
        self._read.clear()
        given = [self._argument(argument) for argument in (*node.args, *node.kwargs.items())]
        # Reading one tensor twice is not reading two tensors of a shape.
        repeated = tuple(map(operands.index, self._read)) if len(self._read) > len(operands) else ()
        return (node.target, result, repeated, *given)

    def _result(self, value: object) -> object:
        """The same object for values of the same shape and layout; of its own for what has symbols in it."""
        try:
            return self._results.setdefault(_described(value), object())
        except TypeError:  # symbolic sizes have no hash, since comparing them would add a guard
            return object()

    def _argument(self, argument: Any) -> Hashable:
        if isinstance(argument, fx.Node):
            self._read.append(argument)
            return self._shown[argument]
        if isinstance(argument, (tuple, list)):
            return tuple([self._argument(inner) for inner in argument])
        return _constant(argument)


def _described(value: object) -> Hashable:
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else None
        return value.dtype, value.device, value.layout, value.shape, strides
    if isinstance(value, (tuple, list)):
        return tuple(map(_described, value))
    return _constant(value)


def _constant(value: object) -> Hashable:
    """Like no other if it is a symbol, or unknown: hashing a symbolic float would fix it for good."""
    if type(value) in _WRITTEN:
        return type(value), repr(value)
    return value if type(value) in _HASHED else object()
