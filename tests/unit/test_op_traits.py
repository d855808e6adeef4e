"""Kinds and reasons of real operators, as they stand in joint graphs."""

import pytest
import torch
from torch.nn import functional

from rematpass.graph.op_traits import base_name, is_heavy, kind_of, never_recompute_reason
from rematpass.solve.program import Kind
from tests.tracing import joint_of


def matrix(*shape):
    return torch.ones(*(shape or (4, 4)), requires_grad=True)


def nodes_of(function, *arguments):
    """Forward nodes by operator name; the first of each."""
    joint = joint_of(function, arguments or [matrix()])
    found = {}
    for node, is_backward in zip(joint.nodes, joint.is_backward, strict=True):
        if not is_backward and node.op == "call_function":
            found.setdefault(base_name(node.target), node)
    return found


@pytest.mark.parametrize(
    ("function", "name", "kind"),
    [
        (lambda x: x @ x.exp(), "mm", Kind.EXTERN),
        (lambda x: x.exp(), "exp", Kind.POINTWISE),
        (lambda x: torch.cat([x, x]) * x.sum(), "cat", Kind.POINTWISE),
        (lambda x: x.sum(0), "sum", Kind.REDUCTION),
        (lambda x: x.amax(0), "amax", Kind.REDUCTION),
        (lambda x: x.sin().cumsum(0), "cumsum", Kind.REDUCTION),
        (lambda x: x.t().exp(), "t", Kind.VIEW),
        (lambda x: x.view(2, 8).exp(), "view", Kind.VIEW),
        (lambda x: x[:1].expand(4, 4).exp(), "expand", Kind.VIEW),
        (lambda x: x[1:3, 2].exp(), "select", Kind.VIEW),
        (lambda x: x.exp().contiguous().clone(), "clone", Kind.POINTWISE),
        (lambda x: x.topk(2).values, "topk", Kind.EXTERN),
        (lambda x: x.topk(2).values, "getitem", Kind.PART),
        (lambda x: x.exp().softmax(-1), "_softmax", Kind.REDUCTION),
    ],
)
def test_kinds(function, name, kind):
    assert kind_of(nodes_of(function)[name]) is kind


def test_convolution_is_not_generated():
    node = nodes_of(functional.conv2d, matrix(1, 2, 5, 5), matrix(3, 2, 3, 3))["convolution"]
    assert kind_of(node) is Kind.EXTERN
    assert never_recompute_reason(node) is None


def test_inputs():
    joint = joint_of(lambda x: x.exp(), [matrix()])
    assert {kind_of(n) for n in joint.nodes if n.op == "placeholder"} == {Kind.INPUT}


@pytest.mark.parametrize(
    ("function", "name", "reason"),
    [
        (lambda x: functional.dropout(x, 0.5), "native_dropout", "native_dropout is random and would draw again"),
        (lambda x: x * torch.rand_like(x), "rand_like", "rand_like is random and would draw again"),
        (lambda x: torch.bernoulli(x.detach() * 0.5) * x, "bernoulli", "bernoulli is random and would draw again"),
        (lambda x: x.topk(2).values, "topk", "topk is a discrete choice that rounding could flip"),
        (lambda x: x.sort().values, "sort", "sort is a discrete choice that rounding could flip"),
        (lambda x: x * x.argmax(), "argmax", "argmax is a discrete choice that rounding could flip"),
        (lambda x: x.exp(), "exp", None),
        (lambda x: x @ x, "mm", None),
        (lambda x: x.max(0).values, "max", None),
    ],
)
def test_reasons(function, name, reason):
    assert never_recompute_reason(nodes_of(function)[name]) == reason


def test_attention_is_random_only_with_dropout():
    """The attention that runs on CPUs draws nothing; its schema has a dropout argument all the same."""
    found = nodes_of(lambda q: functional.scaled_dot_product_attention(q, q, q), matrix(1, 2, 8, 4))
    (name,) = (n for n in found if "attention" in n)
    assert never_recompute_reason(found[name]) is None


@pytest.fixture(scope="module")
def custom_operator():
    with torch.library._scoped_library("rematpass_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        library.impl("twice", torch.empty_like, "Meta")
        torch.library.register_autograd("rematpass_test::twice", lambda ctx, g: g * 2, lib=library)
        yield torch.ops.rematpass_test.twice


def test_custom_operators_are_kept(custom_operator):
    node = nodes_of(lambda x: custom_operator(x).exp())["twice"]
    assert kind_of(node) is Kind.EXTERN
    assert never_recompute_reason(node) == "rematpass_test::twice is a custom operator whose purity is not known"


def test_writing_operators():
    joint = joint_of(lambda x, s: (x * s.add_(1)).sum(), [matrix(), torch.ones(4, 4)])
    copies = [n for n in joint.nodes if base_name(n.target) == "copy_"]
    assert all(never_recompute_reason(n) == "copy_ writes to its input" for n in copies)


def test_heavy():
    found = nodes_of(lambda x: x.tanh() + x.relu())
    assert is_heavy(found["tanh"])
    assert not is_heavy(found["relu"])
