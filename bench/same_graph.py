"""Is the graph that a laptop plans for a GPU the one that a step on a GPU has? Traced both ways, without a GPU.

In: the models of `bench/runnable.py`. Out: a table, and a result as JSON. Never compiles a kernel, never runs one.

    python -m bench.same_graph [--cases gpt2 unet] [--dtypes fp32 bf16 autocast] [--json [FILE]]

Needs a torch that is built for CUDA, Triton and a C++ compiler; no GPU, no driver. Each model is traced as
`rematpass.plan(..., device="h100-sxm")` does, on CPU tensors, and on CUDA tensors without memory, where torch itself
chooses what operators become. Only `scaled_dot_product_attention` is in both what rematpass says that CUDA chooses:
torch would ask the driver; and products are not padded, which Inductor decides by timing. The exit code is 1 when two
graphs differ, or one is not traced.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from bench.conditions import describe_machine
from bench.pretend_gpu import HOOKS, build_library, pretend_gpu
from bench.runnable import CASES, build
from rematpass import torch_compat
from rematpass.errors import RematError
from rematpass.files import write_whole
from rematpass.graph.capture import JointProgram
from rematpass.look import Step, look_at_step
from rematpass.options import parse_options
from rematpass.pipeline import Settings, make_plan
from rematpass.plan_types import Plan
from rematpass.torch_compat import elsewhere

RESULT = Path(__file__).parent / "results" / "same_graph.json"
DEVICE = "h100-sxm"
DTYPES = ("fp32", "bf16", "autocast")
PRELOADED = "SAME_GRAPH_HOOKS"
# It makes tensors on the default device, whatever that of the others.
LEFT_OUT = ("encoder_decoder",)


@dataclass(frozen=True)
class Row:
    """One model in one precision: its operators, and whether graph and peak are the same; `reason` if not traced."""

    case: str
    dtype: str
    ops: int = 0
    is_same: bool = False
    peak_bytes: int = 0
    peak_there_bytes: int = 0
    reason: str = ""

    @property
    def verdict(self) -> str:
        """What the table says."""
        return self.reason or ("same graph" if self.is_same else "OTHER GRAPH")


def compare(name: str, dtype: str) -> Row:
    """A model traced on CPU tensors, then on CUDA tensors."""
    model, inputs = build(name, "cpu")
    run = functools.partial(_run_autocast, model) if dtype == "autocast" else model
    step = Step(run, inputs, device=DEVICE, dtype="bf16" if dtype == "bf16" else None)
    try:
        here = _plan(step)
        with _on_cuda_tensors():
            there = _plan(step)
    except RematError as error:  # listed, with its reason
        return Row(name, dtype, reason=str(error).splitlines()[0])
    is_same = here.graph_fingerprint == there.graph_fingerprint
    return Row(name, dtype, len(here.timeline), is_same, here.peak_bytes, there.peak_bytes)


def _run_autocast(model: Callable[..., Any], *inputs: Any) -> Any:
    with torch.autocast("cuda", torch.bfloat16):
        return model(*inputs)


def _plan(step: Step) -> Plan:
    def use(joint: JointProgram, settings: Settings) -> Plan:
        return make_plan(joint, settings, "graph 0")[0]

    # Inductor would compute constants on the device, and time there whether padding makes a product faster.
    asked = {"memory_budget": "none", "joint_graph_constant_folding": False, "shape_padding": False}
    return look_at_step(step, parse_options(asked, inductor_keys=torch_compat.inductor_keys()), use)


@contextmanager
def _on_cuda_tensors() -> Iterator[None]:
    """Inside, stand-ins are CUDA tensors, and torch by itself casts under autocast and takes operators apart."""
    there = functools.partial(torch_compat.StandIns, device="cuda")
    with (
        mock.patch.object(torch_compat, "StandIns", there),
        mock.patch.object(elsewhere, "decomposed_as_on_gpu", nullcontext),
        mock.patch.object(torch_compat, "autocast_as_on_gpu", nullcontext),
    ):
        yield


def pretend_all() -> None:
    """A GPU is here for fake tensors, for autograd, and where Inductor makes tensors on it to look at its patterns."""
    import torch._subclasses.fake_tensor as fake
    from torch._inductor.fx_passes import fuse_attention

    pretend_gpu()
    patterns: Any = fuse_attention._get_sfdp_patterns
    patterns = getattr(patterns, "__wrapped__", patterns)
    fuse_attention._get_sfdp_patterns = lambda _=None: patterns(torch.device("cpu"))
    fake.init_gpu_context = lambda _: None


def run_again_with_hooks() -> None:
    """Torch asks for its hooks as it loads: this process again, with them loaded before."""
    with tempfile.TemporaryDirectory() as folder:
        library = build_library(HOOKS, Path(folder))
        environment = {**os.environ, "LD_PRELOAD": str(library), PRELOADED: "1"}
        command = [sys.executable, "-m", "bench.same_graph", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)


def main(argv: Sequence[str] | None = None) -> int:
    """Trace, compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [name for name in CASES if name not in LEFT_OUT]
    parser.add_argument(
        "--cases", nargs="+", choices=known, default=known, metavar="CASE", help=f"of {', '.join(known)}"
    )
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--json", nargs="?", type=Path, const=RESULT, metavar="FILE")
    chosen = parser.parse_args(argv)
    if torch.version.cuda is None:
        parser.error("this torch is not built for CUDA and does not know what its operators become there")
    if PRELOADED not in os.environ:
        run_again_with_hooks()
    pretend_all()
    rows = []
    for name in chosen.cases:
        for dtype in chosen.dtypes:
            rows.append(compare(name, dtype))
            row = rows[-1]
            print(f"{name:16s} {dtype:8s}  {row.ops:6d} ops  {row.verdict}", flush=True)
    same, traced = sum(row.is_same for row in rows), sum(not row.reason for row in rows)
    print(f"{same} of {traced} graphs are the same, {len(rows) - traced} could not be traced")
    if chosen.json:
        result = {**describe_machine(), "same": same, "traced": traced, "rows": [*map(asdict, rows)]}
        write_whole(chosen.json, json.dumps(result, indent=1) + "\n")
    return int(same < len(rows))


if __name__ == "__main__":
    sys.exit(main())
