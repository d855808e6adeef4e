"""What training loops do with a compiled model: each gives, at every budget, what it gives without us."""

import copy
import pickle
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

import rematpass
from rematpass.torch_compat import is_profiling
from tests.differential.practice_models import (
    Distilled,
    Heads,
    Norms,
    Structured,
    make_adapted,
    make_all_frozen,
    make_net,
    make_partly_frozen,
    make_with,
)
from tests.differential.practice_steps import (
    adapter_steps,
    autograd_grad,
    backward_hook_on_a_module_within,
    backward_in_another_thread,
    backward_twice,
    compiled_optimizer,
    copied,
    deterministic,
    freeze_and_thaw,
    functional_call,
    going_on_after_errors,
    gradient_within,
    hook_on_a_value_within,
    hooks_on_modules,
    hooks_on_tensors,
    in_threads,
    layer_by_layer,
    micro_batches,
    one_loss_then_another,
    one_output_only,
    optimizer_in_backward,
    saved_elsewhere,
    some_inputs_only,
    structured,
    ten_steps,
    train_and_evaluate,
    train_and_validate,
    twice_in_a_step,
    two_models_and_a_loss,
    under_anomaly_mode,
    with_compiled_autograd,
)
from tests.differential.steps import (
    SCALAR,
    OpByOp,
    check_backend,
    check_budgets,
    equal,
    forward_backward,
    plain,
    plain_inductor,
    weighted_sum,
)

pytestmark = [
    # torch itself, where it looks at the inputs of a second graph that come out of a first.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # At the smallest budget of one run alone there is no room for what others hold, nor for accumulated gradients.
    pytest.mark.filterwarnings("ignore:rematpass. the graphs of one step take"),
    pytest.mark.filterwarnings("ignore:memory budget too small[^§]*Gradients of earlier backwards"),
]

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=0.01)

ON_ONE_NET = [
    micro_batches,
    pytest.param(ten_steps(ADAMW), id="ten_steps_of_adamw"),
    pytest.param(ten_steps(SGD, is_clipped=True), id="ten_clipped_steps_of_sgd"),
    pytest.param(ten_steps(SGD, is_set_to_none=False), id="ten_steps_with_gradients_set_to_zero"),
    backward_twice,
    hooks_on_tensors,
    twice_in_a_step,
    pytest.param(partial(in_threads, is_warm=True), id="in_threads"),
    pytest.param(in_threads, id="compiled_by_threads"),
    backward_in_another_thread,
    under_anomaly_mode,
    deterministic,
    saved_elsewhere,
    copied,
]
OTHERS = [
    pytest.param(make_net, compiled_optimizer, id="compiled_optimizer"),
    pytest.param(make_net, optimizer_in_backward, id="optimizer_in_backward"),
    pytest.param(make_net, freeze_and_thaw, id="freeze_and_thaw"),
    pytest.param(make_net, hook_on_a_value_within, id="hook_on_a_value_within"),
    pytest.param(make_net, hooks_on_modules, id="hooks_on_modules"),
    pytest.param(make_net, backward_hook_on_a_module_within, id="backward_hook_on_a_module_within"),
    pytest.param(make_net, layer_by_layer, id="layer_by_layer"),
    pytest.param(make_net, two_models_and_a_loss, id="two_models_and_a_loss"),
    pytest.param(make_net, going_on_after_errors, id="going_on_after_errors"),
    pytest.param(make_net, functional_call, id="functional_call"),
    pytest.param(make_net, gradient_within, id="gradient_within"),
    pytest.param(make_net, with_compiled_autograd, id="with_compiled_autograd"),
    pytest.param(make_with(Distilled), forward_backward, id="no_grad_part"),
    pytest.param(make_with(Heads), forward_backward, id="nested_outputs"),
    pytest.param(make_with(Heads), some_inputs_only, id="some_inputs_only"),
    pytest.param(make_with(Structured), structured, id="dataclass"),
    pytest.param(make_with(Norms), train_and_evaluate, id="train_and_evaluate"),
    pytest.param(make_adapted, adapter_steps, id="adapters"),
    pytest.param(make_partly_frozen, forward_backward, id="partly_frozen"),
    pytest.param(make_all_frozen, forward_backward, id="all_frozen"),
]


@pytest.mark.parametrize("step", ON_ONE_NET)
def test_practice_an_op_at_a_time(step):
    check_budgets(make_net, step=step)


@pytest.mark.parametrize(("make", "step"), OTHERS)
def test_practice_on_other_graphs_an_op_at_a_time(make, step):
    check_budgets(make, step=step)


@pytest.mark.parametrize("step", [one_loss_then_another, one_output_only, autograd_grad])
def test_gradients_through_some_outputs(step):
    """Where eager leaves None, torch.compile has zeros: like it, bit by bit."""
    check_budgets(make_with(Heads), step=step, eager=equal, reference=plain)


THROUGH_INDUCTOR = [
    pytest.param(make_net, micro_batches, id="micro_batches"),
    pytest.param(make_net, ten_steps(ADAMW), id="ten_steps_of_adamw"),
    pytest.param(make_net, hooks_on_tensors, id="hooks_on_tensors"),
    pytest.param(make_net, twice_in_a_step, id="twice_in_a_step"),
    pytest.param(make_net, in_threads, id="compiled_by_threads"),
    pytest.param(make_net, copied, id="copied", marks=pytest.mark.fuzz),
    pytest.param(make_net, saved_elsewhere, id="saved_elsewhere", marks=pytest.mark.fuzz),
    pytest.param(make_net, going_on_after_errors, id="going_on_after_errors"),
    pytest.param(make_net, two_models_and_a_loss, id="two_models_and_a_loss"),
    pytest.param(make_net, with_compiled_autograd, id="with_compiled_autograd"),
]


