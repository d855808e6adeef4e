"""The two graphs whose tables are kept as text, planned on an invented device: the figures can be checked by hand.

One float operation, and one byte moved, takes a nanosecond; a kernel costs 10 ns more.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from rematpass.pipeline import plan_and_split
from rematpass.plan_types import Plan
from tests.tracing import dynamo_joint_of, toy_settings

FOLDER = Path(__file__).parent
REGENERATE = "python -m tests.golden.regenerate"


class Perceptron(nn.Module):
    """Three equal layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the last layer."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.sum()


class Attention(nn.Module):
    """One head, written out, with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Scores are 64 x 64: they dominate."""
        q, k, v = self.mix(x).chunk(3, -1)
        weights = (q @ k.t()).softmax(-1)
        return (x + self.out(weights @ v)).square().sum()


# Name of the file -> (model, batch, share of the way from the smallest peak to the fastest one's).
GRAPHS = {
    "perceptron.txt": (Perceptron, (64, 16), None),
    "perceptron_small.txt": (Perceptron, (64, 16), 0.3),
    "attention_small.txt": (Attention, (64, 16), 0.0),
}


def plan_graph(name: str) -> Plan:
    """The plan of one of the graphs."""
    make, shape, share = GRAPHS[name]

    def plan(budget: int | None) -> Plan:
        joint = dynamo_joint_of(make(), [torch.ones(shape)])
        return plan_and_split(joint, toy_settings(budget), "graph 0").plan

    fastest = plan(None)
    if share is None:
        return fastest
    return plan(int(fastest.smallest_peak_bytes + share * (fastest.fastest_peak_bytes - fastest.smallest_peak_bytes)))


def table_of(name: str) -> str:
    """What `print(plan)` shows, line numbers left out."""
    return re.sub(r"(graphs\.py):\d+", r"\1", str(plan_graph(name))) + "\n"


def torch_of(table: str) -> str:
    """torch's version without patch and build, as the first line tells it."""
    found = re.search(r"torch (\d+\.\d+)", table)
    assert found is not None, "a table begins with the versions"
    return found.group(1)
