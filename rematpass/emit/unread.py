"""Operands that are asked for their sizes only.

In: the joint graph, for Inductor. Out: the same graph, in which a number of their shape stands in their place. Never
changes what is computed.

`avg_pool2d_backward` is handed the tensor that was pooled and looks at nothing but its shape. Whoever hands it on would
keep or recompute an image for nothing: behind a convolution, as in DenseNet's transitions, all that was kept there. So
is the gradient of a mean over parts of an image (`AdaptiveAvgPool2d`), which is the same where all parts are alike.
`copy`, which an assignment to a part becomes, is handed what it replaces and returns the other operand (`copy` in
lowering.py, 2.11 to 2.15). What is replaced counted as read once more, and so as stored: a residual network that
clears half of its channels took 36 % more than its smallest plan (2026-11, torch 2.13).
"""

from __future__ import annotations

import torch
from torch import fx

from ..graph.pooling import even_windows
from ..graph.unread import unread_place

aten = torch.ops.aten
_OF_WINDOWS = {2: aten.avg_pool2d_backward.default, 3: aten.avg_pool3d_backward.default}


def forget_unread(gm: fx.GraphModule) -> None:
    """Give operators that Inductor computes a number instead of what they ask for its sizes, in place.

    Gradients of means over equal parts become such operators before (`_write_as_windows`). torch's own kernels get the
    tensor itself, and so does an operator on sizes that are not known.
    """
    for node in gm.graph.nodes:
        _write_as_windows(node)
        place = unread_place(node)
        operand = None if place is None else node.args[place]
        value = operand.meta["val"] if isinstance(operand, fx.Node) else None
        if place is not None and value is not None and all(isinstance(size, int) for size in value.shape):
            node.update_arg(place, _number_of_shape(node, value))
    gm.recompile()


def _write_as_windows(node: fx.Node) -> None:
    """Write the gradient of a mean over equal parts as that of a mean over windows, which Inductor computes itself.

    torch's kernel of the one copies all that it returns where that lies otherwise than the gradient it is handed: right
    behind a linear layer, as in a VGG, the smallest plan of a small network took 16 % more (2026-11, torch 2.13).
    """
    window = even_windows(node)
    if window:
        node.target = _OF_WINDOWS[len(window)]
        node.args = (*node.args[:2], window, window, [0] * len(window), False, True, None)


def _number_of_shape(reader: fx.Node, like: torch.Tensor) -> fx.Node:
    ones = [1] * like.ndim
    with reader.graph.inserting_before(reader):
        number = reader.graph.call_function(aten.full.default, (ones, 0), {"dtype": like.dtype, "device": like.device})
        shape = reader.graph.call_function(aten.expand.default, (number, [*like.shape]))
    number.meta["val"] = like.new_zeros(ones)
    shape.meta["val"] = number.meta["val"].expand(like.shape)
    return shape
