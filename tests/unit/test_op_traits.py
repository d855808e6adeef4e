"""Kinds and reasons of real operators, as they stand in joint graphs."""

import pytest
import torch
from torch.nn import functional

from rematpass.graph.op_traits import addend_of, base_name, constants_in, count_operations, is_heavy, kind_of
from rematpass.solve.program import Addend, Kind
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
        (lambda x: x * torch.ops.prims.rev(x.detach(), [0]), "rev", Kind.POINTWISE),
        (lambda x: x * torch.ops.prims.sqrt(x.detach()), "sqrt", Kind.POINTWISE),
        (functional.glu, "glu", Kind.POINTWISE),
        (lambda x: x * torch.empty_like(x), "empty_like", Kind.REDUCTION),
    ],
)
def test_kinds(function, name, kind):
    assert kind_of(nodes_of(function)[name]) is kind


def test_convolution_is_no_loop_of_inductors():
    node = nodes_of(functional.conv2d, matrix(1, 2, 5, 5), matrix(3, 2, 3, 3))["convolution"]
    assert kind_of(node) is Kind.EXTERN


def test_inputs():
    joint = joint_of(lambda x: x.exp(), [matrix()])
    assert {kind_of(n) for n in joint.nodes if n.op == "placeholder"} == {Kind.INPUT}


def test_steps_and_constants():
    found = nodes_of(lambda x: torch.cos(x * 2.0 + 3) ** 2 + torch.full_like(x, 2.0))
    described = {name: (count_operations(node), constants_in(node, "cpu")) for name, node in found.items()}
    two, three = "2.0 torch.float32", "3 torch.float32"
    assert described["mul"] == (1, (two,))
    assert described["add"] == (1, (three,))
    assert described["cos"] == described["pow"] == (1, ())
    assert two in described["full_like"][1] or two in described["full"][1]


@pytest.mark.parametrize(
    ("widths", "steps"),
    [((1, 1, 1, 1), 12), ((0, 1), 4), ((1, 0), 4), ((1, 1), 7), ((0, 0, 2, 2), 7), ((-1, 0), 4), ((0, 0), 0)],
)
def test_steps_of_a_padding(widths, steps):
    """Of places, ends, comparisons, their conjunction and a load in case, as Inductor counts them."""
    node = nodes_of(lambda x: torch.ops.aten.constant_pad_nd(x, widths))["constant_pad_nd"]
    assert (count_operations(node), constants_in(node, "cpu")) == (steps, ())


@pytest.mark.parametrize(
    ("function", "name", "steps"),
    [
        (lambda x, whole: x - whole, "sub", 2),
        (lambda x, whole: torch.where(whole > 0, x, x.sin()), "where", 1),
        (lambda x, whole: torch.where(whole > 0, x, whole), "where", 2),
        (lambda x, whole: (x > whole).float(), "gt", 2),
        (lambda x, whole: (whole > 3).float(), "gt", 1),
        (lambda x, whole: whole.bfloat16() + x, "add", 2),
        (lambda x, whole: whole.bfloat16() + x, "_to_copy", 1),
    ],
)
def test_operands_of_another_type_are_converted_first(function, name, steps):
    whole = torch.ones(4, 4, dtype=torch.int64)
    found = nodes_of(lambda x, whole: x * function(x.detach(), whole), matrix(), whole)
    assert count_operations(found[name]) == steps


def test_steps_of_a_scattered_gradient():
    joint = joint_of(lambda x: x[1].sin() + x[2].sin(), [matrix()])
    scattered = [n for n in joint.nodes if base_name(n.target) == "select_backward"]
    axis, zero = "index along 0", "0.0 torch.float32"
    expected = [(2, (axis, f"{index} torch.float32", zero)) for index in (1, 2)]
    assert sorted((count_operations(n), constants_in(n, "cpu")) for n in scattered) == expected


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [
        (1, 3, 1, (5, ("index along 1", "place 1", "place 3"))),
        (1, -1, 1, (5, ("index along 1", "place 1", "place 3"))),
        (1, None, 1, (3, ("index along 1", "place 1"))),
        (0, 3, 1, (3, ("index along 1", "place 3"))),
        (0, 9, 2, (3, ("index along 1", "index in steps of 2", "0 torch.int64"))),
        (None, None, 1, (0, ("index along 1",))),
    ],
)
def test_steps_of_a_slice_that_is_put_into_a_tensor(start, end, step, expected):
    """A comparison where it begins or ends inside, one `and` between two, a load and a choice."""
    part = matrix(4, len(range(4)[start:end:step]))
    node = nodes_of(lambda x, part: torch.slice_scatter(x, part, 1, start, end, step), matrix(), part)["slice_scatter"]
    assert (count_operations(node), constants_in(node, "cpu")) == expected


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (functional.linear, [(2, 4), (3, 4), (3,)], Addend.BY_POINTWISE),
        (functional.linear, [(2, 4), (3, 4)], Addend.BY_OP),
        (functional.conv2d, [(1, 2, 5, 5), (3, 2, 3, 3), (3,)], Addend.BY_READERS),
        (functional.conv2d, [(1, 2, 5, 5), (3, 2, 3, 3)], Addend.BY_OP),
        (torch.addmm, [(2, 3), (2, 4), (4, 3)], Addend.BY_OP),  # no bias but a sum
    ],
)
def test_who_adds_the_bias_on_a_gpu(function, shapes, expected):
    joint = joint_of(function, [matrix(*shape) for shape in shapes])
    nodes = [node for node in joint.nodes if base_name(node.target) in ("addmm", "mm", "convolution")]
    assert addend_of(nodes[0], "cuda") is expected
    assert addend_of(nodes[0], "cpu") is Addend.BY_OP


def test_heavy():
    found = nodes_of(lambda x: x.tanh() + x.relu())
    assert is_heavy(found["tanh"])
    assert not is_heavy(found["relu"])
