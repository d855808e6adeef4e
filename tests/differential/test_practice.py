"""What training loops do with a compiled model: each gives, at every budget, what it gives without us."""

import copy
import dataclasses
import pickle
import threading
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import rematpass
from tests.differential.steps import (
    SCALAR,
    OpByOp,
    as_it_is,
    check_backend,
    check_budgets,
    equal,
    forward_backward,
    plain,
    plain_inductor,
    weighted_sum,
)

# torch itself, where it looks at the inputs of a second graph that come out of a first.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Layer(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        h = self.inner(x)
        return x + torch.tanh(h) * h.sigmoid()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Heads(nn.Module):
    """Returns a dict of nested tuples, lists and None, with one output that needs no gradient."""

    def __init__(self):
        super().__init__()
        self.net = Net()
        self.first = nn.Linear(8, 3)
        self.second = nn.Linear(8, 2)

    def forward(self, x):
        h = self.net(x)
        return {"first": self.first(h).tanh(), "rest": (self.second(h).exp(), None, [h.detach() * 2])}


@dataclasses.dataclass
class Result:
    loss: torch.Tensor
    more: dict


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        y = self.net(x)
        return Result(y.square().mean(), {"y": y, "none": None, "count": 3})


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(functional.dropout(self.net(x), 0.3, self.training)).tanh()


class Distilled(nn.Module):
    """The target and the scale come without a gradient from what has one."""

    def __init__(self):
        super().__init__()
        self.net = Net()
        self.head = Layer()

    def forward(self, x):
        y = self.net(x)
        with torch.no_grad():
            target = self.head(y).softmax(-1)
            scale = y.norm()
        return -(target * self.head(y).log_softmax(-1)).sum() / scale, target


class Adapter(nn.Module):
    """Low-rank adaptation of a frozen layer."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.dropout = nn.Dropout(0.05)

    def forward(self, x):
        return self.base(x) + 2 * self.up(self.down(self.dropout(x)))


class Adapted(nn.Module):
    """A frozen language model; no input and no output of a frozen part needs a gradient by itself."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.net = Net()
        self.head = nn.Linear(8, 11)
        self.requires_grad_(False)
        for layer in self.net.layers:
            layer.inner = Adapter(layer.inner)

    def forward(self, tokens):
        return self.head(self.net(self.embedding(tokens)))


def batch(*shape):
    return torch.randn(*shape).requires_grad_()


def make_net():
    return Net(), (batch(24, 8),)


def make_adapted():
    return Adapted(), (torch.randint(11, (24,)),)


def make_with(module):
    def make():
        return module(), (batch(24, 8),)

    return make


def make_partly_frozen():
    model = Net()
    model.layers[0].inner.weight.requires_grad_(False)
    model.layers[1].requires_grad_(False)
    return model, (torch.randn(24, 8),)


def make_all_frozen():
    return Net().requires_grad_(False), (batch(24, 8),)


def micro_batches(model, arguments, wrap):
    """Two optimizer steps, gradients of three micro-batches added up before each."""
    compiled, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for scale in (1.0, 2.0, 3.0):
            (compiled(arguments[0].detach() * scale).square().mean() / 3).backward()
        optimizer.step()


def ten_steps(make_optimizer, *, is_clipped=False, is_set_to_none=True):
    """Ten optimizer steps, gradients clipped if asked."""

    def step(model, arguments, wrap):
        compiled, optimizer, losses = wrap(model), make_optimizer(model.parameters()), []
        for _ in range(10):
            optimizer.zero_grad(set_to_none=is_set_to_none)
            losses.append(compiled(*arguments).square().mean())
            losses[-1].backward()
            if is_clipped:
                losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            optimizer.step()
        return losses

    return step


def compiled_optimizer(model, arguments, wrap):
    """The optimizer's step is compiled, too, by the same backend."""
    compiled, optimizer = wrap(model), torch.optim.AdamW(model.parameters(), lr=0.01)
    compiled_step = wrap(optimizer.step)
    for _ in range(2):
        optimizer.zero_grad()
        compiled(*arguments).square().mean().backward()
        compiled_step()


def optimizer_in_backward(model, arguments, wrap):
    """Each parameter is updated as soon as its gradient is there, while other layers still run backward."""
    for layer in model.layers:
        layer.forward = wrap(layer.forward)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(p):
        optimizers[p].step()
        p.grad = None

    for p in optimizers:
        p.register_post_accumulate_grad_hook(update)
    for _ in range(3):
        model(*arguments).square().mean().backward()


