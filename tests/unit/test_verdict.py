"""What counts as kept, and why a script gives nothing to judge."""

import argparse
import json

import pytest

from rematpass import cli
from rematpass.check.verdict import SCRATCH_BYTES, Measurement
from rematpass.commands.verifying import find_problem
from rematpass.report.verdict import format_measurements, verdict_record
from rematpass.script import Notes

MIB = 2**20


def measured(least: int, budget: int | None = 100 * MIB, most: int | None = None) -> Measurement:
    return Measurement("graph 0", budget, 90 * MIB, least, least if most is None else most)


@pytest.mark.parametrize(
    ("found", "is_kept"),
    [
        (measured(80 * MIB), True),
        (measured(101 * MIB), True),
        (measured(101 * MIB + SCRATCH_BYTES), True),
        (measured(101 * MIB + SCRATCH_BYTES + 1), False),
        (measured(100 * MIB, most=120 * MIB), True),  # as far as can be known
        (measured(90 * MIB, budget=None), True),
        (measured(91 * MIB, budget=None), False),  # without a budget the prediction is what was promised
    ],
)
def test_kept_is_one_percent_and_a_kernels_scratch_above_the_budget_at_most(found, is_kept):
    assert found.is_kept == is_kept
    assert verdict_record([found])["is_kept"] == is_kept
    assert ("not kept: " in format_measurements([found])) != is_kept


def test_the_text_has_all_figures():
    text = format_measurements([measured(108 * MIB)])
    words = ("graph 0: not kept: measured is 8.0% above the budget", "100.0 MiB", "90.0 MiB", "108.0 MiB  +20.0% to")
    assert [word for word in words if word not in text] == []
    assert "80.0 MiB to 85.0 MiB" in format_measurements([measured(80 * MIB, most=85 * MIB)])


def test_one_graph_that_is_over_is_enough():
    record = verdict_record([measured(80 * MIB), measured(200 * MIB)])
    assert (record["is_kept"], [graph["is_kept"] for graph in record["graphs"]]) == (False, [True, False])
    assert json.loads(json.dumps(record)) == record


STEP = (measured(1),)


@pytest.mark.parametrize(
    ("notes", "code", "is_whole", "words"),
    [
        (Notes(1, 0, refused="the plan was made for another graph", raised="x"), 1, False, "made for another graph"),
        (Notes(raised="KeyError: 'a'"), 1, False, "raised KeyError: 'a'. Try: python train.py --name 'a b', which"),
        (Notes(), 3, False, "the script ended with exit code 3. Try: python train.py"),
        (Notes(1, 1), -9, False, "the script ended with signal SIGKILL"),
        (Notes(), 0, False, 'never compiled anything with backend="rematpass". Try: model = torch.compile('),
        (Notes(1), 0, False, "no graph with a backward. Try: a step outside torch.no_grad()"),
        (Notes(1, 1), 0, False, "never ran a backward from its second step on"),
        (Notes(1, 1, STEP), 0, False, ""),
        (Notes(1, 1, STEP), 3, False, ""),  # it was stopped, and ends as it likes
        (Notes(1, 1, STEP), 3, True, "the script ended with exit code 3"),
    ],
)
def test_why_there_is_nothing_to_judge(notes, code, is_whole, words):
    arguments = argparse.Namespace(script="train.py", arguments=["--name", "a b"], whole=is_whole)
    problem = find_problem(notes, code, arguments)
    assert words in problem
    assert bool(problem) == bool(words)


def test_files_that_are_not_there_are_refused_before_anything_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["verify", "plan.json", "train.py"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "plan.json is not loaded: it cannot be read" in captured.err
