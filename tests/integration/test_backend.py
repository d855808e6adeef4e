"""What a user types, end to end. Compilations are few and tiny."""

import copy
import json
import logging
import os
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from functorch.compile import aot_function, nop
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional

import rematpass
from rematpass.noted import plans_of
from tests.processes import finish, start_python

SCALAR = {"cpp.simdlen": 1}  # kernels without vector instructions compile twice as fast


pytestmark = pytest.mark.usefixtures("own_caches")


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x.sum()


def tiny():
    torch.manual_seed(0)
    return Tiny(), torch.ones(64, 8)


STEP = """
import json, sys, torch
from torch._dynamo.utils import counters
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
options = {"memory_budget": "none", "cpp.simdlen": 1}
was_imported = "rematpass" in sys.modules
compiled = torch.compile(model, backend="rematpass", options=options)
compiled(torch.ones(64, 8)).sum().backward()
import rematpass
(plan,) = rematpass.plans(compiled)
print(json.dumps({
    "plan": plan.to_json(), "was_imported": was_imported, "gradient": model[0].weight.grad.sum().item(),
    "hits": counters["aot_autograd"]["autograd_cache_hit"], "misses": counters["aot_autograd"]["autograd_cache_miss"],
}))
"""


def test_no_import_and_cache_hits():
    """Two processes that share caches: the second plans nothing, compiles nothing, and still shows the plan."""
    outputs = [finish(start_python(STEP)) for _ in range(2)]
    first, second = (json.loads(stdout.splitlines()[-1]) for stdout, _ in outputs)
    assert not first["was_imported"]
    assert (first["hits"], first["misses"]) == (0, 1)
    assert (second["hits"], second["misses"]) == (1, 0)
    assert second["plan"] == first["plan"]
    assert first["gradient"] == second["gradient"]
    assert [stderr for _, stderr in outputs] == ["", ""], "a step that works prints nothing"


def test_another_budget_is_another_plan():
    counters.clear()
    for place, budget in enumerate((2**30, 2**30, 2**31)):
        torch._dynamo.reset()
        compiled, x = compile_tiny(memory_budget=budget)
        compiled(x).backward()
        (plan,) = rematpass.plans(compiled)
        assert plan.budget_bytes == budget
        assert counters["aot_autograd"]["autograd_cache_miss"] == (1, 1, 2)[place]
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1


def test_a_damaged_stored_plan_is_told_once_and_planned_again(caplog):
    found = []
    for place in range(3):
        torch._dynamo.reset()
        compiled, x = compile_tiny(memory_budget=2**29)
        compiled(x).backward()
        found += rematpass.plans(compiled)
        told = [record.getMessage() for record in caplog.records if record.name == "rematpass.store"]
        assert ["it is truncated" in text for text in told] == [True][:place]
        if not place:
            folder = Path(os.environ["REMATPASS_CACHE_DIR"]) / "plans"
            (path,) = (path for path in folder.glob("*.json") if found[0].fingerprint in path.read_text())
            path.write_text(path.read_text()[:1000])
    assert found == [found[0]] * 3


@pytest.mark.parametrize(
    "inside",
    [
        pytest.param(lambda: torch.autocast("cpu", torch.bfloat16), id="autocast"),
        pytest.param(torch.no_grad, id="no_grad"),
        pytest.param(lambda: torch._inductor.config.patch(fallback_random=True), id="config"),
    ],
)
def test_one_graph_in_another_state_of_torch_has_plans_of_its_own(inside):
    """Compiled in turns and then again, from the cache: dynamo's graph is the same, what is made of it is not."""

    def noise(x):
        return functional.dropout(x @ x.exp(), 0.5).sum()

    def plans_under(state):
        torch._dynamo.reset()
        compiled = torch.compile(noise, backend="rematpass", options={"memory_budget": "none", **SCALAR})
        with state:
            y = compiled(torch.ones(8, 8, requires_grad=True))
            if y.requires_grad:
                y.backward()
        return [plan.to_json() for plan in plans_of(compiled)]

    outside, within = plans_under(nullcontext()), plans_under(inside())
    assert outside != within
    assert (plans_under(nullcontext()), plans_under(inside())) == (outside, within)


PLAN = """
import torch, rematpass
from rematpass.options import parse_options
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Sigmoid()) for _ in range(3)))
wishes = {"save": ["*.sigmoid", "addmm"]}
plan = rematpass.plan(model, (torch.ones(64, 8),), memory_budget="none", **wishes)
plan = rematpass.plan(model, (torch.ones(64, 8),), memory_budget=plan.smallest_peak_bytes, **wishes)
print(plan.to_json())
"""


