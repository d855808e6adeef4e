"""How much memory the host has.

In: /proc/meminfo and the control groups of the process. Out: total and free bytes, the tightest limit counted.
Never imports torch; never reads the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rematpass.errors import RematError


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device in bytes: what may be used at all, and what of it is free now."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class _Controller:
    """Where a version of control groups keeps its figures."""

    folder: str
    limit: str
    usage: str
    reclaimable: str


# Page cache counts as used in a control group but is given up on demand; only its inactive part is surely idle
# (the working set of Kubernetes is computed in the same way).
_V2 = _Controller("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1 = _Controller("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def host_memory(root: Path = Path("/")) -> DeviceMemory:
    """Memory this process may use: the machine's, or that of the tightest control group (v1 and v2) around it.

    Args:
        root: where `proc` and `sys` lie.

    Raises:
        RematError: the system does not tell.
    """
    machine = _machine_memory(root)
    groups = [group for group in _group_memory(root) if group.total_bytes < machine.total_bytes]
    return DeviceMemory(
        min((machine.total_bytes, *(group.total_bytes for group in groups))),
        max(0, min((machine.free_bytes, *(group.free_bytes for group in groups)))),
    )


def _machine_memory(root: Path) -> DeviceMemory:
    rows = _read_table(root / "proc/meminfo")
    if "MemTotal:" not in rows:
        return _sysconf_memory()
    free = rows.get("MemAvailable:", rows.get("MemFree:", rows["MemTotal:"]))
    return DeviceMemory(rows["MemTotal:"] * 1024, free * 1024)


def _sysconf_memory() -> DeviceMemory:
    """For systems without /proc. Where free pages are not told (macOS), all count as free."""
    try:
        page_bytes, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError) as error:
        raise RematError(
            f"the memory of this host cannot be read: {error}. Try: memory_budget in bytes, such as '8GiB'"
        ) from error
    has_free = "SC_AVPHYS_PAGES" in os.sysconf_names
    return DeviceMemory(page_bytes * pages, page_bytes * (os.sysconf("SC_AVPHYS_PAGES") if has_free else pages))


def _group_memory(root: Path) -> Iterator[DeviceMemory]:
    """Limits of the process's groups and of every group around them. Groups without a limit give nothing."""
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and "memory" not in names.split(","):
            continue
        controller = _V1 if names else _V2
        # Inside a container the path may be the host's and not exist here; the mount's root then carries the limit.
        leaf = Path(path.lstrip("/"))
        for folder in (leaf, *leaf.parents):
            yield from _limit_of(root / controller.folder / folder, controller)


def _limit_of(folder: Path, controller: _Controller) -> Iterator[DeviceMemory]:
    limit, usage = _read_text(folder / controller.limit).strip(), _read_text(folder / controller.usage).strip()
    if limit.isdecimal() and usage.isdecimal():
        idle = _read_table(folder / "memory.stat").get(controller.reclaimable, 0)
        yield DeviceMemory(int(limit), int(limit) - int(usage) + idle)


def _read_table(path: Path) -> dict[str, int]:
    """Lines of "name number ..." as a dict."""
    cells = (line.split() for line in _read_text(path).splitlines())
    return {row[0]: int(row[1]) for row in cells if len(row) > 1 and row[1].isdecimal()}


def _read_text(path: Path) -> str:
    """The file's text; empty when there is no such file, which here means no such limit."""
    try:
        return path.read_text()
    except OSError:
        return ""
