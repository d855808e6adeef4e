"""Steps of what readers of a reduction go on with, beside what Inductor counts."""

from unittest import mock

import pytest
import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import make_fx

from rematpass.graph.op_traits import constants_in, count_operations, is_pointwise
from rematpass.graph.operators import Describer
from rematpass.graph.tails import is_of_variance, tail_of

aten = torch.ops.aten


def centred(x):
    return x - x.mean(-1, keepdim=True)


def normed(x):
    variance, mean = aten.var_mean.correction(x, [-1], correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1e-5) * x.shape[-1]


def scaled(x):
    return x / torch.sqrt(aten.var.correction(x, [-1], correction=1, keepdim=True) + 1e-5)


def scaled_by_a_float(x):  # as `torch.std` is written
    return x / torch.sqrt(aten.var.correction(x, [-1], correction=1.0, keepdim=True) + 1e-5)


def scaled_by_half(x):
    return x / torch.sqrt(aten.var.correction(x, [-1], correction=0.5, keepdim=True) + 1e-5)


def scaled_by_all(x):
    return x / torch.sqrt(aten.var.correction(x, correction=1.0) + 1e-5)


def halved(x):
    return x - x.mean([0], keepdim=True) / 3.0


def twice(x):
    rows, columns = x.mean(-1, keepdim=True), x.mean(0, keepdim=True)
    return x - rows - columns


def counted_by_inductor(graph):
    """Steps, loads and constants of the last function."""
    counts = []
    run_node = GraphLowering.run_node

    def run(lowering, node):
        result = run_node(lowering, node)
        if is_pointwise(node):
            counts.append(result.data.data)
        return result

    inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    lowering = GraphLowering(graph)
    with mock.patch.object(GraphLowering, "run_node", run), V.set_graph_handler(lowering):
        with V.set_fake_mode(inputs[0].fake_mode):
            lowering.run(*inputs)
        last = counts[-1].data if isinstance(counts[-1], ir.ComputedBuffer) else counts[-1]
        found = last.inner_fn_opcount()
    return found.num_ops, len(found.read_buffers)


def counted(graph, device):
    steps, constants = 0, set()
    for node in graph.graph.nodes:
        is_inside = is_pointwise(node)
        own = (count_operations(node), constants_in(node, device)) if is_inside else tail_of(node, device)
        steps += own[0]
        constants.update(own[1])
    return steps + len(constants)


@pytest.mark.parametrize("length", [96, 4096], ids=["two steps", "one pass"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "function", [centred, normed, scaled, scaled_by_a_float, scaled_by_half, scaled_by_all, halved, twice]
)
def test_as_inductor_counts(function, dtype, length):
    graph = make_fx(function, tracing_mode="fake")(torch.empty(64, length, dtype=dtype))
    total, loads = counted_by_inductor(graph)
    assert counted(graph, "cpu") == total - loads


def test_a_gpu_multiplies_by_the_reciprocal():
    graph = make_fx(lambda x: x / 3.0 * 3.0)(torch.ones(4))
    constants = {device: {c for n in graph.graph.nodes for c in constants_in(n, device)} for device in ("cpu", "cuda")}
    assert {device: len(found) for device, found in constants.items()} == {"cpu": 1, "cuda": 2}


def test_variances_of_one_shape_are_told_apart_by_what_they_are_of():
    def both(x, y):
        return [aten.var_mean.correction(each, [-1], correction=0)[0] for each in (x, y)]

    graph = make_fx(both)(torch.ones(4, 64), torch.ones(4, 2048)).graph
    describer = Describer("cpu", {}, is_relaid=False)
    described = [describer.describe(node, node.all_input_nodes)[0] for node in graph.nodes]
    steps = [
        d.operations
        for d, node in zip(described, graph.nodes, strict=True)
        if is_of_variance(node) and node.args[1] == 0
    ]
    assert steps == [1, 3]
