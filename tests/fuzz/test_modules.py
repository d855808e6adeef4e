"""Random modules do at every budget what they do with no limit, and what they do in eager.

The quick profile is part of the suite and always runs the same programs. The long one draws new programs every time and
says what became of them:

    FUZZ_EXAMPLES=2000 pytest -m fuzz tests/fuzz -k replay --hypothesis-seed=1
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from tests.differential.steps import SCALAR, Backend, OpByOp, close, equal

from .modules import Program, Step, deep_programs, programs
from .replay import Replay
from .trial import Tally, Trial, tolerance, torch_op_by_op

SETTINGS = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.generate, Phase.shrink],  # explaining a failure traces every line of torch
    "database": None,
}


def torch_inductor(**options):
    def wrap(model):
        torch._dynamo.reset()
        return torch.compile(model, options={**SCALAR, **options})

    return wrap


def roughly(program):
    return close(tolerance(program))


def trial(mode, tally):
    if mode in ("replay", "op_by_op"):
        executor = Replay if mode == "replay" else OpByOp
        return Trial(executor, torch_op_by_op, lambda program: equal, tally)
    draws = {"fallback_random": True} if mode == "backend_alike" else {}
    return Trial(
        Backend, torch_inductor(**draws), roughly, tally, options=tuple(draws.items()), may_draw_alike=bool(draws)
    )


def explore(mode, strategy, examples, tally, **more):
    """Run `examples` random programs."""

    @settings(**SETTINGS, max_examples=examples, **more)
    @given(strategy)
    def run(program):
        trial(mode, tally).run(program)

    run()


pytestmark = pytest.mark.usefixtures("own_caches")

# Mode, programs, most blocks in one.
QUICK = [("replay", 40, 6), ("op_by_op", 8, 4), ("backend", 1, 3), ("backend_alike", 1, 3)]


@pytest.mark.parametrize(("mode", "examples", "most"), QUICK, ids=[mode for mode, _, _ in QUICK])
def test_a_few_modules(mode, examples, most, record_property):
    tally = Tally(mode)
    explore(mode, programs(most=most), examples, tally, derandomize=True)
    record_property("tally", str(tally))
    assert tally.compared >= examples / 2


# An operator that draws, and masks from seeds: which of them advanced the generator first hung on the budget.
TWO_KINDS = Program((Step("add", y=0),) * 3 + (Step("bernoulli_in_place", y=0), Step("transformer", y=0)))


def test_draws_of_two_kinds_happen_in_the_same_order_at_any_budget():
    trial("backend", Tally("backend")).run(TWO_KINDS)


# Mode, what is drawn, programs. Of deep modules most budgets below the fastest plan's peak keep something else.
LONG = [
    ("replay", programs(most=7), 1000),
    ("op_by_op", programs(most=7), 100),
    ("backend", programs(most=5), 30),
    ("backend_alike", programs(most=5), 30),
    ("replay", deep_programs(), 300),
    ("backend", deep_programs(), 30),
]
NAMES = ["replay", "op_by_op", "backend", "backend_alike", "replay-deep", "backend-deep"]


@pytest.mark.fuzz
@pytest.mark.parametrize(("mode", "strategy", "examples"), LONG, ids=NAMES)
def test_many_modules(mode, strategy, examples, capfd, record_property):
    tally = Tally(mode, announce=capfd.disabled)
    try:
        explore(mode, strategy, int(os.environ.get("FUZZ_EXAMPLES", examples)), tally)
    finally:
        tally.show()
        record_property("tally", str(tally))
