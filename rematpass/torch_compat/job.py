"""The process that we run in: the job it may be a rank of, what it is doing.

In: torch, 2.11 to 2.15. Out: small functions with stable names and meanings. Never decides anything, never holds state.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

# The autograd node of a compiled graph's backward (2.11-2.15).
COMPILED_NODE = "CompiledFunctionBackward"


def default_store() -> Any:
    """The key-value store that the ranks of the job share (2.11-2.15); None where the backend has none (MPI)."""
    return dist.distributed_c10d._get_default_store()


def is_in_backward() -> bool:
    """Whether this thread is inside a backward: a checkpoint of the user's runs forwards there (2.11-2.15)."""
    return bool(torch._C._current_graph_task_id() != -1)


def when_backward_is_gone(run: Callable[[], object]) -> None:
    """Inside a backward: run `run` once that has ended, well or with an error (2.11-2.15).

    What autograd is to call at the end it lets go of with the rest of the backward, whether it was called or not.
    """

    def at_end() -> None:
        """Called after a backward that went well; `run` waits until this is let go of."""

    weakref.finalize(at_end, run).atexit = False
    torch.autograd.Variable._execution_engine.queue_callback(at_end)


def when_node_is_gone(node: Any, run: Callable[[], object]) -> None:
    """Run `run` once the autograd graph that `node` stands in is let go of (2.11-2.15)."""

    def token() -> None:
        """Lives as long as the node's own notes."""

    weakref.finalize(token, run).atexit = False
    node.metadata.setdefault("rematpass", []).append(token)


def is_profiling() -> bool:
    """Whether a profiler runs in this process: torch has one only (2.11-2.15)."""
    return bool(torch.autograd.profiler._is_profiler_enabled or torch._C._autograd._profiler_enabled())


def watch_storage(tensor: torch.Tensor) -> Callable[[], bool]:
    """Says whether the memory of `tensor` is gone, without holding it (2.11-2.15)."""
    watched: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch's own, untyped
    return lambda: bool(watched.expired())