def adapter_steps(model, arguments, wrap):
    compiled = wrap(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(compiled(*arguments), arguments[0]).backward()
        optimizer.step()


def freeze_and_thaw(model, arguments, wrap):
    compiled = wrap(model)
    for is_trained in (True, False, True):
        model.layers[0].requires_grad_(is_trained)
        compiled(*arguments).square().mean().backward()


def backward_twice(model, arguments, wrap):
    loss = weighted_sum(wrap(model)(*arguments))
    loss.backward(retain_graph=True)
    loss.backward()


def one_loss_then_another(model, arguments, wrap):
    """The second backward goes through the same graph by another output."""
    outputs = wrap(model)(*arguments)
    outputs["first"].sum().backward(retain_graph=True)
    after_first = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    outputs["rest"][0].square().sum().backward()
    return outputs, after_first


def one_output_only(model, arguments, wrap):
    outputs = wrap(model)(*arguments)
    outputs["first"].sum().backward()
    return outputs


def some_inputs_only(model, arguments, wrap):
    outputs = wrap(model)(*arguments)
    torch.autograd.backward(weighted_sum(outputs), inputs=[model.net.layers[1].inner.weight, model.second.bias])


def autograd_grad(model, arguments, wrap):
    outputs = wrap(model)(*arguments)
    roots, leaves = (outputs["first"], outputs["rest"][0]), (*model.parameters(), *arguments)
    whole = torch.autograd.grad(roots, leaves, [torch.full_like(r, 2.0) for r in roots], retain_graph=True)
    return whole, torch.autograd.grad(roots[0].sum(), [arguments[0], model.first.bias])


def hooks_on_tensors(model, arguments, wrap):
    """On parameters, on the input, on the output; they change what they are handed."""
    norms = {}
    for name, p in model.named_parameters():
        p.register_hook(lambda gradient: gradient * 2)
        p.register_post_accumulate_grad_hook(lambda p, name=name: norms.update({name: p.grad.norm()}))
    arguments[0].register_hook(lambda gradient: gradient * 3)
    y = wrap(model)(*arguments)
    y.register_hook(lambda gradient: gradient * 0.5)
    weighted_sum(y).backward()
    return [norms[name] for name in sorted(norms)]


def hook_on_a_value_within(model, arguments, wrap):
    def forward(x):
        x = model.layers[0](x)
        x.register_hook(lambda gradient: gradient * 3)
        return model.layers[1](x)

    weighted_sum(wrap(forward)(*arguments)).backward()


def hooks_on_modules(model, arguments, wrap):
    norms = []
    model.layers[0].register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))
    model.layers[1].register_forward_hook(lambda _module, _inputs, output: output * 2)
    model.register_full_backward_hook(lambda _module, _given, gradients: norms.append(gradients[0].norm()))
    y = wrap(model)(*arguments)
    weighted_sum(y).backward()
    return y, norms


def backward_hook_on_a_module_within(model, arguments, wrap):
    """Breaks the graph in two."""
    model.layers[1].register_full_backward_hook(lambda _module, given, _gradients: (given[0] * 2,))
    return forward_backward(model, arguments, wrap)


def train_and_evaluate(model, arguments, wrap):
    compiled, outputs = wrap(model), []
    for is_training in (True, False, True):
        compiled.train(is_training)
        outputs.append(compiled(*arguments))
        weighted_sum(outputs[-1]).backward()
    compiled.eval()
    with torch.no_grad():
        outputs.append(compiled(*arguments))
    with torch.inference_mode():
        outputs.append(compiled(*arguments))
    model.train()
    weighted_sum(compiled(*arguments)).backward()
    return [output.detach().clone() for output in outputs]


def train_and_validate(model, arguments, wrap):
    compiled = wrap(model)
    for _ in range(2):
        compiled.train()
        weighted_sum(compiled(*arguments)).backward()
        compiled.eval()
        with torch.no_grad():
            y = compiled(*arguments)
    return y


def structured(model, arguments, wrap):
    result = wrap(model)(*arguments)
    assert isinstance(result, Result)
    assert (result.more["none"], result.more["count"]) == (None, 3)
    weighted_sum((result.loss, result.more["y"])).backward()
    return result.loss, result.more["y"]


def layer_by_layer(model, arguments, wrap):
    """Regional compilation: only parts are compiled, one by one."""
    compiled = [wrap(layer.forward) for layer in model.layers]
    y = compiled[1](compiled[0](*arguments).relu())
    weighted_sum(y).backward()
    return y


