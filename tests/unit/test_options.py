import copy
import functools
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rematpass.errors import OptionError, RematError
from rematpass.options import (
    MemoryBudget,
    Options,
    cache_dir,
    parse_memory_budget,
    parse_options,
    resolve_budget,
)

KEYS = ("max_autotune", "triton.cudagraphs", "joint_custom_post_pass", "memory_planning")
AUTO = MemoryBudget("auto")


def parse(options=None, *, environ=(), **arguments):
    return parse_options(options, inductor_keys=KEYS, environ=dict(environ), **arguments)


class TestMemoryBudget:
    @pytest.mark.parametrize(
        ("value", "size_bytes"),
        [
            (1, 1),
            (123456, 123456),
            ("123456", 123456),
            ("20GiB", 20 * 2**30),
            ("512 MiB", 512 * 2**20),
            (" 1.5GiB ", 3 * 2**29),
            ("1KiB", 1024),
            ("2TiB", 2**41),
            ("20GB", 20 * 10**9),
            ("3KB", 3000),
            ("3MB", 3_000_000),
            ("0.1TB", 10**11),
            ("0.0999 KB", 99),
        ],
    )
    def test_reads_bytes(self, value, size_bytes):
        budget = parse_memory_budget(value)
        assert budget == MemoryBudget("bytes", size_bytes)
        assert type(budget.amount) is int

    def test_reads_shares_and_words(self):
        assert parse_memory_budget("80%") == parse_memory_budget("80.0 %") == MemoryBudget("percent", 80.0)
        assert parse_memory_budget("100%").amount == 100.0
        assert parse_memory_budget("auto") == AUTO
        assert parse_memory_budget("none") == MemoryBudget("none")

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            (0.8, "three different things; say 80%"),
            (float("nan"), "three different things"),
            ("20gib", "bits"),
            ("20Gb", "bits"),
            ("20gIB", "no unit"),
            ("20G", "no unit"),
            ("20B", "no unit"),
            ("20 bananas", "no unit"),
            (0, "above zero"),
            (-1, "above zero"),
            ("0", "above zero"),
            ("-5GiB", "above zero"),
            ("0%", "above zero"),
            ("-3%", "above zero"),
            ("0.0001KB", "above zero"),
            ("100.1%", "100 %"),
            ("1.5", "no fraction"),
            (True, "neither"),
            (None, "neither"),
            ([1], "neither"),
            (b"1", "neither"),
            ("", "cannot be read"),
            ("Auto", "cannot be read"),
            ("1e9", "cannot be read"),
            ("1_000", "cannot be read"),
            ("inf", "cannot be read"),
            ("٣GiB", "cannot be read"),
            ("9" * 5000, "cannot be read"),
        ],
    )
    def test_refuses_the_rest(self, value, why):
        with pytest.raises(OptionError) as caught:
            parse_memory_budget(value)
        message = str(caught.value)
        assert why in message
        assert repr(value) in message
        assert all(form in message for form in ('"20GiB"', '"20GB"', '"80%"', '"auto"', '"none"'))

    @given(st.text(max_size=12) | st.floats() | st.integers() | st.none() | st.binary())
    def test_never_fails_in_another_way(self, value):
        try:
            budget = parse_memory_budget(value)
        except OptionError:
            return
        assert budget.kind in ("auto", "none") or budget.amount > 0


