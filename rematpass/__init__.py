"""rematpass: train a PyTorch model within a byte budget, at the least extra time.

In: a model and a budget. Out: the public names below. Never needs an import for `backend="rematpass"` itself.
"""

from .api import inductor_options, partition_fn, plan, plans
from .check.measure import measure_peak
from .errors import BudgetTooSmall, OptionError, RematError
from .plan import Plan

__version__ = "0.1.0"

__all__ = [
    "BudgetTooSmall",
    "OptionError",
    "Plan",
    "RematError",
    "__version__",
    "inductor_options",
    "measure_peak",
    "partition_fn",
    "plan",
    "plans",
]
