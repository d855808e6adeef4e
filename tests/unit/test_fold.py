"""Sums of products are written as they will run."""

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from rematpass.emit.sums import keep_products_in_place
from rematpass.graph.fold import fold_sums
from rematpass.torch_compat import adds_half_bias_in_matmul

aten = torch.ops.aten


def folded(function, *shapes, dtype=torch.float32, device_type="cpu"):
    torch.manual_seed(0)
    arguments = [torch.randn(*shape, dtype=dtype) for shape in shapes]
    graph = make_fx(function, tracing_mode="fake")(*arguments)
    before = fx.GraphModule(graph, fx.Graph())
    before.graph.output(before.graph.graph_copy(graph.graph, {}))
    before.recompile()
    fold_sums(graph, list(graph.graph.nodes), device_type)
    graph.graph.lint()
    return graph, arguments, [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_a_sum_with_what_is_there_becomes_one_product():
    graph, (c, a, b), targets = folded(lambda c, a, b: c.sin() + a.mm(b), (3, 5), (3, 4), (4, 5))
    assert targets == [aten.sin.default, aten.addmm.default]
    torch.testing.assert_close(graph(c, a, b), c.sin() + a.mm(b))


def test_a_sum_with_what_comes_later_is_left_to_its_place_bit_by_bit():
    for dtype in (torch.float32, torch.bfloat16):
        graph, (c, a, b), targets = folded(lambda c, a, b: a.mm(b) + c.sin(), (3, 5), (3, 4), (4, 5), dtype=dtype)
        assert targets == [aten.mm.default, aten.sin.default, aten.sub.Tensor]
        assert torch.equal(graph(c, a, b), a.mm(b) + c.sin())


def test_a_gpu_leaves_a_sum_in_the_product_only_for_a_reader_that_does_not_add_it():
    def targets_of(function, **settings):
        return folded(function, (3, 5), (3, 4), (4, 5), **settings)[2]

    def read_by_a_function(c, a, b):
        return (c.sin() + a.mm(b)).view(15).exp()

    apart = [aten.sin.default, aten.mm.default, aten.sub.Tensor, aten.view.default, aten.exp.default]
    assert targets_of(read_by_a_function, device_type="cuda") == apart
    together = [aten.sin.default, aten.addmm.default, aten.view.default, aten.exp.default]
    assert targets_of(read_by_a_function) == together
    halves = together if adds_half_bias_in_matmul() else apart  # torch 2.11 takes sums out of all products
    assert targets_of(read_by_a_function, dtype=torch.bfloat16, device_type="cuda") == halves
    assert aten.addmm.default in targets_of(lambda c, a, b: (c + a.mm(b)).sum(), device_type="cuda")
    # The second sum reads the first, and a product is no function: both stay.
    assert targets_of(lambda c, a, b: (c + a.mm(b)) + a.mm(b), device_type="cuda").count(aten.addmm.default) == 2


def test_of_two_products_the_later_one_takes_the_sum():
    graph, (a, b, c), targets = folded(lambda a, b, c: a.mm(b) + a.mm(c), (3, 4), (4, 5), (4, 5))
    assert targets == [aten.mm.default, aten.addmm.default]
    torch.testing.assert_close(graph(a, b, c), a.mm(b) + a.mm(c))


def test_what_inductor_leaves_alone_stays():
    shapes = (3, 5), (3, 4), (4, 5)
    for function in (
        lambda c, a, b: (c + (p := a.mm(b))) * p,  # the product has another reader
        lambda c, a, b: c[0] + a.mm(b),  # a row for all
        lambda c, a, b: torch.add(c, a.mm(b), alpha=2),
        lambda c, a, b: 2 + a.mm(b) * c,
    ):
        assert aten.mm.default in folded(function, *shapes)[2]
        assert not {aten.addmm.default, aten.sub.Tensor} & set(folded(function, *shapes)[2])


def test_a_half_keeps_a_product_in_place_where_inductor_would_put_it_off():
    def half(a, b, c):
        late = a.mm(b) + c.sin()
        early = c.cos() + a.mm(b)
        second = a.mm(b) + a.mm(b).view(15).view(3, 5)
        return late, early, second, a.mm(b) + a.mm(b)

    torch.manual_seed(0)
    arguments = [torch.randn(*shape) for shape in ((3, 4), (4, 5), (3, 5))]
    graph = make_fx(half, tracing_mode="fake")(*arguments)
    expected = half(*arguments)
    keep_products_in_place(graph)
    graph.graph.lint()
    sums = [node.target for node in graph.graph.output_node().args[0]]
    assert sums == [aten.sub.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.add.Tensor]
    assert all(map(torch.equal, graph(*arguments), expected))
