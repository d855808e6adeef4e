"""Scratch of products in half precision, against what they took on one processor."""

import pytest
import torch

from rematpass.graph import half_products
from rematpass.graph.half_products import half_product_bytes
from tests.tracing import convolution_of, node_of

aten = torch.ops.aten
# Images of a batch (0: none), rows, length, columns; bytes with the first factor in rows and turned, with two threads
# on an AMD Zen 4 (torch 2.13).
PRODUCTS = [
    ((0, 128, 128, 128), (99_968, 100_096)),
    ((0, 256, 256, 256), (198_272, 263_936)),
    ((0, 512, 512, 512), (263_808, 820_992)),
    ((0, 2048, 512, 512), (263_808, 820_992)),
    ((0, 1000, 512, 128), (260_736, 804_864)),
    ((16, 128, 128, 32), (67_200, 132_864)),
    ((32, 256, 256, 64), (198_272, 460_544)),
]


# What it may be too low by, with the first factor in rows and turned.
SLACK_BYTES = 64 * 1024, 256 * 1024


def multiply_with(operator, is_added, is_turned):
    """Of a result, which is added to, and two factors."""

    def multiply(result, first, second):
        first = first.transpose(-1, -2) if is_turned else first
        return operator(result, first, second) if is_added else operator(first, second)

    return multiply


@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize(("sizes", "measured"), PRODUCTS)
def test_products_in_half_precision_take_about_what_is_predicted(sizes, measured, is_added, monkeypatch):
    monkeypatch.setattr(half_products, "is_onednn", lambda _: True)
    monkeypatch.setattr(half_products, "num_threads", lambda: 2)
    images, rows, length, columns = sizes
    batch = [images] if images else []
    names = (("mm", "addmm"), ("bmm", "baddbmm"))[bool(images)]
    second = torch.empty(*batch, length, columns, dtype=torch.bfloat16)
    for is_turned, scratch in enumerate(measured):
        first = torch.empty(*batch, *((length, rows) if is_turned else (rows, length)), dtype=torch.bfloat16)
        result = torch.empty(*batch, rows, columns, dtype=torch.bfloat16)

        operator = getattr(aten, names[is_added])
        node = node_of(names[is_added], multiply_with(operator, is_added, is_turned), result, first, second)
        found = half_product_bytes(node)
        assert scratch <= found + SLACK_BYTES[is_turned]
        assert found <= 1.5 * scratch + 128 * 1024


def test_other_types_take_none(monkeypatch):
    monkeypatch.setattr(half_products, "is_onednn", lambda dtype: dtype is not torch.float16)
    for dtype in (torch.float32, torch.float16):
        factors = torch.empty(64, 64, dtype=dtype), torch.empty(64, 64, dtype=dtype)
        assert half_product_bytes(node_of("mm", aten.mm, *factors)) == 0
    image, weight = torch.empty(1, 4, 8, 8, dtype=torch.bfloat16), torch.empty(4, 4, 1, 1, dtype=torch.bfloat16)
    ones = [1, 1]
    node = convolution_of(
        lambda x, w: aten.convolution(x, w, None, ones, [0, 0], ones, False, [0, 0], 1), image, weight
    )
    assert half_product_bytes(node) == 0
