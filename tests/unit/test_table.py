"""The table and the line, on plans built by hand."""

from dataclasses import replace

import pytest

from rematpass.plan_types import AliveRecord, Decision, Neighbour, Plan, TimelinePoint, ValueRecord
from rematpass.report.table import RECOMPUTED_ROWS, align_columns, fold_values, format_line, format_plan, format_ranges

MIB = 2**20


def make_value(module: str, **changes: object) -> ValueRecord:
    base = ValueRecord(
        name="mm",
        bytes=MIB,
        shape=(512, 512),
        dtype="float32",
        decision=Decision.KEEP,
        because="dear to compute again",
        op="mm",
        module=module,
        source="net.py:7",
    )
    return replace(base, **changes)


def make_plan(*values: ValueRecord, **changes: object) -> Plan:
    base = Plan(
        graph_name="graph 0",
        fingerprint="f",
        device="cpu",
        torch_version="2.13.0",
        budget_bytes=20 * MIB,
        peak_bytes=19 * MIB,
        fastest_peak_bytes=31 * MIB,
        smallest_peak_bytes=12 * MIB,
        bound_peak_bytes=11 * MIB,
        static_bytes=8 * MIB,
        gradient_bytes=4 * MIB,
        recompute_seconds=0.031,
        step_seconds=1.0,
        bound_seconds=0.030,
        values=values,
        timeline=(TimelinePoint("forward", "mm", 10 * MIB), TimelinePoint("backward", "mm_3", 19 * MIB)),
        peak_position=1,
        alive_at_peak=(AliveRecord("weight", 8 * MIB, "input", "", ""), AliveRecord("gelu", MIB, "kept", "up", "n:3")),
        plan_seconds=0.0412,
    )
    return replace(base, **changes)


GOLDEN = """\
rematpass: graph 0 on cpu, torch 2.13.0
peak 31.0 MiB -> 19.0 MiB (budget 20.0 MiB); the smallest found is 12.0 MiB, no plan needs less than 11.0 MiB
in every peak: 8.0 MiB of parameters, buffers and batch; at the end also 4.0 MiB of gradients
recompute +3.1 % of step (bound: +3.0 %), gap 3.3 %

kept from the forward: 3 values, 3.0 MiB
    total     each  shape    dtype    decision  because                op  module          source
  3.0 MiB  1.0 MiB  512x512  float32  keep      dear to compute again  mm  layers[0-2] x3  net.py:7

recomputed in the backward: 1 value, 2.0 MiB
    total     each  shape  dtype    decision   because  op   module    source
  2.0 MiB  2.0 MiB  7xs0   float32  recompute  cheap    exp  layers.1  net.py:9

peak: 19.0 MiB while the backward runs mm_3; alive there:
  8.0 MiB  input  weight
  1.0 MiB  kept   gelu    up  n:3

next cheaper plan: +1.0 MiB peak for -0.4 % time
next smaller plan: -64.0 KiB peak for +0.4 % time

parameters dominate"""


def test_the_whole_table_of_a_tiny_plan() -> None:
    kept = [make_value(f"layers.{i}") for i in range(3)]
    exp = make_value("layers.1", bytes=2 * MIB, shape=(7, "s0"), decision=Decision.RECOMPUTE, because="cheap", op="exp")
    free = make_value("head", decision=Decision.FREE)
    plan = make_plan(
        *kept,
        replace(exp, source="net.py:9"),
        free,
        cheaper=Neighbour(20 * MIB, 0.027),
        smaller=Neighbour(19 * MIB - 2**16, 0.035),
        notes=("parameters dominate",),
    )
    assert format_plan(plan) == GOLDEN
    assert str(plan) == GOLDEN


def test_the_line() -> None:
    assert format_line(make_plan()) == (
        "rematpass: graph 0: peak 31.0 MiB -> 19.0 MiB (budget 20.0 MiB), recompute +3.1 % of step (bound: +3.0 %), "
        "41 ms to plan"
    )


def test_no_budget_and_no_time_are_said() -> None:
    plan = make_plan(budget_bytes=None, recompute_seconds=0.0, bound_seconds=0.0, step_seconds=0.0)
    assert "(no limit), recompute +0.0 % of step (bound: +0.0 %)" in format_line(plan)


def test_a_zero_bound_gives_no_gap() -> None:
    assert "gap not known (the bound is zero)" in format_plan(make_plan(bound_seconds=0.0))


def test_an_empty_timeline_has_no_peak_section() -> None:
    assert "alive there" not in format_plan(make_plan(timeline=(), peak_position=0, alive_at_peak=()))


@pytest.mark.parametrize(
    ("modules", "folded"),
    [
        ([f"layers.{i}" for i in range(32)], ["layers[0-31] x32"]),
        (["layers.0", "layers.2", "layers.5"], ["layers[0,2,5] x3"]),
        (["net.layers.0.up", "net.layers.1.up"], ["net.layers[0-1].up x2"]),
        (["h[3].attn", "h[4].attn"], ["h[3-4].attn x2"]),
        (["0", "1"], ["[0-1] x2"]),
        (["conv1", "conv2"], ["conv1 x1", "conv2 x1"]),
        (["layers.3"], ["layers.3 x1"]),
        (["attn", "attn"], ["attn x2"]),
        (["layers.0", "layers.0", "layers.1", "layers.1"], ["layers[0-1] x4"]),
        (["", ""], [" x2"]),
    ],
)
def test_folding_of_module_paths(modules: list[str], folded: list[str]) -> None:
    rows = fold_values([make_value(module) for module in modules])
    assert [f"{row.module} x{row.count}" for row in rows] == folded


def test_a_path_with_two_numbers_folds_over_the_larger_family() -> None:
    modules = [f"layers.{layer}.mlp.{part}" for layer in range(4) for part in (0, 2)]
    rows = fold_values([make_value(module) for module in modules])
    assert [row.module for row in rows] == ["layers[0-3].mlp.0", "layers[0-3].mlp.2"]


@pytest.mark.parametrize(
    "change",
    [
        {"op": "addmm"},
        {"bytes": 2},
        {"shape": (1,)},
        {"dtype": "bfloat16"},
        {"because": "asked for"},
        {"decision": Decision.RECOMPUTE},
        {"source": "net.py:8"},
    ],
)
def test_values_that_differ_in_what_a_row_prints_do_not_fold(change: dict[str, object]) -> None:
    rows = fold_values([make_value("layers.0"), make_value("layers.1", **change)])
    assert [row.count for row in rows] == [1, 1]


def test_the_largest_total_comes_first() -> None:
    small = [make_value(f"layers.{i}") for i in range(3)]
    rows = fold_values([make_value("head", bytes=2 * MIB), *small])
    assert [row.module for row in rows] == ["layers[0-2]", "head"]


def test_many_recomputed_rows_are_summed_up() -> None:
    values = [
        make_value(f"part_{chr(97 + i)}", bytes=(i + 1) * MIB, decision=Decision.RECOMPUTE)
        for i in range(RECOMPUTED_ROWS + 3)
    ]
    text = format_plan(make_plan(*values))
    assert "  and 3 smaller rows: 3 values, 6.0 MiB" in text
    assert "part_w" in text
    assert "part_c" not in text


def test_what_is_not_shown_at_the_peak_is_counted() -> None:
    alive = tuple(AliveRecord(f"t{i}", MIB, "kept", "", "") for i in range(7))
    assert "  and 2 more: 2.0 MiB" in format_plan(make_plan(alive_at_peak=alive))


def test_ranges_and_columns_of_nothing() -> None:
    assert format_ranges([]) == ""
    assert align_columns([]) == []
