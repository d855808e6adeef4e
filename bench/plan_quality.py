"""Is a plan ever worse than what people do by hand? From joint graphs alone, without a GPU.

In: the models of `bench/architectures.py`, those of `bench/library.py`, and the figures of a declared device. Out: a
table, and a result as JSON.
Never compiles, never runs a model, never measures time: prices and the simulated peak are the planner's own.

    python -m bench.plan_quality [--cases llama_plain gpt2] [--device h100-sxm] [--json [FILE]] [--plot FOLDER]

For every strategy: its peak, and the cheapest plan whose peak is no higher. The exit code is 1 when any strategy beats
that plan (WORSE) or the bound on all plans (BOUND).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.architectures import CASES, Case, build
from bench.baselines import RATIOS, Baseline, collect_baselines, extra_flops
from bench.conditions import describe_machine
from bench.joint_graphs import Captured, capture
from bench.library import LIBRARY
from bench.quality_plot import plot_case
from rematpass.cost.device_model import DeviceModel, find_device
from rematpass.errors import OptionError
from rematpass.files import write_whole
from rematpass.solve.program import Decision, Program
from rematpass.solve.search import Frontier

# Of every device that is declared: what a CPU's own kernels take besides has no place here.
DEVICE_TYPE = "cuda"
ALL = CASES | LIBRARY
RESULT = Path(__file__).parent / "results" / "plan_quality.json"
MIB, MS, GIGA = 2**20, 1e6, 1e9
CURVE_POINTS = 32  # where the bound is sampled for the plots
TITLES = ("strategy", "peak MiB", "extra ms", "GFLOP", "ours ms", "GFLOP", "bound ms", "ratio", "")
WIDTHS = (38, 9, 9, 9, 9, 9, 9, 6, 5)


@dataclass(frozen=True)
class Ours:
    """Our plan at somebody's peak; `peak_bytes`, `extra_ns` and `decision` are None where no plan is that small."""

    peak_bytes: int | None
    extra_ns: int | None
    decision: Decision | None
    bound_ns: float


@dataclass(frozen=True)
class Row:
    """A baseline beside our plan at its peak; `ours_...` are None where no plan of ours is that small."""

    strategy: str
    peak_bytes: int
    kept_bytes: int
    extra_ns: int
    extra_flops: int
    ours_peak_bytes: int | None
    ours_ns: int | None
    ours_flops: int | None
    bound_ns: float

    @property
    def is_worse(self) -> bool:
        """Ours is slower at an equal or lower peak, or does not get that low."""
        return self.ours_ns is None or self.ours_ns > self.extra_ns

    @property
    def is_below_bound(self) -> bool:
        """The baseline does what the bound says nobody can: the bound is wrong, or not about such plans."""
        return self.extra_ns < math.floor(self.bound_ns)

    @property
    def ratio(self) -> float | None:
        """Our extra time over the baseline's; None where we have no plan, or only the baseline's is zero."""
        if self.ours_ns == self.extra_ns:
            return 1.0
        return self.ours_ns / self.extra_ns if self.ours_ns is not None and self.extra_ns else None

    @property
    def verdict(self) -> str:
        """What the table flags."""
        return "WORSE" if self.is_worse else "BOUND" if self.is_below_bound else ""


def find_frontier(program: Program) -> Frontier:
    """The curve of our plans for a program."""
    return Frontier(program)


def ours_at(frontier: Frontier, peak_bytes: int) -> Ours:
    """Our cheapest plan whose peak is at most `peak_bytes`, and the bound there."""
    point = frontier.choose(peak_bytes)
    if point is None:
        return Ours(None, None, None, frontier.bound.extra_ns_at(peak_bytes))
    bound_ns = frontier.bound_ns(peak_bytes, point)
    return Ours(point.peak_bytes, point.extra_ns, point.decision, bound_ns)


def curves_of(frontier: Frontier) -> tuple[list[list[float]], list[list[float]]]:
    """(peak bytes, extra ns) of our plans at budgets spread over the curve, and the bound at each."""
    points = frontier.curve(CURVE_POINTS)
    plans = [[float(p.peak_bytes), float(p.extra_ns)] for p in points]
    return plans, [[float(p.peak_bytes), frontier.bound_ns(p.peak_bytes, p)] for p in points]


def compare(captured: Captured, frontier: Frontier, baseline: Baseline) -> Row:
    """A baseline and our plan at its peak."""
    ours = ours_at(frontier, baseline.peak_bytes)
    program, facts = captured.inputs.program, captured.inputs.facts
    flops = None if ours.decision is None else extra_flops(program, facts, ours.decision)
    figures = asdict(baseline)
    return Row(
        **figures, ours_peak_bytes=ours.peak_bytes, ours_ns=ours.extra_ns, ours_flops=flops, bound_ns=ours.bound_ns
    )


