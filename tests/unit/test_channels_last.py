"""Scratch of convolutions over images laid out channels last, as oneDNN's kernels for two processors take it."""

import pytest
import torch

import rematpass
from rematpass.graph.blocked_convolution import find_kernels
from rematpass.graph.channels_last import ChannelsLast
from rematpass.graph.convolution import Convolution

aten = torch.ops.aten
# Of what primitives take besides, some of which is counted in whole pages.
TOLERANCE_BYTES = 16 * 1024
MASKS = [[True, False, False], [False, True, False]]
# Images, channels read and returned, size, kernel, stride, dilation, groups; scratch of the forward, the gradient of
# the image and that of the weight with AVX-512 and with AVX2 (`ONEDNN_MAX_CPU_ISA`), both on an AMD Zen 4 with two
# threads (torch 2.13): blocked, padded by group, with strides, of each channel, unfolded.
ROWS = [
    ((2, 64, 40, 16, 3, 1, 1, 1), (122928, 104624, 202752), (122928, 116144, 184320)),
    ((2, 64, 128, 16, 3, 2, 1, 1), (307248, 421936, 589824), (344112, 421936, 589824)),
    ((2, 32, 64, 9, 3, 2, 2, 1), (86064, 131456, 668544), (86064, 131456, 668544)),
    ((2, 64, 64, 16, 3, 1, 2, 1), (159792, 159920, 294912), (159792, 159920, 2490752)),
    ((2, 100, 24, 12, 1, 1, 1, 1), (25136, 24752, 23936), (21936, 23984, 28672)),
    ((4, 32, 64, 14, 1, 2, 1, 1), (20528, 69680, 16384), (20528, 69680, 37376)),
    ((2, 64, 64, 14, 3, 1, 1, 8), (18432, 18432, 92160), (30768, 30896, 36864)),
    ((2, 96, 96, 14, 3, 2, 1, 2), (233520, 315440, 331776), (178224, 260144, 331776)),
    ((2, 64, 128, 14, 3, 1, 1, 2), (159792, 159920, 294912), (159792, 159920, 294912)),
    ((2, 48, 96, 8, 3, 1, 6, 1), (178224, 233648, 1573248), (178224, 178352, 1573248)),
    ((2, 64, 64, 14, 7, 1, 1, 64), (12544, 12544, 3223808), (12544, 12544, 815360)),
    ((2, 64, 64, 14, 3, 1, 6, 64), (2304, 589824, 592128), (18240, 147456, 34496)),
    ((2, 64, 64, 14, 3, 2, 1, 64), (2304, 2304, 4608), (2304, 2304, 4608)),
    ((2, 96, 192, 14, 5, 2, 2, 96), (2457600, 25140, 165352), (89136, 25140, 165352)),
    ((2, 64, 32, 20, 15, 1, 1, 1), (1871936, 1872064, 61030784), (1871936, 1872064, 61030784)),
]


def sizes_of(row):
    batch, inputs, outputs, size, kernel, stride, dilation, groups = row
    padding = dilation * (kernel // 2)
    out = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return Convolution(
        batch=batch,
        inputs=inputs,
        outputs=outputs,
        image=[size] * 2,
        out=[out] * 2,
        kernel=[kernel] * 2,
        stride=[stride] * 2,
        padding=[padding] * 2,
        dilation=[dilation] * 2,
        groups=groups,
        is_transposed=False,
        item_bytes=4,
        is_float32=True,
        is_onednn=True,
    )


def predicted_bytes(row, capability, threads):
    """Of each pass."""
    known = ChannelsLast(sizes_of(row), find_kernels(capability), threads)
    backward = [known.backward_bytes(of_read=read, of_weight=weight, of_bias=bias) for read, weight, bias in MASKS]
    return [known.forward_bytes(), *backward]


def assert_close(predicted, measured):
    for pass_predicted, pass_measured in zip(predicted, measured, strict=True):
        assert pass_measured <= 1.01 * pass_predicted + TOLERANCE_BYTES
        assert pass_predicted <= 1.15 * pass_measured + TOLERANCE_BYTES


@pytest.mark.parametrize(("row", "avx512", "avx2"), ROWS)
def test_scratch_depends_on_the_processor(row, avx512, avx2):
    assert_close(predicted_bytes(row, "AVX512", 2), avx512)
    assert_close(predicted_bytes(row, "AVX2", 2), avx2)


@pytest.mark.parametrize("row", [row for row, *_ in ROWS])
def test_this_processor_takes_what_is_predicted(row):
    batch, inputs, outputs, size, kernel, stride, dilation, groups = row
    layout, padding = torch.channels_last, dilation * (kernel // 2)
    x = torch.randn(batch, inputs, size, size).to(memory_format=layout)
    weight = torch.randn(outputs, inputs // groups, kernel, kernel).to(memory_format=layout)
    options = [stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], groups
    result = aten.convolution(x, weight, None, *options)
    gradient = torch.randn_like(result)

    def measured(function, returned):
        return rematpass.measure_peak(function, device="cpu") - returned.nbytes

    def backward(mask):
        return aten.convolution_backward(gradient, x, weight, None, *options, mask)

    found = [measured(lambda: aten.convolution(x, weight, None, *options), result)]
    found += [measured(lambda m=mask: backward(m), returned) for mask, returned in zip(MASKS, (x, weight), strict=True)]
    assert_close(predicted_bytes(row, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()), found)
