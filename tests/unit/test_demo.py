"""The demo's parts: text, model, rows and verdict. The runs themselves are `rematpass demo`."""

import json
import math
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import rematpass
from rematpass import cli
from rematpass.demo import train
from rematpass.demo.machine import cpu_name, describe_conditions
from rematpass.demo.model import ModelShape, make_model
from rematpass.demo.result import (
    DemoRow,
    find_problems,
    format_conditions,
    format_rows,
    format_verdict,
    loss_difference,
    make_record,
)
from rematpass.demo.text import load_text, sample_batches
from rematpass.demo.train import DemoSettings, count_pieces
from rematpass.errors import OptionError, RematError

MIB = 2**20
SHAPE = ModelShape(layers=2, width=32, context=16)
EAGER = DemoRow("eager", False, 400 * MIB, 500.0, 1.0, losses=(5.5, 4.0))
OURS = DemoRow("rematpass", True, 199 * MIB, 450.0, 9.0, (5.5, 4.0), 200 * MIB, 198 * MIB, 40.0, 0.03, 0.02)


def test_the_text_is_the_same_twice_and_real() -> None:
    text = load_text(limit_bytes=300_000)
    assert len(text) == 300_000
    assert text == load_text(limit_bytes=300_000)
    assert b"import " in text


def test_the_text_skips_what_is_not_the_standard_library(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "site-packages/c.py", "test/d.py", "pkg/e.py", "pkg/f.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(path.stem)
    assert load_text(tmp_path) == b"abe"


def test_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RematError, match=r"no \.py sources"):
        load_text(tmp_path / "absent")
    with pytest.raises(RematError, match="a shorter --context"):
        sample_batches(b"short", count=1, batch=1, context=16, seed=0)


def test_batches_are_deterministic_and_targets_are_one_ahead() -> None:
    text = bytes(range(256))
    batches = sample_batches(text, count=3, batch=2, context=16, seed=1)
    again = sample_batches(text, count=3, batch=2, context=16, seed=1)
    assert len(batches) == 3
    for (ids, targets), (same_ids, same_targets) in zip(batches, again, strict=True):
        assert ids.shape == targets.shape == (2, 16)
        assert torch.equal(targets, ids + 1)
        assert torch.equal(ids, same_ids)
        assert torch.equal(targets, same_targets)


