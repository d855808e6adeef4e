"""Real text that every machine has: the sources of Python's standard library.

In: a folder and a seed. Out: bytes and batches of them, the same on every call. Never reads site-packages or tests.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from rematpass.errors import RematError

TEXT_BYTES = 4_000_000
"""Enough that a short run never reads a byte twice, little enough to load in well under a second."""

_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})

Batch = tuple[Tensor, Tensor]


def load_text(root: str | Path | None = None, limit_bytes: int = TEXT_BYTES) -> bytes:
    """The first `limit_bytes` bytes of the .py files under `root`, in the order of their paths.

    Args:
        root: a folder; the standard library of this Python when None.
        limit_bytes: where to stop.

    Raises:
        RematError: there is no .py file to read.
    """
    folder = Path(root) if root is not None else Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    for path in _source_files(folder):
        text += path.read_bytes()
        if len(text) >= limit_bytes:
            break
    if not text:
        raise RematError(f"no .py sources under {folder}. Try: a Python that has its standard library as source")
    return bytes(text[:limit_bytes])


def sample_batches(text: bytes, count: int, batch: int, context: int, seed: int) -> list[Batch]:
    """`count` pairs (ids, targets), each int64 of shape (batch, context); the targets are one byte ahead.

    Raises:
        RematError: the text is shorter than one sequence.
    """
    if len(text) <= context + 1:
        raise RematError(f"the text has {len(text)} bytes, a sequence needs {context + 2}. Try: a shorter --context")
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - context - 1, (count, batch), generator=generator)
    windows = data[starts[..., None] + torch.arange(context + 1)].long()
    return [(window[:, :-1].contiguous(), window[:, 1:].contiguous()) for window in windows]


def _source_files(folder: Path) -> Iterator[Path]:
    """The .py files below `folder`, sorted, walking only into folders that are read."""
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        if path.is_dir() and path.name not in _SKIPPED:
            yield from _source_files(path)
        elif path.suffix == ".py" and path.is_file():
            yield path
