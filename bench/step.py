"""Real training steps, in one process, in turns: eager, checkpointing, torch.compile and its ratio budget, and ours.

In: the cases of `bench/step_cases.py`, a device. Out: a table per case, the promised ratios, a result as JSON.
Never compares figures of two runs.

    python -m bench.step [--cases llama_plain gpt2] [--size large] [--device cuda] [--json [FILE]] [--plot FOLDER]
                         [--peers eager torch.compile]

Every peer is compiled, warmed up and its peak measured; ours is then asked for the fastest plan, for half of what that
takes above parameters and batch, for one at each of those peaks and for the smallest plan there is. Then all take
turns, one step a round. The result file is written after every case and keeps the cases of earlier runs;
`--report FILE` prints one again.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import rematpass
from bench.architectures import Case
from bench.case_file import merge_cases, read_cases, write_cases
from bench.conditions import describe_machine
from bench.step_cases import SIZES, build
from bench.step_plot import plot_case
from bench.step_ratios import format_case, format_summary, summarise
from bench.step_variants import (
    COMPILE,
    FASTEST,
    HALF,
    OURS,
    PEERS,
    SMALLEST,
    Ask,
    Group,
    Runner,
    Variant,
    first_step,
    group_asks,
    make_runner,
    our_variant,
    plan_key,
    relative_error,
)
from rematpass.check.measure import storage_bytes
from rematpass.demo.train import choose_device
from rematpass.errors import BudgetTooSmall, OptionError, RematError
from rematpass.plan_types import Plan

RESULTS = Path(__file__).parent / "results"
SCHEMA = 1
WARM_STEPS = 2  # after the one that compiles: allocators and autotuners settle


@dataclass(frozen=True)
class Settings:
    """What is run: `compiles` is how often torch.compile and our fastest plan are compiled to compare their times."""

    size: str
    device: torch.device
    rounds: int
    compiles: int
    peers: tuple[str, ...] = tuple(peer.name for peer in PEERS)
    cost_model: str = "roofline"
    seed: int = 0

    def describe(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "device": self.device.type, "warm_steps": WARM_STEPS, "caches": "cold", "dropout": 0}


class CaseRun:
    """One case on its way: the model, what runs, what could not."""

    def __init__(self, case: Case, settings: Settings) -> None:
        self.case, self.settings = case, settings
        self.variants = [peer for peer in PEERS if peer.name in settings.peers]
        self.model, self.inputs = build(case, settings.device, settings.seed)
        self.reference: list[Tensor | None] | None = None
        self.runners: list[Runner] = []
        self.serves: dict[str, tuple[str, ...]] = {}
        self.skipped: list[dict[str, str]] = []
        self.failures: list[dict[str, str]] = []

    def run(self) -> dict[str, Any]:
        """Everything about the case, ready for JSON."""
        for variant in self.variants:
            self.prepare(variant)
        try:
            groups = self.find_groups()
        except RematError as error:  # nothing of ours can run; what the others do is still worth its time
            self.failures.append({"name": OURS, "reason": _first_line(error)})
            groups = []
        for group in groups:
            self.serves[group.variant.name] = group.labels
            self.prepare(group.variant)
        self.compile_again()
        self.time_rounds()
        return self.record()

    def prepare(self, variant: Variant) -> None:
        """Compile, warm up, compare gradients and measure the peak; what fails is noted and left out."""
        try:
            runner = self.start(variant)
            for _ in range(WARM_STEPS):
                runner.timed_step()
            found = runner.gradients()
            self.reference = self.reference or found
            runner.gradient_error = relative_error(found, self.reference)
            runner.above_bytes = runner.measure_peak()
        except Exception as error:  # a variant that cannot run is a result: listed by name, counted in the summary
            self.failures.append({"name": variant.name, "reason": _first_line(error)})
            _release(self.model)
            return
        self.runners.append(runner)
        say(
            f"{self.case.name}: {variant.name}: first step {runner.first_step_seconds[0]:.1f} s, "
            f"{runner.above_bytes / 2**20:.1f} MiB above parameters, gradients differ by {runner.gradient_error:.0e}"
        )

    def start(self, variant: Variant) -> Runner:
        """A runner after its first step."""
        variant = replace(variant, cost_model=self.settings.cost_model)
        runner = make_runner(variant, self.model, self.inputs, self.case.blocks, self.settings.device)
        first_step(runner)
        if variant.is_ours:
            (runner.plan,) = rematpass.plans(runner.call)
        return runner

    def find_groups(self) -> list[Group]:
        """Ours: the fastest plan, at half its memory, at each peer's peak, the smallest; equal plans together."""
        fastest = self.plan("none")
        asks = [(Ask(FASTEST, "none"), plan_key(fastest))]
        smallest = Ask(SMALLEST, self.smallest_bytes())
        half = Ask(HALF, max(smallest.memory_budget, (fastest.static_bytes + fastest.peak_bytes) // 2))
        asks.append((half, plan_key(self.plan(half.memory_budget))))
        for runner in self.runners:
            ask = Ask(runner.variant.name, fastest.static_bytes + runner.above_bytes)
            try:
                asks.append((ask, plan_key(self.plan(ask.memory_budget))))
            except BudgetTooSmall as error:
                self.skipped.append({"name": ask.label, "reason": _first_line(error)})
        return group_asks([*asks, (smallest, plan_key(self.plan(smallest.memory_budget)))])

    def plan(self, memory_budget: str | int) -> Plan:
        """Our plan at a budget; nothing is compiled."""
        return rematpass.plan(
            self.model, args=self.inputs, memory_budget=memory_budget, cost_model=self.settings.cost_model
        )

    def smallest_bytes(self) -> int:
        """The smallest budget that works, as the error for an impossible one says."""
        try:
            return self.plan(1).peak_bytes
        except BudgetTooSmall as error:
            return error.minimum_bytes

    def compile_again(self) -> None:
        """Further first steps of torch.compile and of our fastest plan, in turns, for the ratio of their times."""
        compared = [r for r in self.runners if r.variant.name in (COMPILE, our_variant(FASTEST, "none").name)]
        for _ in range(self.settings.compiles - 1):
            for runner in compared:
                runner.first_step_seconds += self.start(runner.variant).first_step_seconds

    def time_rounds(self) -> None:
        """One step of each variant a round, in an order that changes from round to round."""
        graphs = counters["stats"]["unique_graphs"]
        for number in range(self.settings.rounds):
            order = list(self.runners)
            random.Random(number).shuffle(order)
            gc.collect()
            for runner in order:
                runner.times_ms.append(runner.timed_step() * 1e3)
                runner.clear_gradients()
            say(f"{self.case.name}: round {number + 1} of {self.settings.rounds}")
        assert counters["stats"]["unique_graphs"] == graphs, "something was compiled while steps were timed"

    def record(self) -> dict[str, Any]:
        """What was measured."""
        parameters = list(self.model.parameters())
        return {
            "name": self.case.name,
            "summary": self.case.summary,
            "dtype": str(self.case.dtype).removeprefix("torch."),
            "inputs": [[list(i.shape), str(i.dtype).removeprefix("torch.")] for i in self.inputs],
            "blocks": self.case.blocks,
            "parameters": sum(parameter.numel() for parameter in parameters),
            "static_bytes": self.static_bytes(),
            "rows": [self.record_row(runner) for runner in self.runners],
            "skipped": self.skipped,
            "failures": self.failures,
        }

    def record_row(self, runner: Runner) -> dict[str, Any]:
        """One variant. `peak_bytes` has parameters, buffers and batch in it, `above_bytes` has not."""
        variant, plan = runner.variant, runner.plan
        static_bytes = self.static_bytes() if plan is None else plan.static_bytes
        return {
            "name": variant.name,
            "is_ours": variant.is_ours,
            "is_compiled": variant.is_compiled,
            "serves": self.serves.get(variant.name, ()),
            "budget_bytes": None if plan is None else plan.budget_bytes,
            "peak_bytes": static_bytes + runner.above_bytes,
            "above_bytes": runner.above_bytes,
            "predicted_bytes": None if plan is None else plan.peak_bytes,
            "recompute_fraction": None if plan is None else plan.recompute_fraction,
            "plan_seconds": None if plan is None else plan.plan_seconds,
            "step_ms": statistics.median(runner.times_ms),
            "times_ms": [round(ms, 3) for ms in runner.times_ms],
            "first_step_seconds": [round(seconds, 3) for seconds in runner.first_step_seconds],
            "gradient_error": runner.gradient_error,
        }

    def static_bytes(self) -> int:
        """Parameters, buffers and batch."""
        return storage_bytes([*self.model.parameters(), *self.model.buffers(), *self.inputs])


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _release(model: nn.Module) -> None:
    """Let go of what a failed step has left."""
    for parameter in model.parameters():
        parameter.grad = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def warm_compilers(settings: Settings) -> None:
    """Compile something small with both, so that no case pays for what is loaded once per process."""
    tiny = next(iter(SIZES["tiny"].values()))
    names = (COMPILE, our_variant(FASTEST, "none").name)
    variants = (*(v for v in PEERS if v.name in names), our_variant(FASTEST, "none"))
    model, inputs = build(tiny, settings.device, settings.seed)
    for variant in variants:
        first_step(make_runner(variant, model, inputs, tiny.blocks, settings.device))


def run_case(case: Case, settings: Settings) -> dict[str, Any]:
    """One case from a clean compiler, with the conditions it ran under."""
    torch._dynamo.reset()  # between cases only: it would take away what the other variants of a case have compiled
    record = CaseRun(case, settings).run()
    return {**record, **describe_conditions(settings)}


def describe_conditions(settings: Settings) -> dict[str, Any]:
    """Where, when, with what."""
    return {**describe_machine(settings.device), "settings": settings.describe()}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked before anything runs."""
    parser = argparse.ArgumentParser(description="Real training steps of rematpass and of its peers, side by side.")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help=f"of {', '.join(SIZES['small'])}; default: all")
    parser.add_argument("--size", choices=SIZES, default="small", help="default: %(default)s; large is for GPUs")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    parser.add_argument(
        "--peers", nargs="+", choices=[peer.name for peer in PEERS], help="default: all", metavar="PEER"
    )
    parser.add_argument("--rounds", type=int, default=15, help="timed steps of each variant (default: %(default)s)")
    parser.add_argument("--compiles", type=int, default=2, help="compilations compared (default: %(default)s)")
    parser.add_argument("--cost-model", default="roofline", help="of our plans: roofline (default), measured or a file")
    parser.add_argument("--json", type=Path, nargs="?", const=Path(), metavar="FILE", help="default: step_DEVICE.json")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="one picture per case; needs matplotlib")
    parser.add_argument("--report", type=Path, metavar="FILE", help="print (and plot) this result, run nothing")
    arguments = parser.parse_args(argv)
    known = SIZES[arguments.size]
    arguments.cases = arguments.cases or list(known)
    arguments.peers = tuple(arguments.peers or (peer.name for peer in PEERS))
    unknown = [name for name in arguments.cases if name not in known]
    if unknown:
        parser.error(f"no case {unknown[0]!r} in size {arguments.size!r}; known: {', '.join(known)}")
    if min(arguments.rounds, arguments.compiles) < 1:
        parser.error("--rounds and --compiles must be at least 1")
    try:
        arguments.device = choose_device(arguments.device)
    except OptionError as error:
        parser.error(str(error))
    if arguments.json == Path():
        arguments.json = RESULTS / f"step_{arguments.device.type}.json"
    return arguments


def report(cases: Sequence[dict[str, Any]], plot: Path | None) -> None:
    """Tables, summary and pictures of a result."""
    for case in cases:
        print(format_case(case), flush=True)
        if plot is not None:
            plot_case(case, plot)
    print(format_summary(cases))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; code 1 when one of our variants failed."""
    arguments = parse_arguments(argv)
    if arguments.report is not None:
        report(read_cases(arguments.report, SCHEMA), arguments.plot)
        return 0
    chosen = (arguments.rounds, arguments.compiles, arguments.peers, arguments.cost_model)
    settings = Settings(arguments.size, arguments.device, *chosen)
    kept, made = read_cases(arguments.json, SCHEMA, describe_conditions(settings)), []
    warm_compilers(settings)
    for name in arguments.cases:
        case = run_case(SIZES[arguments.size][name], settings)
        made.append(case)
        print(format_case(case), flush=True)
        if arguments.json is not None:
            kept = merge_cases(kept, case)
            write_cases(arguments.json, kept, SCHEMA, summarise(kept))
        if arguments.plot is not None:
            plot_case(case, arguments.plot)
    print(format_summary(kept or made))
    return int(any(failure["name"].startswith(OURS) for case in made for failure in case["failures"]))


if __name__ == "__main__":
    sys.exit(main())
