"""Forms of graphs: higher-order operators, subclasses, complex numbers, empty tensors, scalars, many outputs, one."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from tests.differential.steps import (
    OpByOp,
    check_backend,
    check_budgets,
    quick_and_thorough,
    run_step,
    words_of_refusal,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch.cond's own
    pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex"),
]


def leaf(*shape, **options):
    return torch.randn(*shape, **options).requires_grad_()


def on_matrices(function, count=2, size=8):
    return lambda: (function, tuple(leaf(size, size) for _ in range(count)))


def conditional(x, w):
    y = (x @ w).tanh()
    return torch.cond(y.sum() > 0, lambda a, b: (a @ b).sin(), lambda a, b: (a.exp() @ b).cos(), (y, w)) @ w


@torch.compiler.nested_compile_region
def region(x, w):
    return (x @ w).tanh().exp() @ w * 0.1


def nested(x, w):
    for _ in range(3):
        x = region(x, w)
    return x


def scanned(x, w):
    from torch._higher_order_ops.scan import scan

    def step(carry, row):
        carry = (carry @ w + row).tanh()
        return carry, carry.exp()

    last, rows = scan(step, x[0], x)
    return rows @ w, last


def scalars(x, w):
    return (x.sum() * w.mean()).exp(), x[0, 0].sin(), (x @ w).tanh().sum() * 2


def empty(x, w):
    return torch.cat([x[:0], x]) @ w + x[:, :0].sum(), x[:0] @ w, (x @ w).tanh()[:, :0]


def complex_views(x, w):
    z = torch.complex(x, w) @ torch.complex(w, x)
    z = torch.view_as_complex(torch.view_as_real(z.exp() * 0.01) * 2)
    return z.abs(), z, torch.fft.fft(x).real @ w


def many_outputs(x, w):
    outputs = []
    for i in range(200):
        x = (x @ w).tanh() if i % 10 == 0 else x * 1.01
        outputs.append(x)
    return outputs


def structured(x, w):
    y = (x @ w).tanh()
    return y, y > 0, y.argmax(-1), (y.shape[0], None, "text", {"key": y.exp() @ w}), [y, y]


def subclasses():
    def function(a, w):
        return ((a @ w).tanh() @ w).exp()

    def pair():
        return TwoTensor(torch.randn(8, 8), torch.randn(8, 8)).requires_grad_()

    return function, (pair(), pair())


def double(x, w):
    return (x.double() @ w.double()).tanh().float() @ w


CASES = {
    **{
        f.__name__: on_matrices(f)
        for f in (conditional, nested, scanned, scalars, empty, complex_views, structured, double)
    },
    "many_outputs": on_matrices(many_outputs),
    "single_op": on_matrices(torch.exp, 1),
    "single_product": on_matrices(torch.mm),
}


@pytest.mark.parametrize("name", CASES)
def test_op_by_op(name):
    check_budgets(CASES[name])


QUICK = ["conditional", "nested", "complex_views"]


# torch 2.13 refuses every scan under Inductor once gradients are wanted.
REFUSED = "scanned"


@pytest.mark.parametrize(("name", "count"), quick_and_thorough(QUICK, [name for name in CASES if name != REFUSED]))
def test_backend(name, count):
    check_backend(CASES[name], count=count)


def test_refused_as_inductor_does():
    assert words_of_refusal(CASES[REFUSED], "rematpass") == words_of_refusal(CASES[REFUSED], "inductor")


def test_tensor_subclasses():
    """AOTAutograd flattens them; both inner tensors get their gradients."""

    def gradients(wrap):
        torch.manual_seed(0)
        function, arguments = subclasses()
        wrap(function)(*arguments).sum().backward()
        return [inner for t in arguments for inner in (t.grad.a, t.grad.b)]

    expected = gradients(lambda function: function)
    for budget in ("none", "smallest"):
        executor = OpByOp("none")
        found = gradients(executor)
        if budget == "smallest":
            found = gradients(OpByOp(executor.plans[0].smallest_peak_bytes))
        torch.testing.assert_close(found, expected)


def test_without_any_gradient_there_is_nothing_to_plan():
    executor = OpByOp("none")
    function = executor(lambda x: (x.exp() @ x).tanh())
    x = torch.randn(8, 8)
    assert torch.equal(function(x), (x.exp() @ x).tanh())
    assert executor.plans == []


def test_gradients_of_some_inputs_only():
    def make():
        return lambda x, y, n: ((x @ y).tanh() * n, y.detach() * 2), (leaf(8, 8), torch.randn(8, 8), torch.arange(8))

    check_budgets(make)


def test_a_nested_region_is_planned_by_itself():
    executor = OpByOp("none")
    run_step(CASES["nested"], executor)
    assert len(executor.plans) > 1