def twice_in_a_step(model, arguments, wrap):
    """The model's own output goes in again; then two passes whose backwards run in the order of the forwards."""
    compiled = wrap(model)
    first = compiled(*arguments)
    (weighted_sum(first) + weighted_sum(compiled(first * 0.5))).backward()
    passes = [compiled(arguments[0] * scale) for scale in (1, 2)]
    for y in passes:
        weighted_sum(y).backward()
    return passes


def distance(x, y):
    return ((x - y.tanh()).square() * torch.exp(-x.abs())).sum()


def two_models_and_a_loss(model, arguments, wrap):
    other = copy.deepcopy(model)
    first, second, loss = wrap(model), wrap(other), wrap(distance)
    loss(first(*arguments), second(arguments[0] * 2)).backward()
    return [p.grad for p in other.parameters()]


class InterruptError(Exception):
    pass


def interrupt(*_):
    raise InterruptError


def going_on_after_errors(model, arguments, wrap):
    """A forward whose result is dropped, a wrong shape, and errors before and after the compiled backward."""
    compiled = wrap(model)
    y = compiled(*arguments)
    y.register_hook(interrupt)
    with pytest.raises(InterruptError):
        weighted_sum(y).backward()
    with pytest.raises(RuntimeError):
        compiled(torch.ones(3, 5))
    y = compiled(*arguments)
    handle = next(model.parameters()).register_hook(interrupt)
    with pytest.raises(InterruptError):
        weighted_sum(y).backward()
    handle.remove()
    model.zero_grad()
    arguments[0].grad = None
    return forward_backward(compiled, arguments, as_it_is)


def in_threads(model, arguments, wrap, *, is_warm=False):
    """Two threads use one compiled model at once, from its compilation on; or only after it."""
    compiled, results = wrap(model), {}
    if is_warm:
        weighted_sum(compiled(*arguments)).backward()

    def work(scale):
        x = (arguments[0].detach() * scale).requires_grad_()
        results[scale] = torch.autograd.grad(weighted_sum(compiled(x)), [x, *model.parameters()])

    threads = [threading.Thread(target=work, args=(scale,)) for scale in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[scale] for scale in (1, 2)]


def backward_in_another_thread(model, arguments, wrap):
    y = wrap(model)(*arguments)
    thread = threading.Thread(target=weighted_sum(y).backward)
    thread.start()
    thread.join()


def under_anomaly_mode(model, arguments, wrap):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
        with torch.autograd.detect_anomaly():
            return forward_backward(model, arguments, wrap)


def deterministic(model, arguments, wrap):
    torch.use_deterministic_algorithms(True)
    try:
        return forward_backward(model, arguments, wrap)
    finally:
        torch.use_deterministic_algorithms(False)


def copied(model, arguments, wrap):
    """A deep copy of a compiled model, and state dicts handed between the two."""
    compiled = wrap(model)
    weighted_sum(compiled(*arguments)).backward()
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    twin.load_state_dict(compiled.state_dict())
    y = twin(*arguments)
    weighted_sum(y).backward()
    return y, [p.grad for p in twin.parameters()], list(twin.state_dict().values())


def functional_call(model, arguments, wrap):
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    compiled = wrap(lambda weights, x: torch.func.functional_call(model, weights, (x,)))
    weighted_sum(compiled(weights, *arguments)).backward()
    return [p.grad for p in weights.values()]


def gradient_within(model, arguments, wrap):
    """A gradient taken inside the compiled function, and differentiated once more: one joint graph."""
    scale = torch.ones(8, requires_grad=True)
    inner = torch.func.grad(lambda x, scale: (model(x) * scale).square().sum())
    weighted_sum(wrap(inner)(arguments[0], scale)).backward()
    return scale.grad


def saved_elsewhere(model, arguments, wrap):
    """Hooks that move what is kept out of the way and back."""
    compiled = wrap(model)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        y = compiled(*arguments)
    with torch.autograd.graph.save_on_cpu():
        z = compiled(*arguments)
    weighted_sum((y, z)).backward()


def with_compiled_autograd(model, arguments, wrap):
    """The backward is called inside what is compiled, and captured there."""

    def train(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    with torch._dynamo.config.patch(compiled_autograd=True):
        return wrap(train)(*arguments)


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
    pytest.param(make_net, copied, id="copied"),
    pytest.param(make_net, saved_elsewhere, id="saved_elsewhere"),
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
