"""Which gradients of parameters lie otherwise in memory than their parameters.

In: the joint graph, for Inductor. Out: those gradients, and the strides of their parameters. Never changes the graph.

autograd keeps a gradient that lies as its parameter; any other it copies (`AccumulateGrad`, `obeys_layout_contract` in
torch/csrc/autograd/utils/grad_layout_contract.h) when all others are there, at the end of the backward. Inductor
returns gradients of weights channels last where it lays out images so: a ResNet took the largest of them more than all
gradients, whatever the plan (2026-11, torch 2.13).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx

from ..solve.program import Kind
from ..torch_compat import IMAGE_RANK
from .capture import device_of, find_forward, find_gradients
from .layouts import is_dense, is_of_images, lays_out_images
from .op_traits import base_name, kind_of

# Where `convolution_backward` returns the gradient of the weight.
_OF_WEIGHT = 1


def find_turned(
    gm: fx.GraphModule, num_fwd_outputs: int, static_indices: Sequence[int] | None, device_type: str | None
) -> dict[fx.Node, tuple[int, ...]]:
    """Gradients that autograd would copy, and the strides that it would give them; arguments as for `capture_joint`."""
    gradients, forward = find_gradients(gm, num_fwd_outputs, static_indices), find_forward(gm)
    is_relaid = lays_out_images(forward, device_type or device_of(forward))
    return {
        gradient: parameter.meta["val"].stride()
        for parameter, gradient in gradients.items()
        if _lies_otherwise(parameter, gradient, is_relaid=is_relaid)
    }


def _lies_otherwise(parameter: fx.Node, gradient: fx.Node, *, is_relaid: bool) -> bool:
    """Whether autograd would copy it. Sizes and strides that are symbolic are not asked: the answer would fix them."""
    own, made = parameter.meta.get("val"), gradient.meta.get("val")
    if not isinstance(own, torch.Tensor) or not isinstance(made, torch.Tensor) or gradient.op != "call_function":
        return False
    if any(value.layout is not torch.strided for value in (own, made)) or own.shape != made.shape:
        return False
    if not all(isinstance(number, int) for value in (own, made) for number in (*value.shape, *value.stride())):
        return False
    if not is_dense(own):
        return False  # autograd makes such a gradient contiguous, or keeps what is
    is_turned = is_relaid and made.ndim == IMAGE_RANK and _is_of_convolved_weight(gradient)
    lies = torch.empty_like(made, memory_format=torch.channels_last) if is_turned else made
    steps = zip(own.shape, own.stride(), lies.stride(), strict=True)
    return any(size > 1 and step != other for size, step, other in steps)


def _is_of_convolved_weight(gradient: fx.Node) -> bool:
    """Whether it is computed, element for element, from the gradient of a convolution's weight."""
    todo, seen = [gradient], {gradient}
    while todo:
        node = todo.pop()
        if node.target is operator.getitem:
            op, place = node.args
            if isinstance(op, fx.Node) and base_name(op.target) == "convolution_backward" and place == _OF_WEIGHT:
                return is_of_images(op)
        elif kind_of(node) is Kind.POINTWISE:
            todo += (source for source in node.all_input_nodes if source not in seen)
            seen.update(node.all_input_nodes)
    return False
