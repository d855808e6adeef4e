"""Random numbers are drawn in the order of the graph.

In: the operations of a half as Inductor has lowered them. Out: an order among those that advance the generator. Never
changes what is drawn.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def draws_in_order() -> Iterator[None]:
    """Inside, what advances the generator stays in order (`GraphLowering.additional_buffer_deps`, 2.11-2.15).

    Inductor knows of no dependency between two operators that only share the generator, such as `aten.bernoulli` and
    the seeds of what it draws itself. Which of them ran first hung on what was fused with their neighbours, and so on
    the budget.
    """
    from torch._inductor.graph import GraphLowering

    lowering: Any = GraphLowering
    original = lowering._update_scheduler

    def in_order(graph: Any) -> None:
        for earlier, later in itertools.pairwise(filter(_draws, graph.operations)):
            graph.additional_buffer_deps[later.get_operation_name()].add(earlier.get_name())
        original(graph)

    lowering._update_scheduler = in_order
    try:
        yield
    finally:
        lowering._update_scheduler = original


def _draws(operation: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(getattr(operation, "op_overload", None), "tags", ())
