"""Copies of inputs that the step writes to, for the backward.

In: the joint graph, and those of its inputs. Out: the same graph, in which everything reads a copy made first: the
backward, which is handed the input itself, would read what was written. Never changes what is computed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from .. import torch_compat


def copy_overwritten(gm: fx.GraphModule, inputs: Iterable[fx.Node]) -> None:
    """Let all that reads one of `inputs` read a copy of it, but what writes to it or returns it."""
    for given in inputs:
        first = next(n for n in gm.graph.nodes if n.op != "placeholder")
        readers = [n for n in given.users if n.op != "output" and not _writes_to(n, given)]
        with gm.graph.inserting_before(first):
            copy = gm.graph.call_function(torch.ops.aten.clone.default, (given,))
        copy.meta["val"] = given.meta["val"].clone()
        for reader in readers:
            reader.replace_input_with(given, copy)
    gm.recompile()


def _writes_to(node: fx.Node, given: fx.Node) -> bool:
    return torch_compat.is_mutable(node) and node.args[0] is given
