"""A graph as it would be on a GPU, though it is traced on a CPU: attention, and what operators fall apart into.

In: torch, 2.11 to 2.15. Out: torch's own rules, asked as if the tensors were elsewhere. Never adds a rule, never runs
anything.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, cast

import torch
from torch import fx

from .autocast import may_cast

_OWN_ATTENTION: Callable[..., torch.Tensor] = torch.nn.functional.scaled_dot_product_attention
_SWAPPED = {"cpu": "cuda", "cuda": "cpu"}


@contextlib.contextmanager
def as_on_gpu(gm: fx.GraphModule, *, is_cudnn_first: bool) -> Iterator[None]:
    """Inside, `gm` on CPU tensors is traced into the operators that it would be on CUDA tensors; it is changed.

    Without that a plan made on a laptop is one of another graph than the step's on a GPU.

    Args:
        gm: as dynamo hands it over.
        is_cudnn_first: the device is one where attention is cuDNN's if it can be.
    """
    attend = _attend_by_cudnn if is_cudnn_first and _wants_cudnn() else _attend
    _use_attention(gm, attend)
    functional: Any = torch.nn.functional
    before = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = attend  # in functions that dynamo leaves whole: `MultiheadAttention`'s
    try:
        with decomposed_as_on_gpu():
            yield
    finally:
        functional.scaled_dot_product_attention = before


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


def _wants_cudnn() -> bool:
    """Whether torch asks cuDNN before flash where it is the faster (`check_prefer_cudnn_attention`, 2.11 to 2.14).

    That takes a cuDNN above 9.15, which comes with torch's wheels for CUDA 13, the usual ones.
    """
    cuda = torch.version.cuda
    return os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1" and (cuda is None or int(cuda.split(".")[0]) > 12)


def _use_attention(gm: fx.GraphModule, attend: Callable[..., torch.Tensor]) -> None:
    """Let `scaled_dot_product_attention` become the operators that it is on a GPU, though it is traced on a CPU."""
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            if node.target is _OWN_ATTENTION:
                node.target = attend


# The widest heads that cuDNN's and the flash kernel take, what their width must be a multiple of to be taken as it is,
# and how finely cuDNN's drops (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, torch 2.11 to 2.13).
_WIDEST_CUDNN_HEAD, _WIDEST_HEAD, _HEAD_MULTIPLE, _DROPOUT_STEPS = 128, 256, 8, 16


# This and `_attend` stand in a graph in place of `scaled_dot_product_attention`, so both are called as that is.
def _attend_by_cudnn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention` as CUDA chooses on devices where cuDNN is asked first."""
    query, key, value = _cast(query), _cast(key), _cast(value)
    attn_mask = None if attn_mask is None else _cast(attn_mask)
    learns_mask = attn_mask is not None and attn_mask.requires_grad
    if learns_mask or not (_is_half_of_heads(query, value) and _is_for_cudnn(query, key, dropout_p)):
        return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    bias = None if attn_mask is None else _number_mask(attn_mask, query)
    result = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, bias, True, dropout_p, is_causal, scale=scale
    )
    return cast("torch.Tensor", result[0])


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
    """`scaled_dot_product_attention` as CUDA chooses otherwise: flash, else memory-efficient, else written out.

    Fake tensors take the shapes of these operators from torch itself, on any device.
    """
    query, key, value = _cast(query), _cast(key), _cast(value)
    attn_mask = None if attn_mask is None else _cast(attn_mask)
    if _is_half_of_heads(query, value) and attn_mask is None and query.shape[-1] <= _WIDEST_HEAD:
        result = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )
        return cast("torch.Tensor", result[0])
    if not _is_regular(query, value) or enable_gqa or (attn_mask is not None and attn_mask.requires_grad):
        return _OWN_ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    result = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, dropout_p, is_causal, scale=scale
    )
    return cast("torch.Tensor", result[0])


def _cast(x: torch.Tensor) -> torch.Tensor:
    """As autocast hands it to `scaled_dot_product_attention`: cast before a kernel is chosen."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if may_cast(x) and torch.is_autocast_enabled(kind) else x


def _is_regular(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether every fused kernel takes heads of this width as they are."""
    width = query.shape[-1]
    return query.dim() == 4 and width == value.shape[-1] and width % _HEAD_MULTIPLE == 0


def _is_half_of_heads(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Such heads, of 16 bits."""
    return _is_regular(query, value) and query.dtype in (torch.float16, torch.bfloat16)


def _is_for_cudnn(query: torch.Tensor, key: torch.Tensor, dropout_p: float) -> bool:
    """Whether cuDNN takes heads, lengths and dropout as they are."""
    is_long = key.shape[2] != 1 and (not dropout_p or query.shape[2] != 1)
    return query.shape[-1] <= _WIDEST_CUDNN_HEAD and is_long and (dropout_p * _DROPOUT_STEPS).is_integer()


def _bias(attn_mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask as what is added to the scores, of their shape."""
    return _number_mask(attn_mask, query).expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _number_mask(attn_mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """A mask as what is added to the scores."""
    if attn_mask.dtype != torch.bool:
        return attn_mask
    hidden = torch.zeros_like(attn_mask, dtype=query.dtype)
    return hidden.masked_fill(attn_mask.logical_not(), -float("inf"))
