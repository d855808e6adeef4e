import copy
import json
import math
import pickle
from dataclasses import replace

import pytest

from rematpass.errors import BudgetTooSmall, PlanFileError, RematError
from rematpass.plan_types import AliveRecord, Decision, Neighbour, Plan, TimelinePoint, ValueRecord


def make_value(name="mm", decision=Decision.KEEP, size_bytes=1024):
    return ValueRecord(name, size_bytes, (4, "s0"), "float32", decision, "it is cheap", "aten.mm", "layers.0", "m.py:3")


def make_plan(**changes):
    plan = Plan(
        graph_name="graph 0",
        fingerprint="abc",
        device="cpu",
        torch_version="2.13.0",
        budget_bytes=4096,
        peak_bytes=4000,
        fastest_peak_bytes=8000,
        smallest_peak_bytes=3000,
        bound_peak_bytes=1,
        static_bytes=1000,
        gradient_bytes=500,
        recompute_seconds=0.3,
        step_seconds=3.0,
        bound_seconds=0.2,
        values=(make_value(), make_value("relu", Decision.RECOMPUTE, 7), make_value("view", Decision.FREE, 9)),
        timeline=(TimelinePoint("forward", "mm", 2000), TimelinePoint("backward", "mm_1", 4000)),
        peak_position=1,
        alive_at_peak=(AliveRecord("mm", 1024, "kept", "layers.0", "m.py:3"),),
        cheaper=Neighbour(5000, 0.1),
        smaller=None,
        notes=("gradients dominate",),
        plan_seconds=0.5,
    )
    return replace(plan, **changes)


def plan_record():
    return json.loads(make_plan().to_json())


def value_record(**changes):
    return {**plan_record()["values"][0], **changes}


def alive_row():
    return plan_record()["alive_at_peak"][0]


def timeline_row(phase):
    return {"phase": phase, "op": "mm", "live_bytes": 4000}


class TestJson:
    @pytest.mark.parametrize(
        "changes", [{}, {"budget_bytes": None, "cheaper": None}, {"values": (), "timeline": (), "peak_position": 0}]
    )
    def test_round_trip(self, changes):
        plan = make_plan(**changes)
        again = Plan.from_json(plan.to_json())
        assert again == plan
        assert again.to_json() == plan.to_json()
        assert hash(again) == hash(plan)
        assert all(isinstance(value.decision, Decision) for value in again.values)

    def test_planning_time_is_no_part_of_it(self):
        slower = make_plan(plan_seconds=9.0)
        assert slower == make_plan()
        assert slower.to_json() == make_plan().to_json()
        assert "plan_seconds" not in slower.to_json()

    def test_survives_pickle_and_copy(self):
        plan = make_plan()
        assert pickle.loads(pickle.dumps(plan)) == copy.deepcopy(plan) == plan

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "empty"),
            ("{", "truncated"),
            ("3", "not a plan: its JSON is a int"),
            ("[]", "not a plan"),
            ("null", "not a plan"),
            ("{}", "not a plan: it names no schema"),
            ('"schema"', "not a plan"),
            (make_plan().to_json()[:-9], "truncated: it ends after"),
        ],
    )
    def test_refuses_what_is_no_plan(self, text, words):
        with pytest.raises(PlanFileError, match=words):
            Plan.from_json(text)

    @pytest.mark.parametrize("schema", [0, 1, "2", None])
    def test_refuses_another_schema(self, schema):
        text = json.dumps({**json.loads(make_plan().to_json()), "schema": schema})
        with pytest.raises(PlanFileError, match="schema"):
            Plan.from_json(text)

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            ({"values": None}, "plan.values is None; it must be a list"),
            ({"values": [3]}, r"plan.values\[0\] is 3; it must be an object"),
            ({"values": [{}]}, r"plan.values\[0\].because is missing"),
            ({"values": [value_record(decision="maybe")]}, "decision is 'maybe'; it must be one of keep, recompute"),
            ({"values": [value_record(decision=["keep"])]}, r"decision is \['keep'\]; it must be one of"),
            ({"values": [value_record(bytes=-1)]}, r"plan.values\[0\].bytes is -1; it must be at least zero"),
            ({"values": [value_record(shape=[4, -2])]}, "shape is .* it must be sizes of at least zero"),
            ({"values": [value_record(shape=[4, None])]}, r"shape\[1\] is None; it must be an integer or a text"),
            ({"values": [value_record(), value_record()]}, "plan.values has 'mm' twice"),
            ({"timeline": [{"phase": "forward"}]}, r"plan.timeline\[0\].live_bytes is missing"),
            ({"timeline": [timeline_row("sideways")]}, "phase is 'sideways'; it must be one of forward, backward"),
            ({"timeline": [timeline_row("backward"), timeline_row("forward")]}, "forward row after a backward one"),
            ({"timeline": []}, "plan.peak_position is 1; it must be a place in the timeline of 0 rows"),
            ({"peak_position": 2}, "plan.peak_position is 2; it must be a place in the timeline of 2 rows"),
            ({"peak_position": -1}, "plan.peak_position is -1"),
            ({"peak_position": 0}, "plan.peak_position is 0; it must be where the timeline is highest"),
            ({"peak_position": True}, "plan.peak_position is True; it must be an integer"),
            ({"peak_bytes": 4001}, "plan.peak_bytes is 4001; it must be the highest of the timeline, 4000"),
            ({"peak_bytes": -5}, "plan.peak_bytes is -5; it must be at least zero"),
            ({"peak_bytes": 4000.0}, "plan.peak_bytes is 4000.0; it must be an integer"),
            ({"peak_bytes": "4000"}, "plan.peak_bytes is '4000'; it must be an integer"),
            ({"peak_bytes": 10**40}, "plan.peak_bytes"),
            (
                {"smallest_peak_bytes": 4001},
                "smallest_peak_bytes is 4001; it must be at most peak_bytes, which is 4000",
            ),
            ({"recompute_seconds": -0.1}, "plan.recompute_seconds is -0.1; it must be at least zero"),
            ({"step_seconds": "3"}, "plan.step_seconds is '3'; it must be a number"),
            ({"step_seconds": 10**400}, "plan.step_seconds is 1000.*characters"),
            ({"alive_at_peak": 5}, "plan.alive_at_peak is 5; it must be a list"),
            ({"alive_at_peak": [{**alive_row(), "role": "idle"}]}, "role is 'idle'; it must be one of input, kept"),
            ({"cheaper": {"peak": 3}}, "plan.cheaper.peak_bytes is missing"),
            ({"cheaper": 3}, "plan.cheaper is 3; it must be an object"),
            ({"notes": None}, "plan.notes is None; it must be a list"),
            ({"notes": [None]}, r"plan.notes\[0\] is None; it must be a text"),
            ({"device": None}, "plan.device is None; it must be a text"),
            ({"surprise": 1}, "plan.surprise is no field of a Plan; it holds 1"),
        ],
    )
    def test_refuses_damaged_fields_and_names_them(self, damage, words):
        with pytest.raises(PlanFileError, match=f"damaged: .*{words}"):
            Plan.from_json(json.dumps({**plan_record(), **damage}))

    @pytest.mark.parametrize("field", sorted({*plan_record()} - {"schema"}))
    def test_refuses_missing_fields(self, field):
        record = plan_record()
        del record[field]
        with pytest.raises(PlanFileError, match=f"damaged: plan.{field} is missing"):
            Plan.from_json(json.dumps(record))

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (make_plan().to_json().replace('"notes"', '"device"'), "the key 'device' stands twice"),
            (make_plan().to_json().replace("3.0", "NaN"), "NaN is no JSON"),
            (make_plan().to_json().replace("3.0", "1e999"), "plan.step_seconds is inf; it must be a number"),
            ("[" * 100_000, "nested too deep"),
            ('{"schema": ' + "9" * 5000 + "}", "limit"),
        ],
    )
    def test_refuses_what_json_lets_pass(self, text, words):
        with pytest.raises(PlanFileError, match=words):
            Plan.from_json(text)