def test_planning_is_the_same_in_any_process_and_says_one_line_if_asked():
    logs = [{}, {}, {}, {"TORCH_LOGS": "+rematpass"}]
    started = [start_python(PLAN, PYTHONHASHSEED=str(seed), **log) for seed, log in enumerate(logs)]
    outputs = [finish(process) for process in started]
    assert len({stdout for stdout, _ in outputs}) == 1
    assert [line for _, stderr in outputs[:3] for line in stderr.splitlines()] == []
    lines = [line for line in outputs[3][1].splitlines() if "ms to plan" in line]
    assert len(lines) == 2, "one a plan"
    assert all("rematpass: graph 0: peak" in line for line in lines)


def test_planning_twice_gives_equal_bytes():
    model, x = tiny()
    texts = {rematpass.plan(model, (x,), memory_budget="none").to_json() for _ in range(2)}
    assert len(texts) == 1


def test_planning_leaves_no_gradient():
    model, x = tiny()
    rematpass.plan(model, (x,), memory_budget="none")
    assert all(p.grad is None for p in model.parameters())


def test_plan_without_a_gradient_is_refused():
    model, x = tiny()
    with pytest.raises(rematpass.RematError, match="nothing to plan"):
        rematpass.plan(model.requires_grad_(False), (x,))


def test_plan_of_a_model_with_a_graph_break_is_refused():
    def step(x):
        y = x.exp()
        torch._dynamo.graph_break()
        return y.sum()

    with pytest.raises(rematpass.RematError, match="does not trace into one graph"):
        rematpass.plan(step, (torch.ones(4, requires_grad=True),))


LOGGER = logging.getLogger("of the model")


