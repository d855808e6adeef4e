"""Seconds of planning over the number of nodes, with counters that no clock disturbs.

In: synthetic programs of growing size, and traced models. Out: a table, and with --json a result file: seconds, minimum
cuts, arcs, ways tried by the chain programme, plans simulated, peak memory of the process. Never decides.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import bench.synthetic as synthetic
from bench.conditions import describe_machine
from rematpass.files import write_whole
from rematpass.garbage import uncollected
from rematpass.solve._core import work_done
from rematpass.solve.program import Program
from rematpass.solve.search import Frontier

NODES = (500, 1_000, 2_000, 5_000, 10_000, 30_000, 100_000)
HEAD = ("nodes", "layers", "first", "plan", "cuts", "arcs", "ways", "plans", "extra", "gap", "MiB")


@dataclass
class Counters:
    """What was done: minimum cuts with their arcs, ways the chain programme compared, plans simulated."""

    cuts: int = 0
    arcs: int = 0
    ways: int = 0
    plans: int = 0


@dataclass(frozen=True)
class Row:
    """One program: seconds until its curve can be asked (`first`), and with one budget half way asked (`plan`)."""

    nodes: int
    layers: str
    first_seconds: float
    plan_seconds: float
    counters: Counters
    extra: float
    gap: float
    process_mib: float

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        c = self.counters
        seconds = (f"{self.first_seconds:.3f} s", f"{self.plan_seconds:.3f} s")
        counts = tuple(str(n) for n in (c.cuts, c.arcs, c.ways, c.plans))
        shares = (f"{100 * self.extra:.2f} %", f"{100 * self.gap:.1f} %")
        return (str(self.nodes), self.layers, *seconds, *counts, *shares, f"{self.process_mib:.0f}")


@contextmanager
def counted() -> Iterator[Counters]:
    """Count cuts, arcs and ways while the block runs."""
    counters, start = Counters(), work_done()
    yield counters
    counters.cuts, counters.arcs, counters.ways = (now - then for now, then in zip(work_done(), start, strict=True))


def run(program: Program, layers: str, rounds: int) -> Row:
    """Plan one program for half of what the budget can move, as the backend does; medians over `rounds` fresh runs."""
    first, total = [], []
    for _ in range(rounds):
        with uncollected(), counted() as counters:
            start = time.perf_counter()
            frontier = Frontier(program)
            middle = time.perf_counter()
            budget = (frontier.fastest.peak_bytes + frontier.smallest.peak_bytes) // 2
            point = frontier.choose(budget)
            assert point is not None, "half way is feasible"
            bound = frontier.bound_ns(budget, point)
            total.append(time.perf_counter() - start)
            first.append(middle - start)
            counters.plans = frontier.simulated
    step = sum(program.duration_ns)
    gap = point.extra_ns / bound - 1 if bound else 0.0
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Row(len(program), layers, median(first), median(total), counters, point.extra_ns / step, gap, used)


def programs(nodes: int) -> Iterator[tuple[Program, str]]:
    """About `nodes` nodes of equal blocks, and of blocks that all differ."""
    per_block = (len(synthetic.stack_blocks(9)) - len(synthetic.stack_blocks(1))) / 8
    blocks = max(1, round(nodes / per_block))
    yield synthetic.stack_blocks(blocks), "equal"
    yield synthetic.stack_blocks(blocks, is_equal=False), "unequal"


def format_cells(rows: list[tuple[str, ...]]) -> str:
    """Columns aligned to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows)


def main(argv: list[str] | None = None) -> int:
    """Plan all sizes."""
    parser = argparse.ArgumentParser(description="Seconds of planning over the number of nodes.")
    parser.add_argument("--nodes", nargs="+", type=int, default=NODES)
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of each size; the median counts (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a result file")
    arguments = parser.parse_args(argv)
    rows = []
    for nodes in arguments.nodes:
        for program, layers in programs(nodes):
            rows.append(run(program, layers, arguments.rounds))
            print(f"{rows[-1].nodes} nodes, {layers}: {rows[-1].plan_seconds:.2f} s", file=sys.stderr, flush=True)
    print(format_cells([HEAD, *(row.cells() for row in rows)]))
    if arguments.json:
        result = {**describe_machine(), "rounds": arguments.rounds, "rows": [asdict(row) for row in rows]}
        write_whole(arguments.json, json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