class TestFigures:
    def test_gap(self):
        assert make_plan().gap == pytest.approx(0.5)
        assert make_plan(bound_seconds=0.3).gap == 0.0
        assert make_plan(bound_seconds=0.4).gap == 0.0  # rounding may put the bound above
        assert make_plan(bound_seconds=0.0).gap == math.inf
        assert make_plan(bound_seconds=0.0, recompute_seconds=0.0).gap == 0.0

    def test_recompute_fraction(self):
        assert make_plan().recompute_fraction == pytest.approx(0.1)
        assert make_plan(step_seconds=0.0).recompute_fraction == 0.0

    def test_kept_bytes(self):
        assert make_plan().kept_bytes == 1024
        assert make_plan(values=()).kept_bytes == 0

    def test_is_frozen(self):
        with pytest.raises(AttributeError):
            make_plan().peak_bytes = 3


class TestBudgetTooSmall:
    LARGEST = tuple(AliveRecord(f"value{i}", (9 - i) * 2**20, "kept", f"layers.{i}", f"m.py:{i}") for i in range(7))

    def test_says_need_have_smallest_largest_and_what_to_try(self):
        message = str(BudgetTooSmall(2**30, 3 * 2**30, self.LARGEST))
        assert "need 3.0 GiB" in message
        assert "have 1.0 GiB" in message
        assert f"memory_budget={3 * 2**30}" in message
        assert all(f"value{i}  layers.{i}  m.py:{i}" in message for i in range(5))
        assert "value5" not in message
        assert "9.0 MiB" in message
        assert "Try:" in message
        assert "on_infeasible='warn'" in message

    def test_without_tensors(self):
        message = str(BudgetTooSmall(1, 2))
        assert "need 2 B" in message
        assert "Largest" not in message

    @pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
    def test_survives_pickle_and_copy(self, again):
        error = BudgetTooSmall(1, 2, self.LARGEST)
        other = again(error)
        assert type(other) is BudgetTooSmall
        assert str(other) == str(error)
        assert (other.budget_bytes, other.minimum_bytes, other.largest) == (1, 2, self.LARGEST)

    def test_is_of_the_family(self):
        assert issubclass(BudgetTooSmall, RematError)
        assert issubclass(BudgetTooSmall, ValueError)
