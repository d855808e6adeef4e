"""An operator's call on real tensors, to see what it does on the machine that is here.

In: one FX node with fake tensors, and who makes a real one like such. Out: a call without arguments. Never calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from .flops import tensors_in
from .sizes import concrete, storage_bytes

FREE_SHARE = 0.5
"""Share of the free memory that inputs and results of one operator may take. Half, because workspace comes on top and
is not known; at twice, a processor's memory can run out, which ends the process."""


def real_call(node: fx.Node, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], object]:
    """The node's call; `make` gives a real tensor for a fake one. A node read twice is made once."""
    made: dict[fx.Node, Any] = {}

    def real(value: Any) -> Any:
        if isinstance(value, fx.Node):
            if value not in made:
                made[value] = real(value.meta.get("val"))
            return made[value]
        if isinstance(value, torch.Tensor):
            return make(value)
        if isinstance(value, torch.SymInt):
            return concrete(value)
        if isinstance(value, list | tuple):
            return [real(item) for item in value]
        return value

    target: Any = node.target
    arguments, named = [real(a) for a in node.args], {name: real(a) for name, a in node.kwargs.items()}
    return lambda: target(*arguments, **named)


def why_too_large(node: fx.Node, free_bytes: int) -> str:
    """Why the call is not made where so much is free; "" where it may be."""
    nodes = (node, *node.all_input_nodes)
    needed_bytes = sum(storage_bytes(tensor) for source in nodes for tensor in tensors_of(source))
    if needed_bytes > FREE_SHARE * free_bytes:
        return f"its tensors take {needed_bytes} bytes, {free_bytes} are free"
    return ""


def tensors_of(node: fx.Node) -> Iterator[torch.Tensor]:
    """What a node is, as fake tensors."""
    return tensors_in(node.meta.get("val"))
