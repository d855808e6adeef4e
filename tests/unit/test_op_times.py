"""Measured prices: what is timed, where it is kept, and what happens when it cannot be had."""

import dataclasses
import json
import logging
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import fx, nn

import rematpass
from rematpass import device, op_times, ranks
from rematpass.check import clock
from rematpass.cost.memory import DeviceMemory
from rematpass.cost.op_prices import OpPrices, PriceBook, file_book, read_prices, write_prices
from rematpass.cost.values import ValueWork, price_values
from rematpass.errors import OptionError
from rematpass.graph.facts import collect_facts
from rematpass.graph.signature import op_signature
from rematpass.options import parse_options
from rematpass.pipeline import plan_and_split
from tests.tracing import TOY, joint_of, toy_settings

PRICES = OpPrices("toy, 2 threads", "2.13", (("a(1)", 5), ("b(2)", None)))


def two_layers(x, left, right):
    hidden = (x @ left).relu()
    return ((hidden @ right).relu() @ right).sum()


def joint_of_layers(width=8):
    return joint_of(two_layers, [torch.randn(4, width, requires_grad=True), *(torch.randn(width, width),) * 2])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of its own for this test."""
    monkeypatch.setenv("REMATPASS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def book(tmp_path):
    return PriceBook(OpPrices("toy", "2.13", ()), str(tmp_path / "times"), is_open=True, identity="i")


@pytest.fixture
def timed(monkeypatch):
    """A clock that gives 1000 ns and notes what it is asked for."""
    asked = []
    monkeypatch.setattr(op_times, "time_op", lambda node, _: asked.append(node.name) or (1000, ""))
    return asked


def signatures_of(joint):
    return [text for text in (op_signature(node, {}) for node in joint.nodes) if text is not None]


def prices_by(joint, book):
    return op_times.measured_ns(joint, collect_facts(joint), book, {})


def test_only_operators_with_a_kernel_of_their_own_have_a_signature():
    found = signatures_of(joint_of_layers())
    assert found[0] == "aten.mm.default(float32[4, 8], float32[8, 8])"
    assert all(text.startswith("aten.mm.") for text in found)
    assert found[0] == found[1] == found[2]
    assert "aten.mm.default(float32[4, 8], float32[8, 8](1, 8))" in found


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5).sum(), (1, 1, 4, 8)),
        (lambda x: x.exp().sum(), (4,)),
    ],
)
def test_what_draws_or_is_fused_has_none(function, shape):
    joint = joint_of(function, [torch.randn(shape, requires_grad=True)])
    assert [text for text in signatures_of(joint) if "dropout_p=0.5" in text or "exp" in text] == []


def test_the_clock_runs_an_operator_and_leaves_nothing_behind():
    joint = joint_of_layers()
    node = next(node for node in joint.nodes if op_signature(node, {}))
    state = torch.get_rng_state()
    time_ns, reason = clock.time_op(node, "cpu")
    assert reason == ""
    assert 0 < time_ns < 10**9
    assert torch.equal(torch.get_rng_state(), state)


def test_indices_are_drawn_within_every_dimension():
    def look_up(table, ids):
        return torch.ops.aten.embedding(table, ids).sum()

    joint = joint_of(look_up, [torch.randn(5, 3, requires_grad=True), torch.randint(5, (2, 7))])
    node = next(node for node in joint.nodes if "embedding_dense_backward" in str(node.target))
    assert clock.time_op(node, "cpu")[1] == ""


def test_integers_that_may_be_lengths_and_custom_operators_are_not_made_up():
    graph = fx.Graph()
    rows, ends = (graph.placeholder(name) for name in ("rows", "ends"))
    rows.meta["val"] = torch.empty(16, 16, device="meta")
    ends.meta["val"] = torch.empty(3, dtype=torch.int32, device="meta")
    grouped = graph.call_function(torch.ops.aten._grouped_mm.default, (rows, rows, ends))
    assert clock.time_op(grouped, "cpu") == (None, "it reads integers that cannot be made up")
    assert "custom operator" in clock.time_op(rows, "cpu")[1]


def test_a_lower_precision_of_products_is_another_device(monkeypatch):
    usual = device.device_label("cpu")
    monkeypatch.setattr(device.torch_compat, "matmul_precision", lambda: "high")
    assert device.device_label("cpu") == f"{usual}, float32 products in high precision"


def test_what_does_not_fit_or_fails_has_a_reason_and_no_time(monkeypatch):
    node = next(node for node in joint_of_layers().nodes if op_signature(node, {}))
    with monkeypatch.context() as patch:
        patch.setattr(clock, "device_memory", lambda _: DeviceMemory(1000, 500))
        assert clock.time_op(node, "cpu") == (None, "its tensors take 512 bytes, 500 are free")

    def fail(*_):
        raise torch.OutOfMemoryError("no room\nfor this")

    monkeypatch.setattr(clock, "_prepared", fail)
    assert clock.time_op(node, "cpu") == (None, "OutOfMemoryError: no room")


def test_each_operator_is_timed_once_on_a_machine(book, timed):
    joint = joint_of_layers()
    assert set(prices_by(joint, book).values()) == {1000}
    assert len(timed) == len(set(signatures_of(joint))) < len(signatures_of(joint))
    assert prices_by(joint_of_layers(), book) == prices_by(joint, book)
    assert len(timed) == len(set(signatures_of(joint)))
    prices_by(joint_of_layers(width=16), book)
    assert len(timed) == 2 * len(set(signatures_of(joint)))


def test_an_operator_that_cannot_be_timed_is_named_and_not_tried_again(book, monkeypatch):
    asked = []
    monkeypatch.setattr(op_times, "time_op", lambda node, _: asked.append(node) or (None, "no room"))
    for _ in range(2):
        with pytest.warns(
            UserWarning, match=r"(?s)could not be measured.*roofline.*aten\.mm\.default\(float32\[4, 8\]"
        ):
            assert prices_by(joint_of_layers(), book) == {}
    assert len(asked) == len(set(signatures_of(joint_of_layers())))
    assert op_times.collect_prices(book).nanoseconds[0][1] is None


@pytest.mark.parametrize("damage", ["", "{", '{"op": "x"}', '{"op": "x", "nanoseconds": -3}'])
def test_a_damaged_time_is_measured_again(book, timed, tmp_path, caplog, damage):
    before = prices_by(joint_of_layers(), book)
    count = len(timed)
    path = sorted((tmp_path / "times").iterdir())[0]
    path.write_text(damage)
    with caplog.at_level(logging.WARNING):
        assert prices_by(joint_of_layers(), book) == before
    assert "measuring again" in caplog.text
    assert len(timed) == count + 1
    assert json.loads(path.read_text())["nanoseconds"] == 1000


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path, timed, caplog):
    (tmp_path / "file").write_text("no folder")
    book = PriceBook(PRICES, str(tmp_path / "file"), is_open=True, identity="i")
    with caplog.at_level(logging.WARNING):
        assert set(prices_by(joint_of_layers(), book).values()) == {1000}
    assert "not kept" in caplog.text


def test_of_two_processes_that_time_at_once_the_first_is_believed(book, monkeypatch, tmp_path):
    def slow_twin(node, _):
        path = op_times._path_of(tmp_path / "times", op_signature(node, {}))
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"op": op_signature(node, {}), "nanoseconds": 7, "reason": ""}))
        return 9, ""

    monkeypatch.setattr(op_times, "time_op", slow_twin)
    assert set(prices_by(joint_of_layers(), book).values()) == {7}


def test_a_file_gives_what_it_has_and_names_the_rest():
    joint = joint_of_layers()
    known, *rest = sorted(set(signatures_of(joint)))
    book = file_book("f.json", OpPrices("toy", "2.13", ((known, 42),)))
    with pytest.warns(UserWarning, match=r"are not in the file and are priced by the roofline") as caught:
        found = prices_by(joint, book)
    assert set(found.values()) == {42}
    assert all(text in str(caught[0].message) for text in rest)


def test_ranks_use_the_times_of_one_of_them(book, monkeypatch, tmp_path):
    store = dist.HashStore()
    monkeypatch.setattr(ranks, "_job_store", lambda: store)
    monkeypatch.setattr(op_times, "time_op", lambda *_: (1000, ""))
    first = prices_by(joint_of_layers(), book)
    elsewhere = dataclasses.replace(book, source=str(tmp_path / "other"))
    monkeypatch.setattr(op_times, "time_op", lambda *_: (2000, ""))
    assert prices_by(joint_of_layers(), elsewhere) == first


def test_ranks_share_a_file_or_a_folders_name(monkeypatch, book):
    store = dist.HashStore()
    monkeypatch.setattr(ranks, "_job_store", lambda: store)
    ours = file_book("f.json", PRICES)
    assert ranks.share_book("cpu", ours) == ours
    theirs = file_book("g.json", dataclasses.replace(PRICES, torch_version="2.12"))
    assert ranks.share_book("cpu", theirs) == dataclasses.replace(theirs, known=PRICES, identity=ours.identity)
    with pytest.raises(OptionError, match="different cost_models"):
        ranks.share_book("cpu", book)
    assert ranks.share_book("cuda", book) == book
    assert ranks.share_book("cuda", dataclasses.replace(book, identity="j")).identity == "i"


def test_measured_times_take_the_place_of_the_rooflines():
    reads = ((0, 8),)
    work = [ValueWork(1000, "float32", 8, reads, False, True, True, True, is_free) for is_free in (True, False, False)]
    plain, measured = price_values(work, TOY), price_values(work, TOY, {0: 99, 1: 77})
    assert measured.run_ns == (0, 77, plain.run_ns[2])
    assert measured.again_ns == (0, 77, plain.again_ns[2])


def test_the_plan_follows_measured_times():
    joint = joint_of_layers()
    times = OpPrices("toy", "2.13", tuple((text, 10**9) for text in sorted(set(signatures_of(joint)))))
    plan = plan_and_split(joint, toy_settings(book=file_book("f.json", times)), "g").plan
    assert plan.step_seconds == pytest.approx(len(signatures_of(joint)), rel=1e-3)


def test_a_file_comes_back_equal(tmp_path):
    write_prices(PRICES, tmp_path / "p.json")
    assert read_prices(tmp_path / "p.json") == PRICES


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"device": ""}, "device is ''"),
        ({"torch_version": None}, "torch_version is None"),
        ({"schema": 2}, "schema is 2"),
        ({"nanoseconds": [1]}, "must map operators"),
        ({"nanoseconds": {"a": -1}}, "a takes -1 ns"),
        ({"nanoseconds": {"a": 0}}, "a takes 0 ns"),
        ({"nanoseconds": {"a": 1.5}}, "a takes 1.5 ns"),
        ({"nanoseconds": {"a": True}}, "a takes True ns"),
        ({"nanoseconds": {"a": "5"}}, "a takes '5' ns"),
        ({"more": 1}, "must be an object with"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(tmp_path, change, told):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(json.loads(PRICES.to_json()) | change))
    with pytest.raises(OptionError, match=told) as caught:
        read_prices(path)
    assert "p.json" in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff\xfe", b'{"schema": 1}'])
def test_a_file_that_is_none_is_refused(tmp_path, content):
    path = tmp_path / "p.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError, match=r"p\.json.*cannot be used.*Try"):
        read_prices(path)


def settings_for(cost_model, **more):
    options = parse_options({"memory_budget": "none", "cost_model": cost_model}, environ={})
    return device.make_settings(options, "cpu", "topic", **more)


def test_settings_stand_for_the_times(cache, tmp_path):
    path = tmp_path / "p.json"
    here = dataclasses.replace(PRICES, device=device.device_label("cpu"))
    write_prices(here, path)
    plain, measured, filed = (settings_for(model) for model in ("roofline", "measured", str(path)))
    assert plain.book is None
    assert measured.book.is_open
    assert (filed.book.known, filed.book.is_open) == (here, False)
    write_prices(dataclasses.replace(here, nanoseconds=(("a(1)", 6),)), path)
    changed = settings_for(str(path))
    prints = [s.fingerprint for s in (plain, measured, filed, changed)]
    assert len(set(prints)) == 4
    assert settings_for("measured").fingerprint == measured.fingerprint
    assert settings_for("roofline").fingerprint == plain.fingerprint


def test_times_of_another_device_are_not_used_and_that_is_said(cache, tmp_path):
    write_prices(PRICES, tmp_path / "p.json")
    with pytest.warns(UserWarning, match=r"are from toy, 2 threads.*roofline is used"):
        assert settings_for(str(tmp_path / "p.json")).book is None


def test_times_measured_elsewhere_price_a_plan_for_that_device(cache, tmp_path):
    write_prices(dataclasses.replace(PRICES, device="NVIDIA H100 80GB HBM3"), tmp_path / "p.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settings_for(str(tmp_path / "p.json"), device="h100-sxm").book is not None
    with pytest.raises(OptionError, match="is not here"):
        settings_for("measured", device="h100-sxm")


def test_planning_by_measurement_is_repeatable_and_can_be_handed_on(cache, tmp_path):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    arguments = (torch.randn(8, 16),)
    with pytest.raises(OptionError, match="no operator was timed"):
        rematpass.save_prices(tmp_path / "p.json", "cpu")
    first, second = (rematpass.plan(model, arguments, memory_budget="none", cost_model="measured") for _ in range(2))
    assert first.to_json() == second.to_json()
    path = rematpass.save_prices(tmp_path / "p.json", "cpu")
    filed = rematpass.plan(model, arguments, memory_budget="none", cost_model=str(path))
    assert filed.step_seconds == first.step_seconds
    assert filed.values == first.values
    with pytest.raises(OptionError, match=r"does not end in \.json"):
        rematpass.save_prices(tmp_path / "p.txt", "cpu")