def test_the_model_starts_the_same_and_leaves_the_random_state_alone() -> None:
    state = torch.get_rng_state()
    first, second = (make_model(SHAPE, torch.device("cpu"), seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_a_checkpointed_model_has_the_same_loss_and_gradients() -> None:
    (batch,) = sample_batches(load_text(limit_bytes=1000), count=1, batch=2, context=16, seed=0)
    plain = make_model(SHAPE, torch.device("cpu"), seed=0)
    checkpointed = make_model(SHAPE, torch.device("cpu"), seed=0, is_checkpointed=True)
    losses = [model(*batch) for model in (plain, checkpointed)]
    assert losses[0].shape == ()
    assert abs(losses[0].item() - math.log(256)) < 1
    torch.autograd.backward(losses)
    for ours, theirs in zip(plain.parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_attention_sees_the_past_only() -> None:
    model = make_model(SHAPE, torch.device("cpu"), seed=0)
    attention = model.layers[0].attention
    x = torch.randn(1, 16, 32)
    changed = x.clone()
    changed[:, 8:] += 1
    torch.testing.assert_close(attention(x)[:, :8], attention(changed)[:, :8])


@pytest.mark.parametrize("sizes", [{"width": 0}, {"width": 48}, {"layers": 0}, {"context": 0}])
def test_sizes_no_model_can_have(sizes: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        ModelShape(**sizes)


def test_no_steps_are_refused() -> None:
    with pytest.raises(OptionError, match="at least 1"):
        DemoSettings(steps=0)


def test_a_budget_adds_a_row() -> None:
    assert count_pieces(DemoSettings(steps=2, rounds=3)) == 6 * 6
    assert count_pieces(DemoSettings(steps=2, rounds=3, budget="1GiB")) == 7 * 6


def test_all_well() -> None:
    assert find_problems([EAGER, OURS]) == []
    assert format_verdict([]).startswith("ok: ")


@pytest.mark.parametrize("losses", [(5.5, 4.1), (5.5, math.nan)])
def test_losses_that_differ_are_a_problem(losses: tuple[float, float]) -> None:
    (problem,) = find_problems([EAGER, replace(OURS, losses=losses)])
    assert problem.startswith("rematpass: losses differ from eager's")
    assert format_verdict([problem]) == f"PROBLEM: {problem}"


def test_losses_within_the_tolerance_are_not() -> None:
    row = replace(OURS, losses=(5.5, 4.01))
    assert loss_difference(row, EAGER) == pytest.approx(0.0025)
    assert find_problems([EAGER, row]) == []


@pytest.mark.parametrize(("peak_mib", "count"), [(201.9, 0), (202.1, 1)])
def test_a_budget_may_be_exceeded_by_one_percent(peak_mib: float, count: int) -> None:
    rows = [EAGER, replace(OURS, measured_peak_bytes=int(peak_mib * MIB))]
    assert len(find_problems(rows)) == count


def test_the_table_of_rows() -> None:
    assert format_rows([EAGER, OURS]) == (
        "           budget MiB  measured MiB  predicted MiB  ms per step  last loss  loss differs by\n"
        "eager                         400.0                         500     4.0000\n"
        "rematpass       200.0         199.0          198.0          450     4.0000            0e+00"
    )


def test_the_record_is_json_and_names_the_conditions() -> None:
    settings = DemoSettings(shape=SHAPE, device="cpu")
    conditions = {**describe_conditions(settings), "model": {"parameters": 2_000_000}}
    record = json.loads(json.dumps(make_record([EAGER, OURS], conditions)))
    assert record["is_ok"]
    assert {"date", "versions", "hardware", "settings", "rows", "problems", "schema"} <= set(record)
    assert record["rows"][1]["losses"] == [5.5, 4.0]
    assert "2.0 million parameters, 2 layers" in format_conditions(conditions)


def test_the_name_of_the_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nmodel name : Fast One\n")
    assert cpu_name(cpuinfo) == "Fast One"
    assert cpu_name(tmp_path / "absent")


def test_the_readme_script_takes_the_record(tmp_path: Path) -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "readme_table.py"))
    conditions = {**describe_conditions(DemoSettings(shape=SHAPE)), "model": {"parameters": 2_000_000}}
    result, readme = tmp_path / "result.json", tmp_path / "README.md"
    result.write_text(json.dumps(make_record([EAGER, OURS], conditions)))
    readme.write_text("before\n<!-- demo table -->\nold\n<!-- end -->\nafter\n")
    arguments = [str(result), "--readme", str(readme)]
    assert script["main"]([*arguments, "--check"]) == 1
    assert script["main"](arguments) == 0
    assert script["main"]([*arguments, "--check"]) == 0
    text = readme.read_text()
    assert text.startswith("before\n<!-- demo table -->\n2.0 million parameters, 2 layers")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "| rematpass | 200.0 | 199.0 | 198.0 | 450 | 4.0000 |" in text


@pytest.fixture
def fake_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo without compilation: plans of 300 MiB, and models that run eagerly."""
    plan = SimpleNamespace(
        budget_bytes=300 * MIB,
        peak_bytes=300 * MIB,
        fastest_peak_bytes=300 * MIB,
        smallest_peak_bytes=100 * MIB,
        plan_seconds=0.04,
        recompute_fraction=0.0,
        bound_seconds=0.0,
        step_seconds=1.0,
    )
    monkeypatch.setattr(rematpass, "plan", lambda *args, **kwargs: plan, raising=False)
    monkeypatch.setattr(rematpass, "plans", lambda compiled: [plan], raising=False)
    monkeypatch.setattr(train, "_compile", lambda model, variant: model)


TINY = ["demo", "--layers", "1", "--width", "32", "--context", "16", "--batch", "1", "--device", "cpu", "--no-plot"]


@pytest.mark.usefixtures("fake_core")
def test_json_is_all_that_stands_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*TINY, "--steps", "2", "--rounds", "1", "--budget", "200MiB", "--json"]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert [row["budget_bytes"] is None for row in record["rows"]] == [True] * 3 + [False] * 4
    assert all(row["losses"] == record["rows"][0]["losses"] for row in record["rows"])
    assert all(0 < row["measured_peak_bytes"] < MIB for row in record["rows"])
    assert "eager: training: 2 of 2 loss" in captured.err


@pytest.mark.usefixtures("fake_core")
def test_a_variant_that_trains_otherwise_gives_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(model: torch.nn.Module, variant: train.Variant) -> train.Step:
        if variant.is_compiled:
            torch.nn.init.zeros_(model.head.weight)
        return model

    monkeypatch.setattr(train, "_compile", spoil)
    assert cli.main([*TINY, "--steps", "1", "--rounds", "1"]) == 1
    text = capsys.readouterr().out
    assert "PROBLEM: torch.compile: losses differ" in text
    assert "ms per step" in text
