"""The price of an op.

In: its operations, the bytes it moves, a device. Out: whole nanoseconds. Never imports torch; knows nothing of graphs.
"""

from __future__ import annotations

import math

from .device_model import DeviceModel


def roofline_ns(*, flops: int, moved_bytes: int, dtype: str, device: DeviceModel, launches: int) -> int:
    """Time of one op by the roofline: bound by arithmetic or by memory, whichever takes longer, plus its launches.

    ceil(10^9 * max(flops / peak(dtype), moved_bytes / bandwidth)) + launches * launch_ns.
    Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
    architectures", Communications of the ACM 52(4), 2009. The launch term is ours.

    Args:
        flops: floating-point operations.
        moved_bytes: bytes read from and written to the device's memory.
        dtype: the dtype the op computes in, e.g. "bfloat16".
        device: the figures.
        launches: kernels started, 0 for an op fused into another or a view.

    Returns:
        Nanoseconds, rounded up; 0 when nothing is computed, moved or launched.

    >>> from rematpass.cost.device_model import DeviceModel
    >>> toy = DeviceModel("toy", (("float32", 1e12),), 1e9, 500, 1e9, 2**30, "invented")
    >>> roofline_ns(flops=3_000, moved_bytes=10, dtype="float32", device=toy, launches=1)
    510
    """
    assert min(flops, moved_bytes, launches) >= 0, (flops, moved_bytes, launches)
    # The integer is scaled before the division, so that a whole quotient stays whole and is not rounded up by one.
    compute_ns = flops * 10**9 / device.peak_flops(dtype)
    memory_ns = moved_bytes * 10**9 / device.bandwidth_bytes_per_second
    return math.ceil(max(compute_ns, memory_ns)) + launches * device.launch_ns
