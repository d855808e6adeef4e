"""Tensors without memory that stand for others.

In: torch, 2.11 to 2.15. Out: small functions with stable names and meanings. Never decides anything, never holds state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
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
    """Tensors that take no memory, one for each tensor they stand for.

    Args:
        dtype: of all floating-point ones; None leaves each its own.
        device: of all; without CUDA's libraries torch differentiates on the CPU only.
    """

    def __init__(self, dtype: torch.dtype | None = None, *, device: str = "cpu") -> None:
        self._mode = FakeTensorMode()
        self._dtype = dtype
        self._device = device
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
            made = torch.empty_strided(sizes, strides, dtype=dtype, device=self._device)
            if isinstance(tensor, torch.nn.Parameter):
                return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
            return made.requires_grad_(tensor.requires_grad)


def use_modes_of(inputs: Any) -> None:
    """Let the compilation under way go on with the mode that its fake inputs have (2.11-2.15)."""
    mode = next((i.fake_mode for i in inputs if isinstance(i, FakeTensor)), None)
    context = TracingContext.try_get()
    if mode is not None and context is not None:
        cast("Any", context).fake_mode = mode
