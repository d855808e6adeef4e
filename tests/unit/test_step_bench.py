"""The pure parts of `bench/step.py`, and one run of its smallest case."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench import step
from bench.case_file import merge_cases, read_cases, write_cases
from bench.step_cases import SIZES, build
from bench.step_plot import plot_case
from bench.step_ratios import (
    case_ratios,
    exceeded,
    format_case,
    format_summary,
    geometric_mean,
    paired_ratio,
    summarise,
    unsteady,
)
from bench.step_variants import (
    CHECKPOINT,
    COMPILE,
    EAGER,
    FASTEST,
    HALF,
    PEERS,
    SMALLEST,
    Ask,
    Checkpointed,
    checkpoint_blocks,
    group_asks,
    make_runner,
    relative_error,
    share_parameters,
)

MIB = 2**20


def row(name, above_mib, times, serves=(), seconds=1.0, budget_mib=None):
    is_ours = name.startswith("rematpass")
    return {
        "name": name,
        "is_ours": is_ours,
        "is_compiled": not name.startswith("eager"),
        "serves": list(serves),
        "budget_bytes": None if budget_mib is None else budget_mib * MIB,
        "peak_bytes": (above_mib + 100) * MIB,
        "above_bytes": above_mib * MIB,
        "predicted_bytes": (above_mib + 100) * MIB if is_ours else None,
        "step_ms": sorted(times)[len(times) // 2],
        "times_ms": times,
        "first_step_seconds": [seconds],
        "gradient_error": 0.0,
    }


def case_of(*rows, name="toy", skipped=(), failures=()):
    return {
        "name": name,
        "summary": "a toy",
        "dtype": "float32",
        "parameters": 1_000_000,
        "static_bytes": 100 * MIB,
        "rows": list(rows),
        "skipped": list(skipped),
        "failures": list(failures),
        "hardware": {"device": "cpu"},
        "settings": {"size": "small"},
    }


@pytest.fixture
def toy():
    return case_of(
        row(EAGER, 200, [20.0, 40.0, 20.0]),
        row(CHECKPOINT, 80, [30.0, 30.0, 30.0]),
        row(COMPILE, 160, [10.0, 20.0, 10.0], seconds=5.01),
        row("rematpass, fastest", 120, [10.0, 30.0, 9.0], (FASTEST, EAGER, COMPILE), seconds=5.51, budget_mib=None),
        row(f"rematpass, at {CHECKPOINT}", 78, [15.0, 15.0, 24.0], (CHECKPOINT,), budget_mib=180),
        row("rematpass, half", 60, [12.0, 33.0, 11.0], (HALF,), budget_mib=160),
        row("rematpass, smallest", 40, [20.0, 20.0, 20.0], (SMALLEST,), budget_mib=139),
    )


def test_every_promise_has_its_ratio(toy):
    found = case_ratios(toy)
    assert found["fastest_time"] == {"toy": 1.0}
    assert found["fastest_peak"] == {"toy": 220 / 260}
    assert found["fastest_above"] == {"toy": 120 / 160}
    assert found["at_peaks"] == {f"toy, {EAGER}": 0.5, f"toy, {CHECKPOINT}": 0.5, f"toy, {COMPILE}": 1.0}
    assert found["at_compiled_peaks"] == {f"toy, {COMPILE}": 1.0}
    assert found["smallest"] == {"toy": 0.5}
    assert found["checkpoint"] == {"toy": 0.5}
    assert found["compile"]["toy"] == pytest.approx(1.1)
    assert "half" not in found, "promised for GPUs"
    toy["hardware"]["device"] = "NVIDIA H100"
    assert case_ratios(toy)["half"] == {"toy": pytest.approx(1.2)}


def test_a_failed_peer_leaves_its_ratios_out_and_the_best_peer_is_the_smallest_of_all(toy):
    toy["rows"] = [r for r in toy["rows"] if r["name"] != COMPILE]
    found = case_ratios(toy)
    assert not {"fastest_time", "fastest_peak", "compile", "at_compiled_peaks"} & set(found)
    assert found["smallest"] == {"toy": 40 / 80}


def test_ratios_are_taken_round_by_round():
    slow_minute = [1.0, 1.0, 50.0, 1.0]
    assert paired_ratio([2.0, 2.0, 100.0, 2.0], slow_minute) == 2.0
    with pytest.raises(ValueError, match="zip"):
        paired_ratio([1.0], [1.0, 2.0])


def test_the_summary_judges_mean_and_worst(toy):
    worse = case_of(row(COMPILE, 100, [10.0]), row("rematpass, fastest", 100, [11.0], (FASTEST,)), name="worse")
    lines = {line["key"]: line for line in summarise([toy, worse])}
    assert lines["fastest_time"]["mean"] == pytest.approx(geometric_mean([1.0, 1.1]))
    assert (lines["fastest_time"]["worst"], lines["fastest_time"]["worst_of"]) == (1.1, "worse")
    assert not lines["fastest_time"]["is_kept"]
    assert lines["fastest_peak"]["is_kept"]
    assert lines["smallest"]["count"] == 1
    (worse_alone,) = [line for line in summarise([worse]) if line["key"] == "fastest_time"]
    assert worse_alone["mean"] == worse_alone["worst"]


def test_a_measured_peak_above_its_budget_is_listed(toy):
    assert exceeded([toy]) == []
    toy["rows"][-1]["budget_bytes"] = 138 * MIB
    assert exceeded([toy])[0].startswith("toy, rematpass, smallest: measured 140.0 MiB, budget 138.0")


def test_tables_say_what_was_skipped_and_what_failed(toy):
    toy["skipped"] = [{"name": "torch.compile, budget 0.05", "reason": "BudgetTooSmall: no"}]
    toy["failures"] = [{"name": "torch.compile, budget 0.1", "reason": "E: boom"}]
    table, summary = format_case(toy), format_summary([toy])
    eager = next(line for line in table.splitlines() if line.startswith("eager "))
    assert eager.split()[-2:] == ["10.0", "0.500"]
    assert "torch.compile, budget 0.1 failed: E: boom" in table
    assert "No plan of ours is as small: toy, torch.compile, budget 0.05" in summary
    assert "Failed: toy, torch.compile, budget 0.1: E: boom" in summary
    assert "kept" in summary.splitlines()[1]
    assert "MISSED" not in summary


def test_a_case_that_was_timed_beside_other_work_is_listed():
    quiet = case_of(row(COMPILE, 9, [10.0, 10.4, 9.8, 10.1]), row(EAGER, 9, [10.0, 30.0, 10.0, 10.0]), name="quiet")
    busy = case_of(row(COMPILE, 9, [10.0, 12.0, 9.0, 15.0]), row(EAGER, 9, [10.0, 30.0, 20.0, 9.0]), name="busy")
    quiet["rows"].append(row("rematpass, fastest", 9, [10.0, 10.2, 10.1, 10.0]))
    assert [line.split(":")[0] for line in unsteady([quiet, busy])] == ["busy"]
    assert "Unsteady: busy: half of the steps" in format_summary([quiet, busy])
    assert unsteady([case_of(row(COMPILE, 9, [10.0])), case_of()]) == []


def test_budgets_that_give_one_plan_are_run_once():
    asks = [
        (Ask(FASTEST, "none"), "loose"),
        (Ask("a", 900), "loose"),
        (Ask("b", 500), "middle"),
        (Ask("c", 450), "middle"),
        (Ask(SMALLEST, 300), "tight"),
        (Ask("d", 310), "tight"),
    ]
    groups = group_asks(asks)
    assert [group.labels for group in groups] == [(FASTEST, "a"), ("b", "c"), (SMALLEST, "d")]
    assert [group.variant.memory_budget for group in groups] == ["none", 450, 300]
    assert [group.variant.name for group in groups] == ["rematpass, fastest", "rematpass, at b", "rematpass, smallest"]


def test_variants_share_parameters_and_only_checkpointed_ones_have_wrapped_blocks():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    own = share_parameters(model)
    assert checkpoint_blocks(own, ("1",), is_selective=False) == 1
    assert isinstance(own[1], Checkpointed)
    assert not isinstance(model[1], Checkpointed)
    assert all(a is b for a, b in zip(model.parameters(), own.parameters(), strict=True))
    with pytest.raises(ValueError, match="no module is called layers"):
        checkpoint_blocks(own, ("layers.*",), is_selective=False)


@pytest.mark.parametrize("variant", [v for v in PEERS if not v.is_compiled], ids=lambda v: v.name)
def test_eager_variants_have_the_same_gradients_and_leave_none_behind(variant):
    case = SIZES["tiny"]["deepnet"]
    device = torch.device("cpu")
    model, inputs = build(case, device, seed=0)
    model(*inputs).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    runner = make_runner(variant, model, inputs, case.blocks, device)
    assert relative_error(runner.gradients(), expected) < 1e-6
    assert all(p.grad is None for p in model.parameters())
    gradient_bytes = sum(g.numel() * g.element_size() for g in expected)
    assert runner.measure_peak() > gradient_bytes
    assert all(p.grad is None for p in model.parameters())


def test_gradients_are_compared_as_one_vector():
    a = [torch.tensor([3.0, 4.0]), None]
    assert relative_error(a, a) == 0.0
    assert relative_error([torch.tensor([3.0, 4.5]), None], a) == pytest.approx(0.1)
    assert relative_error([torch.tensor([3.0, 4.0]), torch.zeros(1)], a) == float("inf")


def test_every_size_has_the_same_cases_and_blocks_that_exist():
    assert list(SIZES["small"]) == list(SIZES["large"])
    assert len(SIZES["small"]) == 9


def test_results_of_separate_runs_are_merged_and_foreign_ones_refused(tmp_path, toy):
    path = tmp_path / "deeper" / "step.json"
    assert read_cases(path, 1) == []
    other = case_of(row(EAGER, 1, [1.0]), name="other")
    write_cases(path, merge_cases([toy], other), 1, "all well")
    again = case_of(row(EAGER, 2, [2.0]), name="toy")
    merged = merge_cases(read_cases(path, 1), again)
    assert [case["name"] for case in merged] == ["toy", "other"]
    assert merged[0]["rows"][0]["above_bytes"] == 2 * MIB
    elsewhere = {**other, "hardware": {**other["hardware"], "cpu": "another processor"}}
    assert merge_cases([toy], elsewhere) == [toy, elsewhere]
    with pytest.raises(ValueError, match="another device"):
        merge_cases([toy], {**other, "hardware": {"device": "cuda"}})
    with pytest.raises(ValueError, match="another device"):  # before anything is measured
        read_cases(path, 1, {**other, "hardware": {"device": "cuda"}})
    assert len(read_cases(path, 1, other)) == 2
    path.write_text(json.dumps({"schema": 0}))
    with pytest.raises(ValueError, match="schema"):
        read_cases(path, 1)


@pytest.mark.parametrize(
    "line", [["--cases", "nothing"], ["--rounds", "0"], ["--device", "abacus"], ["--size", "huge"]], ids=" ".join
)
def test_a_wrong_command_is_refused_before_anything_runs(line, capsys):
    with pytest.raises(SystemExit):
        step.parse_arguments(line)
    assert capsys.readouterr().err


def test_a_variant_that_fails_is_noted_and_the_others_go_on(capsys):
    case = SIZES["tiny"]["deepnet"]
    run = step.CaseRun(case, step.Settings("tiny", torch.device("cpu"), 1, 1))
    run.case = SimpleNamespace(name="toy", blocks=("nothing",))
    run.prepare(PEERS[1])
    run.prepare(PEERS[0])
    assert run.failures == [{"name": CHECKPOINT, "reason": "ValueError: no module is called nothing"}]
    assert [runner.variant.name for runner in run.runners] == [EAGER]


def test_the_smallest_case_runs_from_end_to_end(tmp_path, capsys, monkeypatch):
    case, find_all = SIZES["tiny"]["deepnet"], step.CaseRun.find_groups
    monkeypatch.setattr(step.CaseRun, "find_groups", lambda run: find_all(run)[:1])  # one compilation is enough
    settings = step.Settings("tiny", torch.device("cpu"), rounds=2, compiles=1, peers=(EAGER,))
    record = step.CaseRun(case, settings).run()
    record |= step.describe_conditions(settings)
    assert record["failures"] == []
    ours = [r for r in record["rows"] if r["is_ours"]]
    assert [r["serves"][0] for r in ours] == [FASTEST]
    assert all(r["gradient_error"] < 1e-5 and len(r["times_ms"]) == 2 for r in record["rows"])
    assert record["settings"]["device"] == "cpu"
    path = tmp_path / "step.json"
    write_cases(path, [record], step.SCHEMA, [])
    assert step.main(["--report", str(path), "--plot", str(tmp_path)]) == 0
    assert "rematpass, fastest" in capsys.readouterr().out
    assert (tmp_path / "step_deepnet.png").stat().st_size > 10_000
    assert plot_case(record, tmp_path).name == "step_deepnet.png"
