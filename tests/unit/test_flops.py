"""Operations per node: exact counts on traced functions, and no guards on dynamic sizes."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils.flop_counter import flop_registry

from rematpass.graph.flops import (
    TRANSCENDENTAL_FLOPS,
    count_flops,
    is_compute_intensive,
)
from rematpass.graph.sizes import UNBACKED_SIZE, concrete

aten = torch.ops.aten


def trace(function, *shapes, mode="fake", dtype=torch.float32):
    """The aten graph of `function` on tensors of the given shapes."""
    return make_fx(function, tracing_mode=mode)(*(torch.zeros(shape, dtype=dtype) for shape in shapes))


def flops_by_op(graph_module):
    """Operations summed by op name, ops that count 0 left out."""
    counts = {}
    for node in graph_module.graph.nodes:
        flops = count_flops(node)
        if flops:
            name = node.target.overloadpacket.__name__
            counts[name] = counts.get(name, 0) + flops
    return counts


def gradients(function):
    """`function` followed by the gradients of the sum of its output."""

    def run(*args):
        args = [arg.detach().requires_grad_() for arg in args]
        return torch.autograd.grad(function(*args).sum(), args)

    return run


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (torch.mm, [(3, 4), (4, 5)], {"mm": 2 * 3 * 4 * 5}),
        (torch.bmm, [(2, 3, 4), (2, 4, 5)], {"bmm": 2 * 2 * 3 * 4 * 5}),
        (torch.addmm, [(5,), (3, 4), (4, 5)], {"addmm": 120}),
        (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)], {"baddbmm": 240}),
        (aten.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)], {"addbmm": 240}),
        (torch.mv, [(3, 4), (4,)], {"mv": 24}),
        (torch.addmv, [(3,), (3, 4), (4,)], {"addmv": 24}),
        (torch.dot, [(7,), (7,)], {"dot": 14}),
        (torch.vdot, [(7,), (7,)], {"vdot": 14}),
        (functional.conv2d, [(2, 3, 8, 8), (6, 3, 3, 3)], {"convolution": 2 * (2 * 6 * 6 * 6) * 3 * 9}),
        (
            lambda x, w: functional.conv2d(x, w, groups=4),
            [(2, 4, 8, 8), (4, 1, 3, 3)],
            {"convolution": 2 * (2 * 4 * 36) * 9},
        ),
        (functional.conv_transpose2d, [(2, 3, 4, 4), (3, 6, 3, 3)], {"convolution": 2 * (2 * 3 * 16) * 6 * 9}),
    ],
)
def test_products(function, shapes, expected):
    graph_module = trace(function, *shapes)
    assert flops_by_op(graph_module) == expected
    (heavy,) = [node for node in graph_module.graph.nodes if is_compute_intensive(node)]
    assert heavy.target.overloadpacket.__name__ in expected


def test_linear_when_it_is_not_decomposed():
    graph = torch.fx.Graph()
    layer_input, weight = graph.placeholder("x"), graph.placeholder("w")
    layer_input.meta["val"], weight.meta["val"] = torch.empty(2, 3, 4), torch.empty(5, 4)
    node = graph.call_function(aten.linear.default, (layer_input, weight))
    node.meta["val"] = torch.empty(2, 3, 5)
    assert count_flops(node) == 2 * 2 * 3 * 4 * 5


def test_int_mm():
    graph_module = trace(aten._int_mm, (32, 16), (16, 8), dtype=torch.int8)
    assert flops_by_op(graph_module) == {"_int_mm": 2 * 32 * 16 * 8}


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((2, 3, 4), (2, 4, 5), 2 * 2 * 3 * 4 * 5),
        ((7, 4), (2, 4, 5), 2 * 7 * 4 * 5),  # rows cut into groups
        ((3, 7), (7, 5), 2 * 3 * 7 * 5),  # the inner dimension cut into groups
        ((2, 3, 4), (4, 9), 2 * 3 * 4 * 9),  # columns cut into groups
    ],
)
def test_grouped_mm(left, right, expected):
    graph = torch.fx.Graph()
    operands = [graph.placeholder(name) for name in "ab"]
    for operand, shape in zip(operands, (left, right), strict=True):
        operand.meta["val"] = torch.empty(shape, device="meta")
    node = graph.call_function(aten._grouped_mm.default, tuple(operands))
    node.meta["val"] = torch.empty(1, device="meta")
    assert count_flops(node) == expected


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_backward_is_two_forwards(is_transposed, groups):
    convolve = functional.conv_transpose2d if is_transposed else functional.conv2d
    shapes = [(2, 4, 6, 6), (4, 6 // groups, 3, 3)] if is_transposed else [(2, 4, 6, 6), (6, 4 // groups, 3, 3)]
    counts = flops_by_op(trace(gradients(lambda x, w: convolve(x, w, groups=groups)), *shapes))
    assert counts["convolution_backward"] == 2 * counts["convolution"]


@pytest.mark.parametrize("is_transposed", [False, True])
def test_convolution_backward_agrees_with_torch_without_groups(is_transposed):
    convolve = functional.conv_transpose2d if is_transposed else functional.conv2d
    graph_module = trace(gradients(lambda x, w: convolve(x, w, stride=2)), (2, 4, 9, 9), (4, 4, 3, 3))
    (node,) = [node for node in graph_module.graph.nodes if node.target is aten.convolution_backward.default]
    args = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
    assert count_flops(node) == flop_registry[aten.convolution_backward](*args, out_val=node.meta["val"])


def test_attention_on_cpu_forward_and_backward():
    shape = (2, 3, 8, 4)
    counts = flops_by_op(trace(gradients(functional.scaled_dot_product_attention), shape, shape, shape))
    product = 2 * 2 * 3 * 8 * 8 * 4  # queries by keys; five such in the backward, which computes the scores again
    assert counts["_scaled_dot_product_flash_attention_for_cpu"] == 2 * product
    assert counts["_scaled_dot_product_flash_attention_for_cpu_backward"] == 5 * product


def test_flex_attention_and_its_backward():
    graph = torch.fx.Graph()

    def node(name, *shape):
        placeholder = graph.placeholder(name)
        placeholder.meta["val"] = torch.empty(shape, device="meta")
        return placeholder

    query, key, value, out = (node(name, 2, 3, 8, 4) for name in ("q", "k", "v", "out"))
    logsumexp = node("lse", 2, 3, 8)
    higher_order = torch.ops.higher_order
    forward = graph.call_function(higher_order.flex_attention, (query, key, value, None, (), 1.0, {}, (), ()))
    forward.meta["val"] = (out.meta["val"], logsumexp.meta["val"])
    product = 2 * 2 * 3 * 8 * 8 * 4
    assert count_flops(forward) == 2 * product
    for grad_out in (out, None):
        backward = graph.call_function(
            higher_order.flex_attention_backward, (query, key, value, out, logsumexp, grad_out, None)
        )
        assert count_flops(backward) == 5 * product


@pytest.mark.parametrize(
    ("function", "shape", "expected"),
    [
        (lambda x: x + 1, (3, 4), {"add": 12}),
        (lambda x: x.sum(), (3, 4), {"sum": 12}),
        (lambda x: x.amax(1), (3, 4), {"amax": 12}),
        (lambda x: x.exp(), (3, 4), {"exp": 12 * TRANSCENDENTAL_FLOPS}),
        (lambda x: x.softmax(1), (3, 4), {"_softmax": 12 * TRANSCENDENTAL_FLOPS}),
        (functional.gelu, (3, 4), {"gelu": 12 * TRANSCENDENTAL_FLOPS}),
        (lambda x: x**2, (3, 4), {"pow": 12}),
        (lambda x: x**2.5, (3, 4), {"pow": 12 * TRANSCENDENTAL_FLOPS}),
        (lambda x: functional.layer_norm(x, (4,)), (3, 4), {"native_layer_norm": 12}),
        (lambda x: functional.max_pool2d(x, 2), (1, 1, 4, 4), {"max_pool2d_with_indices": 16}),
        (lambda x: x[:, None] + x, (4,), {"add": 16}),  # broadcasting counts the output
        (lambda x: x.t().reshape(4, 3).unsqueeze(0).expand(2, 4, 3)[0], (3, 4), {}),
        (lambda x: x.view(12).split(6)[1], (3, 4), {}),
        (lambda x: (torch.empty_like(x), torch.full((5,), 2.0), torch.zeros_like(x)), (3, 4), {}),
        (
            lambda x: functional.embedding(torch.zeros(2, dtype=torch.long), x),
            (100, 4),
            {"embedding": 8},
        ),  # not the table
    ],
)
def test_streamed_ops(function, shape, expected):
    graph_module = trace(function, shape)
    assert flops_by_op(graph_module) == expected
    assert not any(map(is_compute_intensive, graph_module.graph.nodes))


def test_nodes_that_are_not_ops_count_nothing():
    graph_module = trace(lambda x: x.split(2), (4, 4))
    assert any(node.target is operator.getitem for node in graph_module.graph.nodes)
    assert sum(map(count_flops, graph_module.graph.nodes)) == 0


def test_inner_graphs_are_counted():
    inner = trace(torch.mm, (3, 4), (4, 5))
    outer = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    outer.add_submodule("body", inner)
    body = outer.graph.get_attr("body")
    node = outer.graph.call_function(torch.ops.higher_order.invoke_subgraph, (body, "body"))
    assert count_flops(node) == 120
    assert is_compute_intensive(node)


@pytest.mark.parametrize("function", [torch.mm, lambda a, b: (a @ b).softmax(1).sum(0)])
def test_dynamic_sizes_use_hints_and_add_no_guards(function):
    symbolic = trace(function, (6, 7), (7, 8), mode="symbolic")
    plain = trace(function, (6, 7), (7, 8))
    sizes = [
        size
        for node in symbolic.graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
        for size in node.meta["val"].shape
    ]
    environment = next(size.node.shape_env for size in sizes if isinstance(size, torch.SymInt))
    before = (len(environment.guards), str(environment.replacements))
    assert flops_by_op(symbolic) == flops_by_op(plain)
    assert (len(environment.guards), str(environment.replacements)) == before


def test_dynamic_attention_and_convolution_add_no_guards():
    def run(x, w, q):
        return functional.conv2d(x, w).sum() + functional.scaled_dot_product_attention(q, q, q).sum()

    shapes = [(2, 3, 8, 8), (6, 3, 3, 3), (2, 3, 8, 4)]
    symbolic = trace(gradients(run), *shapes, mode="symbolic")
    environment = next(
        size.node.shape_env
        for node in symbolic.graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
        for size in node.meta["val"].shape
        if isinstance(size, torch.SymInt)
    )
    before = len(environment.guards)
    counts = flops_by_op(symbolic)
    assert len(environment.guards) == before
    expected = flops_by_op(trace(gradients(run), *shapes))
    for name in ("convolution", "convolution_backward", "_scaled_dot_product_flash_attention_for_cpu_backward"):
        assert counts[name] == expected[name]


def test_sizes_without_a_value_use_the_fallback():
    def run(x):
        return x.nonzero() * 2

    graph_module = trace(run, (5,), mode="symbolic")
    (node,) = [node for node in graph_module.graph.nodes if node.target is aten.mul.Tensor]
    assert count_flops(node) == UNBACKED_SIZE
    assert concrete(node.meta["val"].shape[0]) == UNBACKED_SIZE
