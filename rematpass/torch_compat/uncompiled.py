"""What code that is not compiled keeps for its backward, as autograd's nodes tell.

In: tensors that such code has made. Out: the tensors it keeps. Never unpacks one: a checkpoint would run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeGuard

import torch

from .job import COMPILED_NODE

# Nodes have an attribute of this name for each tensor that they keep (2.11-2.15).
_KEPT = "_raw_saved_"


def kept_uncompiled(made: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """What the backward of `made` reads, compiled graphs left out; neither parameters nor what hooks have packed."""
    nodes = list(_nodes_above(made))
    leaves = (getattr(node, "variable", None) for node in nodes)
    parameters = [leaf.untyped_storage() for leaf in leaves if has_storage(leaf)]
    known = {id(storage) for storage in parameters}  # one object each, as long as `parameters` holds them
    kept = (t for node in nodes if node.name() != COMPILED_NODE for t in _kept_by(node))
    return [t for t in kept if id(t.untyped_storage()) not in known]


def has_storage(found: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor that lies in one piece of memory, as sparse ones do not."""
    return isinstance(found, torch.Tensor) and found.layout == torch.strided


def _nodes_above(made: Iterable[torch.Tensor]) -> Iterator[Any]:
    waiting = [t.grad_fn for t in made if t.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        above = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= above
        waiting += above


def _kept_by(node: Any) -> Iterator[torch.Tensor]:
    for name in dir(node):
        if name.startswith(_KEPT):
            found = getattr(node, name)
            several = found if isinstance(found, (list, tuple)) else (found,)
            yield from (s.data for s in several if s.unpack_hook is None and has_storage(s.data))
