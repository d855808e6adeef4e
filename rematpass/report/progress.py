"""How far a long command is.

In: ticks. Out: a bar on a terminal, plain lines elsewhere. Never changes what is run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Tick:
    """One finished piece of work: of which part, the how-manieth of how many, and what to say about it."""

    part: str
    done: int
    total: int
    words: str = ""


Advance = Callable[[Tick], None]


@contextmanager
def open_progress(stream: TextIO, total: int) -> Iterator[Advance]:
    """A function to call after each of `total` pieces: a bar where `stream` is a terminal and rich is there.

    Elsewhere one line is printed for every finished part.
    """
    if stream.isatty() and _has_rich():
        with _open_bar(stream, total) as advance:
            yield advance
    else:
        yield lambda tick: _print_part(stream, tick)


@contextmanager
def show_busy(stream: TextIO, words: str) -> Iterator[None]:
    """While the block runs, say so where `stream` is a terminal and rich is there; nothing is written elsewhere."""
    if not (stream.isatty() and _has_rich()):
        yield
        return
    from rich.console import Console

    with Console(file=stream).status(words):
        yield


@contextmanager
def drop_stderr_lines(prefix: str) -> Iterator[None]:
    """Drop lines with this prefix from what the process, C++ included, writes to stderr inside the block.

    torch's profiler announces itself there with every use, which tears a progress bar. All other lines are written
    when the block ends.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held_back:
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held_back.seek(0)
            os.write(2, b"".join(line for line in held_back if not line.startswith(prefix.encode())))


def _print_part(stream: TextIO, tick: Tick) -> None:
    if tick.done == tick.total:
        print(f"{tick.part}: {tick.done} of {tick.total} {tick.words}".rstrip(), file=stream, flush=True)


def _has_rich() -> bool:
    from importlib.util import find_spec

    return find_spec("rich") is not None


@contextmanager
def _open_bar(stream: TextIO, total: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda tick: bar.update(task, advance=1, description=f"{tick.part} {tick.words}".rstrip())
