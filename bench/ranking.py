"""Do predicted prices rank plans as the clock does?

In: the cases of `bench/step_cases.py`. Out: per case and cost model the rank correlation between predicted and measured
extra time along the frontier, a result as JSON. Never compares times of two runs.

    python -m bench.ranking [--cases gpt2 unet] [--cost-models roofline measured] [--spread time] [--pages released]
                            [--json [FILE]]

Plans between the fastest and the smallest, spread over bytes or over predicted time, are compiled, and all take turns.
Near the fastest, plans that are far apart in bytes may differ by less than a clock can tell. How well one half of the
rounds ranks the plans of the other half ("repeatable") says how much of what is missing is noise. On a CPU the C
library is told to hold on to its pages (see `bench/pages.py`), unless they are to be released.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr

import rematpass
from bench.architectures import Case
from bench.case_file import merge_cases, read_cases, write_cases
from bench.conditions import describe_machine
from bench.pages import can_hold_pages, hold_pages
from bench.step_cases import SIZES, build
from bench.step_variants import OURS, Runner, Variant, first_step, make_runner
from rematpass.demo.train import choose_device
from rematpass.errors import OptionError
from rematpass.plan_types import CurvePoint
from rematpass.report.table import align_columns

RESULTS = Path(__file__).parent / "results"
SCHEMA = 1
WARM_STEPS = 2
WANTED = 0.95
# Plans of the frontier for each that is taken where they are spread over time.
POINTS_LOOKED_AT = 8


@dataclass(frozen=True)
class Settings:
    """`points` plans per case and cost model, `rounds` timed steps of each, pages held or released.

    `spread`: over what the plans are spread evenly, "bytes" of their peaks or predicted extra "time".
    """

    size: str
    device: torch.device
    cost_models: tuple[str, ...]
    points: int
    rounds: int
    pages: str
    spread: str = "bytes"
    seed: int = 0


def run_case(case: Case, settings: Settings) -> dict[str, Any]:
    """All cost models on one case, timed together, ready for JSON."""
    torch._dynamo.reset()
    model, inputs = build(case, settings.device, settings.seed)
    runners: dict[str, list[Runner]] = {}
    for cost_model in settings.cost_models:
        count = settings.points * (POINTS_LOOKED_AT if settings.spread == "time" else 1)
        curve = rematpass.frontier(model, args=inputs, count=count, progress=False, cost_model=cost_model)
        budgets = [point.peak_bytes for point in spread_over_time(curve.points, settings.points)]
        variants = [Variant(OURS, True, memory_budget=budget, cost_model=cost_model) for budget in budgets]
        runners[cost_model] = [make_runner(v, model, inputs, case.blocks, settings.device) for v in variants]
        for runner in runners[cost_model]:
            _start(runner)
            say(
                f"{case.name}, {cost_model}: {runner.variant.memory_budget} bytes, {runner.first_step_seconds[0]:.1f} s"
            )
    time_rounds([runner for group in runners.values() for runner in group], settings.rounds)
    return {
        "name": case.name,
        "summary": case.summary,
        "cost_models": {cost_model: record(group) for cost_model, group in runners.items()},
        **describe_conditions(settings),
    }


def spread_over_time(points: Sequence[CurvePoint], count: int) -> list[CurvePoint]:
    """Of the plans of a curve, `count` whose extra times are about evenly spread; all where there are no more."""
    if len(points) <= count:
        return list(points)
    most = points[-1].recompute_seconds
    wanted = [most * i / (count - 1) for i in range(count)]
    nearest = (min(points, key=lambda point: abs(point.recompute_seconds - seconds)) for seconds in wanted)
    return list(dict.fromkeys(nearest))


def describe_conditions(settings: Settings) -> dict[str, Any]:
    """Where, when, with what."""
    chosen = {**asdict(settings), "device": settings.device.type, "warm_steps": WARM_STEPS}
    return {**describe_machine(settings.device), "settings": chosen}


def _start(runner: Runner) -> None:
    first_step(runner)
    for _ in range(WARM_STEPS):
        runner.timed_step()
    (runner.plan,) = rematpass.plans(runner.call)


def time_rounds(runners: Sequence[Runner], rounds: int) -> None:
    """One step of each a round, in an order that changes from round to round."""
    for number in range(rounds):
        order = list(runners)
        random.Random(number).shuffle(order)
        for runner in order:
            runner.times_ms.append(runner.timed_step() * 1e3)
            runner.clear_gradients()


def record(runners: Sequence[Runner]) -> dict[str, Any]:
    """Predicted and measured extra time of each plan, and how far their orders agree; the first plan is the fastest."""
    plans = [runner.plan for runner in runners]
    predicted = [1e3 * plan.recompute_seconds for plan in plans if plan is not None]
    times = [runner.times_ms for runner in runners]
    return {
        "correlation": rank_correlation(predicted, extra_ms(times)),
        "repeatable": rank_correlation(extra_ms([t[::2] for t in times]), extra_ms([t[1::2] for t in times])),
        "budget_bytes": [runner.variant.memory_budget for runner in runners],
        "step_ms": [statistics.median(t) for t in times],
        "predicted_extra_ms": predicted,
        "extra_ms": extra_ms(times),
    }


def extra_ms(times: Sequence[Sequence[float]]) -> list[float]:
    """Per plan, the median over the rounds of what it took more than the first plan in the same round.

    >>> extra_ms([[10.0, 90.0], [12.0, 92.0]])
    [0.0, 2.0]
    """
    return [statistics.median([a - b for a, b in zip(t, times[0], strict=True)]) if t else 0.0 for t in times]


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's coefficient; None where fewer than three plans, or plans that do not differ, give no order."""
    if len(left) < 3 or len(set(left)) == 1 or len(set(right)) == 1:
        return None
    return float(spearmanr(left, right).statistic)


