"""Which pointwise results their readers want in memory."""

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from rematpass.graph import demands
from rematpass.graph.demands import find_asked_for, find_copied_views
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


QUERY = torch.zeros(2, 4, 8, 16)


def attend_shared(query, key):
    shown = aten.expand(key, [2, 4, 8, 16])
    return aten._scaled_dot_product_flash_attention_for_cpu(query, shown, query)


def attend_unaligned(query, key):
    query, shown = aten.slice(query, 3, 0, 12), aten.expand(key, [2, 4, 8, 12])
    return aten._scaled_dot_product_flash_attention_for_cpu(query, shown, query)


def attend_turned(query, key):
    return aten._scaled_dot_product_flash_attention_for_cpu(query, aten.transpose(key, 1, 2), query)


def attend_masked(query, mask):
    shown = aten.expand(mask, [2, 4, 8, 8])
    return aten._scaled_dot_product_flash_attention_for_cpu(query, query, query, attn_mask=shown)


@pytest.mark.parametrize(
    ("function", "shape", "view", "is_copied"),
    [
        (attend_shared, (2, 1, 8, 16), "expand", {"cpu": True, "cuda": False}),
        (attend_turned, (2, 8, 4, 16), "transpose", {"cpu": False, "cuda": False}),
        (attend_masked, (2, 1, 8, 8), "expand", {"cpu": True, "cuda": False}),
        (attend_masked, (2, 4, 8, 8), "expand", {"cpu": False, "cuda": False}),  # shows all of it as it lies
        (attend_masked, (2, 4, 1, 1), "expand", {"cpu": False, "cuda": False}),  # steps fall, down to none
        (attend_unaligned, (2, 1, 8, 12), "expand", {"cpu": True, "cuda": True}),
    ],
)
def test_views_that_attention_reads_are_copied_unless_they_lie_as_it_reads(function, shape, view, is_copied):
    node = node_of(function, view, QUERY, torch.zeros(shape))
    found = {kind: node in find_copied_views([*node.graph.nodes], kind) for kind in ("cpu", "cuda")}
    assert found == is_copied


def test_a_view_is_copied_for_attention_alone():
    node = node_of(lambda q, k: q + aten.expand(k, [2, 4, 8, 16]), "expand", QUERY, torch.zeros(2, 1, 8, 16))
    assert not find_copied_views([*node.graph.nodes], "cpu")
