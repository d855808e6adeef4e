"""The demo's runs: the same training by several variants, in one process.

In: settings. Out: a row per variant, from the same weights and the same batches. Never prints.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

import rematpass
from rematpass.check.measure import measure_peak, storage_bytes
from rematpass.errors import OptionError
from rematpass.plan_types import Plan
from rematpass.report.progress import Advance, Tick, drop_stderr_lines

from .model import ByteLM, ModelShape, make_model
from .result import DemoRow
from .text import Batch, load_text, sample_batches

LEARNING_RATE = 1e-3
NEAR_SMALLEST = 1.02
"""The tightest budget tried, as a multiple of the smallest peak. At 1.0 any difference between two traces of one model
would refuse it; at 1.04 on the demo's model another plan is chosen, still near the smallest."""

PROFILER_PREFIX = "USDT:"
"""How the lines start that torch's profiler writes to stderr (2.13)."""

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What to run. `budget` adds a row at that `memory_budget`; `rounds` are the timed steps of each variant.

    Raises:
        OptionError: fewer than one step, round or sequence.
    """

    shape: ModelShape = field(default_factory=ModelShape)
    batch: int = 2
    steps: int = 10
    rounds: int = 5
    device: str = "auto"
    budget: str | int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.batch, self.steps, self.rounds) < 1:
            raise OptionError(
                f"batch, steps and rounds must be at least 1, got {self.batch}, {self.steps} and {self.rounds}"
            )


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the model. `memory_budget` is None where rematpass has no part."""

    label: str
    is_checkpointed: bool = False
    is_compiled: bool = False
    memory_budget: str | int | None = None


@dataclass(slots=True)
class Runner:
    """A variant with its own model, optimizer and what was measured so far."""

    variant: Variant
    model: ByteLM
    step: Step
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    first_step_seconds: float = 0.0
    times_ms: list[float] = field(default_factory=list)
    peak_bytes: int = 0


def choose_device(name: str) -> torch.device:
    """The device for "auto", "cpu", "cuda" or "cuda:1".

    Raises:
        OptionError: not a device, or CUDA that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"no device {name!r}. Try: --device cpu, --device cuda or --device auto") from error
    if device.type not in {"cpu", "cuda"} or (device.type == "cuda" and not torch.cuda.is_available()):
        raise OptionError(f"device {name!r} is not available here. Try: --device cpu")
    return device


def count_pieces(settings: DemoSettings) -> int:
    """How many ticks `run_demo` sends."""
    variants = 6 if settings.budget is None else 7
    return variants * (settings.steps + settings.rounds + 1)


def run_demo(settings: DemoSettings, advance: Advance) -> tuple[list[DemoRow], dict[str, Any]]:
    """Train, time and measure every variant.

    Returns:
        The rows, eager first, and the figures about the model: parameters, fastest and smallest peak.

    Raises:
        RematError: a setting that cannot be run, or a budget below the smallest peak.
    """
    device = choose_device(settings.device)
    batches = _make_batches(settings, device)
    limits = _find_limits(settings, device, batches[0])
    runners = []
    for variant in _list_variants(settings, limits):
        runner = _make_runner(variant, settings, device)
        _train(runner, batches, device, advance)
        runners.append(runner)
    _time_rounds(runners, batches[0], settings.rounds, device, advance)
    _measure_peaks(runners, batches[0], device, advance)
    return [_make_row(runner) for runner in runners], _describe_model(runners[0].model, limits)


def _make_batches(settings: DemoSettings, device: torch.device) -> list[Batch]:
    batches = sample_batches(load_text(), settings.steps, settings.batch, settings.shape.context, settings.seed)
    return [(ids.to(device), targets.to(device)) for ids, targets in batches]


def _find_limits(settings: DemoSettings, device: torch.device, batch: Batch) -> Plan:
    """The plan with no limit: it knows the fastest plan's peak and the smallest one."""
    model = make_model(settings.shape, device, settings.seed)
    return rematpass.plan(model, args=batch, memory_budget="none")


