"""Plan files: what was saved is loaded, and nothing else ever is."""

import json
import logging
import os
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rematpass
from rematpass import PlanFileError, load_plan
from rematpass.plan_file import _digests
from rematpass.plan_types import PLAN_SCHEMA, AliveRecord, Decision, Neighbour, TimelinePoint, ValueRecord
from rematpass.store import PlanStore
from tests.unit.test_plan import make_plan

SIZES = st.integers(0, 2**40)
SECONDS = st.floats(0, 1e6)
NAMES = st.text(max_size=8)  # any character, lone surrogates excepted


@st.composite
def plans(draw):
    """Plans of any content that rematpass could make."""
    timeline = [TimelinePoint("forward", draw(NAMES), size) for size in draw(st.lists(SIZES, max_size=3))]
    timeline += [TimelinePoint("backward", draw(NAMES), size) for size in draw(st.lists(SIZES, max_size=3))]
    live = [row.live_bytes for row in timeline]
    peak = max(live, default=draw(SIZES))
    named = draw(st.lists(NAMES, unique=True, max_size=4))
    shapes = st.lists(st.integers(0, 9) | NAMES, max_size=2).map(tuple)
    values = [
        ValueRecord(name, draw(SIZES), draw(shapes), "float32", draw(st.sampled_from(Decision)), *draw_texts(draw, 4))
        for name in named
    ]
    neighbours = st.none() | st.builds(Neighbour, SIZES, SECONDS)
    return make_plan(
        graph_name=draw(NAMES),
        budget_bytes=draw(st.none() | SIZES),
        peak_bytes=peak,
        fastest_peak_bytes=peak + draw(SIZES),
        smallest_peak_bytes=peak,
        bound_peak_bytes=peak // 2,
        recompute_seconds=draw(SECONDS),
        step_seconds=draw(SECONDS),
        values=tuple(values),
        timeline=tuple(timeline),
        peak_position=live.index(peak) if live else 0,
        alive_at_peak=tuple(AliveRecord(name, draw(SIZES), "kept", *draw_texts(draw, 2)) for name in named),
        cheaper=draw(neighbours),
        smaller=draw(neighbours),
        notes=tuple(draw_texts(draw, 2)),
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def draw_texts(draw, count):
    return [draw(NAMES) for _ in range(count)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return make_plan().save(tmp_path_factory.mktemp("plans") / "plan.json")


@settings(deadline=None, max_examples=60, derandomize=True)
@given(plans())
def test_what_is_saved_is_loaded(tmp_path_factory, plan):
    folder = tmp_path_factory.mktemp("plan")
    path = plan.save(folder / "plan.json")
    loaded = load_plan(path)
    assert loaded == plan
    assert loaded.to_json() == plan.to_json()
    assert loaded.save(folder / "again.json").read_bytes() == path.read_bytes()
    assert names(folder) == ["again.json", "plan.json"]


def test_a_person_can_read_it(saved):
    text = saved.read_text()
    record = json.loads(text)
    assert record["about"]["format"] == "rematpass plans"
    assert record["about"]["schema"] == PLAN_SCHEMA
    assert record["about"]["rematpass_version"] == rematpass.__version__
    assert record["plans"][0]["torch_version"] == "2.13.0"
    assert text.endswith("}\n")
    assert all(len(line) < 120 for line in text.splitlines())
    assert stat.S_IMODE(saved.stat().st_mode) & 0o444 == 0o444 & ~current_umask(), "others may read it"


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load_text(folder, text):
    path = folder / "plan.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_plan(path)


def edited(saved, edit):
    """The text of a saved plan after `edit` changed its JSON in place."""
    record = json.loads(saved.read_text())
    edit(record)
    return json.dumps(record)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda r: r["plans"][0].update(budget_bytes=1), r"edited: plans\[0\].budget_bytes\."),
        (lambda r: r["plans"][0]["values"][0].update(decision="free"), r"edited: plans\[0\].values\."),
        (lambda r: r["plans"][0].pop("device"), r"edited: plans\[0\].device\."),
        (lambda r: r["plans"][0].update(x=1, notes=[]), r"edited: plans\[0\].notes, plans\[0\].x\."),
        (lambda r: r["about"]["digests"][0].update(device="0" * 16), r"edited: plans\[0\].device\."),
        (lambda r: r["about"]["digests"][0].clear(), r"edited: plans\[0\].alive_at_peak, "),
        (lambda r: r["about"].update(digests=[]), "edited: plans and digests"),
        (lambda r: r["about"].update(digests=[3]), r"edited: plans\[0\] is no object"),
        (lambda r: r.update(plans={}), "edited: plans and digests"),
        (lambda r: r["plans"].clear(), "edited"),
        (lambda r: (r["plans"].clear(), r["about"]["digests"].clear()), "it holds 0 plans, not one"),
        (
            lambda r: r["about"].update(schema=PLAN_SCHEMA - 1),
            f"schema {PLAN_SCHEMA - 1} written by rematpass .* older",
        ),
        (
            lambda r: r["about"].update(schema=99, rematpass_version="9.0"),
            "schema 99 written by rematpass 9.0, another",
        ),
        (lambda r: r["about"].pop("schema"), "schema None"),
        (lambda r: r["about"].update(schema=True), "schema True"),
        (lambda r: r["about"].update(key="abc"), "stored under 'abc'"),
        (lambda r: r["about"].update(format="x"), "no plan file: its keys are 'about', 'plans'"),
        (lambda r: r.pop("about"), "no plan file: its keys are 'plans'"),
    ],
)
def test_an_edited_file_is_refused_and_says_where(saved, tmp_path, edit, words):
    with pytest.raises(PlanFileError, match=words) as caught:
        load_text(tmp_path, edited(saved, edit))
    assert str(tmp_path / "plan.json") in str(caught.value)
    assert "Try: " in str(caught.value)


