"""Which pointwise results their readers want in memory."""

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from rematpass.graph import demands
from rematpass.graph.demands import find_asked_for
from rematpass.graph.op_traits import base_name

aten = torch.ops.aten
PLACES = torch.zeros(4, 8, dtype=torch.int64)


def node_of(function, name: str, *tensors: torch.Tensor) -> fx.Node:
    graph = make_fx(function, tracing_mode="fake")(*tensors).graph
    return next(node for node in graph.nodes if base_name(node.target) == name)


def is_asked_for(node: fx.Node, device_type: str) -> bool:
    return node in find_asked_for([*node.graph.nodes], device_type)


def scatter(x, places, *more):
    return aten.scatter_add(aten.mul(x, 3), 1, places, aten.exp(x))


def reduce_most(x, places):
    return aten.scatter_reduce(aten.mul(x, 3), 1, places, aten.exp(x), "amax")


def put(x, places):
    return aten.index_put(aten.mul(x, 3), [places[:, 0]], aten.exp(x), True)


def put_some(x, places):
    indices = [places[:, :1], places]
    return aten._unsafe_masked_index_put_accumulate(aten.mul(x, 3), places > 0, indices, aten.exp(x))


def sum_up(x, places):
    return aten.cumsum(aten.exp(x), 0) + aten.mul(x, 3)


def put_once(x, places):
    return aten.index_put(aten.mul(x, 3), [places[:, 0]], aten.exp(x))


@pytest.mark.parametrize(
    ("function", "dtype", "device_type", "threads", "has_atomics", "expected"),
    [
        (scatter, torch.float32, "cpu", 2, True, True),
        (scatter, torch.float32, "cpu", 1, True, False),
        (scatter, torch.float32, "cuda", 2, False, False),
        (scatter, torch.bfloat16, "cuda", 2, True, False),
        (scatter, torch.bfloat16, "cuda", 2, False, True),
        (reduce_most, torch.float32, "cuda", 2, True, True),
        (put, torch.float32, "cpu", 2, True, False),
        (put, torch.bfloat16, "cuda", 2, False, True),
        (put_once, torch.bfloat16, "cuda", 2, False, False),
        (put_some, torch.float32, "cpu", 2, True, False),
        (put_some, torch.bfloat16, "cuda", 2, False, True),
        (sum_up, torch.float32, "cpu", 1, True, True),
        (sum_up, torch.float32, "cuda", 1, True, False),
    ],
)
def test_what_torch_adds_up_itself_is_in_memory(
    monkeypatch, function, dtype, device_type, threads, has_atomics, expected
):
    monkeypatch.setattr(demands, "num_threads", lambda: threads)
    monkeypatch.setattr(demands, "has_bfloat16_atomics", lambda: has_atomics)
    x = torch.zeros(4, 8, dtype=dtype)
    assert is_asked_for(node_of(function, "exp", x, PLACES), device_type) is expected
    assert not is_asked_for(node_of(function, "mul", x, PLACES), device_type)  # is copied into the result


def test_deterministic_scatters_are_torchs():
    node = node_of(scatter, "exp", torch.zeros(4, 8), PLACES)
    torch.use_deterministic_algorithms(True)
    try:
        assert is_asked_for(node, "cuda")
    finally:
        torch.use_deterministic_algorithms(False)
    assert not is_asked_for(node, "cuda")


def test_what_is_shown_by_strides_is_in_memory():
    def show(x):
        return aten.as_strided(aten.view(aten.exp(x), [32]), [16], [2])

    node = node_of(show, "exp", torch.zeros(4, 8))
    assert is_asked_for(node, "cpu")
    assert not is_asked_for(node_of(lambda x: aten.exp(x) + 1, "exp", torch.zeros(4)), "cpu")
