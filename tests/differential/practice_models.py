"""Small models for the habits of people who train: shared layers, adapters, several outputs, frozen parts."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional


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
