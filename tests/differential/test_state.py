"""Statistics, buffers, mutation and aliasing: updated once, whatever is recomputed."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from tests.differential.steps import (
    OpByOp,
    check_backend,
    check_budgets,
    quick_and_thorough,
    run_step,
)

WIDTH = 16
# The gradient of a bias before a norm is zero in exact arithmetic, and noise of this size otherwise.
ROUNDING = 1e-6


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


class Norms(nn.Module):
    """Convolution, norm with running statistics, tanh; twice."""

    def __init__(self, norm, dimensions):
        super().__init__()
        convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dimensions]
        self.convolutions = nn.ModuleList(convolution(4, 4, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(norm(4, affine=True, track_running_stats=True) for _ in range(2))

    def forward(self, x):
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolution(x)).tanh()
        return x.square().mean()


def norms(norm, dimensions):
    return lambda: (Norms(norm, dimensions), (leaf(2, 4, *[6] * dimensions),))


class Averages(nn.Module):
    """Buffers that the step reads, writes, reads and writes again."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        h = self.inner(x).tanh()
        with torch.no_grad():
            self.average.mul_(0.9).add_(h.mean(0), alpha=0.1)
            self.steps += 1
        y = (h - self.average).exp()
        self.average.add_(1)
        return self.outer(y * self.average).tanh().square().mean()


class Parametrized(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = spectral_norm(nn.Linear(WIDTH, WIDTH)), weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.second(self.first(x).tanh().exp()).sigmoid().mean()


class Cache(nn.Module):
    """Slices of a buffer are written, as a key-value cache is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("cache", torch.zeros(8, 32, WIDTH))

    def forward(self, x):
        h = self.layer(x).tanh()
        self.cache[2].copy_(h.detach())
        self.cache[:3, 1:3].mul_(2.0)
        return (h * self.cache.sum(0)).exp().mean()


class Tied(nn.Module):
    """Embedding and output share a weight; one layer is used three times."""

    def __init__(self):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.layer(x).tanh()
        x = x + self.layer(x).tanh()
        x = self.layer(x).exp()
        return functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


class SelfChanging(nn.Module):
    """Writes to its own parameter in the middle of the step."""

    def __init__(self):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.randn(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.layer(x).tanh() * (self.scale * 2).detach()
        with torch.no_grad():
            self.scale.mul_(0.9)
        return (self.layer(y).exp() + self.scale).mean()


def modules(make):
    return lambda: (make(), (torch.randn(32, WIDTH),))


def written_input():
    def function(x, state):
        y = (x * state.exp()).tanh() @ x
        z = (y @ x).sigmoid()
        state.mul_(2)
        state[0].add_(1)
        return z @ x, state.sum()

    return function, (leaf(8, 8), torch.rand(8, 8))


def duplicated():
    x = leaf(8, 8)
    return lambda a, b: (a @ b).tanh() @ a.exp(), (x, x)


def aliased():
    """Two arguments are views of one tensor, and one of them is written."""
    base = torch.randn(16, 8)

    def function(w, a, b):
        a.add_(1)
        return (w @ b.t()).tanh() @ a.exp() @ w

    return function, (leaf(8, 8), base[:8], base[:8].view(8, 8))


def views_written():
    def function(x):
        y = x * 1
        v = y.view(-1)[::2]
        v.mul_(0.5)
        w = y.t()[1]
        w.add_(v[:8].detach().tanh())
        z = y.sigmoid() * 1
        z[1:3] = z[2:4] * 2
        return (z @ z).tanh() @ x, v

    return function, (leaf(8, 8),)


def in_place():
    def function(x, w):
        for _ in range(3):
            x = functional.silu(functional.relu(x @ w, inplace=True) + 1)
            x = x.clone().mul_(0.5)
        return x

    return function, (leaf(8, 8), leaf(8, 8))


def slices_assigned():
    def function(x, w):
        out = torch.zeros(8, 8)
        for i in range(4):
            out[i] = (x[i] @ w).tanh()
            out[i + 4] = out[i].exp()
        return out @ w

    return function, (leaf(8, 8), leaf(8, 8))


def outputs_alias():
    def function(x, y):
        z = (x @ y).tanh()
        return x.view(-1), x.t(), z.view(4, 16), z, z.view(-1), y, y.detach(), (x.exp() @ y).tanh()[0] @ x

    return function, (leaf(8, 8), leaf(8, 8))


def input_without_gradient_written():
    """torch.compile's own backends refuse its backward: they save the input that is written to."""

    def function(x, w):
        x.mul_(w.sigmoid())
        return (x @ w).tanh() @ w

    return function, (torch.randn(8, 8), leaf(8, 8))


def written_after_a_copy_is_read():
    """Wrong gradients in torch.compile's own backends: they read the input where its copy was saved."""

    def function(x, average):
        y = functional.hardswish(x * average.clone())
        average.mul_(0.5).add_(x.detach().mean())
        return y * average.clone()[0]

    return function, (leaf(8, 8), torch.randn(8, 8))


CASES = {
    "batch_norm_1d": norms(nn.BatchNorm1d, 1),
    "batch_norm_2d": norms(nn.BatchNorm2d, 2),
    "batch_norm_3d": norms(nn.BatchNorm3d, 3),
    "instance_norm_1d": norms(nn.InstanceNorm1d, 1),
    "instance_norm_2d": norms(nn.InstanceNorm2d, 2),
    "averages": modules(Averages),
    "parametrized": modules(Parametrized),
    "cache": modules(Cache),
    "tied": lambda: (Tied(), (torch.randint(0, 50, (4, 9)),)),
    "self_changing": modules(SelfChanging),
    "written_input": written_input,
    "duplicated": duplicated,
    "aliased": aliased,
    "views_written": views_written,
    "in_place": in_place,
    "slices_assigned": slices_assigned,
    "outputs_alias": outputs_alias,
    "written_after_a_copy_is_read": written_after_a_copy_is_read,
    "input_without_gradient_written": input_without_gradient_written,
}


@pytest.mark.parametrize("name", CASES)
def test_op_by_op(name):
    check_budgets(CASES[name])


QUICK = ["batch_norm_2d", "averages", "written_after_a_copy_is_read", "input_without_gradient_written"]


@pytest.mark.parametrize(("name", "count"), quick_and_thorough(QUICK, list(CASES)))
def test_backend(name, count):
    check_backend(CASES[name], count=count, floor=ROUNDING)


@pytest.mark.parametrize("name", ["batch_norm_1d", "batch_norm_2d", "batch_norm_3d"])
def test_a_batch_is_counted_once(name):
    unlimited = OpByOp("none")
    run_step(CASES[name], unlimited)
    found = run_step(CASES[name], OpByOp(unlimited.plans[0].smallest_peak_bytes))
    counts = [t.item() for name, t in found.tensors.items() if name.endswith("num_batches_tracked")]
    assert counts == [1, 1]
