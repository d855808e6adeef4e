"""How long an operator really runs.

In: one FX node with fake tensors. Out: nanoseconds on the device that is here, or why there are none. Never keeps
anything: neither memory nor a change in the random numbers.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from ..graph.op_traits import base_name, is_builtin
from ..graph.real_call import real_call, tensors_of, why_too_large
from ..graph.sizes import concrete, storage_bytes
from ..torch_compat import OpOverload, outside_tracing
from .measure import device_memory

LIMIT_SECONDS = 0.25
"""Per operator, after which no further run is timed. Set 2026-11. At half, slow operators run once only; at twice, a
graph of a hundred distinct operators takes a minute instead of half a one."""

RUNS = 15  # at most
QUEUED = 10  # runs of a short GPU operator between two marks, so that its launch hides behind the one before
SHORT_SECONDS = 1e-3

SIGNIFICANT_DIGITS = 3

# Operators whose integers say where to read or write: any that are valid in every dimension do. Elsewhere they may be
# lengths or offsets, which at random can make a kernel leave its memory. A few (seeds) are taken for harmless.
_ADDRESSING = ("index", "embedding", "gather", "scatter", "take")
_FEW = 2


def time_op(node: fx.Node, device_type: str) -> tuple[int | None, str]:
    """Nanoseconds of the node's operator on random inputs, and "", or None and the reason.

    Of a few runs the shortest: whatever else the machine does only ever adds to a time. (A processor with other
    programs on every core still gives times that are far too long: threads wait for each other.)

    Args:
        node: an operator whose inputs' `meta["val"]` hold fake tensors; dynamic sizes count at what is planned for.
        device_type: "cpu" or "cuda".
    """
    refusal = _why_not(node)
    if refusal:
        return None, refusal
    refusal = why_too_large(node, device_memory(torch.device(device_type)).free_bytes)
    if refusal:
        return None, refusal
    try:
        with outside_tracing(device_type), _memory_given_back(device_type):
            seconds = _shortest_seconds(_prepared(node, device_type), device_type)
    except Exception as error:  # whatever a kernel says to inputs drawn at random, it is then priced otherwise
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    return max(1, int(float(f"{seconds * 1e9:.{SIGNIFICANT_DIGITS - 1}e}"))), ""


def _why_not(node: fx.Node) -> str:
    """Why the operator is not run on inputs drawn at random; "" when nothing speaks against it."""
    if not isinstance(node.target, OpOverload) or not is_builtin(node.target):
        return "it is a custom operator, which is not run on inputs that nobody meant for it"
    given = [t for source in node.all_input_nodes for t in tensors_of(source)]
    if any(t.layout is not torch.strided for t in given):
        return "it reads tensors that are not strided"
    integers = [t for t in given if not (t.dtype.is_floating_point or t.dtype.is_complex or t.dtype is torch.bool)]
    is_addressing = any(word in base_name(node.target) for word in _ADDRESSING)
    if not is_addressing and any(storage_bytes(t) > _FEW * t.element_size() for t in integers):
        return "it reads integers that cannot be made up"
    return ""


@contextmanager
def _memory_given_back(device_type: str) -> Iterator[None]:
    """What was allocated inside goes back to the system, as the step that is compiled may need it whole."""
    try:
        yield
    finally:
        if device_type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()


def _prepared(node: fx.Node, device_type: str) -> Callable[[], object]:
    """The call, with inputs made for it."""
    generator = torch.Generator(device_type).manual_seed(0)
    shapes = [t.shape for source in node.all_input_nodes for t in tensors_of(source)]
    below = max(1, min((concrete(size) for shape in shapes for size in shape), default=1))
    return real_call(node, lambda like: _draw(like, below, generator))


def _draw(like: torch.Tensor, below: int, generator: torch.Generator) -> torch.Tensor:
    """A tensor of the same shape, strides and dtype; integers are valid indices into any of the operator's inputs."""
    shape, strides = [concrete(n) for n in like.shape], [concrete(n) for n in like.stride()]
    count = storage_bytes(like) // like.element_size()
    if like.dtype.is_floating_point or like.dtype.is_complex:
        wide = torch.randn(count, device=generator.device, generator=generator)
    else:
        highest = 2 if like.dtype is torch.bool else below
        wide = torch.randint(highest, (count,), device=generator.device, generator=generator)
    return wide.to(like.dtype).as_strided(shape, strides)


def _shortest_seconds(run: Callable[[], object], device_type: str) -> float:
    """After one run that is not counted: it loads the kernel and chooses algorithms."""
    once = _gpu_seconds if device_type == "cuda" else _host_seconds
    run()
    samples = [once(run, 1)]
    queued = QUEUED if device_type == "cuda" and samples[0] < SHORT_SECONDS else 1
    if queued > 1:
        samples = [once(run, queued)]
    deadline = time.perf_counter() + LIMIT_SECONDS - samples[0]
    while len(samples) < RUNS and time.perf_counter() < deadline:
        samples.append(once(run, queued))
    return min(samples)


def _host_seconds(run: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def _gpu_seconds(run: Callable[[], object], count: int) -> float:
    event: Any = torch.cuda.Event
    before, after = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    before.record()
    for _ in range(count):
        run()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) / 1e3 / count