@pytest.mark.parametrize(("make", "step"), THROUGH_INDUCTOR)
def test_practice_through_inductor(make, step):
    check_backend(make, step=step, count=2)


@pytest.mark.parametrize(
    ("make", "step"),
    [
        pytest.param(make_adapted, adapter_steps, id="adapters"),
        pytest.param(make_with(Norms), train_and_validate, id="train_and_validate"),
        pytest.param(make_with(Heads), one_output_only, id="one_output_only"),
    ],
)
def test_practice_through_inductor_is_as_without_us(make, step):
    """Inductor draws its own random numbers; torch.compile has zeros where eager leaves None."""
    check_backend(make, step=step, count=2, reference=plain_inductor)


def test_backward_twice_through_inductor():
    """Without donated buffers, which torch asks for in its error: see below."""
    with torch._functorch.config.patch(donated_buffer=False):
        check_backend(make_net, step=backward_twice, count=2)


def test_code_that_gives_buffers_away_is_not_taken_for_code_that_does_not():
    """By itself Inductor's cache finds it; a second backward through a retained graph may then read what is gone."""

    def compile_once():
        torch._dynamo.reset()
        model, (x,) = make_net()
        counters.clear()
        # Not "auto": what is free while other tests run is another budget each time, and so another key.
        torch.compile(model, backend="rematpass", options={"memory_budget": "none"})(x)
        return counters["inductor"]["fxgraph_cache_hit"]

    compile_once()
    with torch._functorch.config.patch(donated_buffer=False):
        assert compile_once() == 0
        assert compile_once() > 0
    assert compile_once() > 0


BACKENDS = [
    pytest.param({"options": SCALAR}, id="plain"),
    pytest.param({"backend": "rematpass", "options": {"memory_budget": "none", **SCALAR}}, id="ours"),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_compiled_to_give_its_buffers_away_cannot_be_retained(backend):
    model, (x,) = make_net()
    compiled = torch.compile(model, **backend)
    compiled(x).sum().backward()
    with pytest.raises(RuntimeError, match=r"requires create_graph=False and retain_graph=False"):
        compiled(x).sum().backward(retain_graph=True)
    assert not is_profiling()
    compiled(x).sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_double_backward_gives_torchs_own_error(backend):
    model, (x,) = make_net()
    with torch._functorch.config.patch(donated_buffer=False):  # or the error above may come first
        y = torch.compile(model, **backend)(x)
        (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="aot_autograd does not currently support double backward"):
            gradient.square().sum().backward()


@pytest.mark.filterwarnings(
    "ignore:Anomaly Detection has been enabled", "ignore:Error detected in CompiledFunctionBackward"
)
def test_anomaly_mode_finds_the_compiled_backward():
    def infinite(x):
        return (x * 0).sqrt().sum()

    x = torch.ones(3, requires_grad=True)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="'CompiledFunctionBackward' returned nan"):
        OpByOp("none")(infinite)(x).backward()


def test_functorch_around_a_compiled_model_runs_it_eagerly():
    """torch's own choice: with plain Inductor likewise. `plans` says that nothing was planned."""
    model, (x,) = make_net()
    compiled = torch.compile(model, backend="rematpass", options={"memory_budget": "none", **SCALAR})

    def gradient(model):
        return torch.func.grad(lambda x: model(x).square().sum())(x.detach())

    assert torch.equal(gradient(compiled), gradient(model))
    assert torch.equal(torch.vmap(compiled)(x), torch.vmap(model)(x))
    with pytest.warns(UserWarning, match="0 graphs planned"):
        assert rematpass.plans(compiled) == []


def test_a_pickled_compiled_model_is_compiled_again():
    model, (x,) = make_net()
    smallest = rematpass.plan(model, (x,), memory_budget="none").smallest_peak_bytes
    compiled = torch.compile(model, backend="rematpass", options={"memory_budget": smallest, **SCALAR})
    twin = pickle.loads(pickle.dumps(compiled))
    for either in (model, twin):
        weighted_sum(either(x)).backward()
    torch.testing.assert_close([p.grad for p in twin.parameters()], [p.grad for p in model.parameters()])
    assert [plan.peak_bytes for plan in rematpass.plans(twin)] == [smallest]


def test_compiled_in_place_as_trainers_want_it():
    model, (x,) = make_net()
    reference = copy.deepcopy(model)
    model.compile(backend="rematpass", options={"memory_budget": "none", **SCALAR})
    for either in (model, reference):
        weighted_sum(either(x)).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])
    assert len(rematpass.plans(model)) == 1


def test_layers_compiled_one_by_one_share_code_and_its_plan():
    model, (x,) = make_net()
    for layer in model.layers:
        layer.compile(backend="rematpass", options={"memory_budget": "none", **SCALAR})
    weighted_sum(model(x)).backward()
    assert len(rematpass.plans(model.layers[0])) == 1
    with pytest.warns(UserWarning, match="another model of the same class"):
        assert rematpass.plans(model.layers[1]) == []
