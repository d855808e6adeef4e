"""How near the bound plans are on equal layers, at every third per cent between 20 and 80 % of the memory there is.

In: kinds of blocks and how many, vocabularies, a device whose prices count. Out: a table of gaps, and with --json a
result file. Never compiles, never runs a step.

    python -m bench.equal_layers [--blocks llama written-out gpt2 encoder linear] [--layers 24] [--words 64 32000]
                                 [--device h100-sxm] [--json [FILE]]

The share is of what there is between the smallest peak and the fastest plan's. Under a head of few words layers alone
decide; with the vocabularies of real models its tangent, or the gradient of its weight, is part of every peak. Blocks
with attention written out have scores, and functions of them that the bound does not know to be in memory. Encoder
layers are torch's own, with their dropout and ReLUs, and linear ones products with a ReLU each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from bench.conditions import describe_machine
from bench.joint_graphs import capture
from bench.transformers import GPT2, Llama
from rematpass.cost.device_model import DeviceModel, find_device
from rematpass.files import write_whole
from rematpass.report.table import align_columns
from rematpass.solve.program import Program
from rematpass.solve.search import Frontier

RESULT = Path(__file__).parent / "results" / "equal_layers.json"
VOCABULARIES = (64, 32_000)
WIDTH, LENGTH, BATCH = 1024, 2048, 4
PERCENTS = range(20, 81, 3)
WANTED = 0.02
HEAD = ("blocks", "words", "share", "budget MiB", "extra", "bound", "gap")
HEADS = 16


class Labels(nn.Module):
    """A word's label for each of a text, from any layers in between."""

    def __init__(self, words: int, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, WIDTH)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, words, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy."""
        found = self.head(self.layers(self.embedding(ids)))
        return F.cross_entropy(found.flatten(0, 1).float(), targets.flatten())


def _encoder(words: int, layers: int) -> nn.Module:
    made = (nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True) for _ in range(layers))
    return Labels(words, made)


def _linear(words: int, layers: int) -> nn.Module:
    return Labels(words, itertools.chain(*((nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(layers))))


BLOCKS: dict[str, Callable[[int, int], nn.Module]] = {
    "llama": lambda words, layers: Llama(words, layers, WIDTH, LENGTH, is_fused=True),
    "written-out": lambda words, layers: Llama(words, layers, WIDTH, LENGTH, is_fused=False),
    "gpt2": lambda words, layers: GPT2(words, layers, WIDTH, LENGTH),
    "encoder": _encoder,
    "linear": _linear,
}
"""By name, a model of so many words and layers: attention in one op, written out or none, gated layers, GELU, ReLU."""


@dataclass(frozen=True)
class Row:
    """A budget: the plan's extra time and its bound as shares of the step, and how far the one is above the other."""

    blocks: str
    words: int
    percent: int
    budget_bytes: int
    extra: float
    bound: float
    gap: float

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        shares = (f"{100 * share:.2f} %" for share in (self.extra, self.bound, self.gap))
        return (self.blocks, f"{self.words:,}", f"{self.percent} %", f"{self.budget_bytes / 2**20:.0f}", *shares)


def trace(blocks: str, words: int, layers: int, device: DeviceModel) -> tuple[Program, int]:
    """The program of one step in bfloat16, and what its ops take in all, in ns."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = BLOCKS[blocks](words, layers)
    finally:
        torch.set_default_dtype(before)
    ids = torch.zeros((BATCH, LENGTH), dtype=torch.long)
    inputs = capture(model, (ids, ids.clone()), device, "cuda").inputs
    return inputs.program, sum(inputs.prices.run_ns)


def measure(blocks: str, words: int, program: Program, step_ns: int) -> list[Row]:
    """A row for each budget."""
    frontier = Frontier(program)
    top, bottom = frontier.fastest.peak_bytes, frontier.smallest.peak_bytes
    rows = []
    for percent in PERCENTS:
        budget = bottom + (top - bottom) * percent // 100
        point = frontier.choose(budget)
        assert point is not None, "budgets between the ends are feasible"
        bound = frontier.bound_ns(budget, point)
        gap = (point.extra_ns - bound) / bound if bound else 0.0
        rows.append(Row(blocks, words, percent, budget, point.extra_ns / step_ns, bound / step_ns, gap))
    return rows


def format_rows(rows: list[Row]) -> str:
    """The table, and for each model how many of its rows are near their bound."""
    lines = align_columns([HEAD, *(row.cells() for row in rows)], right=range(1, len(HEAD)))
    for (blocks, words), some in itertools.groupby(rows, key=lambda row: (row.blocks, row.words)):
        gaps = [row.gap for row in some]
        near = sum(gap <= WANTED for gap in gaps)
        kept = f"{near} of {len(gaps)} budgets within {100 * WANTED:.0f} % of the bound"
        lines.append(f"{blocks}, {words:,} words: {kept}, the worst {100 * max(gaps):.1f} % above")
    return "\n".join(lines)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description="Gaps between plans and bounds on equal layers.")
    parser.add_argument(
        "--blocks", nargs="+", choices=BLOCKS, default=list(BLOCKS), help="kinds of blocks (default: all)"
    )
    parser.add_argument("--layers", type=int, default=24, help="blocks (default: %(default)s)")
    parser.add_argument(
        "--words", type=int, nargs="+", default=VOCABULARIES, help="vocabularies (default: 64 and 32000)"
    )
    parser.add_argument(
        "--device", type=find_device, default="h100-sxm", help="whose prices count (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, nargs="?", const=RESULT, metavar="FILE", help=f"default: {RESULT.name}")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Trace, plan, print."""
    arguments = parse_arguments(argv)
    rows: list[Row] = []
    for blocks, words in itertools.product(arguments.blocks, arguments.words):
        start = time.perf_counter()
        program, step_ns = trace(blocks, words, arguments.layers, arguments.device)
        seconds = time.perf_counter() - start
        print(f"{blocks}, {words:,} words: {len(program)} values in {seconds:.0f} s", file=sys.stderr, flush=True)
        rows += measure(blocks, words, program, step_ns)
    print(format_rows(rows))
    if arguments.json:
        result: dict[str, Any] = {
            **describe_machine(torch.device("cpu")),
            "layers": arguments.layers,
            "device": arguments.device.name,
            "rows": [asdict(row) for row in rows],
        }
        write_whole(arguments.json, json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
