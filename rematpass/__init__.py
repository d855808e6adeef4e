"""rematpass: train a PyTorch model within a byte budget, at the least extra time.

In: a model and a budget. Out: the public names below. Never needs an import for `backend="rematpass"` itself. Names are
loaded when first used, so that `rematpass.solve` works where torch is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from . import solve
    from .api import Curve, CurvePoint, MaxSize, frontier, inductor_options, max_size, partition_fn, plan, plans
    from .check.measure import measure_peak
    from .declared import register_op
    from .device import save_prices
    from .errors import BudgetTooSmall, OptionError, PlanFileError, ProblemError, RematError
    from .formula.record import PeakFormula
    from .naming import name
    from .other_sizes import Crossover
    from .plan_file import load_plan
    from .plan_types import Plan
    from .solve.problem import Problem, Solution

_ROOMS = {
    "api": (
        "Curve",
        "CurvePoint",
        "MaxSize",
        "frontier",
        "inductor_options",
        "max_size",
        "partition_fn",
        "plan",
        "plans",
    ),
    "check.measure": ("measure_peak",),
    "declared": ("register_op",),
    "device": ("save_prices",),
    "errors": ("BudgetTooSmall", "OptionError", "PlanFileError", "ProblemError", "RematError"),
    "formula.record": ("PeakFormula",),
    "naming": ("name",),
    "other_sizes": ("Crossover",),
    "plan_file": ("load_plan",),
    "plan_types": ("Plan",),
    "solve.problem": ("Problem", "Solution"),
}

__all__ = [
    "BudgetTooSmall",
    "Crossover",
    "Curve",
    "CurvePoint",
    "MaxSize",
    "OptionError",
    "PeakFormula",
    "Plan",
    "PlanFileError",
    "Problem",
    "ProblemError",
    "RematError",
    "Solution",
    "__version__",
    "frontier",
    "inductor_options",
    "load_plan",
    "max_size",
    "measure_peak",
    "name",
    "partition_fn",
    "plan",
    "plans",
    "register_op",
    "save_prices",
    "solve",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its room."""
    if name == "solve":
        return import_module(".solve", __name__)
    for room, names in _ROOMS.items():
        if name in names:
            return getattr(import_module(f".{room}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
