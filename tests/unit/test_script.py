"""A script that is watched: which options its graphs get, when it is stopped, what is written down."""

import json
from pathlib import Path

import pytest

from rematpass.check.verdict import Measurement
from rematpass.options import Options, parse_options
from rematpass.script import Notes, Watch, following
from rematpass.typed_json import read_record

STEP = Measurement("graph 0", None, 10, 9, 11)


def test_the_plan_takes_the_place_of_the_scripts_budget_and_of_nothing_else():
    asked = parse_options({"memory_budget": "1GiB", "on_error": "fallback", "save": ["a.*"]}, environ={})
    wanted = Options(save=("a.*",), plan="p.json", verify=True)
    assert following(asked, Path("p.json")) == wanted
    assert following(parse_options({"plan": "other.json"}, environ={}), Path("p.json")).plan == "p.json"


@pytest.mark.parametrize("is_whole", [False, True])
def test_it_is_stopped_when_every_graph_is_measured(is_whole, tmp_path):
    watch = Watch(tmp_path / "notes.json", tmp_path / "plan.json", is_whole)
    watch.note(compiled=3, replaying=2)
    watch.hear(STEP)
    if is_whole:
        watch.hear(STEP)
    else:
        with pytest.raises(SystemExit) as stopped:
            watch.hear(STEP)
        assert stopped.value.code == 0
    written = read_record(Notes, json.loads((tmp_path / "notes.json").read_text()), "notes")
    assert written == watch.notes == Notes(3, 2, (STEP, STEP))
