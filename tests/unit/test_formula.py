"""Peaks as formulas: exact where they hold, refused where they do not."""

import copy
import json
import math
import pickle

import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional

import rematpass
from rematpass.errors import OptionError, RematError
from tests.formulas import Fused, meta, peak_of_decision, total

BATCH, SEQUENCE = sympy.symbols("batch sequence", positive=True, integer=True)
H, A = 256, 4


class Layer(nn.Module):
    """The layer of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022)."""

    def __init__(self, drop=0.1):
        super().__init__()
        self.drop = nn.Dropout(drop) if drop else nn.Identity()
        self.norm1, self.norm2 = nn.LayerNorm(H), nn.LayerNorm(H)
        self.query, self.key, self.value, self.out = (nn.Linear(H, H) for _ in range(4))
        self.up, self.down = nn.Linear(H, 4 * H), nn.Linear(4 * H, H)

    def forward(self, x):
        n = self.norm1(x)
        q, k, v = (p(n).unflatten(-1, (A, H // A)).transpose(1, 2) for p in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(H // A)
        y = self.drop(rematpass.name(scores.softmax(-1), "scores")) @ v
        x = x + self.drop(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))


def plan_layers(count, sequence, drop):
    model, x = meta(lambda: nn.Sequential(*(Layer(drop) for _ in range(count))), 4, sequence, H)
    # Inductor would put fused attention in place of what is written out here.
    asked = {"memory_budget": "none", "pattern_matcher": False, "loss": total}
    return rematpass.plan(model, (x,), device="h100-sxm", dtype="fp16", **asked)


@pytest.fixture(scope="module")
def classic_formula():
    return plan_layers(2, 512, 0.1).formula_on(batch=range(2, 17), sequence=range(128, 2049, 128))


@pytest.fixture(scope="module", params=["h100-sxm", "cpu"])
def fused_plan(request):
    model, x = meta(Fused, 4, 192, 64)
    dtype = "bf16" if request.param != "cpu" else None
    return rematpass.plan(model, (x,), device=request.param, dtype=dtype, memory_budget="none", loss=total)


class TestClassicLayer:
    """s*b*h*(34 + 5*a*s/h), term by term, in fp16."""

    def test_what_a_layer_keeps_is_the_papers_figure_and_the_statistics(self, classic_formula):
        b, s = BATCH, SEQUENCE
        paper = s * b * H * (34 + 5 * A * s / sympy.Integer(H))
        # The paper leaves out what is small beside h: mean and 1/sqrt(variance) of two layer norms, float32 per token.
        statistics = 2 * 2 * 4 * s * b
        assert sympy.expand(classic_formula.kept_in("0") - paper - statistics) == 0

    @pytest.mark.parametrize(
        ("glob", "per_token_and_width"),
        [
            ("0.norm1.convert_element_type", 2),  # input of the products that make query, key, value
            ("0.norm2.convert_element_type", 2),  # input of the first product of the MLP
            ("0.clone", 8),  # query, key, value, each laid out for its product; input of the output projection
            ("0.up", 8),  # input of GELU: 4 h wide
            ("0.add", 4),  # both residual sums, inputs of this layer's and the next one's norms
        ],
    )
    def test_terms_in_width(self, classic_formula, glob, per_token_and_width):
        expected = per_token_and_width * BATCH * SEQUENCE * H
        assert sympy.expand(classic_formula.kept_in(glob) - expected) == 0

    def test_terms_with_scores(self, classic_formula):
        scores = A * BATCH * SEQUENCE**2
        tokens = BATCH * SEQUENCE * H
        # Probabilities after softmax, two bytes each in two layers; after dropout, two more: both are read.
        assert sympy.expand(classic_formula.kept_in("scores") - 2 * 2 * scores) == 0
        assert sympy.expand(classic_formula.kept_in("0.drop.mul") - 2 * scores) == 0
        # Softmax ends in a conversion from float32, and so does GELU, 4 h wide: input of the MLP's second product.
        assert sympy.expand(classic_formula.kept_in("0.convert_element_type") - 2 * scores - 8 * tokens) == 0
        # Masks of three dropouts, a byte each: one over scores, two over h.
        assert sympy.expand(classic_formula.kept_in("0.drop.gt") - scores - 2 * tokens) == 0

    def test_the_peak_has_the_scores_and_the_mlp_as_terms(self, classic_formula):
        units = {term.unit: term for term in classic_formula.terms}
        # Two layers at 5 a bytes, and none of it needs rounding at these sizes: 512 divides 128 * 4.
        assert units["batch*sequence**2"].coefficient >= 2 * 5 * A
        held = {(held.module, held.op, c) for c, held in units["batch*sequence"].held}
        assert {("0.up", "addmm", 8 * H), ("1.up", "addmm", 8 * H)} <= held, "FFN buffers: batch * sequence * 4 h"
        assert sum(term.bytes for term in classic_formula.terms) == classic_formula.peak_bytes
        assert "batch*sequence**2" in str(classic_formula)

    def test_scores_are_given_up_where_it_says(self):
        plan = plan_layers(3, 320, 0.0)
        found = plan.crossover("scores", memory_budget=plan.peak_bytes, step=64, most=1024)
        assert found.above == found.size + 64
        assert found.plan.peak_bytes <= found.budget_bytes == plan.peak_bytes
        kept, kept_above = (
            sum(v.bytes for v in there.values if v.label == "scores" and v.decision == "keep")
            for there in (found.plan, found.plan_above)
        )
        # Three layers of two bytes in a batch of 4; what softmax goes through is computed again for nothing.
        assert kept == 3 * 2 * A * 4 * found.size**2
        assert kept_above < 3 * 2 * A * 4 * found.above**2
        assert f"up to sequence {found.size}" in str(found)
        assert {found.size, found.above} <= {size for size, _, _ in found.tried}


class TestFused:
    def test_equal_to_the_byte_away_from_the_grid(self, fused_plan):
        formula = fused_plan.formula
        assert formula.at() == fused_plan.peak_bytes == formula.peak_bytes
        for sizes in [(2, 67), (16, 768), (5, 333), (7, 190)]:
            batch, sequence = sizes
            assert formula.at(batch=batch, sequence=sequence) == peak_of_decision(fused_plan, *sizes)
            assert formula.peak.subs({BATCH: batch, SEQUENCE: sequence}) == formula.at(batch=batch, sequence=sequence)

    def test_equal_to_plans_made_there(self, fused_plan):
        formula = fused_plan.formula
        model, _ = meta(Fused, 1, 1, 64)
        asked = {"device": fused_plan.device, "dtype": "bf16" if fused_plan.device != "cpu" else None}
        asked["device"] = "cpu" if asked["dtype"] is None else asked["device"]
        plan = rematpass.plan(
            model, (torch.empty(6, 201, 64, device="meta"),), memory_budget="none", loss=total, **asked
        )
        assert plan.peak_bytes == formula.at(batch=6, sequence=201)

    def test_no_square_of_the_sequence(self, fused_plan):
        assert not fused_plan.peak_formula.has(SEQUENCE**2)
        assert fused_plan.formula.range["sequence"] == range(64, 769)


def test_kept_bytes_and_names_of_the_plan(fused_plan):
    formula = fused_plan.formula
    sizes = dict(zip((BATCH, SEQUENCE), formula.planned, strict=True))
    assert formula.kept.subs(sizes) == fused_plan.kept_bytes
    assert formula.kept_in("up").subs(sizes) == sum(v.bytes for v in fused_plan.values if v.module == "up")
    with pytest.raises(OptionError, match=r"nothing that the plan keeps is called 'upp'.*Nearest modules: up"):
        formula.kept_in("upp")
    record = json.loads(formula.to_json())
    assert record["peak_bytes"] == fused_plan.peak_bytes
    assert record["range"]["batch"] == {"first": 2, "last": 16, "step": 1}


def test_a_plan_is_the_same_with_and_without_its_step(fused_plan, tmp_path):
    loaded = rematpass.load_plan(fused_plan.save(tmp_path / "plan.json"))
    for plan in (loaded, copy.deepcopy(fused_plan), pickle.loads(pickle.dumps(fused_plan))):
        assert plan == fused_plan
        assert plan.to_json() == fused_plan.to_json()
        with pytest.raises(RematError, match=r"cannot be looked at for other sizes.*Try: rematpass.plan"):
            _ = plan.formula
        with pytest.raises(RematError, match="cannot be looked at"):
            plan.crossover("*", memory_budget="1GiB")
    assert "sized" not in fused_plan.to_json()
    assert "sized" not in repr(fused_plan)


def test_sizes_outside_the_range_are_refused(fused_plan):
    formula = fused_plan.formula
    with pytest.raises(OptionError, match="batch 17 is outside the formula's range, 2 to 16"):
        formula.at(batch=17)
    with pytest.raises(OptionError, match=r"'width' does not vary here. Try: batch and sequence"):
        formula.at(width=3)
    with pytest.raises(OptionError, match=r"made at sequence 192, which is not in range\(200, 300\)"):
        fused_plan.formula_on(sequence=range(200, 300))
    with pytest.raises(OptionError, match="is not taken"):
        fused_plan.formula_on(batch=4)


def test_images_have_a_batch_alone():
    model, x = meta(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)), 6, 3, 12, 12)
    with torch.device("meta"):
        model(x)
    plan = rematpass.plan(model, (x,), device="l4", memory_budget="none", loss=total)
    formula = plan.formula
    assert formula.symbols == ("batch",)
    assert "no sequence" in formula.notes[0]
    assert [formula.at(batch=b) for b in (2, 11, 24)] == [peak_of_decision(plan, b, 3) for b in (2, 11, 24)]


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(32, 32)

    def forward(self, x):
        y = self.line(x)
        return y.sin() if x.shape[1] > 100 else y.exp()


