"""Random modules do at every budget what they do with no limit, and what they do in eager.

The quick profile is part of the suite and always runs the same programs. The long one draws new programs every time:

    FUZZ_EXAMPLES=2000 pytest -m fuzz tests/fuzz --hypothesis-seed=1
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.differential.steps import OpByOp, equal

from .modules import programs
from .trial import Tally, Trial, torch_op_by_op

MANY = int(os.environ.get("FUZZ_EXAMPLES", "1000"))
ANY_TIME = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explaining traces every line
}


def op_by_op(tally):
    return Trial(OpByOp, torch_op_by_op, lambda program: equal, tally)


@pytest.mark.fuzz
def test_many_op_by_op(capfd):
    tally = Tally("op by op")

    @settings(**ANY_TIME, max_examples=MANY)
    @given(programs())
    def explore(program):
        with capfd.disabled():
            tally.show_progress(every=50)
        op_by_op(tally).run(program)

    try:
        explore()
    finally:
        with capfd.disabled():
            tally.show_progress(every=1)
