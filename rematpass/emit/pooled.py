"""Gradients of means over windows, which are asked for sizes only.

In: the joint graph, for Inductor. Out: the same graph, in which such a gradient reads a number of the shape it asks
for. Never changes what is computed.

`avg_pool2d_backward` is handed the tensor that was pooled and looks at nothing but its shape. Whoever hands it on would
keep or recompute an image for nothing: behind a convolution, as in DenseNet's transitions, all that was kept there.
"""

from __future__ import annotations

import torch
from torch import fx

from ..graph.pooling import windows_per_element

aten = torch.ops.aten


def forget_pooled(gm: fx.GraphModule) -> None:
    """Give gradients of means that Inductor computes a number instead of what was pooled, in place.

    torch's own kernel gets the tensor itself, and so does a gradient of sizes that are not known.
    """
    for node in gm.graph.nodes:
        if windows_per_element(node):
            value = node.args[1].meta["val"]
            if all(isinstance(size, int) for size in value.shape):
                node.update_arg(1, _number_of_shape(node, value))
    gm.recompile()


def _number_of_shape(reader: fx.Node, like: torch.Tensor) -> fx.Node:
    ones = [1] * like.ndim
    with reader.graph.inserting_before(reader):
        number = reader.graph.call_function(aten.full.default, (ones, 0), {"dtype": like.dtype, "device": like.device})
        shape = reader.graph.call_function(aten.expand.default, (number, [*like.shape]))
    number.meta["val"] = like.new_zeros(ones)
    shape.meta["val"] = number.meta["val"].expand(like.shape)
    return shape