def test_a_step_that_branches_on_its_length_is_refused():
    model, x = meta(Branches, 2, 64, 32)
    plan = rematpass.plan(model, (x,), device="l4", memory_budget="none", loss=total)
    with pytest.raises(
        RematError, match=r"batch 2, sequence 256 is another graph than at batch 2, sequence 64: .*Try: "
    ):
        _ = plan.formula
    formula = plan.formula_on(sequence=range(16, 101), batch=range(2, 3))
    assert formula.at(sequence=91) == peak_of_decision(plan, 2, 91)
    assert not formula.peak.has(BATCH)


def test_sizes_that_cannot_be_told():
    model, x = meta(Branches, 64, 64, 32)
    plan = rematpass.plan(model, (x,), device="l4", memory_budget="none", loss=total)
    with pytest.raises(OptionError, match="batch and sequence are both 64"):
        _ = plan.formula

    def args(batch, sequence):
        return (torch.empty(batch, sequence, 32, device="meta"),)

    asked = {"device": "l4", "memory_budget": "none", "loss": total}
    plan = rematpass.plan(model, args, sizes={"batch": 64, "sequence": 64}, **asked)
    formula = plan.formula_on(sequence=range(60, 71), batch=range(63, 66))
    assert formula.at(batch=65, sequence=69) == peak_of_decision(plan, 65, 69)
    with pytest.raises(OptionError, match="go together"):
        rematpass.plan(model, args, **asked)
    with pytest.raises(OptionError, match="in this order"):
        rematpass.plan(model, args, sizes={"sequence": 64, "batch": 64}, **asked)


