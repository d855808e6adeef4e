"""Measure what really happens: peaks, storages, device memory.

In: a step to run, tensors, a device. Out: bytes as the allocators saw them.
Never predicts anything; never changes what it measures.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

import torch

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
    return _measure_cuda(step, device) if device.type == "cuda" else torch_compat.cpu_peak(step)


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
