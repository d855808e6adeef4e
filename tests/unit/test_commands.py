"""The commands that plan: what they print, their exit codes, what they refuse."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import rematpass
from rematpass import cli
from rematpass.cost.device_model import DECLARED

MODULE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))

def build(batch=256):
    return nn.Sequential(*(Block(64) for _ in range(3))), (torch.empty(batch, 64),), {}, torch.sum

def breaks():
    def model(x):
        torch._dynamo.graph_break()
        return x * 2
    return model, (torch.ones(2, requires_grad=True),)
"""
MODEL = ["tiny.py:build", "--device", "l4"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tiny.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys, *argv: str):
    code, out, _ = run(capsys, *argv, "--json")
    return code, json.loads(out)


@pytest.mark.parametrize(
    "command", ["plan", "explain", "frontier", "plot", "report", "max-size", "verify", "devices", "diff"]
)
def test_help_has_examples_and_exit_codes(command, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main([command, "--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert f"rematpass {command}" in text
    assert "--json" in text
    assert command == "devices" or "exit code: 0" in text


TOKENS = """
import torch
from torch import nn

class Positions(nn.Module):
    def __init__(self, sequence):
        super().__init__()
        self.words, self.places = nn.Embedding(100, 32), nn.Parameter(torch.empty(sequence, 32))
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 100)

    def forward(self, tokens):
        return self.down(self.up(self.words(tokens) + self.places).relu())

def build(batch=4, sequence=96):
    return Positions(sequence), (torch.zeros(batch, sequence, dtype=torch.long),), {}, torch.sum
"""


def test_plan_shows_the_peak_as_a_formula(capsys, folder):
    code, out, _ = run(capsys, "plan", *MODEL, "--budget", "none", "--formula")
    assert code == 0
    assert "exact for this decision at batch 64 to 1024" in out
    assert "no sequence" in out
    (folder / "tokens.py").write_text(TOKENS)  # whose parameters are as many as the sequence is long
    code, found = run_json(capsys, "plan", "tokens.py:build", "--device", "l4", "--budget", "none", "--formula")
    assert code == 0
    assert found["formula"]["peak_bytes"] == found["plan"]["peak_bytes"]
    assert found["formula"]["range"]["sequence"] == {"first": 32, "last": 384, "step": 1}
    assert "sequence" in found["formula"]["peak"]


def test_plan_says_that_it_fits_and_what_holds_the_memory(capsys):
    code, out, err = run(capsys, "plan", *MODEL, "--budget", "4MiB", "--optimizer", "adamw")
    assert code == 0
    assert err == ""
    words = (
        "parameters",
        "optimizer",
        "kept activations",
        "it fits 4.0 MiB, with",
        "gradients",
        "peak ",
        "[0-2].up x3",
    )
    assert [word for word in words if word not in out] == []
    assert "\x1b" not in out


def test_the_breakdown_adds_up_and_the_optimizer_takes_from_the_budget(capsys):
    code, found = run_json(capsys, "plan", *MODEL, "--budget", "4MiB", "--optimizer", "adamw", "--master-weights")
    assert code == 0
    rows = found["breakdown"]
    parts = ("parameter", "batch", "gradient", "optimizer", "kept", "temporary")
    assert sum(rows[f"{part}_bytes"] for part in parts) == rows["total_bytes"] <= 4 * 2**20
    assert rows["optimizer_bytes"] == 3 * rows["parameter_bytes"] > 0
    assert found["plan"]["budget_bytes"] == 4 * 2**20 - rows["optimizer_bytes"]
    assert rows["temporary_bytes"] >= 0


def test_gradients_of_earlier_backwards_take_from_the_budget(capsys):
    code, found = run_json(capsys, "plan", *MODEL, "--budget", "4MiB", "--accumulate")
    rows = found["breakdown"]
    assert code == 0
    assert rows["accumulated_bytes"] == rows["parameter_bytes"] > 0
    assert found["plan"]["budget_bytes"] == 4 * 2**20 - rows["accumulated_bytes"]
    parts = ("parameter", "batch", "gradient", "accumulated", "optimizer", "kept", "temporary")
    assert sum(rows[f"{part}_bytes"] for part in parts) == rows["total_bytes"]
    assert "gradients of earlier backwards " in run(capsys, "plan", *MODEL, "--budget", "4MiB", "--accumulate")[1]
    code, out, _ = run(capsys, "plan", *MODEL, "--budget", "100KiB", "--accumulate", "--optimizer", "sgd-momentum")
    assert code == 1
    assert "With the optimizer's state and gradients of earlier backwards of " in out


def test_what_does_not_fit_gives_code_1_and_the_smallest_budget(capsys):
    code, out, _ = run(capsys, "plan", *MODEL, "--memory-budget", "100KiB")
    assert code == 1
    assert "it does not fit" in out
    code, found = run_json(capsys, "plan", *MODEL, "--budget", "100KiB", "--optimizer", "sgd-momentum")
    assert (code, found["fits"]) == (1, False)
    enough = str(found["minimum_bytes"])
    assert cli.main(["plan", *MODEL, "--budget", enough, "--optimizer", "sgd-momentum"]) == 0


def test_lora_has_less_to_keep_for_the_optimizer(capsys):
    _, whole = run_json(capsys, "plan", *MODEL, "--optimizer", "adamw")
    _, adapted = run_json(capsys, "plan", *MODEL, "--optimizer", "adamw", "--lora-rank", "2")
    assert adapted["breakdown"]["optimizer_bytes"] == 8 * 3 * 2 * 2 * (64 + 256)
    assert adapted["breakdown"]["all_gradient_bytes"] < whole["breakdown"]["all_gradient_bytes"]
    assert "LoRA of rank 2 on 6 layers" in adapted["model"]


def test_autocast_and_dtype_change_what_is_kept(capsys):
    kinds = {}
    for name, more in {"fp32": [], "autocast": ["--autocast", "bf16"], "bf16": ["--dtype", "bf16"]}.items():
        _, found = run_json(capsys, "plan", *MODEL, *more, "--budget", "none")
        kinds[name] = {value["dtype"] for value in found["plan"]["values"] if value["decision"] == "keep"}
    assert kinds["fp32"] == {"float32"}
    assert "bfloat16" in kinds["autocast"]
    assert kinds["bf16"] == {"bfloat16"}


def test_plan_files_are_saved_explained_plotted_and_compared(capsys, folder):
    _, found = run_json(capsys, "plan", *MODEL, "--budget", "none")
    half = (found["plan"]["smallest_peak_bytes"] + found["plan"]["fastest_peak_bytes"]) // 2
    for name, budget in (("a.json", "none"), ("b.json", str(half))):
        assert run(capsys, "plan", *MODEL, "--budget", budget, "--save", name)[0] == 0
    first, second = rematpass.load_plan("a.json"), rematpass.load_plan("b.json")
    code, out, _ = run(capsys, "explain", "b.json", "1.*")
    assert code == 0
    assert "values in 1.*" in out
    assert "0.up" not in out
    code, record = run_json(capsys, "explain", "b.json")
    assert (record["peak_bytes"], len(record["values"])) == (second.peak_bytes, len(second.values))
    code, out, _ = run(capsys, "diff", "a.json", "b.json")
    assert code == 1
    assert f"({second.peak_bytes - first.peak_bytes:+d} bytes" in out.replace(", ", " (")
    assert run(capsys, "diff", "a.json", "a.json")[:2] == (0, "the plans are equal\n")
    assert run_json(capsys, "diff", "a.json", "b.json")[1]["is_same_graph"] is True
    assert run(capsys, "plot", "b.json", "--out", "t.svg")[:2] == (0, "plot: t.svg\n")
    text = Path("t.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "*.up" in text
    assert f"peak {second.peak_bytes / 2**20:.1f} MiB" in text


def test_a_curve(capsys):
    code, found = run_json(capsys, "frontier", *MODEL, "--count", "3")
    assert code == 0
    assert len(found["points"]) >= 2
    assert run(capsys, "plot", *MODEL, "--curve", "--count", "2", "--out", "c.png")[0] == 0
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_is_one_file_without_a_network(capsys):
    code, out, _ = run(capsys, "report", *MODEL, "--count", "2", "--out", "r.html")
    assert (code, out) == (0, "report: r.html\n")
    text = Path("r.html").read_text()
    assert "://" not in text
    assert run(capsys, "plan", *MODEL, "--save", "p.json")[0] == 0
    assert "tiny.py:build" in rematpass.load_plan("p.json").source
    assert run_json(capsys, "report", "p.json", "--out", "q.html") == (0, {"path": "q.html"})
    assert '"curve":[]' in Path("q.html").read_text()


def test_the_largest_batch(capsys):
    asked = ["max-size", *MODEL, "--vary", "batch", "--step", "16", "--budget", "2MiB"]
    code, found = run_json(capsys, *asked)
    assert code == 0
    assert found["size"] % 16 == 0
    assert found["peak_bytes"] <= found["budget_bytes"] < found["above_minimum_bytes"]
    code, out, err = run(capsys, *asked)
    assert f"the largest batch that fits 2.0 MiB is {found['size']}" in out
    assert "does not fit" in err
    assert run(capsys, "max-size", *MODEL, "--vary", "batch", "--budget", "1KiB")[0] == 1


def test_the_longest_sequence_ends_where_the_configuration_does(capsys):
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}
    fields = {**small, "intermediate_size": 16, "max_position_embeddings": 64}
    settings = [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
    asked = ["max-size", "hf:llama", *settings, "--vary", "sequence", "--step", "16", "--budget", "1GiB"]
    code, found = run_json(capsys, *asked)
    assert (code, found["size"], found["above"], found["longest"]) == (0, 64, None, 64)
    assert [tried["size"] for tried in found["tried"]] == [16, 64]
    assert "--set max_position_embeddings=128" in run(capsys, *asked)[1]
    code, found = run_json(capsys, *asked, "--most", "32")
    assert (code, found["size"], found["longest"]) == (0, 32, None)


def test_devices(capsys):
    code, out, _ = run(capsys, "devices")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == sorted(DECLARED)
    _, found = run_json(capsys, "devices")
    assert {device["name"]: device["memory_bytes"] for device in found}["h100-sxm"] == 80 * 10**9


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["plan", "tiny.py:build", "--device", "h1000"], "Did you mean 'h100-sxm'"),
        (["plan", "tiny.py:build", "--dtype", "int4"], "dtype='int4'"),
        (["plan", "tiny.py:build", "--budget", "20gb"], "memory_budget='20gb'"),
        (["plan", "tiny.py:build", "--batch", "0"], "batch=0"),
        (["plan", "tiny.py:build", "--set", "batch"], "key=value"),
        (["plan", "tiny.py:breaks"], "does not trace into one graph"),
        (["plan", "tiny"], "Try: my_module:build_model"),
        (["plan", *MODEL, "--save", "/nowhere/plan.json"], "not saved to /nowhere/plan.json"),
        (["explain", "nothing.json"], "no plan file nothing.json"),
        (["explain", "tiny.py:build", "decoder", "--device", "l4"], "nothing in the plan is called"),
        (["explain", "tiny.py:build", "decoder"], "Nearest modules: 0, 0.up, 1"),
        (["diff", "tiny.py", "tiny.py"], "tiny.py is not loaded"),
        (["verify", "tiny.py", "tiny.py"], "tiny.py is not loaded"),
        (["plot", *MODEL, "--out", "x.bmp3"], "no image format"),
        (["plot", *MODEL, "--out", "/nowhere/x.png"], "cannot write the plot"),
        (["report", *MODEL, "--out", "/nowhere/r.html"], "there is no folder /nowhere"),
        (["frontier", *MODEL, "--count", "1"], "count is 1"),
        (["max-size", *MODEL, "--vary", "sequence"], "does not take"),
        (["max-size", *MODEL, "--vary", "batch", "--budget", "none"], "no largest size"),
    ],
)
def test_what_is_refused_is_one_message_and_code_2(argv, words, capsys, folder):
    before = sorted(folder.iterdir())
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert err.startswith("rematpass: error: ")
    assert words in err
    assert out == ""
    assert [path for path in sorted(folder.iterdir()) if path not in before and path.name != "__pycache__"] == []
