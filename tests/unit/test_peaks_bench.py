"""What `bench/peaks.py` makes of rows, and the result that is in the repository."""

import json

import pytest

from bench.case_file import merge_cases, read_cases
from bench.peaks import RESULT, SCHEMA, Row, make_case, rows_of, summarise
from bench.runnable import CASES

ROWS = [Row("toy", 10, 100, 80, 84), Row("toy", 10, 60, 60, 60)]


def test_summary():
    assert summarise(ROWS) == pytest.approx(
        {"median_error": 0.025, "worst_error": 0.05, "largest_excess": 0.0, "architectures": 1, "steps": 2}
    )


def test_a_case_holds_its_rows_and_takes_the_place_of_its_elder():
    first, again = (make_case("toy", rows, "cpu") for rows in (ROWS[:1], ROWS))
    assert rows_of(merge_cases([first], again)) == ROWS


def test_the_committed_result_is_summed_up_as_it_says():
    cases = read_cases(RESULT, SCHEMA)
    assert {case["name"] for case in cases} <= set(CASES)
    assert json.loads(RESULT.read_text())["summary"] == pytest.approx(summarise(rows_of(cases)))
