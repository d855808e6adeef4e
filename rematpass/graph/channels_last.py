"""Scratch of convolutions on a CPU over images laid out channels last.

In: sizes of a convolution. Out: bytes beyond what it returns and a copy of its weight. Never looks at a tensor.

oneDNN (3.12) reads and writes such images as they lie and works on blocked copies of weights; what its kernels refuse
is unfolded and multiplied. Measured 2026-11 (torch 2.13, two threads, AMD Zen 4 and Zen 5 with AVX-512, and with AVX2)
on some 2,300 convolutions over two dimensions, half of them in groups, of which oneDNN was asked what it runs
(`ONEDNN_VERBOSE`): those of float32 are mostly exact to a few pages; 270 with eight threads were hardly worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..formula.pieces import round_up
from .convolution import Convolution, Kernels

# What a primitive takes per thread and once more besides its weights, with 48 to 176 bytes. Also what its scratch for
# gradients with strides is rounded up to, in bytes or elements; of those it takes four per thread besides.
PAGE = 4096
PRIMITIVE_BYTES = 176
STRIDED_PAGES = 4
# Channels that its kernel for gradients with strides pads to, and bytes per element of the kernel in a thread's list.
STRIDED_CHANNELS = 8
STRIDED_BYTES = 32
# Each thread unfolds its own images for gradients of weights where one has fewer positions than this for each thread.
SHORT_IMAGE = 256
# The same for gradients of images: elements that an image has.
SHORT_GRADIENT = 64
# Single images are shared like a batch where they have more groups (`gemm_convolution_utils.cpp`).
FEW_GROUPS = 2
# Copies of a weight that a thread sums its gradient in (what should be elements is counted in bytes, oneDNN 3.12).
WEIGHT_COPIES = 4
# What is 1 x 1 with strides takes besides what it gathers: 128 to 8,704 bytes.
GATHERING_BYTES = 8704
# What summing the gradient of a bias over threads takes where its channels are one block, for each of two threads and
# the sum (AVX2: 12,320 bytes).
BIAS_BYTES = 4 * 1024
# Groups of fewer channels than a block are not padded where both are multiples of this.
NARROW_BLOCK = 4


@dataclass(frozen=True)
class ChannelsLast:
    """Scratch of one convolution and its gradients on a processor with such kernels, computed by so many threads."""

    convolution: Convolution
    kernels: Kernels
    threads: int

    def forward_bytes(self) -> int:
        """Beyond what it returns."""
        if self.convolution.is_left_to_torch:
            return self.convolution.unfolded_by_torch_bytes(is_backward=False)
        return self._image_gradient_bytes() if self.convolution.is_transposed else self._forward_bytes()

    def backward_bytes(self, *, of_read: bool, of_weight: bool, of_bias: bool) -> int:
        """Beyond the gradients asked for: that of what is read is computed first, before there is one of the weight."""
        sizes = self.convolution
        if sizes.is_left_to_torch:
            return sizes.unfolded_by_torch_bytes(is_backward=True)
        first = of_read * (self._forward_bytes() if sizes.is_transposed else self._image_gradient_bytes())
        second = of_weight * self._weight_gradient_bytes()
        second += of_bias * (sizes.outputs <= self.kernels.channels) * BIAS_BYTES * (1 + self.threads)
        return max(first - of_weight * sizes.weight_bytes, second)

    def _forward_bytes(self) -> int:
        sizes = self.convolution
        if not sizes.is_onednn:
            return self._usual_bytes(1)
        if sizes.is_depthwise and self.kernels.unfolds_depthwise(sizes):
            return self._unfolded()
        if self.kernels.pads_groups(sizes):
            return self._padded_by_group()
        if sizes.is_depthwise:
            return sizes.weight_bytes
        return self._multiplied(*sizes.of_a_group, sizes.out) + self._pages

    def _image_gradient_bytes(self) -> int:
        """Gaps with strides are unfolded."""
        sizes = self.convolution
        if not sizes.is_onednn:
            return self._usual_bytes(2)
        if sizes.is_strided and sizes.has_gaps:
            return self._unfolded()
        if self.kernels.pads_group_gradients(sizes):
            return self._padded_by_group()
        if sizes.is_depthwise and (sizes.is_float32 or not sizes.is_strided):
            return sizes.weight_bytes
        returned, read = sizes.of_a_group
        if sizes.is_strided:
            return self._multiplied(read, returned, sizes.out) + self._strided()
        return self._multiplied(read, returned, sizes.image) + self._pages

    def _weight_gradient_bytes(self) -> int:
        """In two layouts, unless it is unfolded."""
        sizes = self.convolution
        if not sizes.is_onednn:
            return self._usual_bytes(2)
        if not self.kernels.weight_block(sizes):
            return self._unfolded_weight_gradient()
        return self._blocked_weight_gradient()

    def _blocked_weight_gradient(self) -> int:
        """By a kernel that pads channels to blocks."""
        sizes = self.convolution
        block = self.kernels.weight_block(sizes)
        copies = self._padded(block) + sizes.weight_bytes + (sizes.outputs <= self.kernels.channels) * self._pages
        if not (sizes.is_point and sizes.is_strided):
            return copies
        gathered = self.threads * sizes.unfolded_bytes(math.prod(sizes.out)) + GATHERING_BYTES
        return max(copies, sizes.weight_bytes + gathered)

    def _usual_bytes(self, copies: int) -> int:
        """Of types whose kernels are not known: copies of the weight with whole blocks of outputs, and more pages."""
        sizes = self.convolution
        padded = round_up(sizes.weight_bytes // sizes.outputs, sizes.outputs, self.kernels.channels)
        return copies * padded + self._pages + PAGE

    def _unfolded(self) -> int:
        """By each thread where images are small, or every channel a group; groups are put together at the end."""
        sizes = self.convolution
        is_short = sizes.batch > 1 and math.prod(sizes.image) < self.threads * SHORT_GRADIENT
        own = self.threads if is_short or sizes.is_depthwise else 1
        image = sizes.of_a_group[0] * math.prod(sizes.image) * sizes.item_bytes * (sizes.groups > 1)
        return own * (sizes.unfolded_bytes(math.prod(sizes.out)) + image) + sizes.weight_bytes

    def _unfolded_weight_gradient(self) -> int:
        """What is unfolded, a turned image and copies of the weight, by each thread where images are small."""
        sizes = self.convolution
        image = sizes.of_a_group[0] * math.prod(sizes.image) * sizes.item_bytes
        own = sizes.unfolded_bytes(math.prod(sizes.out)) + image + WEIGHT_COPIES * sizes.weight_bytes
        return (self.threads if is_shared(sizes, self.threads) else 1) * own

    def _strided(self) -> int:
        elements = math.prod(self.convolution.kernel)
        lists = round_up(1, elements * STRIDED_BYTES, PAGE) - PAGE
        return strided_bytes(self.convolution, self.threads) + self.threads * lists + PRIMITIVE_BYTES

    def _multiplied(self, read: int, returned: int, area: Sequence[int]) -> int:
        """Bytes of a weight whose channels returned are padded to what is computed together."""
        sizes = self.convolution
        padded = self.kernels.padded_channels(returned, math.prod(area))
        return sizes.groups * math.prod(sizes.kernel) * read * padded * sizes.item_bytes

    def _padded_by_group(self) -> int:
        """Bytes of a weight of few channels in each group: whole blocks, unless both are fewer and fit small ones."""
        few = self.kernels.channels
        is_narrow = all(n < few and n % NARROW_BLOCK == 0 for n in self.convolution.of_a_group)
        return self.convolution.weight_bytes if is_narrow else self._padded(few)

    def _padded(self, block: int) -> int:
        """Bytes of a weight with whole blocks of channels; few that are read without groups are not padded."""
        sizes = self.convolution
        inputs, outputs = sizes.of_a_group
        read = inputs if sizes.groups == 1 and inputs < self.kernels.channels else round_up(1, inputs, block)
        return sizes.groups * math.prod(sizes.kernel) * sizes.item_bytes * round_up(read, outputs, block)

    @property
    def _pages(self) -> int:
        return PAGE * (1 + self.threads) + PRIMITIVE_BYTES


def strided_bytes(convolution: Convolution, threads: int) -> int:
    """What a thread reads for an image's gradient, with margins, and all it returns of one if strides leave a rest.

    At most: it may work on narrower parts (`init_scratchpad` in `jit_brgemm_conv_bwd_utils.cpp`, oneDNN 3.12).
    """
    if not convolution.is_strided or (convolution.has_gaps and not convolution.is_point):
        return 0
    positions = 1
    for i, size in enumerate(convolution.out):
        sides = convolution.padding[i], convolution.padding_behind(size, i)
        positions *= size + sum(max(0, convolution.reach[i] - 1 - side) // convolution.stride[i] for side in sides)
    width, stride = convolution.image[-1], convolution.stride[-1]
    read_bytes = round_up(convolution.item_bytes, round_up(positions, convolution.outputs, STRIDED_CHANNELS), PAGE)
    returned = round_up(stride * convolution.inputs, width, stride) if width % stride else 0
    return threads * (STRIDED_PAGES * PAGE + read_bytes + round_up(convolution.item_bytes, returned, PAGE))


def is_shared(convolution: Convolution, threads: int) -> bool:
    """Whether threads share the images of a weight's gradient that is unfolded, not the work on each."""
    is_short = math.prod(convolution.out) // threads < SHORT_IMAGE
    return is_short and (convolution.batch > 1 or convolution.groups > FEW_GROUPS)
