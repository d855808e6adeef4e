"""`rematpass verify`: a script is run as it is, its graph follows the plan, a real step is measured."""

import inspect
import json

import pytest
import torch

import rematpass
from rematpass import cli
from tests.perceptron import Perceptron
from tests.processes import ROOT

MODEL = f"""
import sys
import torch
from torch import nn
from torch.nn import functional

{inspect.getsource(Perceptron)}
model = Perceptron()
options = {{"memory_budget": "100GiB", "cpp.simdlen": 1}}  # the plan's counts; scalar code compiles faster
compiled = torch.compile(model, backend="rematpass", options=options)
"""
TRAIN = f"""{MODEL}
print("arguments", sys.argv[1:])
try:
    for step in range(5):
        print("step", step)
        try:
            compiled(torch.ones(int(sys.argv[1]), 128)).backward()
        except Exception as error:  # as some training loops do: the stop must get past it
            print("swallowed", error)
finally:
    print("closed")
"""


@pytest.fixture(scope="module")
def plan() -> rematpass.Plan:
    with torch.device("meta"):
        model, x = Perceptron(), torch.empty(2048, 128)
    ends = rematpass.plan(model, (x,), device="cpu", memory_budget="none")
    return rematpass.plan(model, (x,), device="cpu", memory_budget=(ends.peak_bytes + ends.smallest_peak_bytes) // 2)


@pytest.fixture
def verify(plan, tmp_path, monkeypatch, capfd):
    """Run the command on a script; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    plan.save(tmp_path / "plan.json")

    def run(script: str, *arguments: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        (tmp_path / "train.py").write_text(script)
        code = cli.main(["verify", *options, "plan.json", "train.py", *arguments])
        return code, *capfd.readouterr()

    return run


def test_a_kept_plan_as_json_and_the_script_is_stopped(verify, plan):
    code, out, err = verify(TRAIN, "2048", "--json", options=("--json",))
    record = json.loads(out)
    assert (code, record["is_kept"], record["script"]) == (0, True, "train.py")
    [graph] = record["graphs"]
    assert (graph["budget_bytes"], graph["predicted_bytes"]) == (plan.budget_bytes, plan.peak_bytes)
    assert plan.static_bytes < graph["least_bytes"] <= graph["most_bytes"] <= 1.01 * plan.budget_bytes
    lines = [line for line in err.splitlines() if line.split()[0] in ("arguments", "step", "swallowed", "closed")]
    assert lines == ["arguments ['2048', '--json']", "step 0", "step 1", "closed"]


def test_another_graph_is_refused_and_says_what_differs(verify):
    code, out, err = verify(MODEL + "compiled(torch.ones(512, 128)).backward()")
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert "rematpass: error: the plan was made for another graph" in err
    assert "(2048, 128) in the plan, float32 (512, 128) here" in err


def test_a_script_that_raises_shows_where(verify):
    code, out, err = verify("import sys\nprint('begun')\n{}[sys.argv[1]]", "a b")
    assert (code, out) == (2, "begun\n")
    assert 'train.py", line 3' in err
    assert "rematpass: error: the script raised KeyError: 'a b'. Try: python train.py 'a b', which should" in err


def test_a_script_that_is_no_training(verify):
    code, _, err = verify("print('hello')")
    assert code == 2
    assert err.startswith("rematpass: error: the script never compiled anything")
