"""Discrete choices: routers, sorts and quantisers choose the same whatever is recomputed."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.differential.steps import check_backend, check_budgets, forward_backward, quick_and_thorough

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


def farthest(x, w):
    y = (x @ w).tanh() * x.exp()
    return x + torch.cdist(y, w, p=torch.inf) - y.amax(0) * y.max()


def largest_of_groups(x, w):
    y = (x @ w).tanh() * x.exp()
    groups = torch.tensor([0, 1, 0, 2, 2, 1, 0, 2])[:, None].expand(8, 8)
    return x + y - torch.zeros(8, 8).scatter_reduce(0, groups, y, "amax", include_self=False).sigmoid()


class Neighbours(nn.Module):
    """Attention over the edges of a graph: sums whose order is nobody's, of what is weighed by its largest score."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.values = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.scores = nn.ModuleList(nn.Linear(2 * width, heads) for _ in range(4))

    def forward(self, x, start, end):
        for values, scores in zip(self.values, self.scores, strict=True):
            z = values(x)
            score = functional.leaky_relu(scores(torch.cat([z[start], z[end]], -1)))
            largest = torch.full((len(x), self.heads), -1e9)
            largest = largest.scatter_reduce(0, end[:, None].expand(-1, self.heads), score, "amax")
            weight = (score - largest[end]).exp()
            share = weight / torch.zeros(len(x), self.heads).index_add(0, end, weight)[end]
            sent = z.view(len(x), self.heads, -1)[start] * share[..., None]
            x = x + functional.elu(torch.zeros(len(x), *sent.shape[1:]).index_add(0, end, sent).flatten(1))
        return x.square().mean()


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
    **{f.__name__: repeated(f) for f in (farthest, largest_of_groups)},
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


def edges():
    return Neighbours(), (torch.randn(1000, 64), torch.randint(0, 1000, (6000,)), torch.randint(0, 1000, (6000,)))


def test_elements_equal_the_largest_in_whatever_order_sums_are_taken():
    """Nobody's order: the sums that are recomputed differ in their last bits from those that the forward took."""
    check_backend(edges, count=2)


def less_the_largest(x, w):
    y = functional.gelu(x @ w * 0.1) * x.sigmoid()
    return x + y - y.amax(1, keepdim=True)


def finite_gradients(model, arguments, wrap):
    outputs = forward_backward(model, arguments, wrap)
    assert all(x.grad.isfinite().all() for x in arguments)
    return outputs


def test_rounded_elements_equal_the_largest():
    """Inductor rounds the largest when it stores it, and elements that it computes again not at all."""

    def make():
        function, inputs = repeated(less_the_largest)()
        return function, tuple(x.detach().bfloat16().requires_grad_() for x in inputs)

    check_backend(make, step=finite_gradients, is_as_eager=False, relative=0.05)
