"""Several processes, some of them killed: files stay whole, plans stay equal, nobody waits for ever."""

import json
import os
import random
import signal
import time

import pytest
from filelock import FileLock  # a requirement of torch's

from rematpass import Plan, load_plan
from rematpass.cost import cpu_probe
from rematpass.cost.device_model import DeviceModel
from rematpass.plan_types import TimelinePoint
from rematpass.store import PlanStore
from tests.processes import finish, killed_at_the_end, start_python
from tests.unit.test_plan import make_plan

KILLS = 12
# Writes two plans in turn to the same file and the same store, for ever.
SAVER = """
import sys
from pathlib import Path
from rematpass import load_plan
from rematpass.files import write_whole
from rematpass.plan_file import format_plans
from rematpass.store import PlanStore
folder = Path(sys.argv[1])
plans = [load_plan(folder / name) for name in ("one.json", "two.json")]
for plan in plans:
    plan.save(folder / "plan.json")
    PlanStore(folder).save("key", [plan])
    (stored,) = (folder / "plans").glob("*.json")
texts = [(format_plans([plan]), format_plans([plan], "key")) for plan in plans]
print("saved", flush=True)
while True:  # only writing, or most kills would hit the formatting
    for text, stored_text in texts:
        write_whole(folder / "plan.json", text)
        write_whole(stored, stored_text)
"""


def long_plan(device):
    """Some hundred kilobytes, so that writing takes a while."""
    timeline = tuple(TimelinePoint("forward", f"op_{i}", 4000) for i in range(1000))
    return make_plan(device=device, timeline=timeline)


@pytest.fixture
def two_plans(tmp_path):
    plans = long_plan("one"), long_plan("two")
    for plan in plans:
        plan.save(tmp_path / f"{plan.device}.json")
    return plans


def loaded(folder):
    """What a reader finds: a saved plan, and a stored one."""
    (stored,) = PlanStore(folder).load("key")
    return {load_plan(folder / "plan.json"), stored}


def test_a_kill_while_saving_leaves_one_of_the_plans(tmp_path, two_plans):
    chance = random.Random(0)
    for _ in range(KILLS):
        with killed_at_the_end(start_python(SAVER, tmp_path)) as saver:
            assert saver.stdout.readline() == "saved\n"
            time.sleep(chance.random() * 0.05)
        assert saver.returncode == -signal.SIGKILL
        assert loaded(tmp_path) <= set(two_plans)
    left = [*tmp_path.rglob(".rematpass-*")]
    assert left, "no kill hit a write: nothing was tested"
    for path in left:
        os.utime(path, (0, 0))
    two_plans[0].save(tmp_path / "plan.json")
    PlanStore(tmp_path).save("key", two_plans)
    assert [*tmp_path.rglob(".rematpass-*")] == []


def test_two_writers_and_a_reader_at_once(tmp_path, two_plans, caplog):
    with (
        killed_at_the_end(start_python(SAVER, tmp_path)) as one,
        killed_at_the_end(start_python(SAVER, tmp_path)) as two,
    ):
        assert [one.stdout.readline(), two.stdout.readline()] == ["saved\n"] * 2
        for _ in range(25):
            assert loaded(tmp_path) <= set(two_plans)
        assert [one.poll(), two.poll()] == [None, None], "both still write"
    assert caplog.records == []


MEASURE = """
import random, sys, time
from pathlib import Path
from rematpass.cost import cpu_probe
from rematpass.cost.device_model import find_device
from dataclasses import replace
def measure():
    time.sleep(random.random() / 10)
    return replace(find_device("l4"), launch_ns=random.randrange(10**9))
cpu_probe.measure_cpu = measure
print(cpu_probe.cpu_model(Path(sys.argv[1])).to_json())
"""


def test_processes_that_measure_at_once_take_the_same_figures(tmp_path):
    started = [start_python(MEASURE, tmp_path) for _ in range(6)]
    figures = {finish(process)[0].strip() for process in started}
    assert len(figures) == 1
    (path,) = tmp_path.iterdir()
    assert path.read_text() in figures


def write_figures(folder, name, flops_per_second):
    """A measured processor in the cache of one process."""
    figures = DeviceModel("cpu", (("float32", flops_per_second),), 1e10, 2000, 1e10, 2**34, name)
    folder.mkdir(parents=True)
    (folder / f"cpu-{cpu_probe._machine_key()}.json").write_text(figures.to_json())


def test_a_kill_while_compiling_leaves_caches_that_work(tmp_path):
    """After kills all along a compilation, the next process compiles or takes from the caches, and has its plan."""
    for name in ("fresh", "shared"):
        write_figures(tmp_path / name / "rematpass", "a processor", 1e11)
    process = start_python("-m tests.integration.compile_program", tmp_path, 5, TORCHINDUCTOR_COMPILE_THREADS="1")
    seen = json.loads(finish(process)[0].splitlines()[-1])
    assert seen["last"] == seen["fresh"]
    assert seen["last"]["is_right"]
    assert len(seen["last"]["plans"]) == 1


