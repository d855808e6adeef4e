"""Names that users type. A change here is a change of the contract: it belongs in the changelog."""

import rematpass
from rematpass.options import OPTION_NAMES


def test_public_names():
    assert set(rematpass.__all__) == {
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
    }


def test_every_public_name_is_there():
    assert [name for name in rematpass.__all__ if not hasattr(rematpass, name)] == []


def test_option_names():
    assert set(OPTION_NAMES) == {
        "cost_model",
        "memory_budget",
        "mode",
        "on_error",
        "on_infeasible",
        "plan",
        "recompute",
        "reserve",
        "save",
        "time_limit",
        "verify",
    }
