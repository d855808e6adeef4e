"""Measure one step of a compiled graph while it is really trained: its forward, and later its backward.

In: begin and end of both halves. Out: bytes live at the highest moment of the two, the graph's inputs left out. Never
runs anything itself.

What lies between the halves (the loss, other graphs, the user's own work) does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch.profiler import profile

from .. import torch_compat
from .measure import storage_bytes


class StepMeter(Protocol):
    """Measures one step: `begin` and `end` around the forward, `begin_backward`, `end_backward` around the backward."""

    def begin(self) -> None:
        """Right before the forward."""

    def end(self, outputs: Iterable[torch.Tensor], /) -> None:
        """Right after the forward, which returned `outputs`; they are not held."""

    def begin_backward(self, gradients: Iterable[torch.Tensor]) -> None:
        """Right before the backward, which is handed `gradients`, made elsewhere."""

    def end_backward(self) -> tuple[int, int]:
        """Right after the backward: least and most bytes of the graph at its highest moment, inputs left out.

        They differ by the gradients handed over where nobody sees when these are freed.
        """

    def give_up(self) -> None:
        """In place of `end_backward`, if the backward failed."""


def make_meter(device: torch.device) -> StepMeter:
    """A meter for a step that runs on `device`, CPU or CUDA."""
    return CudaMeter(device) if device.type == "cuda" else CpuMeter()


class CpuMeter:
    """By the profiler's allocation events, exact to the byte. One profile a half.

    The second profile is told of the freeing of what the first saw made, and of no other. Each begins and ends in one
    place: autograd restores the state of its thread after a backward, and a profiler stopped inside would be back.
    """

    def __init__(self) -> None:
        self._profile: profile
        self._live: dict[int, int] = {}
        self._forward_peak = self._given_bytes = 0
        self._outputs: list[tuple[int, Callable[[], bool]]] = []

    def begin(self) -> None:
        """Right before the forward."""
        self._profile = torch_compat.memory_profile()
        self._profile.start()

    def end(self, outputs: Iterable[torch.Tensor], /) -> None:
        """Right after the forward."""
        self._forward_peak = self._stop()
        self._outputs = [(o.untyped_storage().data_ptr(), torch_compat.watch_storage(o)) for o in outputs]

    def begin_backward(self, gradients: Iterable[torch.Tensor]) -> None:
        """Right before the backward."""
        for address, is_gone in self._outputs:
            if is_gone():
                self._live.pop(address, None)
        self._given_bytes = storage_bytes(gradients)
        self.begin()

    def end_backward(self) -> tuple[int, int]:
        """Least and most bytes at the highest moment of the two halves."""
        backward_peak = self._stop()
        return max(self._forward_peak, backward_peak), max(self._forward_peak, backward_peak + self._given_bytes)

    def give_up(self) -> None:
        """The profile must not outlive the step."""
        torch_compat.abandon_profile(self._profile)

    def _stop(self) -> int:
        """The highest sum of what was live before and is live now; keeps what is live in the end."""
        self._profile.stop()
        return torch_compat.highest_live(torch_compat.cpu_allocations(self._profile), self._live)


class CudaMeter:
    """By the counters of torch's caching allocator. Resets its high-water mark, twice."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start_bytes = self._kept_bytes = self._forward_peak = 0

    def begin(self) -> None:
        """Right before the forward."""
        self._start_bytes = self._reset()

    def end(self, _outputs: Iterable[torch.Tensor], /) -> None:
        """Right after the forward."""
        self._forward_peak = torch.cuda.max_memory_allocated(self._device) - self._start_bytes
        self._kept_bytes = torch.cuda.memory_allocated(self._device) - self._start_bytes

    def begin_backward(self, gradients: Iterable[torch.Tensor]) -> None:
        """Right before the backward."""
        self._start_bytes = self._reset() - self._kept_bytes - storage_bytes(gradients)

    def end_backward(self) -> tuple[int, int]:
        """Bytes at the highest moment of the two halves, twice."""
        backward_peak = torch.cuda.max_memory_allocated(self._device) - self._start_bytes
        peak = max(self._forward_peak, backward_peak)
        return peak, peak

    def give_up(self) -> None:
        """Counters run all the time."""

    def _reset(self) -> int:
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device)