def test_a_step_that_changed_since_is_refused():
    model, x = meta(lambda: nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)), 8, 32)
    plan = rematpass.plan(model, (x,), device="l4", memory_budget="none", loss=total)
    model[1] = nn.ReLU()
    with pytest.raises(RematError, match="not the one that was planned"):
        _ = plan.formula


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"glob": "upp"}, "Nearest modules: up"),
        ({"glob": "up"}, "without a budget everything is kept"),
        ({"glob": "up", "vary": "width"}, "'batch' or 'sequence'"),
        ({"glob": "up", "memory_budget": "1GiB", "most": 256}, "kept up to sequence 256"),
        ({"glob": "up", "memory_budget": 200_000, "step": 64}, "not even kept at sequence 64: no plan fits"),
    ],
)
def test_crossovers_that_are_none(fused_plan, asked, words):
    with pytest.raises(OptionError, match=words):
        fused_plan.crossover(**asked)


class Padded(nn.Module):
    """Works on multiples of 16 tokens, as some kernels do."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        padded = functional.pad(self.up(x), (0, 0, 0, -x.shape[1] % 16))
        return self.down(padded.sin()).sum()


def test_a_formula_of_multiples_where_others_are_padded():
    model, x = meta(Padded, 2, 96, 32)
    plan = rematpass.plan(model, (x,), device="l4", memory_budget="none")
    formula = plan.formula
    assert formula.range["sequence"] == range(32, 385, 32)
    assert formula.notes[0].startswith("only at multiples of 32: ")
    assert formula.at(batch=3, sequence=352) == peak_of_decision(plan, 3, 352)
    with pytest.raises(OptionError, match="sequence 353 is outside"):
        formula.at(sequence=353)
    with pytest.raises(RematError, match="Try: "):
        plan.formula_on(sequence=range(32, 385))


class Places(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.empty(80, 32))
        self.line = nn.Linear(32, 32)

    def forward(self, x):
        return self.line((x + self.places[: x.shape[1]]).sin()).exp()


def test_a_formula_ends_where_the_step_does():
    model, x = meta(Places, 1, 64, 32)
    plan = rematpass.plan(model, (x,), device="l4", memory_budget="none", loss=total)
    formula = plan.formula
    assert formula.range == {"batch": range(1, 5), "sequence": range(32, 65)}
    assert formula.at(batch=3, sequence=51) == peak_of_decision(plan, 3, 51)


def test_real_tensors_stay_where_they_are():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)), torch.ones(5, 16)
    plan = rematpass.plan(model, (x,), memory_budget="none", loss=total)
    formula = plan.formula
    assert formula.symbols == ("batch",)
    assert formula.at(batch=13) == peak_of_decision(plan, 13, 16)


class Repeats(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(32, 32)

    def forward(self, x):
        return self.line(x.exp() if len(x) == 1 else x.sin())


def test_a_batch_of_one_that_is_another_graph_stays_alone():
    model, x = meta(Repeats, 1, 64, 32)
    formula = rematpass.plan(model, (x,), device="l4", memory_budget="none", loss=total).formula
    assert formula.range == {"batch": range(1, 2), "sequence": range(32, 257)}
    assert "only at batch 1" in formula.notes[0]
    assert "a batch of 2 or more" in str(formula)


@pytest.mark.parametrize("device", ["h100-sxm", "cpu"])
def test_a_decision_that_computes_again_is_followed_as_well(device):
    model, x = meta(lambda: nn.Sequential(Fused(), Fused()), 3, 192, 64)
    asked = {"device": device, "loss": total, "dtype": "bf16" if device != "cpu" else None}
    fastest = rematpass.plan(model, (x,), memory_budget="none", **asked)
    budget = (fastest.peak_bytes + 2 * fastest.smallest_peak_bytes) // 3
    plan = rematpass.plan(model, (x,), memory_budget=budget, **asked)
    assert plan.recompute_seconds > 0
    formula = plan.formula_on(batch=range(2, 8), sequence=range(100, 400))
    for sizes in [(2, 100), (7, 399)]:
        assert formula.at(batch=sizes[0], sequence=sizes[1]) == peak_of_decision(plan, *sizes)


def test_images_on_a_cpu_work_in_blocks():
    def make():
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3))

    model, x = meta(make, 4, 3, 20, 20)
    plan = rematpass.plan(model, (x,), device="cpu", memory_budget="none", loss=total)
    formula = plan.formula
    assert [formula.at(batch=b) for b in (2, 9, 16)] == [peak_of_decision(plan, b, 3) for b in (2, 9, 16)]
