"""Calls of generated code, and what is held from one to another, held to the plan.

In: the bytes that may be live beside a half's static inputs. Out: Inductor's own code generation, less what would need
more. Checked on torch 2.11 to 2.15. Never changes what is computed.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .scheduled import buffer_bytes, held_bytes, scratch_bytes, several_of, stored_names


@contextlib.contextmanager
def calls_within(room_bytes: int) -> Iterator[None]:
    """Inside, live bytes stay within the room where kernels share a call, and where freed buffers are used again.

    Inductor's C++ (`CppScheduling`, 2.11-2.15) by itself puts all generated kernels between two that are not generated
    into one call: what any of them writes is allocated before the first, what any of them reads is freed after the
    last. A U-Net took 16 % more than planned. And wherever Inductor's own estimate of the peak is not passed
    (`EfficientPeakEstimate`, 2.11-2.15), which is above the plan's, a freed buffer is held for a later one of its size.
    """
    from torch._inductor.codegen import wrapper
    from torch._inductor.codegen.cpp import CppScheduling

    scheduling: Any = CppScheduling
    planning: Any = wrapper
    ready, estimate = scheduling.ready_to_flush, planning.EfficientPeakEstimate
    calls = _Calls(room_bytes)
    scheduling.ready_to_flush = lambda backend: ready(backend) or calls.end_at(backend.scheduler)
    planning.EfficientPeakEstimate = lambda: _lowered_to(calls, estimate)
    try:
        yield
    finally:
        scheduling.ready_to_flush, planning.EfficientPeakEstimate = ready, estimate


def _lowered_to(calls: _Calls, estimate: Any) -> Any:
    """Inductor's estimate with our count of live bytes, and the plan's peak in place of its own."""
    from torch._inductor.codegen.segmented_tree import SegmentedTree
    from torch._inductor.virtualized import V

    found = estimate()
    found.overall_peak_memory = calls.room_bytes()
    found.segmented_tree = SegmentedTree([*calls.live_bytes(V.graph.scheduler), 0], operator.add, max, 0)
    return found


@dataclass(frozen=True)
class _Call:
    """Kernels that run in one call: the one with which it ends, how many nodes that is, most bytes live meanwhile."""

    last: str
    nodes: int
    live_bytes: int


class _Calls:
    """The calls of a half, such that live memory stays within the plan's."""

    def __init__(self, room_bytes: int) -> None:
        self._room = room_bytes
        self._scheduler: Any = None
        self._calls: list[_Call] = []
        self._ends: set[str] = set()

    def end_at(self, scheduler: Any) -> bool:
        """Whether the call ends with the kernel that was generated last."""
        self._measure(scheduler)
        return scheduler.current_node.get_name() in self._ends

    def live_bytes(self, scheduler: Any) -> list[int]:
        """Per node of the scheduler: the most that is live while it runs."""
        self._measure(scheduler)
        return [call.live_bytes for call in self._calls for _ in range(call.nodes)]

    def room_bytes(self) -> int:
        """The bytes that may be live in the half that is lowered."""
        return self._room - held_bytes()

    def _measure(self, scheduler: Any) -> None:
        if self._scheduler is not scheduler:
            self._scheduler, self._calls = scheduler, list(_find_calls(scheduler, self.room_bytes()))
            self._ends = {call.last for call in self._calls}


def _find_calls(scheduler: Any, room_bytes: int) -> Iterator[_Call]:
    """Calls end where what the next kernel writes would not fit beside what the call still holds.

    Counted too high where a kernel writes over what it reads, so calls may be shorter than they could.
    """
    size, stored = buffer_bytes(scheduler), _StoredNames(scheduler)
    live, dead, count = sum(bytes_ for name, bytes_ in size.items() if name not in scheduler.name_to_buf), 0, 0
    made: set[str] = set()
    for nodes, following in itertools.pairwise((*_with_what_runs_nothing(scheduler.nodes), ())):
        live += sum(size.get(name, 0) for name in stored.by(nodes) - made)
        made |= stored.by(nodes)
        gone = {name for node in nodes for name in node.last_usage}
        dead += sum(size.get(name, 0) for name in gone if name in made or name not in scheduler.name_to_buf)
        added = sum(size.get(name, 0) for name in stored.by(following) - made)
        count += len(nodes)
        if following and _may_share_call(nodes[0], following[0]) and live + added <= room_bytes:
            continue
        yield _Call(nodes[0].get_name(), count, live + scratch_bytes(nodes[0]))
        live, dead, count = live - dead, 0, 0


class _StoredNames:
    """What kernels write to memory: an operator all of its results, which other nodes hand out one by one."""

    def __init__(self, scheduler: Any) -> None:
        self._results: dict[str, set[str]] = {}
        for node in (part for group in scheduler.nodes for part in group.get_nodes()):
            if several_of(node):
                self._results.setdefault(several_of(node), set()).update(stored_names([node]))

    def by(self, nodes: Iterable[Any]) -> set[str]:
        """What `nodes` write."""
        own = stored_names(nodes)
        return own.union(*(self._results.get(name, ()) for name in own))


def _may_share_call(node: Any, following: Any) -> bool:
    """Whether both are C++ that Inductor generates."""
    return all(one.is_cpu() and not one.is_extern() for one in (node, following))


def _with_what_runs_nothing(nodes: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Each node with those after it that run nothing (`NopKernelSchedulerNode`): Inductor ends no call after them."""
    from torch._inductor.scheduler import NopKernelSchedulerNode

    group: list[Any] = []
    for node in nodes:
        if group and not isinstance(node, NopKernelSchedulerNode):
            yield tuple(group)
            group = []
        group.append(node)
    if group:
        yield tuple(group)
