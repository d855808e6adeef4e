"""Scratch memory that an operator takes while it runs, beyond its inputs and outputs.

In: one FX node with fake tensors. Out: bytes. Never counts what the operator returns.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import fx

from ..formula.pieces import Part
from ..solve.program import Kind
from ..torch_compat import IMAGE_RANK, cpu_capability, is_onednn, num_threads
from .blocked_convolution import Scratch, find_kernels
from .channels_last import ChannelsLast
from .convolution import Convolution
from .demands import is_left_to_torch
from .flops import tensors_in
from .gpu_attention import gpu_attention_parts
from .layouts import (
    convolved,
    follows_channels_last,
    image_copy_bytes,
    is_convolution,
    is_dense,
    is_of_images,
    weight_copy_bytes,
)
from .op_traits import base_name, is_scattered, kind_of, tensor_at
from .pooling import is_gradient_by_torch
from .products import copied_factor_bytes, half_factor, half_product_bytes
from .sizes import bytes_of, concrete, is_row_major
from .torch_scratch import scattered_bytes, scratch_everywhere, scratch_on_cpu
from .tried_scratch import has_known_kernels, tried_bytes
from .volume_convolution import VolumeScratch

CHANNELS_LAST = (0, 2, 3, 1)  # dimensions of an image, as they lie


def workspace_bytes(node: fx.Node, device_type: str = "cpu", *, is_relaid: bool = False) -> int:
    """Bytes of scratch on a device of this type; 0 for operators not known to take any.

    `is_relaid`: images of the graph are laid out channels last (`layouts.lays_out_images`).
    """
    return sum(part.bytes for part in workspace_parts(node, device_type, is_relaid=is_relaid))


def looks_around(node: fx.Node) -> bool:
    """Whether scratch depends on more than the operator and what it is called with."""
    if base_name(node.target) == "scatter_add" or is_gradient_by_torch(node) or any(map(_is_view, convolved(node))):
        return True
    return kind_of(node) is Kind.EXTERN and any(_is_of_convolution(_base_of(u)) for u in node.all_input_nodes)


def workspace_parts(node: fx.Node, device_type: str = "cpu", *, is_relaid: bool = False) -> tuple[Part, ...]:
    """The same, with what is rounded in it."""
    if node.op != "call_function":
        return ()
    name = base_name(node.target)
    everywhere = scratch_everywhere(node, name)
    if everywhere:
        return (_exactly(everywhere),)
    if device_type != "cpu":
        size = _laid_out_on_gpu_bytes(node, is_relaid=is_relaid)
        return (_exactly(size),) if size else gpu_attention_parts(node)
    if name.startswith("_scaled_dot_product_flash_attention_for_cpu"):
        return _cpu_attention(node, is_backward=name.endswith("backward"))
    return _cpu_parts(node, name, is_relaid=is_relaid)


def _laid_out_on_gpu_bytes(node: fx.Node, *, is_relaid: bool) -> int:
    """Bytes of copies that a convolution on a GPU, or the gradient of one, reads: channels last, or in rows.

    Where nobody asked for channels last, what it is handed lies as it was traced. A network that shows its tokens to
    convolutions of 64 to 256 channels took 6 % more than planned (2026-11).
    """
    if is_relaid:
        in_rows = 0 if is_of_images(node) else _turned_bytes(node)
        return in_rows + weight_copy_bytes(node) + _copied_parts(node) + _turned_over_bytes(node)
    return weight_copy_bytes(node) + image_copy_bytes(node) if follows_channels_last(node) else _turned_bytes(node)


def _exactly(size: int) -> Part:
    return Part("round_up", (1, size, 1))


def _cpu_parts(node: fx.Node, name: str, *, is_relaid: bool) -> tuple[Part, ...]:
    if name in ("convolution", "convolution_backward"):
        if is_relaid and is_of_images(node):
            return _cpu_convolution_channels_last(node)
        parts = _cpu_convolution(node)
        return (*parts, *_turned_over_parts(node, sum(part.bytes for part in parts))) if is_relaid else parts
    if name == "grid_sampler_2d_backward" and is_relaid:
        return (_exactly(bytes_of(tensor_at(node, 0))),)  # a contiguous copy (`GridSamplerKernel.cpp`, 2.13)
    if name in ("scatter_add", "scatter_reduce"):
        copied = _cpu_scatter(node) if is_relaid and name == "scatter_add" else 0
        return (_exactly(copied + (scattered_bytes(node) if is_left_to_torch(node, "cpu") else 0)),)
    seen = None if half_factor(node) is None else _seen(node)
    own = seen or _exactly(scratch_on_cpu(node, name) or half_product_bytes(node) or copied_factor_bytes(node))
    return (own, *_turned_over_parts(node, own.bytes)) if is_relaid else (own,)


def _turned_over_parts(node: fx.Node, own_bytes: int) -> tuple[Part, ...]:
    """Of what is no convolution of images; none where nothing is copied."""
    size = _turned_over_bytes(node, own_bytes)
    return (_exactly(size),) if size else ()


def _seen(node: fx.Node, layout: torch.memory_format = torch.preserve_format) -> Part | None:
    """Scratch as the operator takes it here; None where it cannot be run."""
    seen = tried_bytes(node, layout)
    return None if seen is None else Part("seen", (seen,))


def _cpu_attention(node: fx.Node, *, is_backward: bool) -> tuple[Part, ...]:
    """Per thread, blocks of scores; in the backward, the gradient laid out head by head as one position by position."""
    query, key = (tensor_at(node, i + is_backward) for i in (0, 1))
    if query is None or key is None:
        return ()
    is_half = query.element_size() < torch.float32.itemsize
    seen = _seen(node) if is_half else None
    if seen is not None:
        return (seen,)
    length, width = concrete(query.shape[-2]), concrete(query.shape[-1])
    sizes = (length, concrete(key.shape[-2]), width, num_threads(), int(is_backward))
    blocks = [Part("cpu_attention", sizes)]
    if is_half:
        blocks.append(Part("cpu_half_attention", sizes))
    gradient = tensor_at(node, 0) if is_backward else None
    if gradient is None or is_row_major(gradient.transpose(1, 2)):
        return (*blocks,)
    return *blocks, _exactly(bytes_of(gradient))  # `contiguous()` in `FlashAttentionKernel.cpp`, 2.13


def _cpu_convolution(node: fx.Node) -> tuple[Part, ...]:
    """Where images are not laid out channels last."""
    found, turned = _find_scratch(node), _exactly(_turned_bytes(node))
    if found is None:
        return (turned,)
    seen = _seen_of_convolution(node, found.convolution, torch.contiguous_format)
    return turned, seen or _exactly(_blocked_bytes(node, found))


def _seen_of_convolution(node: fx.Node, convolution: Convolution, layout: torch.memory_format) -> Part | None:
    """None where torch computes it itself, or as formulas say.

    They say too little of gray images channels last, and of waves up to four times too much: a network that separates
    sounds was predicted 18 % too high (2026-11).
    """
    is_misjudged = (convolution.has_one_channel and layout is torch.channels_last) or convolution.is_of_waves
    is_known = has_known_kernels(cpu_capability(), convolution.item_bytes) and not is_misjudged
    return None if is_known or convolution.is_left_to_torch else _seen(node, layout)


def _blocked_bytes(node: fx.Node, found: Scratch) -> int:
    if base_name(node.target) == "convolution_backward":
        of_read, of_weight, _ = cast("Sequence[bool]", node.args[10])
        return found.backward_bytes(of_read=of_read, of_weight=of_weight)
    return found.forward_bytes()


def _find_scratch(node: fx.Node) -> Scratch | None:
    """Of a convolution or the gradient of one; None where it does not run on the CPU."""
    is_backward = base_name(node.target) == "convolution_backward"
    image, weight = (tensor_at(node, i + is_backward) for i in range(2))
    result = tensor_at(node, 0) if is_backward else node.meta.get("val")
    if image is None or weight is None or not isinstance(result, torch.Tensor) or image.device.type != "cpu":
        return None
    *steps, is_transposed, _, groups = cast("Sequence[Any]", node.args[3 + is_backward : 9 + is_backward])
    if is_transposed:  # the gradient of one that reads what this one writes
        image, result = result, image
    stride, padding, dilation = (_per_dimension(step, image.ndim - 2) for step in steps)
    convolution = Convolution(
        batch=concrete(image.shape[0]),
        inputs=concrete(image.shape[1]),
        outputs=concrete(result.shape[1]),
        image=[*map(concrete, image.shape[2:])],
        out=[*map(concrete, result.shape[2:])],
        kernel=[*map(concrete, weight.shape[2:])],
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        is_transposed=bool(is_transposed),
        item_bytes=image.element_size(),
        is_float32=image.dtype is weight.dtype is torch.float32,
        is_onednn=is_onednn(image.dtype),
    )
    kind = VolumeScratch if convolution.is_volume else Scratch
    return kind(convolution, find_kernels(cpu_capability()), num_threads())


def _per_dimension(step: object, count: int) -> list[int]:
    steps = [*map(concrete, cast("Sequence[int]", step))]
    return steps * count if len(steps) == 1 else steps


def _cpu_convolution_channels_last(node: fx.Node) -> tuple[Part, ...]:
    """A weight larger than 1 x 1 is laid out channels last before, in a copy of its own."""
    found = _find_scratch(node)
    if found is None:
        return ()
    seen = _seen_of_convolution(node, found.convolution, torch.channels_last)
    copied = weight_copy_bytes(node) + _copied_parts(node)
    # Of images folded into each other, as convolutions with a weight per image read them, Inductor makes a copy, beside
    # which they are where somebody else reads them, too. A gradient of such is nobody else's.
    folded = convolved(node)[-1]
    if _is_view(folded) and (base_name(node.target) == "convolution" or len(folded.all_input_nodes[0].users) > 1):
        copied += _refolded_bytes(folded)
    own = seen or _exactly(_channels_last_bytes(node, found))
    return _exactly(copied + _turned_over_bytes(node, own.bytes)), own


def _turned_over_bytes(node: fx.Node, own_bytes: int = 0) -> int:
    """Bytes of copies of what lies in rows and is read as images, or the other way round.

    They are made before the operator runs, which takes what it returns and `own_bytes` of scratch; what nobody reads
    afterwards is gone by then, so its copy is there in its place.
    """
    taken_later = own_bytes + sum(map(bytes_of, tensors_in(node.meta.get("val"))))
    gone = _scattered_in_rows_bytes(node)
    beside = 0
    for base, size in _turned_over(node):
        # Sums, such as the gradient of a bias, may be put off.
        are_before = (r is node or (r < node and kind_of(r) is Kind.EXTERN) for r in _readers_of(base))
        is_last = base.op != "placeholder" and all(are_before)
        gone += size * is_last
        beside += size * (not is_last)
    return beside + max(0, gone - taken_later)


def _scattered_in_rows_bytes(node: fx.Node) -> int:
    """Bytes of what a convolution, or the gradient of one, reads as images that were scattered into rows.

    Such is the gradient of a pooling right behind a convolution: a network for digits that takes what is positive after
    it has pooled took 14 % more than its smallest plan (2026-11).
    """
    read = enumerate(convolved(node))
    images = [tensor_at(node, position) for position, argument in read if _shows_scattered(argument)]
    return sum(bytes_of(t) for t in images if t is not None and not is_row_major(t.permute(CHANNELS_LAST)))


def _turned_over(node: fx.Node) -> Iterator[tuple[fx.Node, int]]:
    """What an operator has copied into another layout before it reads it through views, and the bytes of the copy.

    Convolutions read frames folded into the batch, features of a linear layer shown as an image, the gradient of an
    image that was flattened, as do gradients of poolings (`emit.layouts` turns these); other operators what a
    convolution returned and no view of an image shows, flattened. A TimeSformer took 1 % more than its smallest plan,
    linear layers right behind convolutions up to 9 % (2026-11).
    """
    if kind_of(node) is not Kind.EXTERN:
        return
    read = cast("tuple[fx.Node, ...]", node.args[:1]) if is_gradient_by_torch(node) else convolved(node)
    for shown in read or node.all_input_nodes:
        base = _base_of(shown)
        of, into = base.meta.get("val"), shown.meta.get("val")
        is_counted = base is shown or is_scattered(base)  # what is no view, or counted as scattered
        if is_counted or not isinstance(of, torch.Tensor) or not isinstance(into, torch.Tensor):
            continue
        if read and is_of_images(node):
            is_turned = of.ndim != IMAGE_RANK and not is_row_major(into.permute(CHANNELS_LAST))
        else:  # along one dimension they want rows
            is_turned = _is_of_convolution(base) and (bool(read) or _is_turned_by(of, into))
        if is_turned:
            yield base, bytes_of(into)


def _is_of_convolution(node: fx.Node) -> bool:
    """Whether this is an image that an operator of torch computed, not a kernel that writes it as it is read."""
    if node.target is operator.getitem and node.args[1] == 0:
        return base_name(cast("fx.Node", node.args[0]).target) == "convolution_backward" and _is_image(node)
    return is_convolution(node) and _is_image(node)


def _is_image(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.ndim == IMAGE_RANK


def _base_of(node: fx.Node) -> fx.Node:
    """What views show in the end."""
    while _is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _readers_of(node: fx.Node) -> Iterator[fx.Node]:
    """What reads a node, also through views."""
    for user in node.users:
        if _is_view(user):
            yield from _readers_of(user)
        else:
            yield user


def _shows_scattered(node: fx.Node) -> bool:
    return _is_view(node) and is_scattered(cast("fx.Node", node.args[0]))


def _channels_last_bytes(node: fx.Node, found: Scratch) -> int:
    known = ChannelsLast(found.convolution, found.kernels, found.threads)
    if base_name(node.target) == "convolution_backward":
        of_read, of_weight, of_bias = cast("Sequence[bool]", node.args[10])
        return known.backward_bytes(of_read=of_read, of_weight=of_weight, of_bias=of_bias)
    return known.forward_bytes()


def _is_view(argument: object) -> bool:
    return isinstance(argument, fx.Node) and kind_of(argument) is Kind.VIEW


def _copied_parts(node: fx.Node) -> int:
    """Bytes of images that a convolution, or the gradient of one, copies first: some channels of an image.

    Inductor hands them over as they lie there, torch asks for `contiguous(memory_format)` (`Convolution.cpp`, 2.13).
    """
    read = convolved(node) if is_of_images(node) else ()
    images = [tensor_at(node, position) for position in range(len(read))]
    return sum(bytes_of(image) for image in images if image is not None and not is_dense(image))


def _turned_bytes(node: fx.Node) -> int:
    """Bytes of what a convolution, or the gradient of one, copies first where it works in rows: what shows them turned.

    Inductor has them in rows (`convolution`, `convolution_backward_lowering` in kernel/conv.py, 2.13), torch as well. A
    long convolution behind a short one took 13 % more than planned, small heads whose results are turned and joined 3 %
    by the code for a GPU (2026-11).
    """
    read = convolved(node)
    shown = [tensor_at(node, position) for position, argument in enumerate(read) if _is_view(argument)]
    return sum(bytes_of(tensor) for tensor in shown if tensor is not None and not is_row_major(tensor))


def _cpu_scatter(node: fx.Node) -> int:
    """With several threads Inductor calls torch's kernel (`use_scatter_fallback`, 2.11 to 2.15), and copies for it.

    The gradient of a pooling folds images into two dimensions, which those laid out channels last do not have. Indices
    are copied first and go then, before the smaller values are copied. What Inductor generates is stored as it is read
    there (`emit.layouts`).
    """
    if num_threads() == 1:
        return 0
    convolutions = (n for n in node.graph.nodes if n.op == "call_function" and base_name(n.target) == "convolution")
    read = [0 if _is_of_generated(argument) else _refolded_bytes(argument) for argument in node.args[2:4]]
    return max(read) if any(map(is_of_images, convolutions)) else 0


def _is_of_generated(argument: object) -> bool:
    """Whether it shows what Inductor computes in loops of its own, of a size known beforehand."""
    base = argument.args[0] if isinstance(argument, fx.Node) and argument.args else None
    if not isinstance(base, fx.Node) or kind_of(base) not in (Kind.POINTWISE, Kind.REDUCTION):
        return False
    return all(isinstance(size, int) for size in base.meta["val"].shape)


def _refolded_bytes(argument: object) -> int:
    """Bytes of a view that an image laid out channels last does not have; 0 where it has it."""
    base = argument.args[0] if isinstance(argument, fx.Node) and argument.args else None
    image = base.meta.get("val") if isinstance(base, fx.Node) else None
    shown = argument.meta.get("val") if isinstance(argument, fx.Node) else None
    if not (isinstance(image, torch.Tensor) and isinstance(shown, torch.Tensor)) or image.ndim != IMAGE_RANK:
        return 0
    return bytes_of(image) if _is_turned_by(image, shown) else 0


def _is_turned_by(image: torch.Tensor, shown: torch.Tensor) -> bool:
    """Whether no view shows an image laid out channels last in another shape."""
    batch, channels, height, width = sizes = [concrete(size) for size in image.shape]
    there = (sizes, [batch, channels, height * width])  # rows follow each other, channels lie between them
    folded = [concrete(size) for size in shown.shape if concrete(size) != 1]
    return not any(folded == [size for size in shape if size != 1] for shape in there)
