"""Is the predicted peak the measured one? Real steps under Inductor, architecture by architecture.

In: small models that run on any CPU, or those of `bench/step_cases.py`. Out: a table, and a result as JSON. Never
measures time.

    python -m bench.peaks [--cases llama_plain unet] [--budgets 5] [--device cpu] [--autocast] [--json [FILE]]
    python -m bench.peaks --size large --device cuda [--cases llama_fused] [--json [FILE]]

Per model, budgets are spread from the fastest plan's peak to the smallest possible. A file keeps the models that are
not measured now. The exit code is 1 when a measured peak is more than 1 % above its budget.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import rematpass
from bench.case_file import Case, merge_cases, read_cases, write_cases
from bench.conditions import describe_machine
from bench.runnable import CASES, build
from bench.step_cases import SIZES
from bench.step_cases import build as build_for_steps
from rematpass.check.measure import storage_bytes

RESULTS = Path(__file__).parent / "results"
SCHEMA = 2
MIB = 2**20
OVER = 1.01


@dataclass(frozen=True)
class Row:
    """One step: its budget, and its peak as planned and as measured, all with parameters and batch."""

    case: str
    static_bytes: int
    budget_bytes: int
    predicted_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """How far the prediction is from the measured peak; positive where too low."""
        return self.measured_bytes / self.predicted_bytes - 1

    @property
    def is_over(self) -> bool:
        """Whether the measured peak is more than 1 % above the budget."""
        return self.measured_bytes > OVER * self.budget_bytes


class Autocast(torch.nn.Module):
    """A model in mixed precision: products and convolutions in bfloat16, parameters as they are."""

    def __init__(self, model: torch.nn.Module, device: str) -> None:
        super().__init__()
        self.model = model
        self.device_type = torch.device(device).type

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The model's loss."""
        with torch.autocast(self.device_type, torch.bfloat16):
            loss: torch.Tensor = self.model(*inputs)
        return loss


@dataclass(frozen=True)
class Settings:
    """Which models, "small" or "large", where, how many budgets for each, and whether in mixed precision."""

    size: str
    device: str
    budgets: int
    is_autocast: bool = False

    def describe(self) -> dict[str, Any]:
        """Ready for JSON."""
        described = {"size": self.size, "device": self.device, "budgets": self.budgets}
        return described | ({"autocast": "bf16"} if self.is_autocast else {})

    def result_file(self) -> Path:
        """Where these results go unless told."""
        marks = ("peaks", self.device, *(["large"] if self.size == "large" else ()))
        return RESULTS / f"{'_'.join((*marks, *(['autocast'] if self.is_autocast else ())))}.json"

    def build(self, name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        """A model and its inputs."""
        if self.size == "large":
            model, inputs = build_for_steps(SIZES["large"][name], torch.device(self.device), 0)
        else:
            model, inputs = build(name, self.device)
        return (Autocast(model, self.device) if self.is_autocast else model), inputs


def measure_case(name: str, settings: Settings) -> list[Row]:
    """Rows at budgets from the fastest plan to the smallest."""
    model, inputs = settings.build(name)
    count, device = settings.budgets, settings.device
    static = storage_bytes([*model.parameters(), *model.buffers(), *inputs])
    largest = rematpass.plan(model, args=inputs, memory_budget="none").peak_bytes
    smallest = find_smallest(model, inputs)
    rows = []
    for i in range(count):
        budget = round(largest + (smallest - largest) * i / max(1, count - 1))
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="rematpass", options={"memory_budget": budget, "verify": False})
        measured = static + rematpass.measure_peak(_warm_step(model, compiled, inputs), device=device)
        predicted = max(plan.peak_bytes for plan in rematpass.plans(compiled))  # several: dynamo compiled it again
        rows.append(Row(name, static, budget, predicted, measured))
        print(format_row(rows[-1]), flush=True)
    return rows


def find_smallest(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> int:
    """The smallest peak any plan reaches."""
    try:
        rematpass.plan(model, args=inputs, memory_budget=1)
    except rematpass.BudgetTooSmall as error:
        return error.minimum_bytes
    raise AssertionError("a budget of one byte was kept")


def _warm_step(
    model: torch.nn.Module, compiled: Callable[..., Any], inputs: Sequence[torch.Tensor]
) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        compiled(*inputs).backward()

    step()
    model.zero_grad(set_to_none=True)
    gc.collect()
    return step


def format_row(row: Row) -> str:
    """One line of the table."""
    sizes = (row.static_bytes, row.budget_bytes, row.predicted_bytes, row.measured_bytes)
    cells = " ".join(f"{size / MIB:9.2f}" for size in sizes)
    return f"{row.case:18s} {cells}  {row.error:+7.1%}{'  OVER' if row.is_over else ''}"


def summarise(rows: Sequence[Row]) -> dict[str, float]:
    """Median and worst error, and the largest excess over a budget."""
    errors = [abs(row.error) for row in rows]
    return {
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "largest_excess": max(row.measured_bytes / row.budget_bytes - 1 for row in rows),
        "architectures": len({row.case for row in rows}),
        "steps": len(rows),
    }


def make_case(name: str, rows: Sequence[Row], settings: dict[str, Any], device: torch.device | None = None) -> Case:
    """A model's rows with the conditions they were found under; `device` where steps really ran."""
    return {"name": name, **describe_machine(device), "settings": settings, "rows": [asdict(row) for row in rows]}


def rows_of(cases: Sequence[Case]) -> list[Row]:
    """All rows of a file."""
    return [Row(**row) for case in cases for row in case["rows"]]


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked before anything runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="default: all of the size")
    parser.add_argument("--size", choices=["small", "large"], default="small", help="large: of bench.step, for GPUs")
    parser.add_argument("--budgets", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--autocast", action="store_true", help="in mixed precision, with bfloat16")
    parser.add_argument("--json", nargs="?", type=Path, const=Path(), metavar="FILE")
    chosen = parser.parse_args(argv)
    known = CASES if chosen.size == "small" else SIZES["large"]
    unknown = sorted({*(chosen.cases or ())} - set(known))
    if unknown:
        parser.error(f"no case {unknown[0]!r} in size {chosen.size!r}; known: {', '.join(known)}")
    chosen.cases = chosen.cases or list(known)
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    chosen = parse_arguments(argv)
    settings = Settings(chosen.size, chosen.device, chosen.budgets, chosen.autocast)
    file = settings.result_file() if chosen.json == Path() else chosen.json
    device = torch.device(chosen.device)
    cases = read_cases(file, SCHEMA, make_case("", (), settings.describe(), device))
    print(f"{'case':18s} {'static':>9s} {'budget':>9s} {'predicted':>9s} {'measured':>9s}  {'error':>7s}   (MiB)")
    measured: list[Row] = []
    for name in chosen.cases:
        rows = measure_case(name, settings)
        measured += rows
        cases = merge_cases(cases, make_case(name, rows, settings.describe(), device))
        if file:  # a run that is cut off leaves the cases it has done
            write_cases(file, cases, SCHEMA, summarise(rows_of(cases)))
    summary = summarise(rows_of(cases))
    print(
        f"{summary['architectures']} architectures, {summary['steps']} steps: median error "
        f"{summary['median_error']:.1%}, worst {summary['worst_error']:.1%}, "
        f"at most {summary['largest_excess']:+.1%} over a budget"
    )
    return 1 if any(row.is_over for row in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