class TestParseOptions:
    def test_defaults(self):
        assert parse() == parse({}) == Options()
        assert Options().memory_budget == AUTO
        assert (Options().time_limit, Options().cost_model) == (5.0, "roofline")
        assert (Options().on_infeasible, Options().on_error) == ("error", "raise")

    def test_reads_ours_and_passes_on_inductors(self):
        asked = {"memory_budget": "20GiB", "save": ["*.attn.*"], "time_limit": 2, "reserve": 0, "max-autotune": True}
        options = parse({**asked, "triton.cudagraphs": False, "mode": "max-autotune"})
        assert options.memory_budget == MemoryBudget("bytes", 20 * 2**30)
        assert options.reserve == MemoryBudget("bytes", 0)
        assert options.save == ("*.attn.*",)
        assert options.time_limit == 2.0
        assert options.inductor_patches() == {"max_autotune": True, "triton.cudagraphs": False}
        assert options.mode == "max-autotune"

    def test_reads_ours_with_dashes(self):
        assert parse({"memory-budget": 5}).memory_budget.amount == 5

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"memory_budge": 5}, ["'memory_budge'", "did you mean 'memory_budget'"]),
            ({"max_autotun": 5}, ["did you mean 'max_autotune'"]),
            ({"zzzz": 5}, ["known are", "time_limit"]),
            ({3: 5}, ["there is no option 3"]),
            ({"memory_budget": 0.5}, ["memory_budget=0.5", "80%"]),
            ({"memory_budget": None}, ["memory_budget=None"]),
            ({"reserve": "auto"}, ["reserve='auto'"]),
            ({"reserve": -1}, ["below zero"]),
            ({"save": "*.attn.*"}, ["list of globs"]),
            ({"save": [3]}, ["3 is not a glob"]),
            ({"recompute": [""]}, ["'' is not a glob"]),
            ({"save": ["a"], "recompute": ["b", "a"]}, ["['a']", "one of the two"]),
            ({"time_limit": -1}, ["out of range"]),
            ({"time_limit": float("nan")}, ["out of range"]),
            ({"time_limit": 10**400}, ["out of range"]),
            ({"time_limit": True}, ["not a number"]),
            ({"time_limit": "5"}, ["not a number"]),
            ({"on_infeasible": "warm"}, ["'error', 'warn'"]),
            ({"on_error": None}, ["'raise', 'fallback'"]),
            ({"mode": "fast"}, ["'max-autotune-no-cudagraphs'"]),
            ({"mode": ["default"]}, ["'reduce-overhead'"]),
            ({"cost_model": "mesured"}, ["'roofline', 'measured', or a .json file"]),
            ({"cost_model": 1.0}, ["'roofline', 'measured', or a .json file"]),
            ({"on_error": "raise.json"}, ["'raise', 'fallback'"]),
            ({"verify": "yes"}, ["verify='yes'", "neither on nor off"]),
            ({"plan": 3}, ["plan=3", "it is no path"]),
            ({"plan": ""}, ["it is no path"]),
            ({"plan": "plan.json", "memory_budget": "none"}, ["memory_budget is given, too"]),
            ({"max_autotune": True, "max-autotune": True}, ["twice"]),
            ({"max_autotune": bytearray(1)}, ["hashable"]),
            ([("memory_budget", 5)], ["not a mapping"]),
        ],
    )
    def test_refuses(self, options, words):
        with pytest.raises(OptionError) as caught:
            parse(options)
        assert all(word in str(caught.value) for word in words), str(caught.value)
        assert isinstance(caught.value, RematError)
        assert isinstance(caught.value, ValueError)

    def test_takes_defaults(self):
        assert parse({"verify": True, "plan": None, "cost_model": "roofline"}) == Options()

    def test_verifying_changes_no_plan(self):
        assert not parse({"verify": False}).verify
        assert parse({"verify": False}).fingerprint() == Options().fingerprint()

    def test_takes_cost_models_and_files_of_measured_times(self):
        models = ["roofline", "measured", "folder/h100.json"]
        assert [parse({"cost_model": model}).cost_model for model in models] == models

    def test_mode_inside_and_beside(self):
        assert parse(mode="default").mode == parse({"mode": None}, mode="default").mode == "default"
        assert parse({"mode": "default"}, mode="default").mode == "default"
        with pytest.raises(OptionError, match="mode='reduce-overhead'"):
            parse({"mode": "reduce-overhead"}, mode="default")
        with pytest.raises(OptionError, match="mode='fast'"):
            parse(mode="fast")


