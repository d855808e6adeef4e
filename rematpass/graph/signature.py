"""What decides how long an operator runs, as a text.

In: one FX node. Out: its operator with the shapes, strides, dtypes and constants it gets, the same in any process.
Never looks at values, never runs anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import fx

from ..declared import DeclaredOp
from ..solve.program import Kind
from ..torch_compat import OpOverload
from .op_traits import kind_of
from .purity import never_again_reason
from .sizes import concrete


def op_signature(node: fx.Node, declared: Mapping[str, DeclaredOp]) -> str | None:
    """The text for an operator that can be run by itself to see how long it takes; None for all others.

    Those are operators with a kernel of their own (products, convolutions, attention) that neither change nor draw
    anything. The others have no time of their own, since they are computed inside their readers, or are never computed
    again anyway.
    """
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    if kind_of(node) is not Kind.EXTERN or never_again_reason(node, declared) is not None:
        return None
    return call_text(node)


def call_text(node: fx.Node) -> str:
    """The operator with the shapes, strides, dtypes and constants it gets."""
    named = [f"{name}={_text(value)}" for name, value in sorted(node.kwargs.items())]
    return f"{node.target}({', '.join([*map(_text, node.args), *named])})"


def _text(value: object) -> str:
    if isinstance(value, fx.Node):
        return _text(value.meta.get("val"))
    if isinstance(value, torch.Tensor):
        return _tensor_text(value)
    if isinstance(value, torch.SymInt):
        return str(concrete(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return value.type if isinstance(value, torch.device) else str(value)


def _tensor_text(tensor: torch.Tensor) -> str:
    """`float32[2, 3]`, with the strides behind it where they are not those of a plain tensor."""
    shape = [concrete(size) for size in tensor.shape]
    strides = [concrete(stride) for stride in tensor.stride()] if tensor.layout is torch.strided else []
    plain = [math.prod(max(1, size) for size in shape[i + 1 :]) for i in range(len(shape))]
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{shape}" if strides == plain else f"{dtype}{shape}{tuple(strides)}"
