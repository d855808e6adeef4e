"""Fresh interpreters that run a script or a module of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

ROOT = Path(__file__).parents[1]


def start_python(script: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """`script` in a fresh interpreter with the caches of this test run; `-m name` runs a module instead."""
    run = script.split() if script.startswith("-m ") else ["-c", script]
    env = {**os.environ, **environment}
    command = [sys.executable, *run, *map(str, arguments)]
    return subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=env, cwd=ROOT)


# What a torch built for CUDA says where a CUDA toolkit is found, but no device.
NO_DEVICE = "No CUDA runtime is found"


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """(stdout, stderr) of a process that must succeed, without torch's word on CUDA; one that hangs is killed."""
    try:
        stdout, stderr = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, stderr[-3000:]
    said = [line for line in stderr.splitlines(keepends=True) if NO_DEVICE not in line]
    return stdout, "".join(said)


@contextmanager
def killed_at_the_end(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that would run for ever; SIGKILL where the block ends."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
