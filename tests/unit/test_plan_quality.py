"""The pure parts of `bench/plan_quality.py`: regions, what they keep, and when a row is worse."""

from types import SimpleNamespace

import pytest
import torch

from bench import plan_quality
from bench.architectures import CASES
from bench.baselines import Baseline, drop_dominated, extra_flops, measure_kept, with_early_helpers
from bench.hand_strategies import Strategy, find_regions, kept_by_regions, matched_module, strategies_of
from bench.library import LIBRARY
from bench.plan_quality import Row, find_frontier, format_case, ours_at, record_row
from rematpass.solve.liveness import simulate
from rematpass.solve.order import order_backward
from tests.programs import EXTERN, POINTWISE, REDUCTION, Builder, Layer, layered


@pytest.mark.parametrize(
    ("path", "globs", "found"),
    [
        ("layers.3", ["layers.*"], ("layers.*", "layers.3")),
        ("layers.3.attention.query", ["layers.*"], ("layers.*", "layers.3")),
        ("layers.3.attention.query", ["layers.*.attention"], ("layers.*.attention", "layers.3.attention")),
        ("layers.3.attention_norm", ["layers.*.attention"], None),
        ("layers", ["layers.*"], None),
        ("model.layers.3", ["layers.*"], None),
        ("", ["*"], ("*", "")),
        ("decoder.1.cross", ["encoder.*", "decoder.*"], ("decoder.*", "decoder.1")),
    ],
)
def test_globs_name_a_module_and_what_is_below_it(path, globs, found):
    assert matched_module(path, globs) == found


def test_regions_are_numbered_as_they_run_and_groups_end_with_their_list():
    modules = ["", "down.0", "down.1.norm", "down.2", "down.1", "up.0", "up.1", "head"]
    each = Strategy("each", ("down.*", "up.*"))
    assert find_regions(modules, each) == (None, 0, 1, 2, 1, 3, 4, None)
    pairs = Strategy("pairs", ("down.*", "up.*"), group=2)
    assert find_regions(modules, pairs) == (None, 0, 0, 1, 0, 2, 2, None)
    second = Strategy("second", ("down.*", "up.*"), every=2)
    assert find_regions(modules, second) == (None, 0, None, 2, None, None, 4, None)


def two_blocks():
    """stem -> block 0 (a, b) -> block 1 (c, d) -> head; every backward op reads what its forward op read or made."""
    b = Builder()
    x = b.given(8)
    stem = b.add(EXTERN, x, size=16, ns=1)
    inside = [b.add(EXTERN, stem, size=100, ns=10)]
    first = b.add(EXTERN, inside[0], size=16, ns=10)
    inside.append(b.add(EXTERN, b.view(first), size=100, ns=10))
    second = b.add(EXTERN, inside[1], size=16, ns=10)
    head = b.add(EXTERN, second, size=32, ns=1)
    loss = b.add(REDUCTION, head, size=8, ns=1)
    g = b.add(POINTWISE, b.tangent(8), head, size=32)
    g = b.add(EXTERN, g, second, size=16)
    g = b.add(EXTERN, g, inside[1], size=16)
    g = b.add(EXTERN, g, first, size=16)
    g = b.add(EXTERN, g, inside[0], size=16)
    g = b.add(EXTERN, g, stem, size=16)
    modules = ["", "stem", "layers.0", "layers.0", "layers.1", "layers.1", "layers.1", "head", "", "", "head"]
    modules += ["head", "layers.1", "layers.1", "layers.0", "layers.0"]
    return b.finish([loss], [g]), modules, (stem, first, second, head), inside


def test_regions_keep_their_inputs_and_outside_keeps_what_the_backward_reads():
    program, modules, (stem, first, second, head), inside = two_blocks()
    kept = kept_by_regions(program, find_regions(modules, Strategy("each", ("layers.*",))))
    assert kept == {stem, first, second, head}
    decision = order_backward(program, kept)
    assert decision.kept == kept
    assert set(inside) <= set(decision.schedule.backward)
    assert decision.recompute_ns == 20


def test_a_backward_op_that_does_not_tell_its_module_is_taken_for_one_of_the_region():
    program, modules, (stem, first, second, head), _ = two_blocks()
    modules = ["" if program.is_backward[v] else path for v, path in enumerate(modules)]
    assert kept_by_regions(program, find_regions(modules, Strategy("each", ("layers.*",)))) == {
        stem,
        first,
        second,
        head,
    }


def test_one_region_keeps_no_boundary_inside_and_no_region_keeps_all():
    program, modules, (stem, _, second, head), inside = two_blocks()
    both = find_regions(modules, Strategy("both", ("layers.*",), group=2))
    assert kept_by_regions(program, both) == {stem, second, head}
    nothing = kept_by_regions(program, (None,) * len(program))
    assert order_backward(program, nothing).recompute_ns == 0
    assert set(inside) <= nothing


def test_what_must_not_run_again_is_kept_inside_a_region():
    b = Builder()
    a = b.add(EXTERN, b.given(8), size=8, may_recompute=False)
    c = b.add(EXTERN, a, size=8)
    y = b.add(EXTERN, c, size=8)
    g = b.add(EXTERN, b.tangent(8), c, size=8)
    program = b.finish([y], [g])
    assert kept_by_regions(program, (None, 0, 0, 0, None, 0)) == {a}