def summarise(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per cost model: the median and the worst correlation, and how many cases reach what is wanted."""
    found: dict[str, list[float]] = {}
    for case in cases:
        for cost_model, figures in case["cost_models"].items():
            if figures["correlation"] is not None:
                found.setdefault(cost_model, []).append(figures["correlation"])
    return {cost_model: _summary(values) for cost_model, values in found.items()}


def _summary(values: Sequence[float]) -> dict[str, Any]:
    reached = sum(value >= WANTED for value in values)
    figures = {"median": statistics.median(values), "worst": min(values)}
    return {**figures, "cases": len(values), "wanted": WANTED, "reached": reached}


def format_cases(cases: Sequence[dict[str, Any]]) -> str:
    """A line per case and cost model, then the summary."""
    titles = ("case", "cost model", "plans", "correlation", "repeatable", "largest extra: predicted ms", "measured ms")
    rows = [_cells(case["name"], *pair) for case in cases for pair in case["cost_models"].items()]
    lines = align_columns([titles, *rows], right=range(2, len(titles)))
    lines += [
        f"{cost_model}: median {s['median']:.3f}, worst {s['worst']:.3f}, {s['reached']} of {s['cases']} cases at "
        f"{s['wanted']} or above"
        for cost_model, s in summarise(cases).items()
    ]
    return "\n".join(lines)


def _cells(name: str, cost_model: str, figures: dict[str, Any]) -> tuple[str, ...]:
    ranks = ("" if value is None else f"{value:.3f}" for value in (figures["correlation"], figures["repeatable"]))
    largest = (f"{max(figures['predicted_extra_ms']):.1f}", f"{max(figures['extra_ms']):.1f}")
    return (name, cost_model, str(len(figures["budget_bytes"])), *ranks, *largest)


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked before anything runs."""
    parser = argparse.ArgumentParser(description="Rank correlation of predicted and measured extra time.")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help=f"of {', '.join(SIZES['small'])}; default: all")
    parser.add_argument("--size", choices=SIZES, default="small", help="default: %(default)s; large is for GPUs")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    parser.add_argument("--cost-models", nargs="+", default=["roofline"], help="roofline, measured, files")
    parser.add_argument("--points", type=int, default=8, help="plans of each frontier (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=45, help="timed steps of each plan (default: %(default)s)")
    parser.add_argument(
        "--spread",
        choices=("bytes", "time"),
        default="bytes",
        help="over what plans are spread: bytes of their peaks, or predicted time (default: %(default)s)",
    )
    parser.add_argument(
        "--pages",
        choices=("held", "released"),
        default="held" if can_hold_pages() else "released",
        help="what the C library does with freed memory (default: %(default)s)",
    )
    parser.add_argument(
        "--json", type=Path, nargs="?", const=Path(), metavar="FILE", help="default: ranking_DEVICE[_time].json"
    )
    arguments = parser.parse_args(argv)
    known = SIZES[arguments.size]
    arguments.cases = arguments.cases or list(known)
    unknown = [name for name in arguments.cases if name not in known]
    if unknown:
        parser.error(f"no case {unknown[0]!r} in size {arguments.size!r}; known: {', '.join(known)}")
    if arguments.points < 3 or arguments.rounds < 2:
        parser.error("--points must be at least 3 and --rounds at least 2")
    try:
        arguments.device = choose_device(arguments.device)
    except OptionError as error:
        parser.error(str(error))
    if arguments.json == Path():
        over = "_time" if arguments.spread == "time" else ""
        arguments.json = RESULTS / f"ranking_{arguments.device.type}{over}.json"
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases."""
    arguments = parse_arguments(argv)
    models = tuple(arguments.cost_models)
    asked = (arguments.points, arguments.rounds, arguments.pages, arguments.spread)
    settings = Settings(arguments.size, arguments.device, models, *asked)
    if settings.pages == "held":
        hold_pages()
    cases = read_cases(arguments.json, SCHEMA, describe_conditions(settings))
    for name in arguments.cases:
        cases = merge_cases(cases, run_case(SIZES[arguments.size][name], settings))
        if arguments.json is not None:
            write_cases(arguments.json, cases, SCHEMA, summarise(cases))
    print(format_cases(cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
