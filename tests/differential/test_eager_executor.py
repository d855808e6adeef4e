"""Any budget gives the gradients of budget "none", bit by bit, when both halves run op by op; and stays within it."""

import pytest
import torch
from functorch.compile import aot_function, nop
from hypothesis import given, settings
from torch import fx, nn
from torch.nn import functional

import rematpass
from rematpass.check.measure import storage_bytes
from tests.strategies import torch_programs


def run(function, arguments, memory_budget):
    """(plan, outputs, gradients) of one step."""
    split = rematpass.partition_fn(memory_budget=memory_budget)
    compiled = aot_function(function, nop, nop, partition_fn=split)
    outputs, gradients = step(compiled, arguments)
    return split.plans[-1] if split.plans else None, outputs, gradients


def step(function, arguments):
    outputs = function(*arguments)
    outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
    loss = sum((o * torch.arange(o.numel(), dtype=o.dtype).view(o.shape)).sum() for o in outputs)
    gradients = torch.autograd.grad(loss, arguments, allow_unused=True)
    return [o.detach() for o in outputs], gradients


def same(xs, ys, equal):
    assert [x is None for x in xs] == [y is None for y in ys]
    return all(equal(x, y) for x, y in zip(xs, ys, strict=True) if x is not None)


def close(x, y):
    return torch.allclose(x, y, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(torch_programs())
def test_random_functions_at_five_budgets(program):
    arguments = program.arguments()
    fastest, outputs, gradients = run(program, arguments, "none")
    eager_outputs, eager_gradients = step(program, arguments)
    assert same(outputs, eager_outputs, close)
    assert same(gradients, eager_gradients, close)
    if fastest is None:  # all outputs are views of arguments: nothing to plan
        return
    top, bottom = fastest.fastest_peak_bytes, fastest.smallest_peak_bytes
    for budget in sorted({bottom + (top - bottom) * k // 4 for k in range(5)}):
        plan, new_outputs, new_gradients = run(program, arguments, budget)
        assert plan.peak_bytes <= budget
        assert same(new_outputs, outputs, torch.equal)
        assert same(new_gradients, gradients, torch.equal)


def matrix(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def dropout(x):
    for _ in range(4):
        x = functional.dropout((x @ x).tanh(), 0.5) + x
    return x.sum()


def topk(x):
    for _ in range(4):
        values, indices = (x @ x).tanh().topk(3)
        x = x.scatter(1, indices, values.exp()) * 0.5
    return x.sum()


def pooled(x):
    for _ in range(3):
        x = functional.max_pool2d(functional.conv2d(x, x[:2, :2, :3, :3], padding=1).tanh(), 2, 1, 1)[:, :, :8, :8]
    return x.sum()


def attention(x):
    for _ in range(3):
        x = functional.scaled_dot_product_attention(x, x.tanh(), x.exp() * 0.1) + x
    return x.sum()


FIXED = [
    pytest.param(dropout, (8, 8), id="dropout"),
    pytest.param(topk, (8, 8), id="topk"),
    pytest.param(pooled, (2, 2, 8, 8), id="max_pool"),
    pytest.param(attention, (2, 2, 8, 4), id="attention"),
]


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
@pytest.mark.parametrize(("function", "shape"), FIXED)
def test_operators_that_return_several_tensors(function, shape, share):
    """Random, discrete and multi-output operators: never drawn again, never split wrongly."""
    arguments = [matrix(*shape)]
    torch.manual_seed(3)
    fastest, outputs, gradients = run(function, arguments, "none")
    budget = int(fastest.smallest_peak_bytes + share * (fastest.fastest_peak_bytes - fastest.smallest_peak_bytes))
    torch.manual_seed(3)
    plan, new_outputs, new_gradients = run(function, arguments, budget)
    assert plan.peak_bytes <= budget
    assert same(new_outputs, outputs, torch.equal)
    assert same(new_gradients, gradients, torch.equal)


@pytest.mark.parametrize("budget", ["none", "smallest"])
def test_an_input_that_the_step_writes_to(budget):
    def function(x, state):
        y = (x * state.exp()).tanh() @ x
        state.add_(1)
        return y.sum()

    def run_fresh(memory_budget):
        state = torch.full((6, 6), 0.1, dtype=torch.float64)
        split = rematpass.partition_fn(memory_budget=memory_budget)
        compiled = aot_function(function, nop, nop, partition_fn=split)
        (gradient,) = torch.autograd.grad(compiled(x, state), x)
        return split.plans[0], gradient, state

    x = matrix(6, 6)
    fastest, gradient, _ = run_fresh("none")
    _, new_gradient, state = run_fresh("none" if budget == "none" else fastest.smallest_peak_bytes)
    assert torch.equal(new_gradient, gradient)
    assert torch.equal(state, torch.full((6, 6), 1.1, dtype=torch.float64))


def frees_as_it_goes(gm, inputs):
    """Runs a graph op by op, handing over its inputs: each tensor is freed after its last use."""

    def call(arguments):
        return fx.Interpreter(gm).boxed_run(arguments)

    call._boxed_call = True
    return call


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x)) * x.sigmoid() + x
        return x.square().sum()


class Pools(nn.Module):
    """Convolution and pooling return several tensors at once."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))

    def forward(self, x):
        for conv in self.convs:
            x = functional.max_pool2d(conv(x).tanh(), 3, 1, 1)
        return x.square().sum()


CASES = [pytest.param(Layers, (256, 64), id="layers"), pytest.param(Pools, (4, 16, 32, 32), id="pools")]


@pytest.mark.parametrize("share", [1.0, 0.4, 0.0])
@pytest.mark.parametrize(("make", "shape"), CASES)
def test_predicted_peak_is_what_an_executor_without_fusion_really_allocates(make, shape, share):
    """Here the simulator is exact: nothing fuses, every tensor is freed after its last use."""
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    parameters = dict(model.named_parameters())
    names = list(parameters)

    def function(x, *values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,))

    def compiled(memory_budget):
        split = rematpass.partition_fn(memory_budget=memory_budget)
        f = aot_function(function, frees_as_it_goes, frees_as_it_goes, partition_fn=split)

        def train():
            f(x, *parameters.values()).backward()

        train()
        return split.plans[0], train

    fastest, _ = compiled("none")
    budget = int(fastest.smallest_peak_bytes + share * (fastest.fastest_peak_bytes - fastest.smallest_peak_bytes))
    model.zero_grad()
    plan, train = compiled(budget)
    train()
    model.zero_grad()
    measured = rematpass.measure_peak(train) + storage_bytes([x, *parameters.values()])
    assert measured <= plan.peak_bytes * 1.01
    assert measured >= plan.peak_bytes * 0.9


def test_the_forward_returns_what_it_computed_itself():
    """Not the recomputed copy, which would have to run in the forward, too."""
    ran = []

    def counting(gm, inputs):
        ran.append([str(node.target) for node in gm.graph.nodes].count("aten.exp.default"))
        return nop(gm, inputs)

    def function(x):
        y = x.exp()
        return y, y.sin().sum()

    split = rematpass.partition_fn(memory_budget="none", recompute=["exp"])
    compiled = aot_function(function, counting, counting, partition_fn=split)
    x = matrix(4, 4)
    y, total = compiled(x)
    (y.sum() + total).backward()
    assert ran == [1, 1]


def test_numbers_among_the_outputs_stay():
    """Sizes that turned out constant come back from a graph between two graph breaks as numbers."""
    split = rematpass.partition_fn(memory_budget="none")
    compiled = aot_function(lambda x: (8, x.exp() * x, None, 2.5), nop, nop, partition_fn=split)
    first, product, nothing, last = compiled(matrix(3, 3))
    assert (first, nothing, last) == (8, None, 2.5)
    assert product.requires_grad