def test_a_line_for_a_log_does_not_keep_a_model_from_being_planned():
    def step(x):
        LOGGER.warning("a step of %d", x.shape[0])
        return (x.exp() * x.sin()).sum()

    x = torch.ones(4, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = rematpass.plan(step, (x,))
    [note] = [note for note in plan.notes if "loggers" in note]
    assert 'LOGGER.warning("a step of %d"' in note
    assert "ignore_logging_functions" in note
    assert any(note in str(warning.message) for warning in caught)
    assert logging.Logger.warning not in torch._dynamo.config.ignore_logging_functions  # as it was
    silent = rematpass.plan(lambda x: (x.exp() * x.sin()).sum(), (x,))
    assert [value.name for value in plan.values] == [value.name for value in silent.values]


@pytest.mark.filterwarnings("ignore:rematpass. planned without the calls of loggers")
def test_a_graph_break_behind_a_line_for_a_log_is_refused():
    def step(x):
        LOGGER.info("half way")
        torch._dynamo.graph_break()
        return x.exp().sum()

    with pytest.raises(rematpass.RematError, match="graph_break"):
        rematpass.plan(step, (torch.ones(4, requires_grad=True),))


def compile_tiny(**options):
    model, x = tiny()
    return torch.compile(model, backend="rematpass", options={**SCALAR, **options}), x


def test_budget_too_small_is_raised_as_it_is_and_its_minimum_works():
    compiled, x = compile_tiny(memory_budget=1000)
    with pytest.raises(rematpass.BudgetTooSmall) as caught:
        compiled(x)
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.budget_bytes == 1000
    assert len(error.largest) > 0
    assert f"memory_budget={error.minimum_bytes}" in str(error)
    assert "Try:" in str(error)
    model, x = tiny()
    assert rematpass.plan(model, (x,), memory_budget=error.minimum_bytes).peak_bytes == error.minimum_bytes
    with pytest.raises(rematpass.BudgetTooSmall):
        rematpass.plan(model, (x,), memory_budget=error.minimum_bytes - 1)


def test_falling_back_is_said_once_and_the_gradients_are_right():
    compiled, x = compile_tiny(memory_budget=1000, on_error="fallback")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        compiled(x).backward()
    assert sum("Falling back to torch's own partition" in str(w.message) for w in warned) == 1
    found, model = [p.grad for p in compiled.parameters()], copy.deepcopy(compiled._orig_mod)
    model.zero_grad()
    model(x).backward()
    torch.testing.assert_close(found, [p.grad for p in model.parameters()])


def test_a_graph_without_a_backward_is_compiled_once():
    """Gradients are on and its inputs want some, but it returns none."""
    model, x = tiny()
    counters.clear()
    torch.compile(lambda x: model(x) > 0, backend="rematpass", options={"memory_budget": "none", **SCALAR})(x)
    assert counters["aot_autograd"]["total"] == 1


def test_on_infeasible_warn_takes_the_smallest_peak():
    model, x = tiny()
    with pytest.warns(UserWarning, match="memory budget too small"):
        plan = rematpass.plan(model, (x,), memory_budget=1000, on_infeasible="warn")
    assert plan.peak_bytes == plan.smallest_peak_bytes
    assert any("cannot be met" in note for note in plan.notes)


@pytest.mark.parametrize("options", [{"memory_bugdet": 1000}, {"memory_budget": 0.5}, {"cpp.simdlenn": 1}])
def test_wrong_options_are_refused(options):
    compiled, x = compile_tiny(**options)
    with pytest.raises(rematpass.OptionError):
        compiled(x)


@pytest.mark.filterwarnings("default:The .grad attribute")  # torch itself, where it resumes after the break
def test_a_graph_break_gives_two_plans_and_eager_gradients():
    model = nn.Linear(8, 8)

    def step(x):
        y = model(x).tanh()
        torch._dynamo.graph_break()
        return (y.exp() * y).sum()

    x = torch.ones(4, 8)
    step(x).backward()
    expected, model.weight.grad = model.weight.grad, None
    compiled = torch.compile(step, backend="rematpass", options={"memory_budget": "none", **SCALAR})
    compiled(x).backward()
    torch.testing.assert_close(model.weight.grad, expected)
    first, second = rematpass.plans(compiled)
    assert [first.graph_name, second.graph_name] == ["graph 0", "graph 1"]
    assert [any("share memory_budget" in note for note in plan.notes) for plan in (first, second)] == [False, True]


def test_inference_is_handed_on():
    compiled, x = compile_tiny(memory_budget=1)
    with torch.no_grad():
        result = compiled(x)
    torch.testing.assert_close(result, compiled._orig_mod(x).detach())
    with pytest.warns(UserWarning, match="0 graphs planned"):
        assert rematpass.plans(compiled) == []


def test_in_place_compilation_of_a_built_in_class_is_warned_of():
    model = nn.Sequential(nn.Linear(8, 8))
    model.compile(backend="rematpass")
    with pytest.warns(UserWarning, match=r"nn\.Sequential"):
        assert rematpass.plans(model) == []


def test_inductor_options_work_with_plain_compile():
    model, x = tiny()
    options = rematpass.inductor_options(memory_budget="none", **SCALAR)
    twin = copy.deepcopy(options)
    assert twin == options
    assert rematpass.inductor_options(memory_budget=2**30, **SCALAR) != options
    model(x).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, options=twin)
    compiled(x).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], expected)
    (plan,) = rematpass.plans(compiled)
    assert plan.budget_bytes is None


class Named(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Tanh()})

    def forward(self, x):
        return torch.stack([part(x) for part in self.parts.values()]).exp().sum()


def test_inductor_options_find_the_names_of_each_model():
    """Equal graphs but for their module paths, which torch's caches do not look at."""
    options = rematpass.inductor_options(memory_budget="none", save=["parts.first*"], **SCALAR)
    x = torch.randn(4, 8, requires_grad=True)
    torch.compile(Named("first"), options=options)(x).backward()
    torch._dynamo.reset()
    with pytest.raises(rematpass.OptionError, match=r"parts\.first"):
        torch.compile(Named("second"), options=options)(x)


def test_partition_fn_notes_its_plans():
    split = rematpass.partition_fn(memory_budget="1GiB")
    x = torch.ones(4, requires_grad=True)
    aot_function(lambda x: x.exp().sum(), nop, nop, partition_fn=split)(x).backward()
    (plan,) = split.plans
    assert plan.budget_bytes == 2**30
    torch.testing.assert_close(x.grad, x.detach().exp())


def test_partition_fn_reads_its_options_at_once():
    with pytest.raises(rematpass.OptionError):
        rematpass.partition_fn(memory_budget="a lot")


def test_partition_fn_refuses_a_budget_before_the_step():
    split = rematpass.partition_fn(memory_budget=1)
    with pytest.raises(rematpass.BudgetTooSmall):
        aot_function(lambda x: x.exp().sum(), nop, nop, partition_fn=split)(torch.ones(4, requires_grad=True))
