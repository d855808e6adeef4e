"""Memory that the program's own optimizers have yet to take.

In: parameters. Out: bytes of optimizer state that does not exist yet. Never steps an optimizer, never holds one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def _copies(count: int, *switches: str) -> Callable[[Tensor, Mapping[str, Any]], int]:
    """State of so many copies of a parameter, and one more for each switch of its group that is on."""
    return lambda p, group: (count + sum(bool(group.get(switch)) for switch in switches)) * p.numel() * p.itemsize


def _factored(p: Tensor, _group: Mapping[str, Any]) -> int:
    """Adafactor: a row and a column of the last two dimensions; a whole copy for a vector."""
    numbers = p.numel() if p.dim() < 2 else p.numel() // p.shape[-1] + p.numel() // p.shape[-2]
    return numbers * p.itemsize


_STATE: dict[str, Callable[[Tensor, Mapping[str, Any]], int]] = {
    **dict.fromkeys(("Adam", "AdamW"), _copies(2, "amsgrad")),
    **dict.fromkeys(("NAdam", "RAdam", "Adamax", "Adadelta", "Rprop", "SparseAdam"), _copies(2)),
    "SGD": _copies(0, "momentum"),
    "RMSprop": _copies(1, "momentum", "centered"),
    "Muon": _copies(1),
    "ASGD": _copies(1),
    "Adagrad": _copies(1),
    "Adafactor": _factored,
}
"""Bytes of state per parameter, by the name of the class in torch.optim (2.11 to 2.15), counters left out."""


@dataclass(frozen=True)
class StateToCome:
    """What optimizers will take with their first step.

    Attributes:
        bytes: of all parameters that they hold and have no state for.
        names: of the optimizers' classes, sorted.
        unknown: of those classes whose state is not known; nothing is counted for them.
    """

    bytes: int = 0
    names: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def state_to_come(inputs: Iterable[object]) -> StateToCome:
    """What the optimizers that hold some of these parameters will take; they are found among all living objects."""
    wanted = {id(value) for value in inputs if isinstance(value, torch.nn.Parameter)}
    if not wanted:
        return StateToCome()
    total, names, unknown = 0, set[str](), set[str]()
    for optimizer in _living_optimizers():
        pending = _pending(optimizer)
        if not any(id(p) in wanted for p, _ in pending):
            continue
        count = _counter(type(optimizer))
        names.add(type(optimizer).__name__)
        if count is None:
            unknown.add(type(optimizer).__name__)
            continue
        total += sum(count(p, group) for p, group in pending)
    return StateToCome(total, tuple(sorted(names)), tuple(sorted(unknown)))


def _living_optimizers() -> list[Optimizer]:
    # By the type, not isinstance: that asks an object for its class, which lazy ones answer by importing something.
    return [found for found in gc.get_objects() if issubclass(type(found), Optimizer)]


def _pending(optimizer: Optimizer) -> list[tuple[Tensor, Mapping[str, Any]]]:
    """Parameters that learn and have no state, with their groups."""
    pairs = ((p, group) for group in optimizer.param_groups for p in group["params"])
    return [(p, group) for p, group in pairs if p.requires_grad and not optimizer.state.get(p)]


def _counter(kind: type) -> Callable[[Tensor, Mapping[str, Any]], int] | None:
    """By the nearest class of torch.optim that it inherits from."""
    own = (base for base in kind.__mro__ if base.__module__.startswith("torch.optim") and base is not Optimizer)
    nearest = next(own, None)
    return None if nearest is None else _STATE.get(nearest.__name__)
