"""What a sum over rows and what is made of it both read is computed for each."""

import math

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import rematpass
from rematpass.emit.apart import compute_apart
from rematpass.graph.merge import merge_equal

aten = torch.ops.aten


def taken_apart(function, *shapes) -> tuple[fx.GraphModule, list[torch.Tensor], torch.Tensor]:
    """A graph with its copies, merged once more as it is before it is planned; its inputs; what it returned before."""
    torch.manual_seed(0)
    arguments = [torch.randn(*shape) for shape in shapes]
    graph = make_fx(function, tracing_mode="fake")(*arguments)
    expected = graph(*arguments)
    compute_apart(graph, list(graph.graph.nodes))
    merge_equal(graph)
    graph.graph.lint()
    return graph, arguments, expected


def count(graph: fx.GraphModule, target) -> int:
    return len(graph.graph.find_nodes(op="call_function", target=target))


def softmax_gradient(arriving, softmax):
    products = arriving * softmax
    return products - softmax * products.sum(-1, keepdim=True)


def test_products_that_a_softmax_gradient_sums_are_computed_for_sum_and_result():
    graph, arguments, expected = taken_apart(softmax_gradient, (3, 4, 5), (3, 4, 5))
    assert count(graph, aten.mul.Tensor) == 3
    (total,) = graph.graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)
    assert list(total.args[0].users) == [total]
    assert torch.equal(graph(*arguments), expected)


def test_a_summand_that_something_else_reads_as_well_stays():
    """The outer product is read by the inner one and its copy, which are made without the outer sum."""

    def nested(a, b, c):
        outer = a * b
        inner = outer * c
        first = inner - c * inner.sum(-1, keepdim=True)
        return first, outer - b * outer.sum(-1, keepdim=True)

    graph, arguments, expected = taken_apart(nested, (3, 4), (3, 4), (3, 4))
    assert count(graph, aten.mul.Tensor) == 5  # the inner one twice, the outer one once, two of sums
    assert all(map(torch.equal, graph(*arguments), expected))


def test_a_sum_that_is_shown_otherwise_on_its_way_counts():
    def shown(arriving, softmax):
        products = arriving * softmax
        return products - softmax * (products.sum(-1) * 2).unsqueeze(-1)

    assert count(taken_apart(shown, (3, 4), (3, 4))[0], aten.mul.Tensor) == 4


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x * y) - (x * y).sum(0, keepdim=True),  # columns: not one kernel
        lambda x, y: ((x * y).sum(-1), (x * y).sin()),  # neither is made of the other
        lambda x, y: x.exp() / x.exp().sum(-1, keepdim=True) + y,  # worth a tensor on a processor
        lambda x, y: x.mm(y.t()) - x.mm(y.t()).sum(-1, keepdim=True),  # no pointwise result
        lambda x, y: (x * y).sum(-1),  # nothing else reads it
    ],
)
def test_all_others_stay_as_they_are(function):
    torch.manual_seed(0)
    arguments = [torch.randn(4, 4), torch.randn(4, 4)]
    graph = make_fx(function, tracing_mode="fake")(*arguments)
    merge_equal(graph)
    before = [node.name for node in graph.graph.nodes]
    compute_apart(graph, list(graph.graph.nodes))
    assert [node.name for node in graph.graph.nodes] == before


class WrittenOut(nn.Module):
    """Two layers of attention whose scores, behind a mask, are far larger than all else."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(2))

    def forward(self, x, mask):
        for layer in self.layers:
            query, key, value = layer(x).chunk(3, dim=-1)
            scores = query @ key.transpose(-2, -1) / math.sqrt(x.shape[-1]) + mask
            x = x + scores.float().softmax(dim=-1).to(x.dtype) @ value
        return x.square().mean()


def test_a_softmax_computed_again_on_a_gpu_takes_three_tensors_of_scores():
    length = 512
    model, x = WrittenOut().bfloat16(), torch.randn(4, length, 16, dtype=torch.bfloat16)
    mask = torch.zeros(length, length, dtype=torch.bfloat16)
    smallest = rematpass.frontier(model, args=(x, mask), device="h100-sxm", progress=False).points[-1]
    scores_bytes = 4 * length * length * 2
    assert smallest.peak_bytes < 3 * scores_bytes
