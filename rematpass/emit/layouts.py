"""How Inductor is to lay out images that the plan stores.

In: a half as Inductor lowers it, its tensors' strides known, images channels last. Out: the same half, other strides
noted. Never changes what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import fx

from .. import torch_compat
from ..graph.layouts import is_convolution, is_of_images
from ..graph.op_traits import base_name


def store_as_convolutions_read(graph: fx.Graph) -> None:
    """Note that what is to be stored for a convolution of images lies channels last.

    Inductor stores what is marked with the strides that it has in the graph. A gradient that comes out of an operator
    without channels last, such as that of `grid_sample`, was then copied for the convolution's gradient: a small
    network took 18 % more than planned (2026-11, torch 2.13).
    """
    for node in graph.nodes:
        if node.meta.get(torch_compat.STORE_HERE) and any(node in _images_read(user) for user in node.users):
            node.meta["val"] = node.meta["val"].contiguous(memory_format=torch.channels_last)


def _images_read(node: fx.Node) -> Sequence[fx.Node]:
    """What a convolution of images reads as such: its input; of its gradient what it is handed and that input."""
    is_gradient = base_name(node.target) == "convolution_backward"
    if not (is_gradient or is_convolution(node)) or not is_of_images(node):
        return ()
    return cast("Sequence[fx.Node]", node.args[: 1 + is_gradient])
