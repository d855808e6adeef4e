"""The recurrent and the very deep network of `bench/architectures.py`, written out in plain PyTorch.

In: sizes. Out: modules whose `forward` returns a loss. Never holds anything but the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

GATES = 4

State = tuple[Tensor, Tensor]


class Step(nn.Module):
    """One time step through all layers. Holds no weights: they are shared by all steps and handed in."""

    def forward(self, x: Tensor, states: list[State], weights: list[State]) -> tuple[Tensor, list[State]]:
        """(batch, width), per layer (hidden, cell), per layer (weight, bias) -> output and new states."""
        after: list[State] = []
        for (hidden, cell), (weight, bias) in zip(states, weights, strict=True):
            gates = F.linear(torch.cat((x, hidden), dim=-1), weight, bias)
            enter, forget, candidate, leave = gates.chunk(GATES, dim=-1)
            renewed = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
            x = leave.sigmoid() * renewed.tanh()
            after.append((x, renewed))
        return x, after


class RecurrentLM(nn.Module):
    """Predicts the token after the last one with an LSTM, its time steps unrolled."""

    def __init__(self, vocabulary: int, width: int, layers: int, steps: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.weights = nn.ParameterList(torch.empty(GATES * width, 2 * width) for _ in range(layers))
        self.biases = nn.ParameterList(torch.empty(GATES * width) for _ in range(layers))
        self.steps = nn.ModuleList(Step() for _ in range(steps))
        self.head = nn.Linear(width, vocabulary)
        for parameter in (*self.weights, *self.biases):
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)  # as torch's own recurrent modules

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy."""
        embedded = self.embedding(ids)
        zero = torch.zeros_like(embedded[:, 0])
        states = [(zero, zero) for _ in self.weights]
        weights = list(zip(self.weights, self.biases, strict=True))
        x = zero
        for place, step in enumerate(self.steps):
            x, states = step(embedded[:, place], states, weights)
        return F.cross_entropy(self.head(x), targets)


class DeepNet(nn.Module):
    """Nothing but Linear and ReLU, many times."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers))
        for layer in self.layers:
            nn.init.kaiming_normal_(layer[0].weight, nonlinearity="relu")  # else nothing is left of the gradients

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error."""
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(x, targets)
