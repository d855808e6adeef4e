"""Compile a graph of dynamo's once more, after dynamo has gone.

In: a graph and its inputs while dynamo hands them over. Out: the same to compile later, in the same surroundings.
Never holds a tensor that takes memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._guards import CompileContext, TracingContext, compile_context, tracing  # 2.11-2.15


@dataclass(frozen=True)
class LaterCompilation:
    """A graph as dynamo left it, stand-ins of its inputs, and what surrounded its compilation."""

    inputs: tuple[Any, ...]
    _gm: fx.GraphModule
    _tracing: TracingContext
    _compilation: CompileContext

    @contextmanager
    def surroundings(self) -> Iterator[fx.GraphModule]:
        """Inside, the compiler finds what it found the first time; the graph is for it to change (2.11-2.15)."""
        with tracing(self._tracing), compile_context(self._compilation):
            yield _copy(self._gm)


def keep_for_later(gm: fx.GraphModule, inputs: Sequence[Any]) -> LaterCompilation | None:
    """What `compile_fx` needs to compile `gm` another time; to be called before the first.

    None where that is not safe: sizes are dynamic, so that compiling could add guards that nobody checks any more;
    graphs are nested, which the compiler changes in place; or nobody but dynamo can compile here.
    """
    context, compilation = TracingContext.try_get(), CompileContext.try_get()
    if context is None or compilation is None or context.fake_mode is None:
        return None
    if not all(isinstance(value, torch.Tensor) for value in inputs) or _is_dynamic(gm):
        return None
    if any(isinstance(module, fx.GraphModule) and module is not gm for module in gm.modules()):
        return None
    fakes = tuple(context.fake_mode.from_tensor(value, static_shapes=True) for value in inputs)
    return LaterCompilation(fakes, _copy(gm), context, compilation)


def is_followed(gm: fx.GraphModule) -> bool:
    """Whether dynamo broke off after this graph and goes on with another one (2.11-2.15)."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    return reason is not None and reason.graph_break


def _copy(gm: fx.GraphModule) -> fx.GraphModule:
    copied = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    vars(copied)["meta"] = dict(gm.meta)  # as `GraphModule.__copy__` does
    # Dynamo's own notes, such as where inputs come from, are attributes that copying leaves out.
    for old, new in ((gm, copied), *zip(gm.graph.nodes, copied.graph.nodes, strict=True)):
        for name, value in vars(old).items():
            new.__dict__.setdefault(name, value)
    return copied


def _is_dynamic(gm: fx.GraphModule) -> bool:
    values = (node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder")
    sizes = (size for value in values if isinstance(value, torch.Tensor) for size in value.shape)
    return any(isinstance(size, torch.SymInt) for size in sizes)
