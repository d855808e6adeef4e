"""Measure what really happens: peaks, storages, device memory.

In: a step to run, tensors, a device. Out: bytes as the allocators saw them.
Never predicts anything; never changes what it measures.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import profile

from .. import torch_compat
from ..cost.memory import DeviceMemory, host_memory
from ..errors import OptionError


def measure_peak(step: Callable[[], object], *, device: torch.device | str | None = None) -> int:
    """Bytes really allocated at the peak while `step` runs, above what was live before it.

    Run the step once beforehand if compilation, autotuning or first-time optimizer state must not count. What the
    step returns is dropped at once.

    CPU: the profiler's allocation events, exact to the byte. CUDA: the high-water mark of torch's caching allocator, in
    its blocks (multiples of 512 bytes); the mark is reset.

    It cannot see memory that does not come from torch's allocators (NumPy, NCCL, library workspaces, the CUDA context)
    nor fragmentation. On the CPU it sees neither what Python threads that the step starts allocate, nor credits the
    freeing of what was live before the step. In a CUDA graph replay the pool was allocated before: nothing shows.

    Args:
        step: called once, without arguments.
        device: what to watch; None for CUDA when there is one, else CPU.

    Raises:
        OptionError: a device other than CPU or CUDA.

    >>> measure_peak(lambda: torch.empty(2**20, dtype=torch.uint8), device="cpu")
    1048576
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise _unknown_device(device)
    gc.collect()
    return _measure_cuda(step, device) if device.type == "cuda" else _measure_cpu(step)


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct storages behind `tensors`; views of one storage count once, with all of its bytes."""
    # By identity, not by address: fake and meta storages have none. torch gives one storage one Python object as long
    # as that object lives, so all are held here.
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum(storage.nbytes() for storage in {id(storage): storage for storage in storages}.values())


def device_memory(device: torch.device) -> DeviceMemory:
    """Total and free bytes of a device. On CUDA what torch's allocator holds unused counts as free.

    Raises:
        OptionError: a device other than CPU or CUDA.
    """
    if device.type == "cpu":
        return host_memory()
    if device.type != "cuda":
        raise _unknown_device(device)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    unused_bytes = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return DeviceMemory(total_bytes, free_bytes + unused_bytes)


def _unknown_device(device: torch.device) -> OptionError:
    return OptionError(
        f"device={str(device)!r} cannot be measured: rematpass knows the memory of cpu and cuda only. "
        "Try: one of these, or a memory_budget in bytes"
    )


def _measure_cuda(step: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    before_bytes = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before_bytes


def _measure_cpu(step: Callable[[], object]) -> int:
    with torch_compat.memory_profile() as recorded:
        step()
    return highest_live(cpu_allocations(recorded), {})


def cpu_allocations(profiled: profile) -> list[tuple[int, int]]:
    """(address, bytes) of every CPU allocation and (address, -bytes) of every free, in the order of time.

    Events are nested in the ops that made them, one forest a thread: hence the sort. Equal times keep their order.
    """
    assert profiled.profiler is not None, "the profiler exists once its block has run"
    assert profiled.profiler.kineto_results is not None, "the profiler has results once its block has run"
    events: list[tuple[int, int, int]] = []
    pending: list[Any] = list(reversed(profiled.profiler.kineto_results.experimental_event_tree()))
    while pending:
        event = pending.pop()
        pending.extend(reversed(event.children))
        if event.tag.name == "Allocation" and event.extra_fields.device.type == "cpu":
            events.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    return [(address, size_bytes) for _, address, size_bytes in sorted(events, key=lambda event: event[0])]


def highest_live(allocations: Iterable[tuple[int, int]], sizes: dict[int, int]) -> int:
    """Highest sum of what is allocated and not yet freed. `sizes`, by address, is there before and brought up to date.

    A free of what is not in it is left out: torch reports such a free only if an earlier profile saw the allocation;
    counting some would depend on history.
    """
    live = peak = sum(sizes.values())
    for address, size_bytes in allocations:
        if size_bytes > 0:
            live += size_bytes
            sizes[address] = size_bytes
        else:
            live -= sizes.pop(address, 0)
        peak = max(peak, live)
    return peak