def run_case(case: Case, device: DeviceModel) -> dict[str, Any]:
    """Everything about one case, ready for JSON."""
    clock = [time.perf_counter()]
    captured = capture(*build(case), device, DEVICE_TYPE)
    clock.append(time.perf_counter())
    frontier = find_frontier(captured.inputs.program)
    clock.append(time.perf_counter())
    baselines, failures = collect_baselines(captured, case)
    rows = [compare(captured, frontier, baseline) for baseline in baselines]
    clock.append(time.perf_counter())
    plans, bound = curves_of(frontier)
    seconds = (after - before for before, after in itertools.pairwise(clock))
    return {
        "name": case.name,
        "summary": case.summary,
        "dtype": str(case.dtype).removeprefix("torch."),
        "inputs": [[list(shape), str(dtype or case.dtype).removeprefix("torch.")] for shape, dtype in case.inputs],
        "regions": {"blocks": case.blocks, "attention": case.attention, "feed": case.feed},
        "values": len(captured.inputs.program),
        "static_bytes": captured.inputs.program.static_bytes,
        "step_ns": sum(captured.inputs.prices.run_ns),
        "seconds": dict(zip(("capture", "plan", "baselines"), (round(s, 1) for s in seconds), strict=True)),
        "rows": [record_row(row) for row in rows],
        "failures": [asdict(failure) for failure in failures],
        "frontier": plans,
        "bound": bound,
    }


def record_row(row: Row) -> dict[str, Any]:
    """The row's figures and what follows from them."""
    derived = {"ratio": row.ratio, "is_worse": row.is_worse, "is_below_bound": row.is_below_bound}
    return asdict(row) | derived | {"verdict": row.verdict}


def describe_conditions(device: DeviceModel, names: Sequence[str]) -> dict[str, Any]:
    """Where, when, with what and on whose figures."""
    return {
        **describe_machine(),
        "device_model": json.loads(device.to_json()),
        "settings": {
            "cases": list(names),
            "ratios": list(RATIOS),
            "traced_on": "cpu",
            "counted_for": DEVICE_TYPE,
            "is_fusing": True,
        },
    }


def format_case(case: dict[str, Any]) -> str:
    """The table of one case."""
    plans = case["frontier"]
    head = (
        f"{case['name']}: {case['values']} values, a step of {case['step_ns'] / MS:.2f} ms, inputs and parameters "
        f"{case['static_bytes'] / MIB:.0f} MiB, our plans from {plans[0][0] / MIB:.0f} to {plans[-1][0] / MIB:.0f} MiB"
    )
    lines = [head, _format_cells(TITLES), *(format_row(row) for row in case["rows"])]
    lines += [f"{failure['strategy']}: torch failed: {failure['reason']}" for failure in case["failures"]]
    return "\n".join(lines) + "\n"


def format_row(row: dict[str, Any]) -> str:
    """One line of the table."""
    ours = ("none", "") if row["ours_ns"] is None else (f"{row['ours_ns'] / MS:.3f}", f"{row['ours_flops'] / GIGA:.1f}")
    return _format_cells(
        (
            row["strategy"],
            f"{row['peak_bytes'] / MIB:.1f}",
            f"{row['extra_ns'] / MS:.3f}",
            f"{row['extra_flops'] / GIGA:.1f}",
            *ours,
            f"{row['bound_ns'] / MS:.3f}",
            "" if row["ratio"] is None else f"{row['ratio']:.2f}",
            row["verdict"],
        )
    )


def _format_cells(cells: Sequence[str]) -> str:
    first, *rest = (f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))
    return " ".join((f"{first.strip():<{WIDTHS[0]}}", *rest)).rstrip()


def format_verdict(cases: Sequence[dict[str, Any]]) -> str:
    """How many rows, and how many of them show something wrong."""
    rows = [row for case in cases for row in case["rows"]]
    failures = sum(len(case["failures"]) for case in cases)
    counts = {flag: sum(row["verdict"] == flag for row in rows) for flag in ("WORSE", "BOUND")}
    return (
        f"{len(rows)} strategies on {len(cases)} models: {counts['WORSE']} WORSE (faster than our plan at no higher "
        f"peak), {counts['BOUND']} BOUND (faster than our bound on all plans), {failures} that torch failed on"
    )


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line; `device` becomes a `DeviceModel`."""
    parser = argparse.ArgumentParser(description="Compare plans with what people and torch do, from graphs alone.")
    parser.add_argument("--cases", nargs="+", choices=ALL, default=list(ALL), metavar="CASE", help=", ".join(ALL))
    parser.add_argument("--device", default="h100-sxm", help="a declared device whose figures set the prices")
    parser.add_argument("--json", type=Path, nargs="?", const=RESULT, metavar="FILE", help=f"default: {RESULT.name}")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="one picture per case; needs matplotlib")
    arguments = parser.parse_args(argv)
    try:
        arguments.device = find_device(arguments.device)
    except OptionError as error:
        parser.error(str(error))
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Run the cases; code 1 when any row is flagged."""
    arguments = parse_arguments(argv)
    cases = []
    for i, name in enumerate(arguments.cases):
        case = run_case(ALL[name], arguments.device)
        seconds = ", ".join(f"{what} {s} s" for what, s in case["seconds"].items())
        print(f"{i + 1}/{len(arguments.cases)} {name}: {seconds}", file=sys.stderr, flush=True)
        print(format_case(case), flush=True)
        cases.append(case)
        if arguments.plot:
            arguments.plot.mkdir(parents=True, exist_ok=True)
            plot_case(case, arguments.plot)
    print(format_verdict(cases))
    if arguments.json:
        result = describe_conditions(arguments.device, arguments.cases) | {"cases": cases}
        write_whole(arguments.json, json.dumps(result, indent=1) + "\n")
    return int(any(row["verdict"] for case in cases for row in case["rows"]))


if __name__ == "__main__":
    sys.exit(main())
