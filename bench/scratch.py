"""Is what an operator takes while it runs what is counted? Operators that Inductor does not generate, one by one.

In: the functions of `bench/operators.py`. Out: a table, and a result as JSON. Never compiles, never measures time.

    python -m bench.scratch [--functions conv3d bilinear] [--autocast] [--device cuda] [--json [FILE]]

Each function is traced with its gradient as for a plan. Every operator of the joint graph that torch runs is then run
alone, on numbers drawn anew in the layouts that were traced, images channels last where Inductor lays them out so, and
what it allocates at most is compared with what the plan counts: its results and its scratch. The exit code is 1 when
one takes over 5 % more of what it reads and takes than is counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree

import rematpass
from bench.conditions import describe_machine
from bench.joint_graphs import Captured, capture
from bench.operators import FUNCTIONS
from bench.peaks import Autocast
from rematpass.device import find_device
from rematpass.files import write_whole
from rematpass.solve.program import Kind
from rematpass.torch_compat import IMAGE_RANK

RESULTS = Path(__file__).parent / "results"
# Prices do not matter here; any device will do.
DEVICE = "h100-sxm"
TOO_LOW = 0.05


@dataclass(frozen=True)
class Row:
    """One operator: bytes of what it reads, and its results with its scratch as counted and as measured."""

    function: str
    operator: str
    read_bytes: int
    counted_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """How far the count is from what was taken, as a share of all that was live; negative where too low."""
        return (self.counted_bytes - self.measured_bytes) / max(1, self.read_bytes + self.measured_bytes)

    @property
    def is_low(self) -> bool:
        """Whether more is taken than is counted."""
        return self.error < -TOO_LOW


class _Scaled(nn.Module):
    """A function of tensors that all need a gradient; the loss is the mean square of what it returns."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, *tensors: Tensor) -> Tensor:
        returned = self.function(*(tensor * self.scale for tensor in tensors))
        results = [t for t in _pytree.tree_leaves(returned) if isinstance(t, Tensor)]
        parts = [torch.view_as_real(t) if t.is_complex() else t for t in results]
        return torch.stack([part.float().square().mean() for part in parts if part.is_floating_point()]).sum()


def measure(name: str, device: str, *, is_autocast: bool = False) -> Iterator[Row]:
    """A row per operator that torch runs, equal ones once."""
    function, shapes = FUNCTIONS[name]
    torch.manual_seed(0)
    with nullcontext() if device == "cpu" else torch.device(device):  # for what the functions make themselves, too
        model: nn.Module = _Scaled(function)
        inputs = [torch.randn(shape) for shape in shapes]
        captured = capture(Autocast(model, device) if is_autocast else model, inputs, find_device(DEVICE))
    seen = set()
    for i, node in enumerate(captured.joint.nodes):
        is_operator = isinstance(node.target, torch._ops.OpOverload) and node.all_input_nodes
        if captured.inputs.facts.values[i].kind is not Kind.EXTERN or not is_operator:
            continue
        row = _measure_node(name, captured, i, device)
        if row not in seen:
            seen.add(row)
            yield row


def _measure_node(name: str, captured: Captured, i: int, device: str) -> Row:
    node, facts = captured.joint.nodes[i], captured.inputs.facts.values[i]
    is_relaid = captured.inputs.facts.is_relaid
    drawn = fx.node.map_arg((node.args, node.kwargs), lambda n: _drawn(n.meta["val"], device))
    args, kwargs = _pytree.tree_map_only(Tensor, _as_images, drawn) if is_relaid else drawn

    def run() -> Any:
        return node.target(*args, **kwargs)  # type: ignore[operator]  # an operator of torch's dispatcher

    run()
    kept: list[Any] = []
    measured = rematpass.measure_peak(lambda: kept.append(run()), device=device)
    read = sum(tensor.untyped_storage().nbytes() for tensor in _tensors((args, kwargs)))
    counted = facts.workspace_bytes + facts.size_bytes
    return Row(name, str(node.target).removeprefix("aten."), read, counted, measured)


def _tensors(values: object) -> list[Tensor]:
    return [value for value in _pytree.tree_leaves(values) if isinstance(value, Tensor)]


def _as_images(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == IMAGE_RANK else tensor


def _drawn(value: object, device: str) -> object:
    """Numbers in the layout of a traced tensor: positive ones; the place 0, the pivot 1, and masks that choose all."""
    if isinstance(value, (tuple, list)):
        return type(value)(_drawn(part, device) for part in value)
    if not isinstance(value, Tensor):
        return value
    size, stride = [int(s) for s in value.shape], [int(s) for s in value.stride()]
    drawn = torch.empty_strided(size, stride, dtype=value.dtype, device=device)
    if value.is_complex() or value.is_floating_point():
        return drawn.copy_(torch.rand(size) + 0.1)
    return drawn.fill_(0 if value.dtype is torch.int64 else 1)


def format_row(row: Row) -> str:
    """One line of the table."""
    sizes = " ".join(f"{size:10,d}" for size in (row.read_bytes, row.counted_bytes, row.measured_bytes))
    return f"{row.function:22s} {row.operator:42s} {sizes}  {row.error:+7.1%}{'  LOW' if row.is_low else ''}"


def summarise(rows: Sequence[Row]) -> dict[str, float]:
    """How many operators of how many functions; how many errors are at most 5 %, and the furthest to either side."""
    return {
        "functions": len({row.function for row in rows}),
        "operators": len(rows),
        "within": sum(abs(row.error) <= TOO_LOW for row in rows),
        "lowest": min(row.error for row in rows),
        "highest": max(row.error for row in rows),
    }


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked before anything runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", nargs="+", choices=list(FUNCTIONS), default=list(FUNCTIONS), metavar="NAME")
    parser.add_argument("--autocast", action="store_true", help="in mixed precision, with bfloat16")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument(
        "--json", nargs="?", type=Path, const=Path(), metavar="FILE", help="default: scratch_DEVICE.json"
    )
    chosen = parser.parse_args(argv)
    if chosen.json == Path():
        chosen.json = RESULTS / f"scratch_{chosen.device}.json"
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    chosen = parse_arguments(argv)
    print(
        f"{'function':22s} {'operator':42s} {'read':>10s} {'counted':>10s} {'measured':>10s}  {'error':>7s}   (bytes)"
    )
    rows: list[Row] = []
    failures: dict[str, str] = {}
    for name in chosen.functions:
        try:
            for row in measure(name, chosen.device, is_autocast=chosen.autocast):
                rows.append(row)
                print(format_row(row), flush=True)
        except Exception as error:  # a function that cannot be run there is a result: listed by name
            failures[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"{name:22s} {failures[name]}", flush=True)
    summary = summarise(rows)
    print(
        f"{summary['operators']} operators of {summary['functions']} functions: {summary['within']} counted to 5 %, "
        f"the furthest {summary['lowest']:+.1%} and {summary['highest']:+.1%}"
    )
    if chosen.json:
        result = {
            **describe_machine(torch.device(chosen.device)),
            "autocast": chosen.autocast,
            "summary": summary,
            "rows": [*map(asdict, rows)],
        }
        write_whole(chosen.json, json.dumps(result, indent=1) + "\n")
    return 1 if failures or any(row.is_low for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
