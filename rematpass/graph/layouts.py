"""Which images Inductor lays out channels last, and the copies that this takes.

In: a joint graph, or one convolution in it. Out: a yes or no, or bytes. Never decides about memory.

With oneDNN on a CPU all images that convolutions read are laid out so, on a GPU where Inductor expects it to be faster
(`GraphLowering.decide_layout_opt`, read in torch 2.13).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import fx

from ..torch_compat import IMAGE_RANK, has_onednn
from .flops import tensors_in
from .op_traits import base_name, is_reshape, tensor_at
from .sizes import bytes_of, concrete, open_sizes
from .words import words

# Inductor's figures: with so many nodes a convolution, layouts do not matter; so many channels are few.
NODES_PER_CONVOLUTION, FEW_CHANNELS = 300, 64
# Dimensions change places.
_TURNING = words("permute transpose")


def lays_out_images(forward: Sequence[fx.Node], device_type: str) -> bool:
    """Whether Inductor lays out the images of a forward channels last.

    Its own function is not asked: it looks at the tensors' device and at this machine, and plans are made elsewhere.

    Args:
        forward: its nodes.
        device_type: of the device that will run it.
    """
    convolutions = [node for node in forward if is_convolution(node)]
    if not convolutions or device_type == "cpu":
        return bool(convolutions) and has_onednn()
    if len(forward) >= NODES_PER_CONVOLUTION * len(convolutions):
        return False
    if open_sizes(node.meta.get("val") for node in convolutions):
        return False
    weights = [_sizes(node, 1) for node in convolutions]
    groups = [cast("int", node.args[8]) for node in convolutions]  # in `aten.convolution`
    if any(n > 1 and weight[1] > 1 for n, weight in zip(groups, weights, strict=True)):
        return False
    if any(2 * weight[0] <= weight[1] and weight[2] > 1 for weight in weights):
        return False
    return not all(max(weight[:2]) <= FEW_CHANNELS for weight in weights)


def find_images(forward: Sequence[fx.Node]) -> frozenset[fx.Node]:
    """What convolutions read and return as images, and what lies like these: computed from them or for them unturned.

    An input of the graph lies as the caller laid it; one that a convolution reads is copied (`relaid_bytes`).

    Args:
        forward: its nodes.
    """
    inside = set(forward)
    todo = [end for node in forward if is_convolution(node) for end in (node, node.args[0])]
    found: set[fx.Node] = set()
    while todo:
        node = cast("fx.Node", todo.pop())
        if node in found or node not in inside:
            continue
        found.add(node)
        linked = [(node, reader) for reader in node.users] + [(source, node) for source in node.all_input_nodes]
        todo += (end for link in linked if _lies_alike(*link) for end in link)
    return frozenset(node for node in found if node.op != "placeholder" or _is_convolved(node))


def _is_convolved(node: fx.Node) -> bool:
    return any(is_convolution(reader) and reader.args[0] is node for reader in node.users)


def _lies_alike(source: fx.Node, reader: fx.Node) -> bool:
    """Whether a reader's result is laid out as what it reads: both are of an image's dimensions, and nothing turns.

    Images of a batch shown as channels of one do not: no view shows what lies channels last as that.
    """
    name = base_name(reader.target)
    if name in _TURNING or "attention" in name or (is_convolution(reader) and source is not reader.args[0]):
        return False
    tensors = [next(tensors_in(node.meta.get("val")), None) for node in (source, reader)]
    if any(tensor is None or tensor.ndim != IMAGE_RANK for tensor in tensors):
        return False
    return not regroups_batch(reader)


def regroups_batch(node: fx.Node) -> bool:
    """Whether this shows a tensor in a shape with another first dimension."""
    if not is_reshape(node):
        return False
    shapes = [t.shape for t in (tensor_at(node, 0), node.meta.get("val")) if isinstance(t, torch.Tensor)]
    return len({concrete(shape[0]) if shape else 1 for shape in shapes}) > 1


def is_convolution(node: object) -> bool:
    """Whether this is a forward convolution."""
    return isinstance(node, fx.Node) and node.op == "call_function" and base_name(node.target) == "convolution"


def convolved(node: fx.Node) -> tuple[fx.Node, ...]:
    """What a convolution reads besides its weight: its input; of its gradient what it is handed and that input."""
    is_gradient = base_name(node.target) == "convolution_backward"
    return cast("tuple[fx.Node, ...]", node.args[: 1 + is_gradient]) if is_gradient or is_convolution(node) else ()


def is_of_images(node: fx.Node) -> bool:
    """Whether what this convolution, or gradient of one, reads first is of two dimensions, with batch and channels."""
    return all(len(_sizes(node, position)) == IMAGE_RANK for position in (0, 1))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill the memory from the first to the last."""
    sizes, strides = ([concrete(n) for n in ns] for ns in (tensor.shape, tensor.stride()))
    return math.prod(sizes) == 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))


def relaid_bytes(node: fx.Node) -> int:
    """Bytes of the copy that is made, and kept for the backward, of a batch that the convolution `node` reads.

    0 unless it is of two dimensions and its image is an input of the graph, not laid out channels last. Weights are
    copied, too, but not kept (see `torch_compat.compiler`).
    """
    if not is_of_images(node):
        return 0
    image, tensor = cast("fx.Node", node.args[0]), tensor_at(node, 0)
    if tensor is None or image.op != "placeholder" or tensor.is_contiguous(memory_format=torch.channels_last):
        return 0
    return math.prod(_sizes(node, 0)) * tensor.element_size()


def weight_copy_bytes(node: fx.Node) -> int:
    """Bytes of the copy of its weight that an operator reads: a convolution of images, or the gradient of one.

    Weights of 1 x 1 lie the same way in both layouts, and those of a model that its user laid out so need no copy.
    """
    read = convolved(node)
    if not read or not is_of_images(node):
        return 0
    weight, sizes = tensor_at(node, len(read)), _sizes(node, len(read))
    if weight is None or sizes[2] * sizes[3] == 1 or lies_channels_last(weight):
        return 0
    return math.prod(sizes) * weight.element_size()


def follows_channels_last(node: fx.Node) -> bool:
    """Whether a convolution of images on a GPU, or the gradient of one, is computed channels last unasked.

    It is where its image or its weight lies so, whatever is decided for the graph: tokens shown as an image, models
    that their user laid out (`cudnn_conv_suggest_memory_format` in `ConvUtils.h`, 2.13). Inductor lays out all it reads
    for that (`conv_layout`, `convolution_backward_lowering` in kernel/conv.py, 2.13).
    """
    read = convolved(node)
    if not read or not is_of_images(node):
        return False
    tensors = (tensor_at(node, position) for position in (len(read) - 1, len(read)))
    return any(tensor is not None and lies_channels_last(tensor) for tensor in tensors)


def image_copy_bytes(node: fx.Node) -> int:
    """Bytes of copies of the images in rows that a convolution, or the gradient of one, reads channels last."""
    tensors = (tensor_at(node, position) for position in range(len(convolved(node))))
    return sum(bytes_of(t) for t in tensors if t is not None and not t.is_contiguous(memory_format=torch.channels_last))


def lies_channels_last(tensor: torch.Tensor) -> bool:
    """Whether it does, and not in rows as well, as where it has one channel."""
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _sizes(node: fx.Node, position: int) -> tuple[int, ...]:
    tensor = tensor_at(node, position)
    return () if tensor is None else tuple(concrete(size) for size in tensor.shape)
