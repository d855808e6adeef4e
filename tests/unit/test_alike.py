"""Nodes that are alike, and those that only look so."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from rematpass.graph import operators
from rematpass.graph.alike import Alike
from rematpass.graph.facts import collect_facts
from rematpass.graph.op_traits import base_name
from tests.tracing import joint_of

aten = torch.ops.aten
X, Y = torch.ones(4, 6), torch.ones(4, 6)


def keys_of(function, *tensors, mode="fake"):
    alike, found = Alike(), []
    for node in make_fx(function, tracing_mode=mode)(*tensors).graph.nodes:
        key = alike.note(node, node.all_input_nodes)
        if node.op == "call_function" and base_name(node.target) in ("add", "cat", "mul", "sum", "exp"):
            found.append(key)
    return found


@pytest.mark.parametrize(
    ("function", "is_alike"),
    [
        (lambda x, y: (aten.mul(x, y), aten.mul(y, x)), True),
        (lambda x, y: (aten.mul(x, 2), aten.mul(x, 3)), False),
        (lambda x, y: (aten.mul(x, 1), aten.mul(x, 1.0)), False),
        (lambda x, y: (aten.mul(x, True), aten.mul(x, 1)), False),
        (lambda x, y: (aten.mul(x, 0.0), aten.mul(x, -0.0)), False),
        (lambda x, y: (aten.mul(x, x), aten.mul(x, y)), False),
        (lambda x, y: (aten.cat([x, x, y]), aten.cat([x, y, y])), False),
        (lambda x, y: (aten.cat([x, x, y]), aten.cat([y, y, x])), True),
        (lambda x, y: (aten.sum(x, [0]), aten.sum(x, [1])), False),
        (lambda x, y: (aten.sum(x, [1]), aten.sum(x, [1], True)), False),
        (lambda x, y: (aten.sum(x, [1]), aten.sum(y, [1], dtype=torch.float64)), False),
        (lambda x, y: (aten.exp(x), aten.exp(aten.t(y))), False),
        (lambda x, y: (aten.exp(x), aten.exp(aten.to(y, torch.float64))), False),
        (lambda x, y: (aten.exp(x), aten.add(x, y)), False),
    ],
)
def test_alike_is_the_same_operator_on_equal_arguments(function, is_alike):
    first, second = keys_of(function, X, Y)
    assert (first == second) is is_alike


def test_what_has_symbolic_sizes_is_like_no_other():
    first, second = keys_of(lambda x, y: (aten.exp(x), aten.exp(x)), X, Y, mode="symbolic")
    assert first != second


def layers(x, w):
    for _ in range(3):
        x = torch.cat([torch.nn.functional.layer_norm(x @ w, [6]).relu() * 1.0, x * 1], 0)[:4]
    return torch.nn.functional.max_pool1d(x, 2).exp() * 1.0


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("is_fusing", [False, True])
def test_facts_are_those_of_every_node_looked_at_by_itself(monkeypatch, device_type, is_fusing):
    joint = joint_of(layers, [torch.ones(4, 6, requires_grad=True), torch.ones(6, 6, requires_grad=True)])
    together = collect_facts(joint, device_type=device_type, is_fusing=is_fusing)
    monkeypatch.setattr(operators.Alike, "note", lambda *_: None)
    assert collect_facts(joint, device_type=device_type, is_fusing=is_fusing) == together
