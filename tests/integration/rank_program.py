"""One rank of a job of two, run as a process by `test_processes.py`; prints what it saw as JSON.

Usage: python -m tests.integration.rank_program RANK FILE
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._inductor.async_compile import AsyncCompile
from torch.distributed import _functional_collectives as collectives
from torch.nn import functional

import rematpass
from rematpass import device
from rematpass.cost.memory import DeviceMemory
from tests.kernels import compile_together

MIB = 2**20


class Reduced(nn.Module):
    """Layers whose activations are summed over all ranks, as in tensor parallelism."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).sigmoid()
            x = collectives.all_reduce(x * (1 + x), "sum", dist.group.WORLD).tanh() * x
        return x.sum()


class Attention(nn.Module):
    """Blocks of written-out attention with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 48) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            q, k, v = block(functional.layer_norm(x, (16,))).chunk(3, dim=-1)
            x = x + functional.dropout((q @ k.transpose(-1, -2)).softmax(-1), 0.1) @ v
        return x.square().mean()


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.SiLU()),
    )


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "reduced": (Reduced, (32, 8)),
    "attention": (Attention, (2, 16, 16)),
    "convolutions": (convolutions, (2, 3, 16, 16)),
    "alone": (lambda: nn.Linear(4, 4), (2, 4)),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = CASES[name]
    return make(), torch.randn(shape)


def plan_all() -> dict[str, list[str]]:
    """Plans of every case at three budgets, as bytes."""
    found = {}
    for name in CASES:
        model, x = build(name)
        fastest = rematpass.plan(model, (x,), memory_budget="none")
        top, bottom = fastest.fastest_peak_bytes, fastest.smallest_peak_bytes
        budgets = [top, (top + bottom) // 2, bottom]
        found[name] = [rematpass.plan(model, (x,), memory_budget=budget).to_json() for budget in budgets]
    return found


def step(budget: object, name: str = "reduced", backwards: int = 1) -> dict[str, Any]:
    """Compiled steps that add up their gradients: the last plan, the gradients, and what was warned of."""
    torch._dynamo.reset()
    model, x = build(name)
    compiled = torch.compile(model, backend="rematpass", options={"memory_budget": budget, "cpp.simdlen": 1})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(backwards):
            compiled(x).sum().backward()
    (plan,) = rematpass.plans(compiled)
    told = [str(w.message) for w in caught if "rematpass" in str(w.message)]
    return {"plan": plan.to_json(), "gradients": gradients(model), "told": told}


def gradients(model: nn.Module) -> list[list[float]]:
    return [p.grad.flatten().tolist() for p in model.parameters()]


def eager() -> list[list[float]]:
    model, x = build("reduced")
    model(x).backward()
    return gradients(model)


def on_device(total_bytes: int, free_bytes: int) -> None:
    """From now on, the device has that memory."""
    device.device_memory = lambda _: DeviceMemory(total_bytes, free_bytes)


def main(rank: int, file: str) -> None:
    AsyncCompile.cpp_pybinding = compile_together
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=timedelta(seconds=280)
    )
    seen: dict[str, Any] = {"plans": plan_all(), "eager": eager(), "none": step("none")}
    plan = rematpass.Plan.from_json(seen["none"]["plan"])
    top, bottom = plan.fastest_peak_bytes, plan.smallest_peak_bytes
    seen["tight"] = step(bottom)
    seen["accumulated"] = step(top, backwards=2)
    # Of a device that is twice as large on the one rank, half is another budget, and another plan.
    on_device(2 * (top, bottom)[rank], 0)
    seen["half"] = step("50%")
    # What is free differs by little, then by much.
    on_device(1024 * MIB, (1000, 990)[rank] * MIB)
    seen["auto"] = step("auto")
    on_device(1024 * MIB, (1000, 500)[rank] * MIB)
    if rank == 1:
        dist.barrier()  # rank 0 asks first, or it would be chance who is heard
    seen["scarce"] = step("auto", "alone")
    if rank == 0:
        dist.barrier()
        seen["alone"] = step("none", "alone")  # which rank 1 never compiles
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
