"""Operands that operators ask for their sizes only.

In: nodes of a joint graph, for Inductor. Out: where such an operand stands, and which numbers stand there. Never writes
one.
"""

from __future__ import annotations

import torch
from torch import fx

from .pooling import windows_per_element


def unread_place(node: fx.Node) -> int | None:
    """Where among the arguments of a node an operand stands that its kernel does not read; None where it reads all."""
    if node.target == torch.ops.aten.copy.default:
        return 0
    return 1 if windows_per_element(node) else None


def is_unread(node: fx.Node) -> bool:
    """Whether a fill, expanded or not, stands in such places only."""
    if node.op != "call_function" or node.target not in (torch.ops.aten.full.default, torch.ops.aten.expand.default):
        return False
    return bool(node.users) and all(_leaves_unread(user, node) for user in node.users)


def _leaves_unread(user: fx.Node, node: fx.Node) -> bool:
    place = unread_place(user)
    if place is None:
        return user.target == torch.ops.aten.expand.default and is_unread(user)
    return [i for i, argument in enumerate(user.args) if argument is node] == [place]
