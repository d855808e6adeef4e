"""What the ranks of a job have in common, so that all make one plan.

In: what this rank would use, or has planned. Out: what the rank that came first uses, or a warning that plans differ.
Never waits for another rank: a question is one exchange with the job's key-value store, so ranks may compile different
graphs, at different times, or nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist

from . import torch_compat
from .cost.device_model import DeviceModel
from .cost.op_prices import OpPrices, PriceBook
from .errors import OptionError
from .plan_types import Plan

_LOG = logging.getLogger(__name__)


def first_said(topic: str, mine: str) -> str:
    """What the first rank to ask about `topic` said: `mine`, where that is this rank or there are no others."""
    store = _job_store()
    if store is None:
        return mine
    try:
        said: bytes = store.compare_set(f"rematpass/{topic}", "", mine)
    except RuntimeError as error:  # all of torch.distributed's errors are
        _LOG.warning("rematpass: plans are not compared with those of other ranks: the job's store fails (%s)", error)
        return mine
    return said.decode() or mine


def is_alone() -> bool:
    """Whether there are no other ranks to agree with."""
    return _job_store() is None


def _job_store() -> Any:
    """The key-value store of a job of several ranks; None outside of one."""
    is_job = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return torch_compat.default_store() if is_job else None


def share_device(device_type: str, mine: DeviceModel) -> DeviceModel:
    """The figures that all ranks price with: two processors, or two measurements of one, would give two plans."""
    said = first_said(f"device/{device_type}", mine.to_json())
    try:
        model = DeviceModel.from_json(said)
    except OptionError as error:
        _LOG.warning("rematpass: prices of this rank alone: another rank runs another version (%s)", error)
        return mine
    if model != mine:
        _LOG.info("rematpass: prices of %s, which another rank measured or has", model.source)
    return model


def share_book(device_type: str, mine: PriceBook) -> PriceBook:
    """The measured times that all ranks price with: those of the first rank's file, or under its folder's name."""
    content = mine.known.to_json() if not mine.is_open else ""
    said = json.loads(first_said(f"prices/{device_type}", json.dumps([mine.is_open, mine.identity, content])))
    is_open, identity, text = said
    if identity == mine.identity:
        return mine
    if is_open != mine.is_open:
        raise OptionError("the ranks of this job have different cost_models. Try: the same one on every rank")
    known = mine.known if is_open else OpPrices.from_json(text)
    _LOG.info("rematpass: operator times of %s, as another rank has them", known.device)
    return dataclasses.replace(mine, known=known, identity=identity)


def share_budget(topic: str, mine: int, free_bytes: int) -> int:
    """The "auto" budget of the rank that planned this first, if this rank has as much free."""
    said = first_said(f"budget/{topic}", str(mine))
    if not said.isdecimal() or int(said) > free_bytes:
        return mine  # the plans will differ, and `compare_plans` says so
    return int(said)


def compare_plans(topic: str, plans: Sequence[Plan]) -> None:
    """Warn when the rank that compiled the same graph with the same options first has planned it differently.

    Gradients are right all the same: nothing that communicates is recomputed, and the backward's own ops keep their
    order in every plan.
    """
    if is_alone():
        return
    rank, mine = dist.get_rank(), [_summary(plan) for plan in plans]
    first, theirs = json.loads(first_said(f"plans/{topic}", json.dumps([rank, mine])))
    found = list(_differences(mine, theirs))
    if found:
        warnings.warn(
            f"rematpass: rank {rank} and rank {first} planned one graph differently: {', '.join(found)}. Gradients "
            "are right, but memory and time differ between the ranks. Try: on every rank the same memory_budget in "
            "bytes, the same number of threads, and the same versions of torch and rematpass",
            stacklevel=2,
        )


def _summary(plan: Plan) -> dict[str, str]:
    """Per field of a plan its value, or a digest of it where it is long."""
    texts = {name: json.dumps(value, sort_keys=True) for name, value in json.loads(plan.to_json()).items()}
    return {name: text if len(text) < 40 else hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _differences(mine: Sequence[dict[str, str]], theirs: Sequence[dict[str, str]]) -> Iterator[str]:
    """The fields that differ, with both values where they are numbers."""
    if len(mine) != len(theirs):
        yield f"{len(mine)} and {len(theirs)} plans"
    for ours, other in zip(mine, theirs, strict=False):
        for name in sorted(name for name in ours if ours[name] != other.get(name)):
            values = (ours[name], other.get(name, ""))
            yield f"{name} ({' and '.join(values)})" if all(map(str.isdecimal, values)) else name