def helped():
    """A helper that only the backward wants, smaller than what it is made from."""
    b = Builder()
    a = b.add(EXTERN, b.given(8), size=64, ns=5)
    y = b.add(EXTERN, a, size=64, ns=5)
    z = b.add(EXTERN, y, size=8, ns=5)
    mask = b.add(POINTWISE, y, size=8, ns=1)
    g = b.add(EXTERN, b.tangent(8), mask, size=8)
    return b.finish([z], [g]), (a, y, z, mask)


def test_a_kept_helper_runs_in_the_forward_right_after_what_it_reads():
    program, (a, y, z, mask) = helped()
    decision = with_early_helpers(program, order_backward(program, [mask]))
    assert decision.schedule.forward == (0, a, y, mask, z)
    assert mask not in decision.schedule.backward
    assert decision.recompute_ns == 0
    assert simulate(program, decision.schedule).peak_bytes == 8 + 64 + 64


def test_a_kept_set_is_measured_with_its_operations():
    program, (a, y, *_) = helped()
    values = tuple(SimpleNamespace(name=f"v{v}", flops=10**v) for v in range(len(program)))
    captured = SimpleNamespace(inputs=SimpleNamespace(program=program, facts=SimpleNamespace(values=values)))
    baseline = measure_kept(captured, "all again", ())
    assert baseline.kept_bytes == 0
    assert baseline.extra_ns == 10
    assert baseline.extra_flops == 10**a + 10**y  # the helper runs once, in the backward
    assert extra_flops(program, captured.inputs.facts, order_backward(program, [y])) == 0


def baseline_of(peak, extra, name="b"):
    return Baseline(name, peak, 0, extra, 0)


def test_of_two_variants_the_beaten_one_is_dropped():
    a, b, c = baseline_of(10, 5), baseline_of(10, 4), baseline_of(8, 6)
    assert drop_dominated([a, b, c]) == [b, c]
    assert drop_dominated([a, baseline_of(10, 5, "same")]) == [a]
    assert drop_dominated([]) == []


def row_of(extra, ours, bound=0.0):
    return Row("s", 100, 50, extra, 7, None if ours is None else 90, ours, None if ours is None else 3, bound)


@pytest.mark.parametrize(
    ("row", "verdict", "ratio"),
    [
        (row_of(10, 10), "", 1.0),
        (row_of(10, 5), "", 0.5),
        (row_of(10, 11), "WORSE", 1.1),
        (row_of(10, None), "WORSE", None),
        (row_of(0, 0), "", 1.0),
        (row_of(0, 1), "WORSE", None),
        (row_of(10, 10, bound=10.4), "", 1.0),
        (row_of(10, 10, bound=11.0), "BOUND", 1.0),
    ],
)
def test_a_row_is_worse_when_ours_is_slower_or_missing(row, verdict, ratio):
    assert row.verdict == verdict
    assert row.ratio == pytest.approx(ratio) if ratio is not None else row.ratio is None


def test_ours_is_the_cheapest_that_fits():
    program = layered([Layer()] * 4)
    frontier = find_frontier(program)
    ample = ours_at(frontier, 10**9)
    assert (ample.extra_ns, ample.bound_ns) == (0, 0.0)
    tight = ours_at(frontier, ample.peak_bytes - 1)
    assert tight.peak_bytes < ample.peak_bytes
    assert tight.extra_ns > 0
    assert ours_at(frontier, 0).decision is None


def test_the_table_flags_and_names_failures():
    case = {
        "name": "tiny",
        "values": 3,
        "step_ns": 2_000_000,
        "static_bytes": 2**20,
        "rows": [record_row(row_of(10, None)), record_row(row_of(10, 5))],
        "failures": [{"strategy": "torch budget 0.5", "reason": "E: no"}],
        "frontier": [[2.0**21, 0.0], [2.0**20, 5.0]],
    }
    head, titles, worse, fine, failed = format_case(case).splitlines()
    assert head.startswith("tiny: 3 values, a step of 2.00 ms")
    assert titles.split()[0] == "strategy"
    assert worse.endswith("WORSE")
    assert fine.endswith("0.50")
    assert failed == "torch budget 0.5: torch failed: E: no"
    assert plan_quality.format_verdict([case]).startswith("2 strategies on 1 models: 1 WORSE")


@pytest.mark.parametrize("case", LIBRARY.values(), ids=LIBRARY)
def test_globs_of_library_models_name_their_modules(case):
    with torch.device("meta"):
        modules = [name for name, _ in case.make().named_modules()]
    for globs in (case.blocks, case.attention, case.feed):
        found = {match[1] for name in modules if (match := matched_module(name, globs))}
        assert len(found) == 6


def test_every_case_has_strategies_and_an_unknown_device_is_refused(capsys):
    assert len(CASES) == 13
    assert [s.name for s in strategies_of(CASES["gpt2"])][-2:] == ["attention only", "FFN only"]
    assert strategies_of(CASES["unet"])[-1].name == "every 2nd block"
    assert plan_quality.parse_arguments([]).cases == [*CASES, *LIBRARY]
    with pytest.raises(SystemExit):
        plan_quality.parse_arguments(["--device", "abacus"])
    assert "unknown device" in capsys.readouterr().err
