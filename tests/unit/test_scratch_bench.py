"""What `bench/scratch.py` measures, and the result that is in the repository."""

import json

import pytest

from bench.operators import FUNCTIONS
from bench.scratch import RESULTS, Row, measure, summarise

ROWS = [Row("one", "a", 100, 60, 100), Row("one", "b", 100, 100, 100), Row("two", "c", 0, 130, 100)]


def test_summary():
    assert summarise(ROWS) == pytest.approx(
        {"functions": 2, "operators": 3, "within": 1, "lowest": -0.2, "highest": 0.3}
    )
    assert [row.is_low for row in ROWS] == [True, False, False]


def test_operators_of_forward_and_backward_are_run_alone():
    rows = list(measure("bilinear", "cpu"))
    assert {row.operator for row in rows} == {"_trilinear.default"}
    assert len(rows) == 4  # the result, and three gradients
    assert all(abs(row.error) < 0.01 for row in rows)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("scratch_*.json")), ids=lambda path: path.stem)
def test_the_committed_results_are_summed_up_as_they_say(path):
    result = json.loads(path.read_text())
    rows = [Row(**row) for row in result["rows"]]
    assert {row.function for row in rows} <= set(FUNCTIONS)
    assert result["summary"] == pytest.approx(summarise(rows))
