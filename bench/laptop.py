"""Planning large models without a GPU and without weights: seconds and memory of the whole process.

In: sizes of LLaMA-like models. Out: a table, and with --json a result file. Each model has a process of its own, and
one more in which torch alone traces it, so that the machine's speed can be told from ours. Never decides.

    python -m bench.laptop                      both models
    python -m bench.laptop --case llama-7b --json bench/results/laptop.json
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model: blocks, width, heads, heads of keys, width inside the feed-forward part, words, and what is allowed."""

    layers: int
    width: int
    heads: int
    key_heads: int
    inner: int
    budget: str
    device: str
    most_seconds: float
    most_gib: float


# Published sizes of LLaMA 7B and of Llama 2 70B; budgets that only some recomputation meets. 70B in bfloat16 fits no
# single device: its budget is a number of bytes, prices are one H200's.
CASES = {
    "llama-7b": Case(32, 4096, 32, 32, 11008, "27GiB", "h100-sxm", 15, 1),
    "llama-70b": Case(80, 8192, 64, 8, 28672, "300GiB", "h200-sxm", 35, 2),
}
WORDS, SEQUENCE, BATCH = 32_000, 4096, 1


def rotate(x: Any, cosine: Any, sine: Any) -> Any:
    """Rotary positions: (..., sequence, width of a head) tensors in and out."""
    import torch

    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


def angles(width: int, tokens: Any) -> Any:
    """By what each place and channel is rotated: (sequence, width of a head)."""
    import torch

    places = torch.arange(tokens.shape[1], device=tokens.device)
    speed = 10_000.0 ** (-torch.arange(0, width, 2, device=tokens.device) / width)
    return torch.outer(places, speed).repeat(1, 2)


def build(case: Case) -> tuple[Any, Any, Any]:
    """The model and its tokens and labels; call it under `torch.device("meta")`."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(case.width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = x.float()
            return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = case.width // case.heads
            self.norm1, self.norm2 = Norm(), Norm()
            self.q = nn.Linear(case.width, case.width, bias=False)
            self.k = nn.Linear(case.width, case.key_heads * self.each, bias=False)
            self.v = nn.Linear(case.width, case.key_heads * self.each, bias=False)
            self.out = nn.Linear(case.width, case.width, bias=False)
            self.gate = nn.Linear(case.width, case.inner, bias=False)
            self.up = nn.Linear(case.width, case.inner, bias=False)
            self.down = nn.Linear(case.inner, case.width, bias=False)

        def split(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(*x.shape[:2], -1, self.each).transpose(1, 2)

        def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
            y = self.norm1(x)
            q, k = (rotate(self.split(z), cosine, sine) for z in (self.q(y), self.k(y)))
            v = self.split(self.v(y))
            k, v = (z.repeat_interleave(case.heads // case.key_heads, dim=1) for z in (k, v))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            y = self.norm2(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(WORDS, case.width)
            self.layers = nn.ModuleList(Block() for _ in range(case.layers))
            self.norm = Norm()
            self.head = nn.Linear(case.width, WORDS, bias=False)

        def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            angle = angles(case.width // case.heads, tokens)
            x = self.embed(tokens)
            cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
            for layer in self.layers:
                x = layer(x, cosine, sine)
            return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), labels.flatten())

    tokens = torch.zeros((BATCH, SEQUENCE), dtype=torch.long)
    return Llama(), tokens, tokens.clone()


def measure(name: str) -> dict[str, Any]:
    """Plan one model in this process."""
    case, start = CASES[name], time.perf_counter()
    import torch

    import rematpass

    imported = time.perf_counter()
    with torch.device("meta"):
        model, *arguments = build(case)
    plan = rematpass.plan(model, arguments, device=case.device, dtype="bf16", memory_budget=case.budget)
    end = time.perf_counter()
    return {
        "case": name,
        "sizes": asdict(case),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "import_seconds": round(imported - start, 2),
        "all_seconds": round(end - start, 2),
        "planning_seconds": round(plan.plan_seconds, 2),
        "process_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "ops": len(plan.timeline),
        "parameters_gib": round(sum(p.numel() for p in model.parameters()) * 2 / 2**30, 1),
        "peak_gib": round(plan.peak_bytes / 2**30, 2),
        "fastest_peak_gib": round(plan.fastest_peak_bytes / 2**30, 2),
        "recompute_fraction": round(plan.recompute_fraction, 4),
        "gap": plan.gap,
    }


def measure_bare(name: str) -> dict[str, Any]:
    """Trace one model in this process with torch alone: forward and backward, split as torch does, nothing compiled."""
    start = time.perf_counter()
    import torch
    from functorch.compile import default_partition, make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    with torch.device("meta"):
        model, *arguments = build(CASES[name])
    backend = aot_autograd(fw_compiler=lambda half, _: make_boxed_func(half.forward), partition_fn=default_partition)
    torch.compile(model.to(torch.bfloat16), backend=backend, fullgraph=True)(*arguments).backward()
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "bare_trace_seconds": round(time.perf_counter() - start, 2),
        "bare_trace_gib": round(peak_kib / 2**20, 2),
    }


INSIDE = {"plan": measure, "bare": measure_bare}


def run_apart(name: str, what: str) -> dict[str, Any]:
    """What a process of its own prints."""
    command = [sys.executable, "-m", "bench.laptop", "--inside", what, "--case", name]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    """Run the cases one after another, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--inside", choices=INSIDE, help="do this in the present process and print JSON")
    arguments = parser.parse_args()
    names = arguments.case or list(CASES)
    if arguments.inside:
        print(json.dumps(INSIDE[arguments.inside](names[0])))
        return
    rows = []
    for name in names:
        row, case = run_apart(name, "plan") | run_apart(name, "bare"), CASES[name]
        rows.append(row)
        times = row["all_seconds"] / row["bare_trace_seconds"]
        print(
            f"{name}: {row['all_seconds']} s in all (aim: {case.most_seconds}), {times:.2f} times torch's bare trace "
            f"({row['bare_trace_seconds']} s, {row['bare_trace_gib']} GiB), of which planning "
            f"{row['planning_seconds']} s (aim: 1 for 7B), {row['process_gib']} GiB (aim: {case.most_gib}), "
            f"{row['ops']} ops, peak {row['fastest_peak_gib']} -> {row['peak_gib']} GiB for "
            f"{row['recompute_fraction']:+.1%} of the step"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
