"""Gradients of parameters, put into the order in which their parameters lie.

In: the joint graph, for Inductor, and gradients with the strides they should have. Out: the same graph, in which they
are returned so. Never changes what is computed.

The copy that autograd would make at the end is made when most other gradients are not there yet, and where a gradient
is converted to another type, the conversion writes it for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import fx

from .. import torch_compat


def order_gradients(gm: fx.GraphModule, strides: Mapping[fx.Node, Sequence[int]]) -> None:
    """Return these gradients with these strides, in place."""
    for gradient, wanted in strides.items():
        value = gradient.meta["val"]
        with gm.graph.inserting_after(gradient):
            node = gm.graph.call_function(torch_compat.order_strides(), (gradient, [*wanted]))
        node.meta = {key: fact for key, fact in gradient.meta.items() if key != "tensor_meta"}
        node.meta["val"] = value.new_empty_strided(value.shape, wanted)
        gm.graph.output_node().replace_input_with(gradient, node)
    gm.recompile()
