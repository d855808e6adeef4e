"""Device models: every figure is checked, declared ones are sane, JSON comes back equal, the probe is cached."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time

import pytest

from rematpass.cost import cpu_probe
from rematpass.cost.device_model import DECLARED, DeviceModel, find_device
from rematpass.errors import OptionError

TOY = DeviceModel("toy", (("float32", 2e12), ("bfloat16", 8e12)), 1e12, 1_000, 1e10, 2**30, "invented")


@pytest.mark.parametrize("value", [-1.0, 0.0, math.nan, math.inf, None, "fast", True])
@pytest.mark.parametrize("what", ["bandwidth_bytes_per_second", "link_bytes_per_second", "memory_bytes"])
def test_a_wrong_figure_is_named(what, value):
    with pytest.raises(OptionError, match=what):
        dataclasses.replace(TOY, **{what: value})


@pytest.mark.parametrize("value", [-1, math.nan, 1.5, None])
def test_launch_is_a_whole_number_from_zero(value):
    with pytest.raises(OptionError, match="launch_ns"):
        dataclasses.replace(TOY, launch_ns=value)
    assert dataclasses.replace(TOY, launch_ns=0).launch_ns == 0


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ((), "at least one"),
        ({"float32": 1.0}, "tuple of pairs"),
        ((("float32",),), "dtype name, number"),
        ((("float32", -1.0),), "float32"),
        ((("bfloat16", math.nan),), "bfloat16"),
        ((("float32", 1.0), ("float32", 2.0)), "twice"),
    ],
)
def test_wrong_rates_are_named(rates, told):
    with pytest.raises(OptionError, match=told):
        dataclasses.replace(TOY, flops_per_second=rates)


@pytest.mark.parametrize("what", ["name", "source"])
@pytest.mark.parametrize("value", ["", None])
def test_name_and_source_are_required(what, value):
    with pytest.raises(OptionError, match=what):
        dataclasses.replace(TOY, **{what: value})


def test_peak_falls_back_to_float32_then_to_the_largest():
    assert TOY.peak_flops("bfloat16") == 8e12
    assert TOY.peak_flops("complex64") == 2e12
    assert dataclasses.replace(TOY, flops_per_second=(("a", 1.0), ("b", 3.0))).peak_flops("float64") == 3.0


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_declared_devices_are_dense_and_complete(name):
    model = DECLARED[name]
    assert model.name == name
    assert {dtype for dtype, _ in model.flops_per_second} == {"float64", "float32", "float16", "bfloat16"}
    assert model.peak_flops("float16") == model.peak_flops("bfloat16") <= 2.25e15  # sparse figures would be above
    assert model.peak_flops("float64") <= model.peak_flops("float32") < model.peak_flops("bfloat16")
    assert model.link_bytes_per_second < model.bandwidth_bytes_per_second
    assert DeviceModel.from_json(model.to_json()) == model


def test_find_device_takes_any_case_and_suggests():
    assert find_device(" H100-SXM ") is DECLARED["h100-sxm"]
    with pytest.raises(OptionError, match=r"unknown device 'h100'.*'h100-sxm'.*Known: a100-sxm"):
        find_device("h100")
    with pytest.raises(OptionError, match="Known: "):
        find_device("zzzzzzzzzzzz")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[1]", "a list"),
        ("{}", "missing keys"),
        (json.dumps(json.loads(TOY.to_json()) | {"speed": 1}), r"unknown keys \['speed'\]"),
        (json.dumps(json.loads(TOY.to_json()) | {"flops_per_second": 1e12}), "map dtype names"),
        (json.dumps(json.loads(TOY.to_json()) | {"memory_bytes": -1}), "memory_bytes"),
        (json.dumps(json.loads(TOY.to_json()) | {"launch_ns": "x"}), "launch_ns"),
    ],
)
def test_bad_json_says_what_is_wrong(text, told):
    with pytest.raises(OptionError, match=told):
        DeviceModel.from_json(text)


def test_a_device_can_be_a_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(TOY.to_json())
    assert find_device(str(path)) == TOY


@pytest.mark.parametrize(
    ("change", "told"), [({"memory_bytes": -1}, "memory_bytes is -1"), ({"source": ""}, "source is ''")]
)
def test_a_device_file_with_a_wrong_figure_is_refused_by_name(tmp_path, change, told):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(json.loads(TOY.to_json()) | change))
    with pytest.raises(OptionError, match=rf"mine\.json.*{told}"):
        find_device(str(path))
    with pytest.raises(OptionError, match=r"other\.json.*cannot be used"):
        find_device(str(tmp_path / "other.json"))
    figures = json.loads(TOY.to_json())
    figures.pop("link_bytes_per_second")
    path.write_text(json.dumps(figures))
    with pytest.raises(OptionError, match=r"missing keys \['link_bytes_per_second'\]"):
        find_device(str(path))


def test_measure_cpu_is_quick_and_rounded():
    start = time.perf_counter()
    model = cpu_probe.measure_cpu()
    assert time.perf_counter() - start < 10  # about one second; the bound only catches a probe that runs away
    for figure in (*dict(model.flops_per_second).values(), model.bandwidth_bytes_per_second):
        assert figure == float(f"{figure:.1e}")


@pytest.fixture
def counted_probe(monkeypatch):
    """A probe that returns TOY and counts its calls."""
    calls = []
    monkeypatch.setattr(cpu_probe, "measure_cpu", lambda: calls.append(1) or TOY)
    return calls


def test_cpu_model_measures_once(tmp_path, counted_probe):
    folder = tmp_path / "made" / "here"
    assert cpu_probe.cpu_model(folder) == TOY == cpu_probe.cpu_model(folder)
    assert len(counted_probe) == 1
    assert [path.suffix for path in folder.iterdir()] == [".json"]


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"name": "cpu"}'])
def test_damaged_cache_is_measured_again_with_a_warning(tmp_path, counted_probe, caplog, damage):
    cpu_probe.cpu_model(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert cpu_probe.cpu_model(tmp_path) == TOY
    assert "measuring again" in caplog.text
    assert len(counted_probe) == 2
    assert DeviceModel.from_json(path.read_text()) == TOY


def test_unwritable_cache_warns_and_still_answers(tmp_path, counted_probe, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        assert cpu_probe.cpu_model(blocked) == TOY
    assert "cannot keep" in caplog.text
