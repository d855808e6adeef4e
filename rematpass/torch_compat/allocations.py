"""Memory that CPU operators allocate, as torch's profiler sees it.

In: a step to run. Out: its allocations, and how much of them was there at once. Never sees what was there before.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from torch.profiler import ProfilerActivity, profile

# Above every level at which Kineto (2.13) writes to stderr; by default it announces each start and stop there.
_SILENT = "6"


class _OneCycle(profile):
    """A profile that begins and ends once: 2.11 warns of what a second begin would lose, whoever begins it."""

    def start(self) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning: Profiler clears events")
            super().start()


def cpu_peak(step: Callable[[], object]) -> int:
    """Most bytes that were there at once of what `step` allocates; what it returns is dropped at once."""
    with memory_profile() as recorded:
        step()
    return highest_live(cpu_allocations(recorded), {})


def memory_profile() -> profile:
    """A profile of the CPU's allocations, not begun yet.

    The first of a process reads how talkative profiles are; `KINETO_LOG_LEVEL` of the user's own stands.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)
    return _OneCycle(activities=[ProfilerActivity.CPU], profile_memory=True)


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


def abandon_profile(profiled: profile) -> None:
    """End a profile that began inside a backward which then failed.

    Autograd has put its thread back to what it was before: to a thread without a profile. 2.13 ends it all the same.
    2.11 refuses, and from then on every other profile, too; begun once more in the thread, it can be ended.
    """
    try:
        profiled.stop()
    except RuntimeError:
        assert profiled.profiler is not None, "a profile that has begun has its profiler"
        profiled.profiler._start_trace()  # type: ignore[no-untyped-call]  # torch's own, untyped
        profiled.stop()
