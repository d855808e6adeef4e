"""What `bench/peaks.py` makes of rows, and the result that is in the repository."""

import json

import pytest

from bench.case_file import merge_cases, read_cases
from bench.peaks import RESULTS, SCHEMA, Row, Settings, make_case, parse_arguments, rows_of, summarise
from bench.runnable import CASES
from bench.step_cases import SIZES

ROWS = [Row("toy", 10, 100, 80, 84), Row("toy", 10, 60, 60, 60)]


def test_summary():
    assert summarise(ROWS) == pytest.approx(
        {"median_error": 0.025, "worst_error": 0.05, "largest_excess": 0.0, "architectures": 1, "steps": 2}
    )


def test_a_case_holds_its_rows_and_takes_the_place_of_its_elder():
    first, again = (make_case("toy", rows, Settings("small", "cpu", 2).describe()) for rows in (ROWS[:1], ROWS))
    assert rows_of(merge_cases([first], again)) == ROWS


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (Settings("small", "cpu", 5), "peaks_cpu.json"),
        (Settings("small", "cpu", 5, is_autocast=True), "peaks_cpu_autocast.json"),
        (Settings("large", "cuda", 5), "peaks_cuda_large.json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_results_of_one_kind_have_one_file(settings, name):
    assert settings.result_file() == RESULTS / name


def test_a_case_that_is_not_there_is_refused_before_anything_runs(capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["--size", "large", "--cases", "mamba"])
    assert "no case 'mamba' in size 'large'; known: llama_plain" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(RESULTS.glob("peaks_*.json")), ids=lambda path: path.stem)
def test_the_committed_results_are_summed_up_as_they_say(path):
    cases = read_cases(path, SCHEMA)
    assert {case["name"] for case in cases} <= {*CASES, *SIZES["large"]}
    assert json.loads(path.read_text())["summary"] == pytest.approx(summarise(rows_of(cases)))
