import os

import pytest

from rematpass.cost.memory import DeviceMemory, host_memory
from rematpass.errors import RematError

MEMINFO = "MemTotal:    1000 kB\nMemFree:    400 kB\nMemAvailable:    600 kB\nHugePages_Total:  0\n"
KIB = 1024


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def group(folder, limit, usage, idle, *, version=2):
    names = ("memory.max", "memory.current", "inactive_file")
    old = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    names = names if version == 2 else old
    return {
        f"{folder}/{names[0]}": f"{limit}\n",
        f"{folder}/{names[1]}": f"{usage}\n",
        f"{folder}/memory.stat": f"anon 1\n{names[2]} {idle}\n",
    }


def test_this_host():
    memory = host_memory()
    assert 0 <= memory.free_bytes <= memory.total_bytes
    assert memory.total_bytes > 2**20


def test_without_groups(tmp_path):
    write(tmp_path, {"proc/meminfo": MEMINFO})
    assert host_memory(tmp_path) == DeviceMemory(1000 * KIB, 600 * KIB)


def test_old_kernels_have_no_available_row(tmp_path):
    write(tmp_path, {"proc/meminfo": "MemTotal: 10 kB\nMemFree: 4 kB\n"})
    assert host_memory(tmp_path) == DeviceMemory(10 * KIB, 4 * KIB)


def test_version_2_limit(tmp_path):
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/job\n"})
    write(tmp_path, group("sys/fs/cgroup/job", 500 * KIB, 300 * KIB, 50 * KIB))
    assert host_memory(tmp_path) == DeviceMemory(500 * KIB, 250 * KIB)


def test_outer_group_may_be_tighter(tmp_path):
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/slice/job\n"})
    write(tmp_path, group("sys/fs/cgroup/slice", 400 * KIB, 100 * KIB, 0))
    write(tmp_path, group("sys/fs/cgroup/slice/job", 500 * KIB, 300 * KIB, 0))
    assert host_memory(tmp_path) == DeviceMemory(400 * KIB, 200 * KIB)


def test_version_1_limit_and_other_controllers(tmp_path):
    lines = "9:name=systemd:/\n5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n"
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": lines})
    write(tmp_path, group("sys/fs/cgroup/memory/job", 500 * KIB, 300 * KIB, 0, version=1))
    assert host_memory(tmp_path) == DeviceMemory(500 * KIB, 200 * KIB)


def test_path_of_the_host_inside_a_container(tmp_path):
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/docker/abc:1\n"})
    write(tmp_path, group("sys/fs/cgroup", 500 * KIB, 300 * KIB, 0))
    assert host_memory(tmp_path).total_bytes == 500 * KIB


@pytest.mark.parametrize("limit", ["max", 2**63 - 4096])
def test_no_limit_is_the_machine(tmp_path, limit):
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/job\n"})
    write(tmp_path, group("sys/fs/cgroup/job", limit, 300 * KIB, 0))
    assert host_memory(tmp_path) == DeviceMemory(1000 * KIB, 600 * KIB)


def test_free_is_never_negative(tmp_path):
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/job\n"})
    write(tmp_path, group("sys/fs/cgroup/job", 500 * KIB, 600 * KIB, 0))
    assert host_memory(tmp_path).free_bytes == 0


@pytest.mark.parametrize(("has_free", "free_bytes"), [(True, 30), (False, 100)])
def test_other_systems(tmp_path, monkeypatch, has_free, free_bytes):
    answers = {"SC_PAGE_SIZE": 10, "SC_PHYS_PAGES": 10, **({"SC_AVPHYS_PAGES": 3} if has_free else {})}
    monkeypatch.setattr(os, "sysconf", answers.__getitem__)
    monkeypatch.setattr(os, "sysconf_names", answers)
    assert host_memory(tmp_path) == DeviceMemory(100, free_bytes)


def test_systems_that_do_not_tell(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    with pytest.raises(RematError, match="memory_budget in bytes"):
        host_memory(tmp_path)
