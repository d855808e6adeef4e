"""Scratch on a processor whose kernels are not known: as operators take it, or estimated with a warning."""

import pytest
import torch

import rematpass
from rematpass.graph import tried_scratch, workspace
from rematpass.graph.tried_scratch import has_known_kernels
from rematpass.graph.workspace import workspace_bytes
from tests.tracing import convolution_of, node_of

aten = torch.ops.aten
OPTIONS = ([2], [3], [1], False, [0], 1)
OPTIONS_2D = ([1, 1], [2, 2], [2, 2], False, [0, 0], 1)


@pytest.fixture(autouse=True)
def unknown(monkeypatch):
    """This processor, as one that nobody has measured; nothing seen yet."""
    monkeypatch.setattr(workspace, "cpu_capability", lambda: "SVE256")
    monkeypatch.setattr(tried_scratch, "_seen", {})
    monkeypatch.setattr(tried_scratch, "_warned", set())


def forward(options):
    return lambda x, weight: aten.convolution(x, weight, None, *options)


def gradients(options):
    return lambda gradient, x, weight: aten.convolution_backward(
        gradient, x, weight, None, *options, [True, True, False]
    )


def images(is_relaid):
    layout = torch.channels_last if is_relaid else torch.contiguous_format
    return torch.randn(3, 24, 30, 31).to(memory_format=layout), torch.randn(40, 24, 3, 3).to(memory_format=layout)


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("is_relaid", [False, True])
def test_images_take_what_is_seen_to_the_byte(is_backward, is_relaid):
    x, weight = images(is_relaid)
    gradient = forward(OPTIONS_2D)(x, weight)
    call, given, returned = forward(OPTIONS_2D), (x, weight), gradient.nbytes
    if is_backward:
        call, given, returned = gradients(OPTIONS_2D), (gradient, x, weight), x.nbytes + weight.nbytes
    measured = rematpass.measure_peak(lambda: call(*given), device="cpu") - returned
    assert measured > 0
    assert workspace_bytes(convolution_of(call, *given), is_relaid=is_relaid) == measured
    if is_relaid:  # Inductor lays out anew a weight in rows
        given = (*given[:-1], weight.contiguous())
        assert workspace_bytes(convolution_of(call, *given), is_relaid=True) == measured + weight.nbytes


def test_an_operator_is_run_once(monkeypatch):
    runs = []
    monkeypatch.setattr(tried_scratch, "cpu_peak", lambda run: runs.append(run) or 10**9)
    x, weight = torch.randn(4, 32, 300), torch.randn(32, 32, 7)
    nodes = [convolution_of(forward(OPTIONS), x, weight) for _ in range(2)]
    found = [workspace_bytes(node) for node in nodes]
    assert found == [10**9 - 4 * 32 * 150 * 4] * 2
    assert len(runs) == 1


def small(monkeypatch):
    monkeypatch.setattr(tried_scratch, "MOST_FLOPS", 10)


def profiled(monkeypatch):
    monkeypatch.setattr(tried_scratch, "is_profiling", lambda: True)


def failing(monkeypatch):
    def fail(_run):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(tried_scratch, "cpu_peak", fail)


@pytest.mark.parametrize(
    ("refuse", "reason"), [(small, "take long"), (profiled, "profiler"), (failing, "no such kernel")]
)
def test_what_cannot_be_run_is_estimated_and_said_once(refuse, reason, monkeypatch):
    refuse(monkeypatch)
    x, weight = torch.randn(4, 32, 300), torch.randn(32, 32, 7)
    node = convolution_of(forward(OPTIONS), x, weight)
    with pytest.warns(UserWarning, match=f"convolution.*estimated.*{reason}") as said:
        found = [workspace_bytes(node) for _ in range(2)]
    assert len(said) == 1
    monkeypatch.setattr(workspace, "cpu_capability", lambda: "AVX512")
    assert found == [workspace_bytes(node)] * 2


@pytest.mark.parametrize(
    ("capability", "dtype", "is_known"),
    [("AVX512", torch.bfloat16, False), ("AVX2", torch.float32, True), ("DEFAULT", torch.float32, False)],
)
def test_kernels_are_known_but_for_half_precision_and_other_vectors(capability, dtype, is_known):
    assert has_known_kernels(capability, dtype.itemsize) is is_known


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("read", "returned"), [(1, 16), (16, 1)])
@pytest.mark.parametrize("kernel", [1, 5])
def test_convolutions_of_gray_images_take_what_is_seen(read, returned, kernel, dtype, monkeypatch):
    """With any vectors: formulas are for more channels."""
    monkeypatch.setattr(workspace, "cpu_capability", lambda: "AVX512")
    x = torch.empty(4, read, 48, 48, dtype=dtype, memory_format=torch.channels_last).zero_()
    weight = torch.empty(returned, read, kernel, kernel, dtype=dtype, memory_format=torch.channels_last).zero_()
    gradient = forward(OPTIONS_2D)(x, weight)
    gradient = torch.empty(gradient.shape, dtype=dtype, memory_format=torch.channels_last).zero_()
    given, owned = (gradient, x, weight), x.nbytes + weight.nbytes
    for call, read_by, returned_bytes in (
        (forward(OPTIONS_2D), (x, weight), gradient.nbytes),
        (gradients(OPTIONS_2D), given, owned),
    ):
        measured = rematpass.measure_peak(lambda c=call, r=read_by: c(*r), device="cpu") - returned_bytes
        copied = weight.nbytes if kernel > 1 and read == 1 else 0  # what lies both ways counts as laid out anew
        assert workspace_bytes(convolution_of(call, *read_by), is_relaid=True) == measured + copied


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_and_attention_in_half_precision_are_seen(dtype, monkeypatch):
    """On any processor, also where torch does not leave them to oneDNN: then there is nothing to see."""
    seen = []
    monkeypatch.setattr(workspace, "tried_bytes", lambda node, _: seen.append(node) or 77)
    monkeypatch.setattr("rematpass.graph.products.is_onednn", lambda _: True)
    a, b = torch.randn(2, 64, 32).to(dtype), torch.randn(2, 32, 48).to(dtype)
    query = torch.randn(1, 2, 32, 16).to(dtype)
    attend = aten._scaled_dot_product_flash_attention_for_cpu
    found = [
        workspace_bytes(node_of(name, call, *given))
        for name, call, given in [
            ("bmm", aten.bmm, (a, b)),
            ("_scaled_dot_product_flash_attention_for_cpu", attend, (query, query, query)),
        ]
    ]
    assert found == [77, 77]
    assert len(seen) == len(found)
