"""Operators that torch computes with temporary tensors, against what they really take."""

from functools import partial

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

import rematpass
from rematpass.graph.workspace import workspace_bytes

aten = torch.ops.aten
COMPLEX = torch.complex64
TOLERANCE_BYTES = 6_000


def real(*shape):
    return torch.randn(shape)


def positive(*shape):
    return torch.rand(shape) + 0.1


def places(count, below):
    return torch.arange(count) % below


def scattered(how, x, index, y):
    return aten.scatter_add(x, 0, index, y) if how == "add" else aten.scatter_reduce(x, 0, index, y, how)


CASES = {
    "abs": (torch.abs, torch.randn(64, 512, dtype=COMPLEX)),
    "angle": (torch.angle, torch.randn(64, 512, dtype=COMPLEX)),
    "times_real": (torch.mul, torch.randn(64, 512, dtype=COMPLEX), real(64, 512)),
    "times_few": (torch.mul, torch.randn(64, 512, dtype=COMPLEX), real(512)),
    "real_over": (torch.div, real(64, 512), torch.randn(64, 512, dtype=COMPLEX)),
    "both_complex": (torch.add, torch.randn(64, 512, dtype=COMPLEX), torch.randn(64, 512, dtype=COMPLEX)),
    "both_real": (torch.add, real(64, 512), real(64, 512)),
    "abs_of_real": (torch.abs, real(64, 512)),
    **{
        f"scatter_{name}_{dtype}": (
            partial(scattered, name),
            real(64, 512).to(dtype),
            places(128 * 512, 64).view(128, 512),
            real(128, 512).to(dtype),
        )
        for name in ("add", "amax", "mean")
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    },
    "rows_added": (
        lambda x, y: aten.scatter_add(x, 0, places(128, 64)[:, None].expand(128, 512), y),
        real(64, 512).half(),
        real(128, 512).half(),
    ),
    "dropout": (lambda x: aten.native_dropout(x, 0.1, True), real(64, 512)),
    "dropout_half": (lambda x: aten.native_dropout(x, 0.1, None), real(64, 512).half()),
    "no_dropout": (lambda x: aten.native_dropout(x, 0.1, False), real(64, 512)),
    "of_dropout": (lambda x, m: aten.native_dropout_backward(x, m, 1.1), real(64, 512), real(64, 512) > 0),
    "kthvalue": (lambda x: x.kthvalue(8, -1), real(64, 4096)),
    "multinomial": (lambda x: torch.multinomial(x, 4), positive(64, 4096)),
    "nonzero": (lambda x: torch.nonzero_static(x, size=100), real(65536) > -9),
    "masked": (lambda x, m: aten.masked_scatter_backward(x, m, [64, 1024]), real(64, 1024), real(64, 1024) > -9),
    "bilinear": (F.bilinear, real(256, 32), real(256, 24), real(16, 32, 24)),
    "bilinear_alone": (
        lambda x, w, y: aten._trilinear(x, w, y, [1, 3], [0], [1, 2], [2]),
        real(64, 8),
        real(4, 8, 6),
        real(64, 6),
    ),
    "of_bilinear_weight": (
        lambda x, g, y: aten._trilinear(x, g, y, [1, 3], [2, 3], [1, 2], [0]),
        real(256, 32),
        real(256, 16),
        real(256, 24),
    ),
    "antialiased": (lambda x: F.interpolate(x, size=(12, 12), mode="bilinear", antialias=True), real(2, 32, 48, 48)),
    "antialiased_cubic": (
        lambda x: F.interpolate(x, size=(30, 30), mode="bicubic", antialias=True),
        real(2, 32, 48, 48),
    ),
    "eig": (torch.linalg.eig, real(8, 32, 32)),
    "pinv": (torch.linalg.pinv, real(16, 32, 24)),
    "cholesky_solve": (torch.cholesky_solve, real(8, 32, 4), real(8, 32, 32)),
}


@pytest.mark.parametrize("name", CASES)
def test_temporaries_take_what_is_predicted(name):
    torch.manual_seed(0)
    function, *arguments = CASES[name]
    nodes = make_fx(function, tracing_mode="fake")(*arguments).graph.nodes
    predicted = max(workspace_bytes(node) for node in nodes if node.op == "call_function")
    results = function(*arguments)
    returned = sum(r.untyped_storage().nbytes() for r in (results if isinstance(results, tuple) else (results,)))
    measured = rematpass.measure_peak(lambda: function(*arguments), device="cpu") - returned
    assert measured <= predicted + TOLERANCE_BYTES
    assert predicted <= 1.2 * measured + TOLERANCE_BYTES


@pytest.mark.parametrize("is_stacked", [False, True])
@pytest.mark.parametrize("mode", ["sum", "max"])
def test_gradients_of_bags_take_what_is_predicted(mode, is_stacked):
    torch.manual_seed(0)
    weight, indices, offsets = real(500, 64), places(4096, 500), places(4096, 4096)[::16].contiguous()
    kind = {"sum": 0, "max": 2}[mode]
    bags, of_bag, sizes, largest = aten._embedding_bag(weight, indices, offsets, False, kind)

    def run(gradient, indices, offsets, of_bag, sizes, largest):
        rest = 500, False, kind, False, None
        return aten._embedding_bag_backward(gradient, indices, offsets, of_bag, sizes, largest, *rest)

    gradient = real(len(bags), 3, bags.shape[1])[:, 1] if is_stacked else real(*bags.shape)
    arguments = gradient, indices, offsets, of_bag, sizes, largest
    nodes = make_fx(run, tracing_mode="fake")(*arguments).graph.nodes
    predicted = max(workspace_bytes(node) for node in nodes if node.op == "call_function")
    measured = rematpass.measure_peak(lambda: run(*arguments), device="cpu") - weight.nbytes
    assert measured <= predicted + TOLERANCE_BYTES
    assert predicted <= 1.2 * measured + TOLERANCE_BYTES
