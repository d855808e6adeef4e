"""Scratch of convolutions as this processor's kernels take it, against what they really take."""

from itertools import repeat

import pytest
import torch

import rematpass
from rematpass.graph import avx512_convolution, caches
from rematpass.graph.blocked_convolution import find_kernels
from rematpass.graph.convolution import Convolution
from rematpass.graph.workspace import workspace_bytes
from tests.tracing import convolution_of

aten = torch.ops.aten
TOLERANCE_BYTES = 24_000
TRIFLE_BYTES = 1024


def scratch_of(x, weight, options, is_backward, is_relaid=False):
    """Bytes of scratch of a convolution or of its gradients: predicted, measured."""

    def forward(x, weight):
        return aten.convolution(x, weight, None, *options)

    def backward(gradient, x, weight):
        return aten.convolution_backward(gradient, x, weight, None, *options, [True, True, False])

    gradient = torch.randn_like(forward(x, weight))
    function, tensors = (backward, (gradient, x, weight)) if is_backward else (forward, (x, weight))
    returned = x.nbytes + weight.nbytes if is_backward else gradient.nbytes
    predicted = workspace_bytes(convolution_of(function, *tensors), is_relaid=is_relaid)
    return predicted, rematpass.measure_peak(lambda: function(*tensors), device="cpu") - returned