def test_impossible_content_is_refused_even_with_its_digest(saved, tmp_path):
    def edit(record):
        record["plans"][0]["peak_position"] = 7
        record["about"]["digests"] = [_digests(plan) for plan in record["plans"]]

    with pytest.raises(PlanFileError, match=r"plans\[0\].peak_position is 7; it must be a place in the timeline"):
        load_text(tmp_path, edited(saved, edit))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("hello", "not a plan: no JSON object, character 0"),
        (b"\x89PNG\r\n\x1a\n\x00", "is no text: byte 0 is 0x89"),
        ("[1, 2]", "its JSON is a list"),
        (
            '{"name": "package", "version": 1, "a": 1, "b": 1, "c": 1, "d": 1}',
            "its keys are 'a', 'b', 'c', 'd', 'name', ",
        ),
        ("{}", "its keys are none"),
        (make_plan().to_json(), r"this is what plan.to_json\(\) gives"),
        ('{"about": 1, "about": 2}', "'about' stands twice"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path, text, words):
    with pytest.raises(PlanFileError, match=words):
        load_text(tmp_path, text)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(PlanFileError, match="it is a folder"):
        load_plan(tmp_path)
    with pytest.raises(PlanFileError, match="No such file"):
        load_plan(tmp_path / "missing.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanFileError, match="no regular file"):
        load_plan(tmp_path / "pipe")


def test_truncated_anywhere_is_refused_and_says_where(saved, tmp_path):
    text = saved.read_text()
    for end in [*range(1, len(text) - 1, 41), len(text) - 2]:
        with pytest.raises(PlanFileError, match=rf"(truncated: it ends after {end} characters|damaged at character)"):
            load_text(tmp_path, text[:end])


def unchanged_or_refused(folder, content):
    with suppress(PlanFileError):
        assert load_text(folder, content) == make_plan()


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.data())
def test_no_byte_can_be_changed_into_another_plan(tmp_path_factory, saved, data):
    content = bytearray(saved.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.none() | st.integers(0, len(content)))
    unchanged_or_refused(tmp_path_factory.getbasetemp(), bytes(content[:end]))


