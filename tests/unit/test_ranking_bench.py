"""The pure parts of `bench/ranking.py`, and one run of the smallest case."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import pages, ranking
from bench.ranking import extra_ms, format_cases, rank_correlation, spread_over_time, summarise
from rematpass.plan_types import CurvePoint


def case_of(name, **correlations):
    figures = {"repeatable": 0.9, "budget_bytes": [3, 2, 1], "predicted_extra_ms": [0.0, 1.0, 2.0]}
    figures |= {"extra_ms": [0.0, 1.5, 4.0], "step_ms": [1.0, 2.0, 3.0]}
    return {"name": name, "cost_models": {m: {**figures, "correlation": c} for m, c in correlations.items()}}


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ([0.0, 1.0, 2.0], [5.0, 6.0, 90.0], 1.0),
        ([0.0, 1.0, 2.0], [9.0, 6.0, 1.0], -1.0),
        ([0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 1.0, 3.0], 0.8),
        ([0.0, 1.0], [0.0, 1.0], None),
        ([1.0, 1.0, 1.0], [0.0, 1.0, 2.0], None),
    ],
)
def test_ranks_agree_or_not(left, right, found):
    assert rank_correlation(left, right) == (None if found is None else pytest.approx(found))


def test_extra_time_is_taken_within_a_round():
    assert extra_ms([[10.0, 500.0, 10.0], [11.0, 501.0, 11.0], [9.0, 504.0, 14.0]]) == [0.0, 1.0, 4.0]


def test_the_summary_counts_what_reaches_the_wanted_value():
    cases = [case_of("a", roofline=0.96, measured=1.0), case_of("b", roofline=0.5, measured=None)]
    found = summarise(cases)
    assert found["roofline"] == {"median": 0.73, "worst": 0.5, "cases": 2, "wanted": 0.95, "reached": 1}
    assert found["measured"]["cases"] == 1
    text = format_cases(cases)
    assert "roofline: median 0.730, worst 0.500, 1 of 2 cases at 0.95 or above" in text
    assert text.splitlines()[1].split()[:4] == ["a", "roofline", "3", "0.960"]


def test_plans_are_spread_over_time():
    seconds = (0.0, 0.1, 0.2, 0.3, 2.9, 6.0)
    points = [CurvePoint(9 - i, extra, 0.0, 0.0, 0.0) for i, extra in enumerate(seconds)]
    assert [p.peak_bytes for p in spread_over_time(points, 3)] == [9, 5, 4]
    assert spread_over_time(points, 6) == points


@pytest.mark.parametrize(
    "line", [["--cases", "nothing"], ["--points", "2"], ["--rounds", "1"], ["--spread", "x"]], ids=" ".join
)
def test_a_wrong_command_is_refused_before_anything_runs(line, capsys):
    with pytest.raises(SystemExit):
        ranking.parse_arguments(line)
    assert capsys.readouterr().err


def test_a_record_has_the_plans_of_a_cost_model_in_order():
    def runner(budget, predicted_seconds, times):
        plan = SimpleNamespace(recompute_seconds=predicted_seconds)
        return SimpleNamespace(variant=SimpleNamespace(memory_budget=budget), plan=plan, times_ms=times)

    runners = [runner(30, 0.0, [5.0, 6.0]), runner(20, 0.001, [7.0, 8.5]), runner(10, 0.003, [9.0, 9.0])]
    found = json.loads(json.dumps(ranking.record(runners)))
    assert found["correlation"] == found["repeatable"] == pytest.approx(1.0)
    assert found["budget_bytes"] == [30, 20, 10]
    assert found["predicted_extra_ms"] == [0.0, 1.0, 3.0]
    assert found["extra_ms"] == [0.0, 2.25, 3.5]


def test_every_plan_is_timed_once_a_round():
    def runner():
        times = []
        return SimpleNamespace(times_ms=times, timed_step=lambda: 0.5, clear_gradients=lambda: None)

    runners = [runner(), runner()]
    ranking.time_rounds(runners, 3)
    assert [r.times_ms for r in runners] == [[500.0] * 3] * 2


@pytest.mark.skipif(not pages.can_hold_pages(), reason="another C library than glibc")
def test_pages_that_are_held_stay_with_the_process():
    """A large array is gone, and its pages are there."""
    script = """
import resource
import sys
import numpy as np
from bench.pages import hold_pages

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20

if sys.argv[1] == "held":
    hold_pages()
before = resident_mib()
array = np.ones(64 * 2**17)
del array
print(resident_mib() - before)
"""

    def left_mib(how):
        command = [sys.executable, "-c", script, how]
        root = Path(__file__).parents[2]
        return float(subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout)

    assert left_mib("released") < 16
    assert left_mib("held") > 48