STEP = """
import json, torch, rematpass
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
compiled = torch.compile(model, backend="rematpass", options={"memory_budget": "none", "cpp.simdlen": 1})
compiled(torch.ones(59, 8)).sum().backward()
(plan,) = rematpass.plans(compiled)
print(json.dumps([plan.to_json(), [p.grad.tolist() for p in model.parameters()]]))
"""


def test_two_processes_that_compile_at_once(tmp_path, inductor_caches):
    caches = {"REMATPASS_CACHE_DIR": str(tmp_path / "ours"), "TORCHINDUCTOR_CACHE_DIR": inductor_caches}
    outputs = [finish(process) for process in [start_python(STEP, **caches) for _ in range(2)]]
    assert len({stdout for stdout, _ in outputs}) == 1
    assert [stderr for _, stderr in outputs] == ["", ""]
    assert [*tmp_path.rglob(".rematpass-*")] == []


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, shared_folder, inductor_caches):
    """What two processes of one job saw; made by the worker of pytest-xdist that comes first, for all of them."""
    seen = shared_folder / "ranks.json"
    with FileLock(f"{seen}.lock"):
        if not seen.exists():
            seen.write_text(json.dumps(run_ranks(tmp_path_factory.mktemp("ranks"), inductor_caches)))
    return json.loads(seen.read_text())


def run_ranks(folder, inductor_caches):
    """Each rank has its own cache, its own measured processor and its own hash seed."""
    started = []
    for rank, rate in enumerate((1e11, 3e9)):  # one computes 30 times as fast, with the same bandwidth
        write_figures(folder / f"rank{rank}", f"rank {rank}", rate)
        environment = {
            "REMATPASS_CACHE_DIR": str(folder / f"rank{rank}"),
            "TORCHINDUCTOR_CACHE_DIR": inductor_caches,
            "PYTHONHASHSEED": str(rank + 1),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        started.append(start_python("-m tests.integration.rank_program", rank, folder / "store", **environment))
    return [json.loads(finish(process)[0].splitlines()[-1]) for process in started]


class TestRanks:
    def test_plans_are_equal_to_the_byte(self, ranks):
        assert ranks[0]["plans"] == ranks[1]["plans"]
        assert {len(set(texts)) for texts in ranks[0]["plans"].values()} != {1}, "budgets make a difference"

    @pytest.mark.parametrize("name", ["none", "tight", "auto"])
    def test_compiled_plans_are_equal_to_the_byte_and_nothing_is_said(self, ranks, name):
        assert ranks[0][name]["plan"] == ranks[1][name]["plan"]
        assert [rank[name]["told"] for rank in ranks] == [[], []]

    @pytest.mark.parametrize("name", ["none", "tight", "half", "auto"])
    def test_gradients_are_those_without_us(self, ranks, name):
        for rank in ranks:
            for found, expected in zip(rank[name]["gradients"], ranks[0]["eager"], strict=True):
                assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert ranks[0][name]["gradients"] == ranks[1][name]["gradients"]

    def test_gradients_of_earlier_backwards_lower_the_budget_of_all_ranks_alike(self, ranks):
        plan = Plan.from_json(ranks[0]["accumulated"]["plan"])
        assert plan.budget_bytes == Plan.from_json(ranks[0]["none"]["plan"]).fastest_peak_bytes - 3 * (64 + 8) * 4
        assert ranks[0]["accumulated"]["plan"] == ranks[1]["accumulated"]["plan"]
        assert [rank["accumulated"]["told"] for rank in ranks] == [[], []]

    def test_collectives_run_once_and_in_one_order_whatever_the_plan(self, ranks):
        plans = [Plan.from_json(rank[name]["plan"]) for rank in ranks for name in ("none", "tight", "half")]
        assert len({plan.recompute_seconds for plan in plans}) > 1, "plans differ"
        order = [[row.op for row in plan.timeline if row.op.startswith(("all_reduce", "wait"))] for plan in plans]
        assert order == [order[0]] * len(plans)
        assert len(set(order[0])) == len(order[0]) >= 6

    def test_plans_that_differ_are_told_by_one_rank(self, ranks):
        told = [text for rank in ranks for text in rank["half"]["told"]]
        (text,) = told
        assert "planned one graph differently" in text
        budgets = [Plan.from_json(rank["half"]["plan"]).budget_bytes for rank in ranks]
        assert budgets[0] != budgets[1]
        assert all(str(budget) in text for budget in budgets)

    def test_a_rank_with_less_memory_keeps_its_own_budget_and_says_so(self, ranks):
        first, second = (Plan.from_json(rank["scarce"]["plan"]).budget_bytes for rank in ranks)
        assert second < 500 * 2**20 < first
        assert ranks[0]["scarce"]["told"] == []
        assert ["budget_bytes" in text for text in ranks[1]["scarce"]["told"]] == [True]

    def test_a_graph_of_one_rank_alone_holds_nobody_up(self, ranks):
        assert "alone" in ranks[0]
        assert "alone" not in ranks[1]
