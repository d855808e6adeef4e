"""Discrete choices: routers, sorts and quantisers choose the same whatever is recomputed."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.differential.steps import check_backend, check_budgets, quick_and_thorough

WIDTH = 16


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def repeated(body):
    """`body(x, w)` three times on two matrices."""

    def make():
        def function(x, w):
            for _ in range(3):
                x = body(x, w)
            return x

        return function, (leaf(8, 8), leaf(8, 8))

    return make


def topk(x, w):
    values, index = (x @ w).tanh().topk(3)
    return x.scatter(1, index, values.exp()) * 0.5


def ordered(x, w):
    values, index = (x @ w).sort(-1)
    return values.tanh() * x.gather(1, index)


def hard(x, w):
    return functional.one_hot((x @ w).argmax(-1), 8).to(x.dtype) * x.exp() + x.tanh()


def straight_through(x, w):
    y = x @ w
    return ((y + (y.round() - y).detach()) @ w).tanh() * x.sigmoid()


def eight_bits(x, w):
    y = (x @ w).tanh()
    quantised = (y * 127).to(torch.int8).to(x.dtype) / 127
    return (y + (quantised - y).detach()) @ w


def gated(x, w):
    y = x @ w
    return torch.where(y > 0.1, y.exp() * 0.1, y.floor() * x).tanh()


def masked(x, w):
    y = (x @ w).tanh()
    return y * (y > y.mean()).to(y.dtype) + y[y > 0].exp().sum() * x


def places(x, w):
    y = (x @ w).tanh()
    return y.gather(1, y.max(1, keepdim=True).indices.expand(8, 8)) * x.exp()


class Experts(nn.Module):
    """Two of four experts per token, all computed, the chosen ones gathered."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.up = nn.Parameter(torch.randn(4, WIDTH, WIDTH) * 0.3)
        self.down = nn.Parameter(torch.randn(4, WIDTH, WIDTH) * 0.3)

    def forward(self, x):
        for _ in range(2):
            values, index = self.router(x).softmax(-1).topk(2)
            hidden = functional.gelu(torch.einsum("nd,edf->nef", x, self.up))
            made = torch.einsum("nef,efd->ned", hidden, self.down)
            x = x + (made.gather(1, index[..., None].expand(-1, -1, WIDTH)) * values[..., None]).sum(1)
        return x.square().mean()


class Dispatched(nn.Module):
    """Each expert gets its tokens only: sizes depend on data."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        scores = self.router(x)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = torch.where(scores.argmax(-1) == number)[0]
            out = out.index_add(0, mine, functional.gelu(expert(x[mine])) * scores[mine, number : number + 1])
        return out.square().sum()


CASES = {
    **{f.__name__: repeated(f) for f in (topk, ordered, hard, straight_through, eight_bits, gated, masked, places)},
    "experts": lambda: (Experts(), (torch.randn(32, WIDTH),)),
    "dispatched": lambda: (Dispatched(), (torch.randn(32, WIDTH),)),
}


@pytest.fixture(autouse=True)
def sizes_from_data():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


@pytest.mark.parametrize("name", CASES)
def test_op_by_op(name):
    check_budgets(CASES[name])


@pytest.mark.parametrize(("name", "count"), quick_and_thorough(["eight_bits", "dispatched"], CASES))
def test_backend(name, count):
    check_backend(CASES[name], count=count)
