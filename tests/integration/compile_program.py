"""Compiles one training step over and over and is killed at it, by itself; run as a process by `test_processes.py`.

Torch is imported once; each attempt is a fork of this process, in a group of its own. Prints as JSON what the last one,
which nobody kills, saw with the caches the killed ones left, and what one with fresh caches saw.

Usage: python -m tests.integration.compile_program FOLDER KILLS
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._inductor.compile_fx  # once, not in every fork
from torch import nn

import rematpass
import rematpass.backend


def compile_step() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(4)))  # nothing that takes a C++ compiler
    x = torch.ones(64, 8)
    model(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, backend="rematpass", options={"memory_budget": 2**30, "cpp.simdlen": 1})
    compiled(x).sum().backward()
    is_right = all(torch.allclose(p.grad, e, rtol=1e-4) for p, e in zip(model.parameters(), expected, strict=True))
    return {"plans": [plan.to_json() for plan in rematpass.plans(compiled)], "is_right": is_right}


def start(caches: Path, result: Path) -> int:
    """The process number of a fork that compiles with these caches and writes what it saw."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    os.environ.update(REMATPASS_CACHE_DIR=str(caches / "rematpass"), TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"))
    code = 1
    try:
        result.write_text(json.dumps(compile_step()))
        code = 0
    finally:
        os._exit(code)


def finish(child: int, result: Path) -> dict[str, Any]:
    assert os.waitpid(child, 0)[1] == 0
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def main(folder: Path, kills: int) -> None:
    begin = time.monotonic()
    fresh = finish(start(folder / "fresh", folder / "fresh.json"), folder / "fresh.json")
    longest = time.monotonic() - begin
    chance = random.Random(0)
    for number in range(kills):
        child = start(folder / "shared", folder / "killed.json")
        time.sleep(longest * (number + chance.random()) / kills)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    left = [str(path.relative_to(folder)) for path in folder.rglob(".rematpass-*")]
    last = finish(start(folder / "shared", folder / "last.json"), folder / "last.json")
    sys.stdout.write(json.dumps({"fresh": fresh, "last": last, "left": left}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
