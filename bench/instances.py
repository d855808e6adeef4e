"""The solver on instance files: extra duration, peak, bound and seconds at shares of the peak of the given order.

In: JSON files with `duration`, `bytes`, `inputs`, `is_forward`, `outputs` and `peak_bytes`. Out: a table, and with
--json a result file. Never changes the instance.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.conditions import describe_machine
from rematpass import BudgetTooSmall, Problem, ProblemError, solve
from rematpass.files import write_whole

FIELDS = ("duration", "bytes", "inputs", "is_forward", "outputs")
SHARES = (0.9, 0.8, 0.7, 0.5, 0.3, 0.2)
HEAD = ("instance", "ops", "budget", "extra", "bound", "peak", "seconds", "")


@dataclass(frozen=True)
class Row:
    """One instance at one budget; `extra` and `bound` are shares of the duration of the given order, None: refused."""

    instance: str
    ops: int
    share: float
    budget_bytes: int
    peak_bytes: int
    extra: float | None
    bound: float | None
    seconds: float
    is_complete: bool

    def cells(self, given_peak: int) -> tuple[str, ...]:
        """The row as text."""
        shares = (f"{100 * x:.3f} %" if x is not None else "-" for x in (self.extra, self.bound))
        words = "too small: this is the smallest peak found" if self.extra is None else ""
        words = words or ("" if self.is_complete else "time limit")
        peak = f"{100 * self.peak_bytes / given_peak:.2f} %"
        return (self.instance, str(self.ops), f"{100 * self.share:g} %", *shares, peak, f"{self.seconds:.2f}", words)


def read_instance(path: Path) -> tuple[Problem, int]:
    """The problem in a file and the peak of its given order.

    Raises:
        ProblemError: the file is no instance.
    """
    try:
        record = json.loads(path.read_text())
        return Problem(**{field: record[field] for field in FIELDS}), int(record["peak_bytes"])
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ProblemError(f"{path} is no instance: {error!r}. It needs {', '.join(FIELDS)} and peak_bytes") from error


def run(name: str, problem: Problem, given_peak: int, share: float, time_limit: float) -> Row:
    """Solve one instance at one share of its peak."""
    budget, total, ops = int(share * given_peak), sum(problem.duration), len(problem.duration)
    start = time.perf_counter()
    try:
        found = solve(problem, budget, time_limit=time_limit)
    except BudgetTooSmall as error:
        seconds = time.perf_counter() - start
        return Row(name, ops, share, budget, error.minimum_bytes, None, None, seconds, is_complete=True)
    seconds = time.perf_counter() - start
    extra, bound = found.duration / total - 1, found.bound_duration / total - 1
    return Row(name, ops, share, budget, found.peak_bytes, extra, bound, seconds, is_complete=found.is_complete)


def format_table(rows: list[tuple[str, ...]]) -> str:
    """Columns aligned, figures to the right."""
    table = [HEAD, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEAD))]
    lines = []
    for first, *rest in table:
        cells = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Solve all files at all shares; exit code 2 when a file is no instance."""
    parser = argparse.ArgumentParser(description="Run the solver on instance files.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES, help="budgets as shares of the given peak")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds for each (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a result file")
    arguments = parser.parse_args(argv)
    try:
        instances = [(path.stem, *read_instance(path)) for path in arguments.files]
    except ProblemError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows, cells = [], []
    for name, problem, given_peak in instances:
        for share in arguments.shares:
            row = run(name, problem, given_peak, share, arguments.time_limit)
            rows.append(row)
            cells.append(row.cells(given_peak))
            print(f"{name} at {100 * share:g} %: {row.seconds:.2f} s", file=sys.stderr, flush=True)
    print(format_table(cells))
    if arguments.json:
        result: dict[str, Any] = {**describe_machine(), "time_limit": arguments.time_limit}
        result["rows"] = [asdict(row) for row in rows]
        write_whole(arguments.json, json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
