"""Measured prices: what the operators of a graph take on the device that is here.

In: a joint graph and a `PriceBook`. Out: nanoseconds by value. Never measures an operator twice on one machine, never
puts another price in place of a missing one without saying so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import fx

from .check.clock import time_op
from .cost.op_prices import OpPrices, PriceBook, require_time
from .declared import DeclaredOp
from .files import write_first, write_whole
from .graph.capture import JointProgram
from .graph.facts import Facts
from .graph.signature import op_signature
from .ranks import first_said
from .report.progress import Tick, open_progress

logger = logging.getLogger(__name__)

SHOWN = 10  # operators that a warning lists
LONG = 8  # from so many operators to measure on, a terminal gets a progress bar

Times = dict[str, int | None]


def measured_ns(
    joint: JointProgram, facts: Facts, book: PriceBook, declared: Mapping[str, DeclaredOp]
) -> dict[int, int]:
    """Nanoseconds by value id, for the operators that have a time of their own (see `op_signature`).

    What the book does not have is measured where the book is open. Ranks of a job use the times of one of them.
    """
    wanted = {i: op_signature(node, declared) for i, node in enumerate(joint.nodes)}
    nodes = {signature: joint.nodes[i] for i, signature in wanted.items() if signature is not None}
    times = _times_of(nodes, facts.device_type, book)
    times = _shared(times, book)
    _warn_missing([signature for signature in nodes if times.get(signature) is None], len(nodes), book)
    found = {i: times.get(signature) for i, signature in wanted.items() if signature is not None}
    return {i: time_ns for i, time_ns in found.items() if time_ns is not None}


def collect_prices(book: PriceBook) -> OpPrices:
    """All times that an open book's folder has, to be written into one file."""
    records = (_read_time(path) for path in Path(book.source).glob("op-*.json"))
    found = sorted(record for record in records if record is not None)
    return OpPrices(book.known.device, book.known.torch_version, tuple(found))


def _times_of(nodes: Mapping[str, fx.Node], device_type: str, book: PriceBook) -> Times:
    """What the book has, and what is measured for it now; None for what cannot be measured."""
    if not book.is_open:
        known = dict(book.known.nanoseconds)
        return {signature: known[signature] for signature in nodes if signature in known}
    folder = Path(book.source)
    stored = {signature: _read_time(_path_of(folder, signature)) for signature in nodes}
    times: Times = {signature: record[1] for signature, record in stored.items() if record is not None}
    missing = [signature for signature in nodes if signature not in times]
    is_shown = len(missing) >= LONG and sys.stderr.isatty()
    with open_progress(sys.stderr, len(missing)) if is_shown else nullcontext(_silent) as advance:
        for done, signature in enumerate(missing, start=1):
            times[signature] = _measure(nodes[signature], device_type, folder, signature)
            advance(Tick("timing operators", done, len(missing)))
    return times


def _silent(tick: Tick) -> None:
    logger.debug("rematpass: %s %d of %d", tick.part, tick.done, tick.total)


def _measure(node: fx.Node, device_type: str, folder: Path, signature: str) -> int | None:
    """Time one operator and keep what was found; of several processes that do so at once, all take one result."""
    path = _path_of(folder, signature)
    write = write_whole if path.exists() else write_first  # asked now: what comes while we measure is to stay
    time_ns, reason = time_op(node, device_type)
    logger.info("rematpass: %s takes %s ns %s", signature, time_ns, reason)
    record = {"op": signature, "nanoseconds": time_ns, "reason": reason}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write(path, json.dumps(record, indent=1) + "\n")
    except OSError as error:
        logger.warning("rematpass: the time of an operator is not kept in %s (%s)", folder, error)
        return time_ns
    kept = _read_time(path)
    return time_ns if kept is None else kept[1]


def _path_of(folder: Path, signature: str) -> Path:
    return folder / f"op-{hashlib.sha256(signature.encode()).hexdigest()[:32]}.json"


def _read_time(path: Path) -> tuple[str, int | None] | None:
    """(operator, time) as kept in a file; None when there is none, and with a warning when it cannot be used."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        require_time(record["op"], record["nanoseconds"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:  # OptionError is a ValueError
        logger.warning("rematpass: the operator time in %s cannot be used (%s); measuring again", path, error)
        return None
    return record["op"], record["nanoseconds"]


def _shared(times: Times, book: PriceBook) -> Times:
    """The times of the rank that priced this graph first: two measurements of one operator would give two plans."""
    topic = hashlib.sha256(json.dumps([book.identity, sorted(times)]).encode()).hexdigest()
    said: Times = json.loads(first_said(f"times/{topic}", json.dumps(times)))
    for op, time_ns in said.items():
        require_time(op, time_ns)
    return said


def _warn_missing(missing: Sequence[str], total: int, book: PriceBook) -> None:
    if not missing:
        return
    listed = "\n".join(f"  {signature}" for signature in missing[:SHOWN])
    more = f"\n  and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    why = "could not be measured" if book.is_open else "are not in the file"
    hint = "the reasons stand in the files of" if book.is_open else "cost_model='measured', or measure again for"
    warnings.warn(
        f"rematpass: {len(missing)} of {total} operators {why} and are priced by the roofline:\n{listed}{more}\n"
        f"Try: {hint} {book.source}",
        stacklevel=2,
    )