class TestEnvironment:
    def test_options_then_environment_then_default(self):
        environ = {"REMATPASS_MEMORY_BUDGET": "1GiB", "REMATPASS_TIME_LIMIT": "0.5", "HOME": "/x"}
        assert parse(environ=environ) == Options(memory_budget=MemoryBudget("bytes", 2**30), time_limit=0.5)
        assert parse({"memory_budget": 7}, environ=environ).memory_budget == MemoryBudget("bytes", 7)

    def test_reads_all(self):
        environ = {
            "REMATPASS_RESERVE": "3%",
            "REMATPASS_ON_INFEASIBLE": "warn",
            "REMATPASS_ON_ERROR": "fallback",
            "REMATPASS_COST_MODEL": "roofline",
            "REMATPASS_SAVE": "a.*, b",
            "REMATPASS_RECOMPUTE": "c",
            "REMATPASS_CACHE_DIR": "/x",
            "REMATPASS_TIME_LIMIT": "",
        }
        assert parse(environ=environ) == Options(
            reserve=MemoryBudget("percent", 3.0),
            on_infeasible="warn",
            on_error="fallback",
            save=("a.*", "b"),
            recompute=("c",),
        )

    @pytest.mark.parametrize(
        ("variable", "text", "words"),
        [
            ("REMATPASS_MEMORY_BUDGT", "1", "did you mean 'REMATPASS_MEMORY_BUDGET'"),
            ("REMATPASS_MEMORY_BUDGET", "0.8", "REMATPASS_MEMORY_BUDGET='0.8'"),
            ("REMATPASS_TIME_LIMIT", "soon", "REMATPASS_TIME_LIMIT='soon'"),
            ("REMATPASS_TIME_LIMIT", "inf", "out of range"),
            ("REMATPASS_SAVE", "a,,b", "'' is not a glob"),
            ("REMATPASS_VERIFY", "yes", "neither on nor off"),
            ("REMATPASS_PLAN", "plan.json", "not known"),
        ],
    )
    def test_refuses(self, variable, text, words):
        with pytest.raises(OptionError, match=words):
            parse(environ={variable: text})

    def test_none_reads_the_process(self, monkeypatch):
        monkeypatch.setenv("REMATPASS_TIME_LIMIT", "3")
        assert parse_options(None).time_limit == 3.0

    def test_cache_dir(self):
        assert cache_dir({"REMATPASS_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
        assert cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/rematpass")
        assert cache_dir({"XDG_CACHE_HOME": "b"}) == cache_dir({}) == Path.home() / ".cache/rematpass"


class CustomPass:
    def __init__(self, identity):
        self.identity = identity

    def uuid(self):
        return self.identity


ASKED = {"memory_budget": "80%", "save": ["a"], "memory_planning": {"a": [1, (2, {"x"})]}, "max_autotune": True}


class TestRecord:
    def test_is_hashable_and_copies_are_equal(self):
        options = parse(ASKED)
        for other in (copy.deepcopy(options), pickle.loads(pickle.dumps(options)), parse(ASKED)):
            assert other == options
            assert hash(other) == hash(options)
            assert other.fingerprint() == options.fingerprint()

    def test_patches_come_back_as_given_and_new(self):
        options = parse(ASKED)
        assert options.inductor_patches() == {"max_autotune": True, "memory_planning": {"a": [1, (2, {"x"})]}}
        options.inductor_patches()["memory_planning"]["a"].clear()
        assert options == parse(ASKED)

    def test_order_of_keys_does_not_matter(self):
        assert parse(dict(reversed(ASKED.items()))) == parse(ASKED)

    @pytest.mark.parametrize(
        "change",
        [
            {"memory_budget": "81%"},
            {"reserve": "1%"},
            {"save": ["a", "b"]},
            {"recompute": ["c"]},
            {"time_limit": 6},
            {"on_infeasible": "warn"},
            {"on_error": "fallback"},
            {"mode": "default"},
            {"max_autotune": False},
            {"memory_planning": {"a": [1, [2, {"x"}]]}},
        ],
    )
    def test_every_option_changes_the_fingerprint(self, change):
        assert parse({**ASKED, **change}).fingerprint() != parse(ASKED).fingerprint()

    @pytest.mark.parametrize("function", [len, cache_dir, functools.partial(cache_dir, {}), object(), CustomPass])
    def test_fingerprint_holds_no_address(self, function):
        prints = {parse({"joint_custom_post_pass": f}).fingerprint() for f in (function, copy.copy(function))}
        assert len(prints) == 1

    def test_custom_pass_counts_by_its_uuid(self):
        first, same, other = (
            parse({"joint_custom_post_pass": CustomPass(name)}).fingerprint() for name in (b"1", b"1", b"2")
        )
        assert first == same != other

    def test_fingerprint_is_the_same_under_any_hash_seed(self):
        program = (
            "from rematpass.options import parse_options\n"
            "asked = {'save': ['a'], 'x': {'a', 'b', 'c', 'd'}, 'y': len}\n"
            "print(parse_options(asked, inductor_keys=('x', 'y'), environ={}).fingerprint())\n"
        )
        root = str(Path(__file__).parents[2])
        prints = {
            subprocess.run(
                [sys.executable, "-c", program],
                env={"PYTHONHASHSEED": seed, "PYTHONPATH": root},
                capture_output=True,
                check=True,
                text=True,
            ).stdout
            for seed in ("1", "2")
        }
        assert len(prints) == 1


DEVICE = {"total_bytes": 6400, "free_bytes": 5000, "reserve": None}


class TestResolve:
    def test_each_kind(self):
        assert resolve_budget(MemoryBudget("none"), **DEVICE) is None
        assert resolve_budget(MemoryBudget("bytes", 12345), **DEVICE) == 12345
        assert resolve_budget(MemoryBudget("percent", 80.0), **DEVICE) == 5120
        assert resolve_budget(AUTO, **DEVICE) == 4600  # 5000 - 320, down to a multiple of 100

    def test_percent_is_exact(self):
        ten_to_20 = {"total_bytes": 10**20, "free_bytes": 0, "reserve": None}
        assert resolve_budget(MemoryBudget("percent", 33.3), **ten_to_20) == 333 * 10**17
        assert resolve_budget(MemoryBudget("percent", 0.1), total_bytes=100, free_bytes=0, reserve=None) == 1

    def test_auto_counts_reserve_and_own(self):
        device = {"total_bytes": 6400, "free_bytes": 5000}
        assert resolve_budget(AUTO, **device, reserve=MemoryBudget("bytes", 0)) == 5000
        assert resolve_budget(AUTO, **device, reserve=MemoryBudget("percent", 50.0), own_bytes=199) == 1900
        assert resolve_budget(AUTO, **device, reserve=MemoryBudget("bytes", 9999)) == 1
        assert resolve_budget(AUTO, total_bytes=10, free_bytes=10, reserve=None) == 9

    @given(st.integers(1, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
    def test_auto_is_never_more_than_there_is(self, total_bytes, free_bytes, own_bytes):
        budget = resolve_budget(AUTO, total_bytes=total_bytes, free_bytes=free_bytes, reserve=None, own_bytes=own_bytes)
        assert budget == 1 or budget <= free_bytes + own_bytes - total_bytes / 20
