"""How large a dimension is planned to be, and a tensor with it.

In: a size, symbolic where a dimension is dynamic. Out: an int: the largest it may become, so that a plan that fits
holds for every smaller one. Never adds a guard, but for a limit that it was told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from .. import torch_compat

UNBACKED_SIZE = 4096
"""Stands for a size that depends on data and that nothing bounds.

Origin: the usual number of tokens a device gets at once; set 2026-11. At half, ops after data-dependent shapes look
half as expensive and are recomputed more readily; at twice, they are kept more readily. No other op is concerned.
"""


@dataclass(frozen=True, slots=True)
class OpenSize:
    """A dynamic dimension without an upper bound, and the value that is planned for."""

    symbol: str
    planned: int


@dataclass(frozen=True, slots=True)
class GrowingSize:
    """A dynamic dimension of an input without an upper bound, for which the compiler would compile again."""

    seen: int
    size: torch.SymInt


def concrete(size: int | torch.SymInt) -> int:
    """The value planned for: upper bound or limit of a dynamic dimension, what the trace saw where it has none.

    A size that depends on data (`nonzero`) has no value in the trace: its bound, or `UNBACKED_SIZE`. `int(size)` would
    fix a dynamic dimension for good; here ranges and values are only read.

    >>> concrete(7)
    7
    """
    if not isinstance(size, torch.SymInt):
        return int(size)
    return torch_compat.evaluated(size, _planned(size))


def _planned(size: torch.SymInt) -> dict[str, int]:
    bounds, seen = torch_compat.upper_bounds(size), torch_compat.traced_with(size)
    return {symbol: _first(bounds[symbol], seen[symbol], UNBACKED_SIZE) for symbol in bounds}


def _first(*candidates: int | None) -> int:
    return next(c for c in candidates if c is not None)


def elements_of(tensor: torch.Tensor | None) -> int:
    """How many it has; 0 for none."""
    return 0 if tensor is None else math.prod(map(concrete, tensor.shape))


def bytes_of(tensor: torch.Tensor | None) -> int:
    """Bytes of its elements; 0 for none."""
    return 0 if tensor is None else elements_of(tensor) * tensor.element_size()


def storage_bytes(value: torch.Tensor) -> int:
    """Bytes a tensor of this shape and stride occupies: the span of its elements, not their number."""
    if value.layout is not torch.strided:
        return sum(concrete(s) for s in value.shape) * value.element_size()
    span = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        if concrete(size) == 0:
            return 0
        span += (concrete(size) - 1) * concrete(stride)
    return span * value.element_size()


def is_row_major(tensor: torch.Tensor) -> bool:
    """Whether `contiguous()` is no copy."""
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if concrete(size) != 1 and concrete(stride) != step:
            return False
        step *= concrete(size)
    return True


def open_sizes(values: Iterable[object]) -> tuple[OpenSize, ...]:
    """Dynamic dimensions of any value of a graph that may exceed what is planned for, by name."""
    found: dict[str, int] = {}
    for size in (size for value in values if isinstance(value, torch.Tensor) for size in _symbolic_sizes(value)):
        bounds, planned = torch_compat.upper_bounds(size), _planned(size)
        found.update((s, planned[s]) for s, bound in bounds.items() if bound is None)
    return tuple(OpenSize(symbol, found[symbol]) for symbol in sorted(found))


def growing_sizes(values: Iterable[object]) -> dict[str, GrowingSize]:
    """Dynamic dimensions of inputs that may exceed what is planned for, where a guard would make the compiler return.

    By symbol; a symbol that occurs in sums or products only is left out.
    """
    found: dict[str, GrowingSize] = {}
    for size in (size for value in values for size in _symbolic_sizes(value)):
        symbol = torch_compat.symbol_of(size)
        if symbol is None or symbol in found or not torch_compat.is_guarded(size):
            continue
        seen = torch_compat.traced_with(size)[symbol]
        if seen is not None and torch_compat.upper_bounds(size)[symbol] is None:
            found[symbol] = GrowingSize(seen, size)
    return found


def _symbolic_sizes(value: object) -> Iterable[torch.SymInt]:
    sizes: Iterable[object] = value.shape if isinstance(value, torch.Tensor) else (value,)
    return (size for size in sizes if isinstance(size, torch.SymInt))


def next_power(size: int) -> int:
    """The smallest power of two that is not smaller.

    >>> next_power(5), next_power(8)
    (8, 8)
    """
    return 1 << (size - 1).bit_length()


def plan_up_to(sizes: Mapping[str, GrowingSize], limits: Mapping[str, int]) -> None:
    """Take limits for upper bounds from here on, those of an earlier call left."""
    for symbol, limit in limits.items():
        torch_compat.limit_size(sizes[symbol].size, limit)


def guard_limits(sizes: Mapping[str, GrowingSize], limits: Mapping[str, int]) -> None:
    """Let the compiler return when one of them is exceeded."""
    for symbol, limit in limits.items():
        torch_compat.guard_limit(sizes[symbol].size, limit)