def places_in(tree, path=()):
    """The paths of every key and index in a JSON tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places_in(item, (*path, key))


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.data())
def test_no_field_can_be_changed_into_another_plan(tmp_path_factory, saved, data):
    record = json.loads(saved.read_text())
    for _ in range(data.draw(st.integers(1, 2))):
        *path, key = data.draw(st.sampled_from(list(places_in(record))))
        parent = record
        for step in path:
            parent = parent[step]
        change = data.draw(st.sampled_from(["delete", "repeat", "edit"]))
        if change == "delete":
            del parent[key]
        elif change == "repeat" and isinstance(parent, list):
            parent.append(parent[key])
        else:
            parent[key] = data.draw(st.integers(-5, 9) | st.floats(0, 1) | NAMES | st.none() | st.booleans())
    unchanged_or_refused(tmp_path_factory.getbasetemp(), json.dumps(record).encode())


def test_saving_replaces_whole_and_follows_links(tmp_path):
    path = make_plan().save(tmp_path / "plan.json")
    (tmp_path / "link.json").symlink_to(path)
    make_plan(device="other").save(str(tmp_path / "link.json"))
    assert (tmp_path / "link.json").is_symlink()
    assert load_plan(path).device == "other"


@pytest.mark.parametrize("place", ["missing/plan.json", "file/plan.json", "folder"])
def test_what_cannot_be_saved_is_refused(tmp_path, place):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PlanFileError, match=r"not saved to .*Try: an existing folder"):
        make_plan().save(tmp_path / place)
    assert names(tmp_path) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_seconds": float("nan")}, "plan.step_seconds is nan; it must be a number"),
        ({"values": []}, "read back as another plan"),
        ({"peak_position": 7}, "peak_position is 7; it must be a place in the timeline"),
    ],
)
def test_an_impossible_plan_is_not_saved(tmp_path, changes, words):
    with pytest.raises(PlanFileError, match=f"not saved to .*{words}"):
        replace(make_plan(), **changes).save(tmp_path / "plan.json")
    assert names(tmp_path) == []


FULL_DISK = """
import resource, signal, sys
from rematpass import PlanFileError, load_plan
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
plan = load_plan(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    plan.save(sys.argv[1])
except PlanFileError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """The system itself refuses to write the whole of it."""
    path = make_plan().save(tmp_path / "plan.json")
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert path.read_bytes() == before
    assert names(tmp_path) == ["plan.json"]


class TestStore:
    KEY = "ab" * 32

    def test_keeps_plans_by_key(self, tmp_path):
        store, plans = PlanStore(tmp_path), (make_plan(), make_plan(graph_name="graph 1"))
        assert store.load(self.KEY) is None
        store.save(self.KEY, plans)
        assert PlanStore(tmp_path).load(self.KEY) == plans
        store.save(self.KEY, ())
        assert store.load(self.KEY) == ()

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (lambda text: b"", "empty"),
            (lambda text: text[:200], "truncated"),
            (lambda text: b"\xff" + text, "utf-8"),
            (lambda text: b'["a list"]', "list"),
            (lambda text: text.replace(b"4096", b"4095"), "budget_bytes"),
            (lambda text: text.replace(b'"schema": 3', b'"schema": 2'), "older"),
            (lambda text: text.replace(b"abab", b"cdcd"), "stored under"),
        ],
    )
    def test_a_damaged_entry_counts_as_absent_is_told_and_replaced(self, tmp_path, caplog, damage, words):
        store = PlanStore(tmp_path)
        store.save(self.KEY, [make_plan()])
        (path,) = (tmp_path / "plans").iterdir()
        path.write_bytes(damage(path.read_bytes()))
        with caplog.at_level(logging.WARNING):
            assert store.load(self.KEY) is None
        (record,) = caplog.records
        assert words in record.getMessage()
        assert str(path) in record.getMessage()
        store.save(self.KEY, [make_plan()])
        assert store.load(self.KEY) == (make_plan(),)
        assert len(caplog.records) == 1

    def test_a_folder_that_cannot_be_written_is_told(self, tmp_path, caplog):
        (tmp_path / "plans").write_text("no folder")
        with caplog.at_level(logging.WARNING):
            PlanStore(tmp_path).save(self.KEY, [make_plan()])
            assert PlanStore(tmp_path).load(self.KEY) is None
        assert "not stored" in caplog.text
