"""Scratch of convolutions over three dimensions, against what they take."""

import pytest
import torch

import rematpass
from rematpass.graph.blocked_convolution import find_kernels
from rematpass.graph.convolution import Convolution
from rematpass.graph.volume_convolution import VolumeScratch
from rematpass.graph.workspace import workspace_bytes
from tests.tracing import convolution_of

aten = torch.ops.aten

# What torch computes without oneDNN on every processor: batch, channels read and returned, image, kernel, stride,
# padding, dilation, whether transposed, type.
LEFT_TO_TORCH = [
    (1, 8, 16, (4, 8, 8), 3, 1, 1, 1, False, torch.float32),
    (1, 64, 8, (16, 20, 8), 3, 1, 1, 1, False, torch.float32),  # 64 x 16 x 20: as many as may be, width not counted
    (1, 8, 16, (4, 8, 8), 3, 2, 1, 1, False, torch.float32),
    (1, 8, 16, (4, 8, 8), 2, 2, 0, 1, False, torch.float32),
    (1, 8, 16, (4, 8, 8), 1, 1, 0, 1, False, torch.float32),
    (1, 8, 16, (4, 8, 8), 1, 2, 0, 1, False, torch.float32),
    (1, 8, 16, (4, 8, 8), 3, 1, 2, 2, False, torch.float32),
    (1, 8, 16, (4, 8, 8), 2, 2, 0, 1, True, torch.float32),
    (1, 8, 16, (4, 8, 8), 3, 2, 1, 1, True, torch.float32),
    (1, 8, 16, (4, 8, 8), 1, 1, 0, 1, True, torch.float32),
    (2, 8, 16, (4, 8, 8), 3, 1, 1, 1, False, torch.float64),
    (2, 8, 16, (4, 8, 8), 3, 1, 2, 2, False, torch.float64),
    (2, 8, 16, (4, 8, 8), 3, 2, 1, 1, True, torch.float64),
]


@pytest.mark.parametrize("row", LEFT_TO_TORCH)
def test_what_is_left_to_torch_is_unfolded_whole(row):
    batch, read, returned, image, kernel, stride, padding, dilation, is_transposed, dtype = row
    x = torch.randn(batch, read, *image, dtype=dtype)
    channels = (read, returned) if is_transposed else (returned, read)
    weight = torch.randn(*channels, kernel, kernel, kernel, dtype=dtype)
    options = [stride] * 3, [padding] * 3, [dilation] * 3, is_transposed, [0] * 3, 1

    def forward(x, weight):
        return aten.convolution(x, weight, None, *options)

    def backward(gradient, x, weight):
        return aten.convolution_backward(gradient, x, weight, None, *options, [True, True, False])

    gradient = torch.randn_like(forward(x, weight))
    measured = rematpass.measure_peak(lambda: forward(x, weight), device="cpu") - gradient.nbytes
    assert measured == workspace_bytes(convolution_of(forward, x, weight))
    predicted = workspace_bytes(convolution_of(backward, gradient, x, weight))
    measured = rematpass.measure_peak(lambda: backward(gradient, x, weight), device="cpu") - x.nbytes - weight.nbytes
    # What is 1 x 1 x 1 is not unfolded any more when the weight's gradient is made.
    assert measured <= predicted <= measured + (weight.nbytes if kernel == 1 else 0)


# Bytes that two threads took (2026-11, torch 2.13, AVX-512): batch, channels read and returned, image,
# kernel, stride, padding, groups; scratch of the forward, and of both gradients or, of images of few channels, of that
# of the weight alone.
ROWS = [
    ((2, 3, 32, (8, 32, 32), (3, 3, 3), (1, 1, 1), (1, 1, 1), 1), 2097152, 2115968),
    ((2, 16, 16, (8, 16, 16), (3, 3, 3), (1, 1, 1), (1, 1, 1), 1), 289792, 572672),
    ((2, 48, 24, (8, 16, 16), (3, 3, 3), (1, 1, 1), (1, 1, 1), 1), 1083392, 1352448),
    ((2, 64, 3, (8, 16, 16), (3, 3, 3), (1, 1, 1), (1, 1, 1), 1), 1372160, 1413120),
    ((2, 32, 64, (8, 16, 16), (2, 2, 2), (2, 2, 2), (0, 0, 0), 1), 589824, 982784),
    ((2, 32, 64, (8, 16, 16), (1, 1, 1), (1, 1, 1), (0, 0, 0), 1), 1048576, 1589376),
    ((2, 32, 64, (8, 16, 16), (3, 1, 1), (1, 1, 1), (1, 0, 0), 1), 1048576, 1606016),
    ((2, 3, 96, (4, 48, 48), (2, 8, 8), (2, 8, 8), (0, 0, 0), 1), 147456, 147840),
    ((2, 3, 96, (8, 64, 64), (2, 16, 16), (2, 16, 16), (0, 0, 0), 1), 589824, 4915456),
    ((1, 3, 64, (8, 64, 64), (2, 16, 16), (2, 16, 16), (0, 0, 0), 1), 393216, 1671424),
    ((2, 1, 48, (16, 32, 32), (4, 4, 4), (4, 4, 4), (0, 0, 0), 1), 98304, 119104),
    ((2, 64, 64, (4, 8, 8), (3, 3, 3), (1, 1, 1), (1, 1, 1), 64), 262144, 123904),
    ((2, 20, 20, (4, 8, 8), (3, 3, 3), (1, 1, 1), (1, 1, 1), 20), 81920, 38720),
    ((2, 32, 32, (8, 16, 16), (3, 3, 3), (1, 1, 1), (1, 1, 1), 4), 551936, 663808),
]


@pytest.mark.parametrize(("row", "forward", "backward"), ROWS)
def test_onednn_takes_about_what_is_predicted(row, forward, backward):
    batch, read, returned, image, kernel, stride, padding, groups = row
    sides = zip(image, kernel, stride, padding, strict=True)
    sizes = Convolution(
        batch=batch,
        inputs=read,
        outputs=returned,
        image=image,
        out=[(side + 2 * p - k) // s + 1 for side, k, s, p in sides],
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=(1, 1, 1),
        groups=groups,
        is_transposed=False,
        item_bytes=4,
        is_float32=True,
        is_onednn=True,
    )
    scratch = VolumeScratch(sizes, find_kernels("AVX512"), 2)
    of_read = read > 3
    both = sizes.weight_bytes + of_read * sizes.image_bytes + sizes.result_bytes
    found = scratch.forward_bytes(), scratch.backward_bytes(of_read=of_read, of_weight=True)
    for predicted, taken, beside in zip(found, (forward, backward), (sizes.result_bytes, both), strict=True):
        assert taken <= predicted + 0.01 * (beside + taken)
        assert predicted <= taken + 0.1 * (beside + taken) + 11_000
