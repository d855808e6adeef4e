"""The solver: integers in, a decision out. Knows neither torch nor graphs.

By itself: `rematpass.solve.solve(Problem(...), budget_bytes)`, or `rematpass.solve(...)` for short.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

try:
    import_module("._core", __name__)  # before those that need it
except ImportError as error:
    raise ImportError(
        "rematpass's compiled core is missing or was built for another Python: `pip install -e .` in its folder builds "
        f"it (a C++ compiler and Python's headers are needed). Python says: {error}"
    ) from error
from .problem import Problem, Solution, replay, solve

__all__ = ["Problem", "Solution", "replay", "solve"]


class _Callable(ModuleType):
    """The room is named like its main function: calling the one calls the other."""

    def __call__(self, *args: Any, **kwargs: Any) -> Solution:
        return solve(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
