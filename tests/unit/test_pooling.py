"""How Inductor computes means over windows, and what their gradients are asked for."""

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from rematpass.emit.unread import forget_unread
from rematpass.graph.op_traits import is_unrolled, kind_of
from rematpass.graph.pooling import is_gradient_by_torch, windows_per_element
from rematpass.solve.program import Kind

aten = torch.ops.aten


def gradient_of(pool, *shape, dtype=torch.float32) -> tuple[fx.GraphModule, torch.Tensor]:
    """The graph of pooling and of its gradient for ones."""

    def both(x):
        return torch.autograd.grad(pool(x).sum(), x)

    x = torch.randn(*shape, dtype=dtype, requires_grad=True)
    return make_fx(both, tracing_mode="fake")(x), x


def node_of(graph: fx.GraphModule, targets) -> fx.Node:
    return next(n for n in graph.graph.nodes if n.target in targets)


@pytest.mark.parametrize(
    ("size", "parts", "is_written"), [((12, 12), 3, True), ((64, 64), 2, True), ((9, 9), 4, True), ((64, 63), 5, False)]
)
def test_means_of_parts_that_are_alike_or_small_are_written_out(size, parts, is_written):
    """Inductor computes them inside their readers then, unless told to store them; others are torch's own."""
    graph, _ = gradient_of(lambda x: functional.adaptive_avg_pool2d(x, parts), 1, 2, *size)
    node = node_of(graph, (aten._adaptive_avg_pool2d.default,))
    assert is_unrolled(node) == is_written
    assert kind_of(node) is Kind.REDUCTION


GRADIENTS = (aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
MEANS = (aten.avg_pool2d.default, aten.avg_pool3d.default)


@pytest.mark.parametrize(
    ("pool", "shape", "windows", "kind", "kind_of_mean"),
    [
        (lambda x: functional.avg_pool2d(x, 2), (1, 2, 8, 8), 1, Kind.POINTWISE, Kind.REDUCTION),
        (lambda x: functional.avg_pool2d(x, (1, 4)), (1, 2, 8, 8), 1, Kind.POINTWISE, Kind.REDUCTION),
        (lambda x: functional.avg_pool2d(x, 6), (1, 2, 12, 12), 1, Kind.POINTWISE, Kind.REDUCTION),
        (lambda x: functional.avg_pool2d(x, 3, 2, 1), (1, 2, 8, 8), 4, Kind.REDUCTION, Kind.REDUCTION),
        (lambda x: functional.avg_pool2d(x, 3, 1, 1), (1, 2, 8, 8), 9, Kind.REDUCTION, Kind.REDUCTION),
        (lambda x: functional.avg_pool2d(x, 7, 1), (1, 2, 8, 8), 0, Kind.EXTERN, Kind.EXTERN),
        (lambda x: functional.avg_pool3d(x, 2), (1, 2, 4, 8, 8), 1, Kind.POINTWISE, Kind.REDUCTION),
        (lambda x: functional.avg_pool3d(x, 3, 2, 1), (1, 2, 4, 8, 8), 8, Kind.REDUCTION, Kind.EXTERN),
    ],
)
def test_windows_are_counted_as_inductor_does(pool, shape, windows, kind, kind_of_mean):
    graph, _ = gradient_of(pool, *shape)
    gradient, mean = node_of(graph, GRADIENTS), node_of(graph, MEANS)
    assert windows_per_element(gradient) == windows
    assert (kind_of(gradient), kind_of(mean)) == (kind, kind_of_mean)
    assert is_unrolled(mean) == (kind_of_mean is Kind.REDUCTION)
    assert windows_per_element(mean) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_pooled_is_not_read_again(dtype):
    graph, x = gradient_of(lambda x: functional.avg_pool2d(x, 3, 2, 1), 1, 2, 8, 8, dtype=dtype)
    expected = graph(x)
    forget_unread(graph)
    graph.graph.lint()
    shape = node_of(graph, GRADIENTS).args[1]
    value = shape.meta["val"]
    assert shape.target == aten.expand.default
    assert (value.shape, value.dtype, value.untyped_storage().nbytes()) == (x.shape, dtype, dtype.itemsize)
    assert all(map(torch.equal, graph(x), expected))


def test_what_is_replaced_is_not_read():
    x = torch.randn(4, 6)
    graph = make_fx(lambda x: torch.slice_scatter(x, aten.copy(x[:, 2:], x[:, :4].exp()), 1, 2))(x)
    expected = graph(x)
    forget_unread(graph)
    (copy,) = graph.graph.find_nodes(op="call_function", target=aten.copy.default)
    assert copy.args[0].meta["val"].untyped_storage().nbytes() == x.itemsize
    assert torch.equal(graph(x), expected)


def test_the_kernel_of_torch_gets_the_tensor_itself():
    graph, _ = gradient_of(lambda x: functional.avg_pool2d(x, 7, 1), 1, 2, 8, 8)
    before = node_of(graph, GRADIENTS).args
    forget_unread(graph)
    assert node_of(graph, GRADIENTS).args == before


def test_sizes_that_are_not_known_are_asked_of_the_tensor():
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    graph = make_fx(lambda x: torch.autograd.grad(functional.avg_pool2d(x, 2).sum(), x), tracing_mode="symbolic")(x)
    before = node_of(graph, GRADIENTS).args
    forget_unread(graph)
    assert node_of(graph, GRADIENTS).args == before


PARTS = (aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)


@pytest.mark.parametrize(
    ("pool", "shape", "window"),
    [
        (lambda x: functional.adaptive_avg_pool2d(x, 2), (1, 2, 8, 8), [4, 4]),
        (lambda x: functional.adaptive_avg_pool2d(x, (3, 8)), (2, 2, 12, 8), [4, 1]),
        (lambda x: functional.adaptive_avg_pool2d(x, 2), (2, 8, 8), [4, 4]),  # no batch
        (lambda x: functional.adaptive_avg_pool3d(x, (1, 2, 2)), (1, 2, 4, 8, 8), [4, 4, 4]),
        (lambda x: functional.adaptive_avg_pool2d(x, 3), (1, 2, 8, 8), []),
        (lambda x: functional.adaptive_avg_pool2d(x, (2, 3)), (1, 2, 8, 8), []),
    ],
)
def test_means_over_equal_parts_are_means_over_windows(pool, shape, window):
    graph, x = gradient_of(lambda x: pool(x).square(), *shape)
    (expected,) = graph(x)
    forget_unread(graph)
    graph.graph.lint()
    gradient = node_of(graph, GRADIENTS if window else PARTS)
    assert is_gradient_by_torch(gradient) is not bool(window)
    assert not window or gradient.args[2] == gradient.args[3] == window
    is_read = any(n.op == "placeholder" for n in gradient.all_input_nodes)
    assert is_read is not bool(window)
    assert torch.equal(graph(x)[0], expected)


def test_gradients_of_larger_windows_are_of_torch():
    overlapping, _ = gradient_of(lambda x: functional.avg_pool2d(x, 7, 1), 1, 2, 8, 8)
    beside, _ = gradient_of(lambda x: functional.avg_pool2d(x, 7), 1, 2, 14, 14)
    assert is_gradient_by_torch(node_of(overlapping, GRADIENTS))
    assert not is_gradient_by_torch(node_of(beside, GRADIENTS))
