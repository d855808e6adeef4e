"""A graph as it would be on a GPU, though it is traced on a CPU: attention, and what operators fall apart into.

In: torch, 2.11 to 2.15. Out: torch's own rules, asked as if the tensors were elsewhere. Never adds a rule, never runs
anything.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, cast

import torch
from torch import fx

_SWAPPED = {"cpu": "cuda", "cuda": "cpu"}


@contextlib.contextmanager
def as_on_gpu(gm: fx.GraphModule) -> Iterator[None]:
    """Inside, `gm` on CPU tensors is traced into the operators that it would be on CUDA tensors; it is changed.

    Without that a plan made on a laptop is one of another graph than the step's on a GPU.
    """
    _use_gpu_attention(gm)
    with decomposed_as_on_gpu():
        yield


@contextlib.contextmanager
def decomposed_as_on_gpu() -> Iterator[None]:
    """Inside, torch and Inductor take operators on CPU tensors apart as those on CUDA tensors (2.11-2.15).

    Some of their rules ask where a tensor is. On a GPU the means that a LayerNorm of 16 bits hands its backward are of
    32 bits, GroupNorm is another formula, gradients of the biases of convolutions are sums of their own, and products
    over one element are pointwise.
    """
    from torch._inductor import decomposition

    inductor: Any = decomposition
    is_gpu = inductor.is_gpu
    with contextlib.ExitStack() as stack:
        for function in device_minded():
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = _elsewhere(function.__code__)
        stack.callback(setattr, inductor, "is_gpu", is_gpu)
        inductor.is_gpu = lambda kind: kind == "cpu"
        yield


def device_minded() -> list[Callable[..., Any]]:
    """The rules that look at a tensor's device, without what they are wrapped in."""
    from torch import _refs
    from torch._decomp import decompositions
    from torch._inductor import decomposition

    torch_own, inductor, references = (vars(module) for module in (decompositions, decomposition, _refs))
    found = [
        *(references[name] for name in ("native_layer_norm", "native_group_norm")),
        *(torch_own[name] for name in ("native_batch_norm_helper", "_upsample_get_cubic_coefficients")),
        *(inductor[name] for name in ("mm", "addmm", "bmm")),
    ]
    return [inspect.unwrap(function) for function in found]


def _elsewhere(code: CodeType) -> CodeType:
    """The same code, asking for "cuda" where it asks for "cpu" and the other way round."""
    return code.replace(co_consts=tuple(map(_swapped, code.co_consts)))


def _swapped(constant: object) -> object:
    if isinstance(constant, tuple):
        return tuple(map(_swapped, constant))
    return _SWAPPED.get(constant, constant) if isinstance(constant, str) else constant


def _use_gpu_attention(gm: fx.GraphModule) -> None:
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
