"""Tensors without memory that stand for others, and attention as a GPU would run it.

In: torch, 2.11 to 2.15. Out: small functions with stable names and meanings. Never decides anything, never holds state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import fx
from torch._dynamo.exc import TorchDynamoException  # 2.11-2.15
from torch._guards import TracingContext  # 2.11-2.15
from torch._subclasses import FakeTensor, FakeTensorMode  # 2.11-2.15
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

T = TypeVar("T")

__all__ = [
    "StandIns",
    "TorchDynamoException",
    "has_no_memory",
    "is_wrapper",
    "map_leaves",
    "tensor_places",
    "use_gpu_attention",
    "use_modes_of",
]


def has_no_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor holds no numbers: on the meta device, or a fake one."""
    return tensor.device.type == "meta" or isinstance(tensor, FakeTensor)


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether the tensor wraps others (DTensor, quantized weights)."""
    return bool(is_traceable_wrapper_subclass(tensor))


def map_leaves(function: Callable[[Any], Any], tree: T) -> T:
    """`function` on every leaf of nested containers (2.11-2.15)."""
    from torch.utils import _pytree

    return cast("T", _pytree.tree_map(function, tree))


def tensor_places(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    """The dicts in which a module holds its own parameters, buffers and plain tensors (2.11-2.15)."""
    return cast("tuple[dict[str, Any], ...]", (module._parameters, module._buffers, module.__dict__))


class StandIns:
    """Tensors on the CPU that take no memory, one for each tensor they stand for.

    Args:
        dtype: of all floating-point ones; None leaves each its own.
    """

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self._mode = FakeTensorMode()
        self._dtype = dtype
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The stand-in: equal in shape, strides and wish for a gradient; the same one for the same tensor."""
        if id(tensor) not in self._made:
            # The tensor is held, so that its id stays its own.
            self._made[id(tensor)] = (tensor, self._make(tensor))
        return self._made[id(tensor)][1]

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        is_cast = self._dtype is not None and tensor.is_floating_point()
        dtype = self._dtype if is_cast else tensor.dtype
        sizes, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        with self._mode:
            made = torch.empty_strided(sizes, strides, dtype=dtype, device="cpu")
            if isinstance(tensor, torch.nn.Parameter):
                return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
            return made.requires_grad_(tensor.requires_grad)


def use_modes_of(inputs: Any) -> None:
    """Let the compilation under way go on with the mode that its fake inputs have (2.11-2.15)."""
    mode = next((i.fake_mode for i in inputs if isinstance(i, FakeTensor)), None)
    context = TracingContext.try_get()
    if mode is not None and context is not None:
        cast("Any", context).fake_mode = mode


def use_gpu_attention(gm: fx.GraphModule) -> None:
    """Let `scaled_dot_product_attention` become the operators that it is on a GPU, though it is traced on a CPU."""
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            if node.target is torch.nn.functional.scaled_dot_product_attention:
                node.target = _attend


# The widest head that the flash kernel takes, and what its width must be a multiple of to be taken as it is
# (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, torch 2.11 to 2.13).
_WIDEST_HEAD, _HEAD_MULTIPLE = 256, 8


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention` as CUDA chooses by default: flash, else memory-efficient, else written out.

    Fake tensors take the shapes of these operators from torch itself, on any device.
    """
    width = query.shape[-1]
    is_regular = query.dim() == 4 and width == value.shape[-1] and width % _HEAD_MULTIPLE == 0
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    if is_regular and is_half and attn_mask is None and width <= _WIDEST_HEAD:
        result = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )
        return cast("torch.Tensor", result[0])
    if not is_regular or enable_gqa or (attn_mask is not None and attn_mask.requires_grad):
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    result = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, dropout_p, is_causal, scale=scale
    )
    return cast("torch.Tensor", result[0])


def _bias(attn_mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask as what is added to the scores."""
    if attn_mask.dtype == torch.bool:
        hidden = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = hidden.masked_fill(attn_mask.logical_not(), -float("inf"))
    return attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
