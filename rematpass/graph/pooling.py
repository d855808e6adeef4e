"""How Inductor computes means over windows, and their gradients.

In: one FX node. Out: whether it is one that Inductor writes itself, and in how many windows an element lies.
Never looks at the rest of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import fx

from .sizes import concrete

aten = torch.ops.aten
# Means over larger windows, and gradients in more windows, are torch's own kernels (`_avg_poolnd` and
# `avg_pool2d_backward` in torch/_inductor/lowering.py, 2.11 to 2.15).
MOST_WRITTEN_OUT = 25
_MEANS = (aten.avg_pool2d.default, aten.avg_pool3d.default)
_GRADIENTS = (aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
# Means over as many parts as are asked for, whose gradients are torch's own kernels: dimensions of these.
_PARTS: dict[object, int] = {
    aten._adaptive_avg_pool2d_backward.default: 2,
    aten._adaptive_avg_pool3d_backward.default: 3,
}
# Of maxima over such parts.
_OF_MAXIMA = (aten.adaptive_max_pool2d_backward.default,)


def is_mean(node: fx.Node) -> bool:
    """Whether the node takes means over windows, or over a number of parts, that Inductor computes itself."""
    if node.target == aten._adaptive_avg_pool2d.default:
        return _writes_parts(node)
    if node.target not in _MEANS:
        return False
    window, step = _window_and_step(node)
    return math.prod(window) <= MOST_WRITTEN_OUT or window == step


def _writes_parts(node: fx.Node) -> bool:
    """Whether parts are all alike, or small (`_adaptive_avg_pool2d` in torch/_inductor/lowering.py, 2.11 to 2.15)."""
    image, parts = cast("fx.Node", node.args[0]).meta["val"].shape[-2:], cast("Sequence[int]", node.args[1])
    sizes = [(concrete(n), concrete(count)) for n, count in zip(image, parts, strict=True)]
    if any(not count for _, count in sizes) or not any(n % count for n, count in sizes):
        return True
    return math.prod(-(-(n + count - 1) // count) for n, count in sizes) <= MOST_WRITTEN_OUT


def windows_per_element(node: fx.Node) -> int:
    """Of the gradient of a mean: how many windows an element lies in; 0 if torch computes it, or it is none."""
    if node.target not in _GRADIENTS:
        return 0
    count = math.prod(map(_overlap, *_window_and_step(node)))
    return count if count <= MOST_WRITTEN_OUT else 0


def is_gradient_by_torch(node: fx.Node) -> bool:
    """Whether the node is the gradient of a pooling which torch computes; it reads the gradient, then the image."""
    is_of_windows = node.target in _GRADIENTS and not windows_per_element(node)
    return is_of_windows or node.target in _PARTS or node.target in _OF_MAXIMA


def even_windows(node: fx.Node) -> list[int]:
    """Of the gradient of a mean over parts of an image: the sizes of these if all are alike; empty if not, or none."""
    dimensions = _PARTS.get(node.target)
    if dimensions is None:
        return []
    gradient, image = (cast("fx.Node", argument).meta["val"].shape[-dimensions:] for argument in node.args)
    sizes = [*zip(image, gradient, strict=True)]
    are_known = all(isinstance(n, int) and isinstance(parts, int) and n and parts for n, parts in sizes)
    is_even = are_known and not any(n % parts for n, parts in sizes)
    return [n // parts for n, parts in sizes] if is_even else []


def _window_and_step(node: fx.Node) -> tuple[list[int], list[int]]:
    """Window and step of a mean or of its gradient, a number per dimension."""
    first = 2 if node.target in _GRADIENTS else 1
    dimensions = 2 if node.target in (_MEANS[0], _GRADIENTS[0]) else 3
    numbers = [cast("Sequence[int]", argument) for argument in node.args[first : first + 2]]
    window, *given = ([*row] * dimensions if len(row) == 1 else [*row] for row in numbers)
    return window, next(filter(None, given), window)


def _overlap(window: int, step: int) -> int:
    return max(max(i // step - max(0, (i - window) // step), 1) for i in range(window * 2))
