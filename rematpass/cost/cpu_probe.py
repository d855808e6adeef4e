"""The device model of this host's processor.

In: a second of arithmetic with numpy, or the cache file of an earlier one. Out: a `DeviceModel`.
Never imports torch; never fails for a damaged or unwritable cache, but says so in the log.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rematpass.errors import OptionError
from rematpass.files import write_first, write_whole

from .device_model import DeviceModel

_LOG = logging.getLogger(__name__)

PROBE_VERSION = 3
"""Part of the cache key: raise it when what is measured, or how it is rounded, changes."""

CPU_LAUNCH_NS = 2_000
"""Fixed cost of one compiled CPU kernel, in nanoseconds: the call, its checks and waking the worker threads.

Origin: a fork and join of a few OpenMP threads takes 1 to 3 us on current servers; set 2026-11. Not measured, because
it changes with the load of the machine, and plans would change with it. At half, recomputing tiny ops looks cheaper
than it is; at twice, plans keep small tensors that would be cheap to recompute.
"""

MATMUL_SIZE = 768
"""Side of the square float32 product that is timed: 0.9 GFLOP, large enough to run at the rate of a model's products.

Set 2026-11. At half, thread start-up shows and the rate is too low; at twice, a slow machine misses the time limit.
"""

COPY_BYTES = 96 * 2**20
"""Bytes of the array that is copied. Set 2026-11. At half, large last-level caches hold it and the bandwidth is too
high; at twice, small machines spend memory and time on it for the same answer.
"""

SIGNIFICANT_DIGITS = 2
"""Digits kept of a measured figure. Set 2026-11. With one, figures are off by up to a third; with four, the noise of
the measurement reaches the plan.
"""

_REPEATS = 50  # samples at most
_LIMIT_SECONDS = 0.7  # per figure, after which no further sample is taken


def measure_cpu() -> DeviceModel:
    """Measure this host: float32 product rate and copy bandwidth; under about 1.5 seconds.

    float64 is taken as half of float32 (half as many lanes of the same vectors). Half precision is left out, so
    `peak_flops` prices it as float32: few processors are faster at it. The host link of a processor is its own memory.

    Returns:
        A model named "cpu", figures rounded to `SIGNIFICANT_DIGITS`.
    """
    rate = _round_digits(_matmul_flops_per_second())
    bandwidth = _round_digits(_copy_bytes_per_second())
    return DeviceModel(
        name="cpu",
        flops_per_second=(("float64", _round_digits(rate / 2)), ("float32", rate)),
        bandwidth_bytes_per_second=bandwidth,
        launch_ns=CPU_LAUNCH_NS,
        link_bytes_per_second=bandwidth,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        source=f"measured on {processor_name()}, {_core_count()} cores, with numpy {np.__version__}",
    )


def cpu_model(cache_dir: Path) -> DeviceModel:
    """This host's model, measured once per machine and kept in `cache_dir`.

    The file is named after the processor, its cores and `PROBE_VERSION`. Processes that start together may all measure;
    the first to finish writes the file, and all take what stands there: equal prices, equal plans.

    Args:
        cache_dir: a folder, made when it does not exist.
    """
    path = cache_dir / f"cpu-{_machine_key()}.json"
    cached = _read_cache(path)
    if cached is not None:
        return cached
    write = write_whole if path.exists() else write_first
    model = measure_cpu()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, model.to_json())
    except OSError as error:
        _LOG.warning("cannot keep the measured CPU figures in %s (%s); they are measured again next time", path, error)
        return model
    return _read_cache(path) or model


def _read_cache(path: Path) -> DeviceModel | None:
    """The model in `path`; None, with a warning, when the file is there but cannot be used."""
    if not path.exists():
        return None
    try:
        return DeviceModel.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, OptionError) as error:
        _LOG.warning("the CPU figures in %s cannot be used (%s); measuring again", path, error)
        return None


def _machine_key() -> str:
    """Sixteen hexadecimal digits that stand for this machine and for how it is measured."""
    text = f"{processor_name()}|{_core_count()}|{PROBE_VERSION}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def processor_name() -> str:
    """The processor as the kernel names it; the architecture where it names none (other systems, many ARM hosts)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _core_count() -> int:
    """Cores this process may run on, which containers and schedulers restrict."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _matmul_flops_per_second() -> float:
    """Rate of a square float32 product: 2 n^3 operations."""
    generator = np.random.default_rng(0)
    left, right = (generator.random((MATMUL_SIZE, MATMUL_SIZE), dtype=np.float32) for _ in range(2))
    out = np.empty_like(left)
    return 2 * MATMUL_SIZE**3 / _least_seconds(lambda: np.matmul(left, right, out=out))


def _copy_bytes_per_second() -> float:
    """Bandwidth of a copy: every byte is read once and written once."""
    source = np.ones(COPY_BYTES // 4, dtype=np.float32)
    target = np.zeros_like(source)
    return 2 * COPY_BYTES / _least_seconds(lambda: np.copyto(target, source))


def _least_seconds(action: Callable[[], object]) -> float:
    """Least time of `action` after one run that is not counted (it starts threads and touches the memory).

    Other work only makes it slower, and the prices of that moment would be kept: of medians of the clock, one taken
    beside two processes was a third too slow; beside four, the least of fifty was five times too slow (2026-11). So
    what counts is how long the calling thread worked: while others have its core it does not. A library whose other
    threads do more than twice its share is timed by the clock.
    """
    action()
    samples: list[tuple[float, float]] = []  # of the clock, of the thread
    worked, deadline = time.process_time(), time.perf_counter() + _LIMIT_SECONDS
    while not samples or (len(samples) < _REPEATS and time.perf_counter() < deadline):
        start, own = time.perf_counter(), time.thread_time()
        action()
        samples.append((time.perf_counter() - start, time.thread_time() - own))
    by_clock, by_thread = ([sample[i] for sample in samples] for i in range(2))
    is_shared = 2 * _core_count() * sum(by_thread) >= time.process_time() - worked
    return max(min(by_thread if is_shared else by_clock), 1e-9)


def _round_digits(value: float) -> float:
    """`value` to `SIGNIFICANT_DIGITS` digits.

    >>> _round_digits(123_456.0), _round_digits(0.0987)
    (120000.0, 0.099)
    """
    return float(f"{value:.{SIGNIFICANT_DIGITS - 1}e}")
