"""Which concatenations Inductor stores; the rules were read in torch 2.13's `lowering.cat`."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rematpass.graph.joins import MOST_PARTS, is_stored_whole, joined_parts
from tests.tracing import joint_of


def turned(x):
    """As in rotary embeddings."""
    half = x.shape[-1] // 2
    return torch.cat([-x[:, half:], x[:, :half]], -1) * x.cos()


def read_besides(x):
    """Computed inside the concatenation, the first part would be computed twice."""
    part = -x
    return torch.cat([part, x * 3]) * torch.cat([part.cos(), x])


def cat_of(function):
    joint = joint_of(function, [torch.ones(4, 4, requires_grad=True)])
    return next(n for n in joint.nodes if "cat" in n.name and n.op == "call_function")


@pytest.mark.parametrize(
    ("function", "is_stored"),
    [
        (turned, False),
        (lambda x: torch.cat([-x, x * 3]).square(), False),
        (lambda x: torch.cat([x @ x, x @ x.t()]).square(), True),  # written into their places by the products
        (lambda x: torch.cat([-x, x.sum(1, keepdim=True)], 1) @ torch.ones(5, 2), True),  # a part is a sum
        (lambda x: torch.cat([-x, x.square()]) @ x, False),  # copies either way, so one kernel makes them
        (read_besides, True),
        (lambda x: torch.cat([x.pow(i) for i in range(2, MOST_PARTS + 3)]).square(), True),
    ],
)
def test_what_a_gpu_stores(function, is_stored):
    assert is_stored_whole(cat_of(function), "cuda") is is_stored


def test_a_cpu_stores_every_one():
    assert is_stored_whole(cat_of(turned), "cpu")


def test_a_padding_at_one_end_joins_on_a_gpu():
    def joined(widths, device_type):
        joint = joint_of(lambda x: functional.pad(x, widths).sin(), [torch.ones(4, 4, requires_grad=True)])
        return joined_parts(next(n for n in joint.nodes if "pad" in n.name), device_type)

    assert joined([0, 1], "cuda") == joined([0, 0, 0, 2], "cuda") == 2
    assert (
        joined([0, 1], "cpu") == joined([1, 0], "cuda") == joined([0, 1, 0, 1], "cuda") == joined([0, -1], "cuda") == 0
    )


def test_labels_shifted_and_read_elsewhere_are_stored():
    def loss(x, labels):
        shifted = functional.pad(labels, [0, 1], value=-100)[..., 1:]
        return x * shifted * labels

    joint = joint_of(loss, [torch.ones(4, 4, requires_grad=True), torch.ones(4, 4)])
    padding = next(n for n in joint.nodes if "pad" in n.name)
    assert is_stored_whole(padding, "cuda")
