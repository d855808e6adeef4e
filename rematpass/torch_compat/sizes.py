"""Symbolic sizes: what their symbols stand for.

In: a symbolic int of torch, 2.11 to 2.15. Out: plain ints. Never adds a guard, but for a limit that it was told.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._guards import TracingContext  # 2.11-2.15
from torch.fx.experimental.symbolic_shapes import StrictMinMaxConstraint, statically_known_true  # 2.11-2.15

# An upper bound from here on means that nobody set one: torch writes its largest ints.
_NO_BOUND = 2**48

# What a trace is planned up to, by its shape environment: sizes are asked for by the planner and, later, by lowerings.
_LIMITS: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()


def is_known_equal(x: int | torch.SymInt, y: int | torch.SymInt) -> bool:
    """Whether two sizes are equal whatever the sizes of the inputs; adds no guard (2.11-2.15)."""
    return bool(statically_known_true(x == y))


def upper_bounds(size: torch.SymInt) -> dict[str, int | None]:
    """Per symbol of a size its largest value, None where nothing bounds it.

    Sizes of inputs are bounded by the user (`mark_dynamic(..., max=)`) or by `limit_size`: guards narrow the ranges of
    symbols, too, but leaving such a range means compiling again. Sizes that depend on data are bounded by the operator
    that made them (`nonzero` by the elements it looks at).
    """
    environment = size.node.shape_env
    declared = {**_LIMITS.get(environment, {}), **_declared_bounds(environment)}
    known = _seen_values(environment)
    found: dict[str, int | None] = {}
    for symbol in size.node.expr.free_symbols:
        own = None if symbol in known else _upper(environment.var_to_range.get(symbol))
        found[str(symbol)] = declared.get(str(symbol), own)
    return found


def symbol_of(size: torch.SymInt) -> str | None:
    """The symbol that the size is; None for a sum or a product."""
    expression = size.node.expr
    return str(expression) if expression.is_Symbol else None


def is_guarded(size: torch.SymInt) -> bool:
    """Whether dynamo traces it, which compiles again where a guard fails."""
    context = TracingContext.try_get()
    return context is not None and context.fake_mode is not None and context.fake_mode.shape_env is size.node.shape_env


def limit_size(size: torch.SymInt, limit: int) -> None:
    """Take `limit` for the upper bound of a size that is one symbol."""
    environment = size.node.shape_env
    _LIMITS[environment] = {**_LIMITS.get(environment, {}), str(size.node.expr): limit}


def guard_limit(size: torch.SymInt, limit: int) -> None:
    """Let dynamo compile again for a size above `limit`, which is at least what the trace saw."""
    assert bool(size <= limit), "no limit is below what the trace saw"


@lru_cache(maxsize=4)  # asked for every dimension of every value
def _declared_bounds(environment: Any) -> dict[str, int]:
    bounds: dict[str, int] = {}
    for fake in environment.tracked_fakes or ():
        constraints = getattr(fake.symbolic_context, "constraint_sizes", None) or ()
        for dimension, constraint in enumerate(constraints):
            size = fake.fake.shape[dimension]
            upper = _upper(constraint.vr) if isinstance(constraint, StrictMinMaxConstraint) else None
            if upper is not None and isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                bounds[str(size.node.expr)] = upper
    return bounds


def _upper(values: Any) -> int | None:
    upper = getattr(values, "upper", None)
    return int(upper) if upper is not None and upper.is_Integer and upper < _NO_BOUND else None


def traced_with(size: torch.SymInt) -> dict[str, int | None]:
    """Per symbol of a size the value it had during the trace, None where it had none."""
    known = _seen_values(size.node.shape_env)
    return {str(s): int(known[s]) if s in known else None for s in size.node.expr.free_symbols}


def _seen_values(environment: Any) -> dict[Any, Any]:
    """Renamed in 2.12; the old name stays with a warning."""
    known: dict[Any, Any] | None = getattr(environment, "backed_var_to_val", None)
    return known if known is not None else dict(environment.var_to_val)


def evaluated(size: torch.SymInt, values: dict[str, int]) -> int:
    """The size with its symbols replaced."""
    expression = size.node.expr
    return int(expression.xreplace({symbol: values[str(symbol)] for symbol in expression.free_symbols}))
