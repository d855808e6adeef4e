"""Is the predicted peak the measured one? Real steps under Inductor, architecture by architecture.

In: small models that run on any CPU. Out: a table, and a result as JSON. Never measures time.

    python -m bench.peaks [--cases llama_plain unet] [--budgets 5] [--device cpu] [--autocast] [--json [FILE]]

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
from rematpass.check.measure import storage_bytes

RESULT = Path(__file__).parent / "results" / "peaks_cpu.json"
AUTOCAST_RESULT = RESULT.with_name("peaks_cpu_autocast.json")
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


def measure_case(name: str, count: int, device: str, *, is_autocast: bool = False) -> list[Row]:
    """Rows at `count` budgets from the fastest plan to the smallest."""
    model, inputs = build(name, device)
    model = Autocast(model, device) if is_autocast else model
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


def make_case(name: str, rows: Sequence[Row], device: str, size: str = "small", *, is_autocast: bool = False) -> Case:
    """A model's rows with the conditions they were measured under."""
    settings = {"size": size, "device": device, "budgets": len(rows)} | ({"autocast": "bf16"} if is_autocast else {})
    return {"name": name, **describe_machine(), "settings": settings, "rows": [asdict(row) for row in rows]}


def rows_of(cases: Sequence[Case]) -> list[Row]:
    """All rows of a file."""
    return [Row(**row) for case in cases for row in case["rows"]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE")
    parser.add_argument("--budgets", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--autocast", action="store_true", help="in mixed precision, with bfloat16")
    parser.add_argument("--json", nargs="?", type=Path, const=RESULT, metavar="FILE")
    chosen = parser.parse_args(argv)
    if chosen.autocast and chosen.json == RESULT:
        chosen.json = AUTOCAST_RESULT
    cases = read_cases(chosen.json, SCHEMA)
    print(f"{'case':18s} {'static':>9s} {'budget':>9s} {'predicted':>9s} {'measured':>9s}  {'error':>7s}   (MiB)")
    measured: list[Row] = []
    for name in chosen.cases:
        rows = measure_case(name, chosen.budgets, chosen.device, is_autocast=chosen.autocast)
        measured += rows
        cases = merge_cases(cases, make_case(name, rows, chosen.device, is_autocast=chosen.autocast))
        if chosen.json:  # a run that is cut off leaves the cases it has done
            write_cases(chosen.json, cases, SCHEMA, summarise(rows_of(cases)))
    summary = summarise(rows_of(cases))
    print(
        f"{summary['architectures']} architectures, {summary['steps']} steps: median error "
        f"{summary['median_error']:.1%}, worst {summary['worst_error']:.1%}, "
        f"at most {summary['largest_excess']:+.1%} over a budget"
    )
    return 1 if any(row.is_over for row in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
