"""What it costs to compute each value once more, and to keep it.

In: per value, its kind, size, reads and operations. Out: `Prices` in ns. Never imports torch,
never knows the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .device_model import DeviceModel
from .prices import roofline_ns


@dataclass(frozen=True, slots=True)
class ValueWork:
    """What computing one value takes.

    Attributes:
        flops: operations.
        dtype: of its result.
        size_bytes: of its result; 0 for views.
        reads: what it reads from or computes again: pairs (position of the value, bytes of it).
        is_backward: it is computed in the backward.
        is_read_backward: an op of the backward reads it.
        is_stored_forward, is_stored_backward: its result reaches memory when computed there.
        is_free: a view, a symbol, an input.
    """

    flops: int
    dtype: str
    size_bytes: int
    reads: tuple[tuple[int, int], ...]
    is_backward: bool
    is_read_backward: bool
    is_stored_forward: bool
    is_stored_backward: bool
    is_free: bool

    @property
    def is_stored(self) -> bool:
        """Whether its result reaches memory where the joint graph has it."""
        return self.is_stored_backward if self.is_backward else self.is_stored_forward

    @property
    def is_passing(self) -> bool:
        """Whether it is computed again only inside what reads it, and never reaches memory."""
        return not (self.is_free or self.is_backward or self.is_read_backward or self.is_stored_backward)


@dataclass(frozen=True)
class Prices:
    """Per value: `run_ns`, one execution; `again_ns`, recomputing it less the traffic that not keeping it saves."""

    run_ns: tuple[int, ...]
    again_ns: tuple[int, ...]


def price_values(
    work: Sequence[ValueWork], device: DeviceModel, measured_ns: Mapping[int, int] = MappingProxyType({})
) -> Prices:
    """Prices of every value on `device`: as measured where that was done, else by the roofline.

    Keeping a value that the forward would not have stored costs a write and, in the backward, a read; that traffic is
    taken off the price of computing it again, so that `again_ns` is the net cost of choosing recomputation. Only what
    the backward reads itself would be kept, so only that saves traffic; of what it saves more than its own price,
    what is computed inside it takes the rest, in equal parts. What is computed together reads a tensor once, and where
    that is inside the gradient the largest of its tensors not at all.

    Args:
        work: per value, what computing it takes; what it reads comes before it.
        device: figures for the roofline.
        measured_ns: by position, what running the value's operator takes.
    """
    run, again = [], []
    for i, (w, again_bytes) in enumerate(zip(work, _reads_again(work), strict=True)):
        read_bytes = sum(size for u, size in w.reads if _is_stored_for(work[u], w))
        run.append(_run_ns(w, device, read_bytes, w.is_stored))
        again.append(_run_ns(w, device, again_bytes, w.is_stored_backward))
        if i in measured_ns and not w.is_free:
            run[i] = again[i] = measured_ns[i]
    saved = [_keep_ns(w, device) if w.is_read_backward and not w.is_backward else 0 for w in work]
    for i in range(len(work) - 1, -1, -1):
        spent = min(saved[i], again[i])
        again[i] -= spent
        inside = [u for u, _ in work[i].reads if work[u].is_passing]
        for u in inside:
            saved[u] += (saved[i] - spent) // len(inside)
    return Prices(tuple(run), tuple(again))


def _is_stored_for(value: ValueWork, reader: ValueWork) -> bool:
    return value.is_stored_backward if reader.is_backward else value.is_stored_forward


def _reads_again(work: Sequence[ValueWork]) -> list[int]:
    """Bytes that each value reads from memory when computed again; what is computed in one kernel reads a byte once.

    What is computed inside several values counts for the last of them. A value that is computed again inside the
    gradient of what it is made from reads one tensor for nothing, the largest: that gradient reads it anyhow, or
    something as large that is made of it. A heuristic of ours: without it two masks of a ResNet were kept to save such
    reads, and its steps were slower (2026-11, on a CPU).
    """
    kernel: dict[int, int] = {}
    unread: dict[tuple[int, int], int] = {}
    reads: dict[int, dict[int, list[tuple[int, int]]]] = {}  # of a kernel, of a tensor: by whom, how much
    for i in range(len(work) - 1, -1, -1):
        own = kernel.get(i, i)
        for u, size in work[i].reads:
            if work[u].is_passing:
                kernel.setdefault(u, own)
                continue
            left = unread.get((own, u), work[u].size_bytes)
            reads.setdefault(own, {}).setdefault(u, []).append((i, min(size, left)))
            unread[own, u] = left - min(size, left)
    found = [0] * len(work)
    for own, tensors in reads.items():
        is_inside = work[own].is_read_backward and not work[own].is_stored_backward
        free = max(tensors if is_inside else (), key=lambda u: sum(size for _, size in tensors[u]), default=None)
        for u, parts in tensors.items():
            for i, size in parts:
                found[i] += 0 if u == free else size
    return found


def _run_ns(work: ValueWork, device: DeviceModel, read_bytes: int, is_stored: bool) -> int:
    if work.is_free:
        return 0
    moved = read_bytes + (work.size_bytes if is_stored else 0)
    launches = 1 if is_stored else 0
    return roofline_ns(flops=work.flops, moved_bytes=moved, dtype=work.dtype, device=device, launches=launches)


def _keep_ns(work: ValueWork, device: DeviceModel) -> int:
    """Traffic that only keeping causes: the write if the forward stores nothing, the read if the backward need not."""
    if work.is_free:
        return 0
    moved = (0 if work.is_stored_forward else work.size_bytes) + (0 if work.is_stored_backward else work.size_bytes)
    return roofline_ns(flops=0, moved_bytes=moved, dtype=work.dtype, device=device, launches=0)
