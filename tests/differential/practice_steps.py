"""What people do with a model in one training run, each as a function of model, batch and how it is wrapped."""

import copy
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.differential.practice_models import Result
from tests.differential.steps import (
    as_it_is,
    forward_backward,
    weighted_sum,
)


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