# Channels read and returned, length, kernel, dilation, stride. With AVX-512 64 channels unfold from a padding of 7 on,
# 32 from 11 on, any from a kernel of 20 on, as many at once as the cache of a core suggests; gradients of weights where
# the kernel is longer than 14 or the padding wider than 28.
ROWS = [
    (64, 64, 512, 3, 6, 1),
    (64, 64, 512, 3, 7, 1),
    (32, 32, 512, 3, 10, 1),
    (32, 32, 512, 3, 11, 1),
    (64, 64, 512, 3, 32, 1),
    (64, 64, 512, 21, 1, 1),
    (64, 64, 512, 15, 1, 1),
    (128, 32, 512, 3, 1, 1),
    (32, 128, 512, 3, 1, 1),
    (64, 64, 512, 3, 1, 2),
    (64, 64, 512, 16, 1, 8),
    (64, 128, 777, 41, 1, 2),
    (128, 32, 512, 21, 2, 1),
]


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(("channels_in", "channels_out", "length", "kernel", "dilation", "stride"), ROWS)
def test_convolutions_over_one_dimension_take_what_is_predicted(
    channels_in, channels_out, length, kernel, dilation, stride, is_transposed, is_backward
):
    padding = [(dilation * (kernel - 1) + 1 - stride) // 2]
    options = ([stride], padding, [dilation], is_transposed, [0], 1)
    weight = torch.randn(*((channels_in, channels_out) if is_transposed else (channels_out, channels_in)), kernel)
    x = torch.randn(4, channels_in, length)
    predicted, measured = scratch_of(x, weight, options, is_backward)
    assert measured <= predicted
    assert predicted <= (1.4 if is_backward or is_transposed else 1.1) * measured + TOLERANCE_BYTES


# As in ROWS, then the padding, groups and images of a batch.
GROUPED = [(128, 128, 200, 16, 1, 1, 8, 4, 2), (96, 96, 300, 3, 1, 1, 1, 2, 4), (256, 256, 49, 128, 1, 1, 64, 4, 2)]
UNGROUPED = [(48, 32, 200, 16, 1, 1, 8, 1, 2), (48, 32, 300, 3, 1, 1, 1, 1, 4), (48, 32, 49, 128, 1, 1, 64, 1, 2)]
SINGLE = [(8, 96, 200, 5, 1, 1, 2, 1, 1), (32, 8, 128, 21, 1, 4, 9, 1, 1), (48, 48, 200, 1, 1, 1, 0, 1, 1)]


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize(
    ("row", "is_transposed"), [*zip([*GROUPED, *SINGLE], repeat(False)), *zip([*UNGROUPED, *SINGLE], repeat(True))]
)
def test_groups_and_single_images_take_what_is_predicted(row, is_transposed, is_backward):
    channels_in, channels_out, length, kernel, dilation, stride, padding, groups, batch = row
    options = ([stride], [padding], [dilation], is_transposed, [0], groups)
    rows, columns = (channels_in, channels_out) if is_transposed else (channels_out, channels_in // groups)
    weight, x = torch.randn(rows, columns, kernel), torch.randn(batch, channels_in, length)
    predicted, measured = scratch_of(x, weight, options, is_backward)
    assert measured <= predicted
    assert predicted <= 1.4 * measured + TOLERANCE_BYTES


# As in ROWS, then the padding and images of a batch: every channel read is a group, in the last rows with two results.
SEPARATE = [
    (192, 192, 128, 3, 1, 1, 2, 8),
    (64, 64, 128, 3, 1, 1, 1, 8),
    (100, 100, 256, 4, 1, 1, 3, 4),
    (96, 96, 256, 15, 1, 1, 7, 4),
    (256, 256, 500, 7, 2, 2, 3, 2),
    (24, 24, 500, 1, 1, 1, 0, 8),
    (64, 64, 256, 1, 1, 2, 0, 4),
    (64, 128, 256, 5, 1, 1, 4, 4),
    (100, 200, 100, 7, 1, 2, 3, 8),
]


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("row", SEPARATE)
def test_channels_that_are_groups_take_what_is_predicted(row, is_backward):
    channels_in, channels_out, length, kernel, dilation, stride, padding, batch = row
    options = ([stride], [padding], [dilation], False, [0], channels_in)
    x, weight = torch.randn(batch, channels_in, length), torch.randn(channels_out, 1, kernel)
    predicted, measured = scratch_of(x, weight, options, is_backward)
    assert measured <= predicted <= 1.1 * measured + TOLERANCE_BYTES


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize(("kernel", "dilation", "batch"), [(3, 1, 1), (1, 2, 1), (3, 2, 2), (7, 2, 1), (7, 1, 2)])
def test_images_take_what_is_predicted_with_gaps_and_long_kernels_too(kernel, dilation, batch, is_backward):
    layout = torch.channels_last
    x, weight = torch.randn(batch, 32, 5, 32).to(memory_format=layout), torch.randn(16, 32, kernel, kernel)
    window = [1, 1], [dilation * (kernel // 2)] * 2, [dilation] * 2
    predicted, measured = scratch_of(x, weight, (*window, False, [0, 0], 1), is_backward, is_relaid=True)
    assert measured <= predicted + TOLERANCE_BYTES
    assert predicted <= 1.05 * measured + TOLERANCE_BYTES


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "is_transposed"),
    [(3, 1, 1, False), (3, 2, 1, False), (1, 1, 1, False), (3, 1, 2, False), (3, 2, 1, True), (3, 1, 2, True)],
)
def test_what_is_not_left_to_onednn_is_unfolded(kernel, stride, dilation, is_transposed, is_backward):
    rows, columns = (16, 32) if is_transposed else (32, 16)
    x, weight = torch.randn(4, 16, 16, 16).double(), torch.randn(rows, columns, kernel, kernel).double()
    options = [stride] * 2, [dilation * (kernel // 2)] * 2, [dilation] * 2, is_transposed, [0, 0], 1
    predicted, measured = scratch_of(x, weight, options, is_backward)
    assert predicted == measured


@pytest.mark.parametrize("is_relaid", [False, True])
@pytest.mark.parametrize(("inputs", "outputs", "width", "kernel", "stride"), [(64, 32, 321, 7, 4), (16, 128, 64, 5, 2)])
def test_gradients_with_strides_take_what_is_predicted(inputs, outputs, width, kernel, stride, is_relaid):
    layout = torch.channels_last if is_relaid else torch.contiguous_format
    image = torch.randn(2, inputs, 6 if is_relaid else 1, width).to(memory_format=layout)
    weight = torch.randn(outputs, inputs, kernel if is_relaid else 1, kernel)
    x, weight = (image, weight) if is_relaid else (image[:, :, 0], weight[:, :, 0])
    dimensions = x.ndim - 2
    options = [stride] * dimensions, [kernel // 2] * dimensions, [1] * dimensions, False, [0] * dimensions, 1
    gradient = torch.randn_like(aten.convolution(x, weight, None, *options))

    def run(gradient, x, weight):
        return aten.convolution_backward(gradient, x, weight, None, *options, [True, False, False])

    measured = rematpass.measure_peak(lambda: run(gradient, x, weight), device="cpu") - x.nbytes
    predicted = workspace_bytes(convolution_of(run, gradient, x, weight), is_relaid=is_relaid)
    assert predicted <= 1.5 * measured + 4 * TOLERANCE_BYTES
    assert measured <= predicted


@pytest.mark.parametrize("channels", [8, 24])
def test_the_gradient_of_a_bias_takes_what_is_predicted(channels):
    layout, ones = torch.channels_last, [1, 1]
    x, weight = torch.randn(4, 8, 32, 32).to(memory_format=layout), torch.randn(channels, 8, 3, 3)
    weight = weight.to(memory_format=layout)
    gradient = torch.randn_like(aten.convolution(x, weight, None, ones, ones, ones, False, [0, 0], 1))

    def run(gradient, x, weight):
        sizes = [channels], ones, ones, ones, False, [0, 0], 1, [True, True, True]
        return aten.convolution_backward(gradient, x, weight, *sizes)

    measured = rematpass.measure_peak(lambda: run(gradient, x, weight), device="cpu")
    predicted = workspace_bytes(convolution_of(run, gradient, x, weight), is_relaid=True)
    assert measured - x.nbytes - weight.nbytes - 4 * channels <= predicted + TRIFLE_BYTES


def sizes_of(row):
    channels_in, channels_out, length, kernel, dilation, stride, *rest = row
    padding, groups = (*rest, *(None, 1)[len(rest) :])
    padding = (dilation * (kernel - 1) + 1 - stride) // 2 if padding is None else padding
    out = (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return Convolution(
        batch=2,
        inputs=channels_in,
        outputs=channels_out,
        image=[length],
        out=[out],
        kernel=[kernel],
        stride=[stride],
        padding=[padding],
        dilation=[dilation],
        groups=groups,
        is_transposed=False,
        item_bytes=4,
        is_float32=True,
        is_onednn=True,
    )


# Of the forward, the gradient of the image and that of the weight, which is unfolded; AVX2 as oneDNN 3.12 says itself
# (`ONEDNN_VERBOSE=1`).
UNFOLDED = {
    "AVX2": [
        ((96, 8, 128, 15, 2, 1), "111"),
        ((12, 12, 777, 15, 1, 1), "101"),
        ((48, 12, 128, 9, 6, 4), "111"),
        ((48, 32, 777, 16, 1, 1), "111"),
        ((12, 64, 200, 5, 1, 2), "000"),
        ((3, 8, 777, 15, 1, 2), "101"),
        ((128, 128, 200, 16, 1, 1, 8, 4), "101"),
        ((96, 96, 300, 3, 1, 1, 1, 2), "000"),
        ((48, 48, 300, 5, 2, 1, 4, 4), "111"),
        ((64, 64, 500, 1, 1, 2, 0), "000"),
    ],
    "AVX512": [
        ((64, 64, 512, 3, 6, 1), "000"),
        ((64, 64, 512, 3, 7, 1), "100"),
        ((32, 32, 512, 3, 10, 1), "000"),
        ((32, 32, 512, 3, 11, 1), "110"),
        ((64, 64, 512, 3, 32, 1), "111"),
        ((64, 64, 512, 21, 1, 1), "111"),
        ((64, 64, 512, 15, 1, 1), "001"),
        ((64, 64, 512, 1, 1, 2, 0), "000"),
    ],
}


@pytest.mark.parametrize(
    ("capability", "row", "expected"), [(c, *case) for c, cases in UNFOLDED.items() for case in cases]
)
def test_what_is_unfolded_depends_on_the_processor(capability, row, expected, monkeypatch):
    monkeypatch.setattr(avx512_convolution, "cache_bytes", {1: 48 * 1024, 2: 2**21}.get)
    kernels, sizes = find_kernels(capability), sizes_of(row)
    found = [kernels.refuses(sizes), kernels.refuses_image_gradient(sizes), kernels.refuses_weight_gradient(sizes)]
    assert "".join(str(int(is_refused)) for is_refused in found) == expected


def test_the_cache_of_a_core_is_the_processors(tmp_path, monkeypatch):
    for place, (level, kind, size) in enumerate(
        [(1, "Data", "32K"), (1, "Instruction", "64K"), (2, "Unified", "1024K")]
    ):
        folder = tmp_path / f"index{place}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    found = []
    for folder in (tmp_path, tmp_path / "unknown"):
        monkeypatch.setattr(caches, "CACHES", folder)
        found.append([caches.cache_bytes.__wrapped__(level) for level in (1, 2)])
    assert found == [[32 * 1024, 2**20], [*caches.USUAL_BYTES.values()]]
