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
from .op_traits import base_name, tensor_at
from .sizes import concrete, open_sizes

# Inductor's figures: with so many nodes a convolution, layouts do not matter; so many channels are few.
NODES_PER_CONVOLUTION, FEW_CHANNELS = 300, 64


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


def is_convolution(node: object) -> bool:
    """Whether this is a forward convolution."""
    return isinstance(node, fx.Node) and node.op == "call_function" and base_name(node.target) == "convolution"


def is_of_images(node: fx.Node) -> bool:
    """Whether what this convolution, or gradient of one, reads first is of two dimensions, with batch and channels."""
    return all(len(_sizes(node, position)) == IMAGE_RANK for position in (0, 1))


def relaid_bytes(node: fx.Node) -> int:
    """Bytes of the copy that is made, and kept for the backward, of a batch that the convolution `node` reads.

    0 unless it is of two dimensions and its image is an input of the graph, not laid out channels last. Weights are
    copied, too, but not kept (see `emit.split`).
    """
    if not is_of_images(node):
        return 0
    image, tensor = cast("fx.Node", node.args[0]), tensor_at(node, 0)
    if tensor is None or image.op != "placeholder" or tensor.is_contiguous(memory_format=torch.channels_last):
        return 0
    return math.prod(_sizes(node, 0)) * tensor.element_size()


def weight_copy_bytes(node: fx.Node) -> int:
    """Bytes of the copy of its weight that an operator reads: a convolution of images, or the gradient of one.

    Weights of 1 x 1 lie the same way in both layouts.
    """
    is_gradient = base_name(node.target) == "convolution_backward"
    if not (is_gradient or is_convolution(node)) or not is_of_images(node):
        return 0
    position = 2 if is_gradient else 1
    weight, sizes = tensor_at(node, position), _sizes(node, position)
    if weight is None or sizes[2] * sizes[3] == 1:
        return 0
    return math.prod(sizes) * weight.element_size()


def _sizes(node: fx.Node, position: int) -> tuple[int, ...]:
    tensor = tensor_at(node, position)
    return () if tensor is None else tuple(concrete(size) for size in tensor.shape)