def _list_variants(settings: DemoSettings, limits: Plan) -> Iterator[Variant]:
    fastest, smallest = limits.fastest_peak_bytes, limits.smallest_peak_bytes
    yield Variant("eager")
    yield Variant("eager, checkpoint per block", is_checkpointed=True)
    yield Variant("torch.compile", is_compiled=True)
    yield Variant("rematpass, no limit", is_compiled=True, memory_budget="none")
    yield Variant("rematpass, half way", is_compiled=True, memory_budget=smallest + (fastest - smallest) // 2)
    yield Variant("rematpass, near smallest", is_compiled=True, memory_budget=int(smallest * NEAR_SMALLEST))
    if settings.budget is not None:
        yield Variant(f"rematpass, {settings.budget}", is_compiled=True, memory_budget=settings.budget)


def _make_runner(variant: Variant, settings: DemoSettings, device: torch.device) -> Runner:
    """Every variant starts from the same weights."""
    model = make_model(settings.shape, device, settings.seed, is_checkpointed=variant.is_checkpointed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    return Runner(variant, model, _compile(model, variant), optimizer)


def _compile(model: ByteLM, variant: Variant) -> Step:
    """The line this package is about."""
    if variant.memory_budget is not None:
        return torch.compile(model, backend="rematpass", options={"memory_budget": variant.memory_budget})
    return torch.compile(model) if variant.is_compiled else model


def _train(runner: Runner, batches: Sequence[Batch], device: torch.device, advance: Advance) -> None:
    """One optimizer step per batch; the first one compiles, and its time is kept apart."""
    for number, batch in enumerate(batches, start=1):
        seconds, loss = _timed_step(runner, batch, device)
        runner.optimizer.step()
        runner.losses.append(loss)
        if number == 1:
            runner.first_step_seconds = seconds
        advance(Tick(f"{runner.variant.label}: training", number, len(batches), f"loss {loss:.3f}"))


def _time_rounds(runners: Sequence[Runner], batch: Batch, rounds: int, device: torch.device, advance: Advance) -> None:
    """Every variant once per round, so that a slow minute of the machine hits them all alike."""
    for number in range(1, rounds + 1):
        for runner in runners if number % 2 else reversed(runners):
            seconds, _ = _timed_step(runner, batch, device)
            runner.times_ms.append(seconds * 1e3)
            runner.optimizer.zero_grad(set_to_none=True)
            advance(Tick(f"{runner.variant.label}: timing", number, rounds, f"{seconds * 1e3:.0f} ms"))


def _measure_peaks(runners: Sequence[Runner], batch: Batch, device: torch.device, advance: Advance) -> None:
    """Bytes of parameters, buffers and batch, plus what one step allocates above them, gradients included."""
    for runner in runners:
        runner.optimizer.zero_grad(set_to_none=True)
        static_bytes = storage_bytes([*runner.model.parameters(), *runner.model.buffers(), *batch])
        with drop_stderr_lines(PROFILER_PREFIX):
            above_bytes = measure_peak(partial(_run_backward, runner.step, batch), device=device)
        runner.peak_bytes = static_bytes + above_bytes
        runner.optimizer.zero_grad(set_to_none=True)
        advance(Tick(f"{runner.variant.label}: peak", 1, 1, f"{runner.peak_bytes / 2**20:.1f} MiB"))


def _run_backward(step: Step, batch: Batch) -> None:
    torch.autograd.backward(step(*batch))


def _timed_step(runner: Runner, batch: Batch, device: torch.device) -> tuple[float, float]:
    """Seconds of one forward and backward with no gradient there before, and its loss."""
    runner.optimizer.zero_grad(set_to_none=True)
    _synchronize(device)
    start = time.perf_counter()
    loss = runner.step(*batch)
    torch.autograd.backward(loss)
    _synchronize(device)
    return time.perf_counter() - start, loss.item()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _make_row(runner: Runner) -> DemoRow:
    """What was measured, and for rematpass what its plan said."""
    planned = {} if runner.variant.memory_budget is None else _describe_plan(runner)
    return DemoRow(
        label=runner.variant.label,
        is_rematpass=runner.variant.memory_budget is not None,
        measured_peak_bytes=runner.peak_bytes,
        step_ms=statistics.median(runner.times_ms),
        first_step_seconds=runner.first_step_seconds,
        losses=tuple(runner.losses),
        **planned,
    )


def _describe_plan(runner: Runner) -> dict[str, Any]:
    """The plan's own figures; the model is one graph, so there is one plan."""
    (plan,) = rematpass.plans(runner.step)
    return {
        "budget_bytes": plan.budget_bytes,
        "predicted_peak_bytes": plan.peak_bytes,
        "plan_ms": plan.plan_seconds * 1e3,
        "recompute_fraction": plan.recompute_fraction,
        "bound_fraction": plan.bound_seconds / plan.step_seconds if plan.step_seconds else 0.0,
    }


def _describe_model(model: ByteLM, limits: Plan) -> dict[str, Any]:
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "fastest_peak_bytes": limits.fastest_peak_bytes,
        "smallest_peak_bytes": limits.smallest_peak_bytes,
    }
