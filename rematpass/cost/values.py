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
        stored_reads_bytes: bytes of the stored tensors it reads.
        is_stored_forward, is_stored_backward: its result reaches memory when computed there.
        is_free: a view, a symbol, an input.
    """

    flops: int
    dtype: str
    size_bytes: int
    stored_reads_bytes: int
    is_stored_forward: bool
    is_stored_backward: bool
    is_free: bool


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
    taken off the price of computing it again, so that `again_ns` is the net cost of choosing recomputation.

    Args:
        work: per value, what computing it takes.
        device: figures for the roofline.
        measured_ns: by position, what running the value's operator takes.
    """
    run, again = [], []
    for i, w in enumerate(work):
        measured = None if w.is_free else measured_ns.get(i)
        run.append(_run_ns(w, device, w.is_stored_forward) if measured is None else measured)
        once_more = _run_ns(w, device, w.is_stored_backward) if measured is None else measured
        again.append(max(0, once_more - _keep_ns(w, device)))
    return Prices(tuple(run), tuple(again))


def _run_ns(work: ValueWork, device: DeviceModel, is_stored: bool) -> int:
    if work.is_free:
        return 0
    moved = work.stored_reads_bytes + (work.size_bytes if is_stored else 0)
    launches = 1 if is_stored else 0
    return roofline_ns(flops=work.flops, moved_bytes=moved, dtype=work.dtype, device=device, launches=launches)


def _keep_ns(work: ValueWork, device: DeviceModel) -> int:
    """Traffic that only keeping causes: the write if the forward stores nothing, the read if the backward need not."""
    if work.is_free:
        return 0
    moved = (0 if work.is_stored_forward else work.size_bytes) + (0 if work.is_stored_backward else work.size_bytes)
    return roofline_ns(flops=0, moved_bytes=moved, dtype=work.dtype, device=device, launches=0)
