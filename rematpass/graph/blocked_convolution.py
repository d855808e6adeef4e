"""Scratch of convolutions on a CPU whose images are not laid out channels last.

In: sizes of a convolution. Out: bytes beyond what it returns. Never looks at a tensor.

torch calls oneDNN but for small single images (`ConvParams::use_mkldnn` in `Convolution.cpp`, 2.13). oneDNN (3.12, for
AVX-512) works on blocked copies of what it reads and writes (`init_conf` in `jit_avx512_common_conv_kernel.cpp`). Its
kernels refuse wide padding and long kernels; what they refuse is unfolded and multiplied
(`gemm_convolution_utils.cpp`). Measured 2026-11 (torch 2.13, two threads) on some 700 convolutions over one dimension
and 200 over two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .unfolding import Unfolding

# torch leaves single images of up to so many elements to its own kernels, unless both sides of the kernel are longer
# than 3.
OWN_ELEMENTS = 20_480
OWN_KERNEL = 3
# Channels per block of oneDNN's layouts with AVX-512 (8 with AVX2, where this counts too much for few channels).
BLOCK_CHANNELS = 16
# What a primitive takes besides its copies: 8,448 bytes at 16 and 32 channels, up to 1.3 % of the peak more with bias.
# With neither, a network of small convolutions measures 1.3 % above its prediction; twice as much would predict it
# about 2 % too high.
PRIMITIVE_BYTES = 8448
PRIMITIVE_SHARE = 0.02
# Of oneDNN's kernels: results that are computed together, blocks of channels (with a register besides for each result),
# bytes of code. For gradients of images other figures, and the longest kernel; the same for those of weights.
REGISTERS = 28
SHARED_REGISTERS = 31
MOST_BLOCKS = 5
CODE_BYTES = 256 * 1024
INSTRUCTION_BYTES = 15
MOST_GRADIENT_BLOCKS = 4
LEAST_TOGETHER = 7
LONGEST_GRADIENT_KERNEL = 19
LONGEST_KERNEL = 14
# Single images up to this width and to so many channels are computed as those of long kernels.
SINGLE_WIDTH = 147
SINGLE_CHANNELS = 96
# Each thread unfolds its own images for gradients of weights where one has fewer positions than this for each thread.
SHORT_IMAGE = 256
# Copies of a weight that a thread sums its gradient in (what should be elements is counted in bytes, oneDNN 3.12).
WEIGHT_COPIES = 4
# Where Linux says how large the caches of a core are; what is usual on servers, where it does not.
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL_CACHE_BYTES = {1: 48 * 1024, 2: 2**21}


@dataclass(frozen=True)
class Convolution:
    """Sizes of a convolution, or of a transposed one; those from `image` to `dilation` one per dimension of the image.

    Attributes:
        batch: images.
        inputs, outputs: channels.
        image, out: sizes of what is read, and of the result.
        kernel, stride, padding, dilation: as in `torch.nn.functional.conv2d`.
        groups: likewise.
        is_transposed: whether `out` is read and `image` returned.
        item_bytes: of an element.
        is_refusable: whether it is known what becomes of it where oneDNN's kernels refuse it: not with groups, in
            other types than float32, or over three dimensions.
    """

    batch: int
    inputs: int
    outputs: int
    image: Sequence[int]
    out: Sequence[int]
    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    is_transposed: bool
    item_bytes: int
    is_refusable: bool

    def forward_bytes(self, threads: int) -> int:
        """Scratch beyond what it returns."""
        if self.is_transposed:
            return _with_primitive(self._image_gradient_bytes(threads) - self._image_bytes)
        return self._scratch_bytes(threads)

    def backward_bytes(self, threads: int, *, of_read: bool, of_weight: bool) -> int:
        """Scratch beyond the gradients asked for: that of what is read is computed first, then that of the weight."""
        if self._is_left_to_torch:
            return self._unfolded_bytes(math.prod(self.out))
        read_bytes = of_read * (self._result_bytes if self.is_transposed else self._image_bytes)
        if self.is_transposed:
            first = of_read * (read_bytes + self._scratch_bytes(threads))
        else:
            first = of_read * self._image_gradient_bytes(threads)
        second = of_weight * (read_bytes + self._weight_gradient_bytes(threads))
        return _with_primitive(max(first, second) - read_bytes - of_weight * self._weight_bytes)

    def _scratch_bytes(self, threads: int) -> int:
        """Of a forward beyond its result: blocked copies of all, then of the result alone, which is copied.

        What is unfolded takes at most so much; its result is copied as well.
        """
        if self._is_left_to_torch:
            return self._unfolded_bytes(math.prod(self.out))
        if self._is_refused:
            return max(threads * self._unfolded_at_once_bytes(threads), self._result_bytes) + PRIMITIVE_BYTES
        copied = self._image_block + self._weight_block + self._result_block - self._result_bytes
        return _with_primitive(max(copied + self._gathered_bytes(threads), self._result_block))

    def _image_gradient_bytes(self, threads: int) -> int:
        """All that is there."""
        if self._has_gaps_and_strides if self._is_strided else self._is_gradient_refused:
            own = threads if self.batch % threads == 0 else 1
            return self._image_bytes + max(own * self._unfolded_bytes(math.prod(self.out)), self._image_bytes)
        copies = self._image_block + self._result_block + self._weight_block
        return max((2 + self._is_strided) * self._image_bytes, copies)

    def _weight_gradient_bytes(self, threads: int) -> int:
        """All that is there, but for the image's gradient."""
        is_far = any(reach > size for reach, size in zip(self._reach[:-1], self.image[:-1], strict=True))
        is_refused = max(self.padding) > REGISTERS or max(self.kernel) > LONGEST_KERNEL or is_far
        is_refused |= len(self.kernel) > 1 and self._has_gaps_and_strides
        if not (self.is_refusable and is_refused):
            copies = self._image_block + self._result_block + self._weight_block
            return copies + self._weight_bytes + self._gathered_bytes(threads)
        positions = math.prod(self.out)
        own = threads if self.batch > 1 and positions // threads < SHORT_IMAGE else 1
        return self._weight_bytes + own * (WEIGHT_COPIES * self._weight_bytes + self._unfolded_bytes(positions))

    @property
    def _reach(self) -> list[int]:
        """Of the kernel, gaps counted."""
        return [1 + (length - 1) * step for length, step in zip(self.kernel, self.dilation, strict=True)]

    @property
    def _is_strided(self) -> bool:
        return math.prod(self.stride) > 1

    @property
    def _has_gaps_and_strides(self) -> bool:
        """Gradients of such are unfolded, over one dimension that of the image alone."""
        return self.is_refusable and self._is_strided and math.prod(self.dilation) > 1 and math.prod(self.kernel) > 1

    @property
    def _is_left_to_torch(self) -> bool:
        """Whether torch computes it without oneDNN, unfolding all that it reads."""
        is_long = len(self.kernel) > 1 and min(self.kernel[-2:]) > OWN_KERNEL
        is_small = self.inputs * math.prod(self.image) <= OWN_ELEMENTS and not is_long
        return self.is_refusable and not self.is_transposed and self.batch == 1 and is_small

    @property
    def _is_refused(self) -> bool:
        """Whether oneDNN's kernels for blocked layouts refuse it as a forward; what is 1 x 1 others take."""
        width, padding, stride = self.out[-1], self.padding[-1], self.stride[-1]
        reach = self._reach[-1]
        blocks = self._blocks
        together = min(width, REGISTERS if self._is_broadcast else SHARED_REGISTERS // (blocks + 1))

        def padding_behind(count: int) -> int:
            return (count - 1) * stride + reach - (self.image[-1] + padding)

        whole = min(width, REGISTERS)
        loops = 1 + (padding > 0) + (padding_behind(width - width % whole) > 0)
        code_bytes = loops * self.kernel[-1] * min(self.inputs, BLOCK_CHANNELS) * blocks * together * INSTRUCTION_BYTES
        is_wide = padding > together or padding_behind(width - width % together) > together or reach <= padding
        return self.is_refusable and math.prod(self.kernel) > 1 and (is_wide or code_bytes > CODE_BYTES)

    @property
    def _is_gradient_refused(self) -> bool:
        """Whether oneDNN's kernels for blocked layouts refuse the image's gradient, without strides."""
        width, kernel, blocks = self.image[-1], self.kernel[-1], -(-self.inputs // BLOCK_CHANNELS)
        rows = self.item_bytes * BLOCK_CHANNELS * math.prod(self.kernel[:-1])
        read_bytes = rows * (2 * width + self.out[-1] + 2 * BLOCK_CHANNELS * kernel)
        together = REGISTERS
        if kernel <= OWN_KERNEL and read_bytes > _cache_bytes(1):
            count = max(n for n in range(1, MOST_GRADIENT_BLOCKS + 1) if n == 1 or blocks % n == 0)
            together = max(SHARED_REGISTERS // (count + 1), LEAST_TOGETHER)
        before = self._reach[-1] - 1 - self.padding[-1]
        behind = width + self.padding[-1] - self.out[-1]
        is_wide = max(before, behind) > min(width, together) or kernel > LONGEST_GRADIENT_KERNEL
        return self.is_refusable and math.prod(self.kernel) > 1 and is_wide

    @property
    def _is_broadcast(self) -> bool:
        """Whether its kernel computes one block of channels at a time, and so more results together."""
        is_narrow = self.out[-1] <= SINGLE_WIDTH and self.outputs <= SINGLE_CHANNELS
        return self.kernel[-1] > OWN_KERNEL or (self.batch == 1 and (is_narrow or self.out[-1] <= REGISTERS))

    @property
    def _blocks(self) -> int:
        """Blocks of channels that its kernel computes together."""
        count = -(-self.outputs // BLOCK_CHANNELS)
        return 1 if self._is_broadcast else max(n for n in range(1, MOST_BLOCKS + 1) if count % n == 0)

    def _unfolded_at_once_bytes(self, threads: int) -> int:
        """By each thread."""
        unfolding = Unfolding(
            batch=self.batch,
            inputs=self.inputs,
            outputs=self.outputs,
            area=math.prod(self.kernel),
            stride=math.prod(self.stride),
            positions=math.prod(self.out),
            threads=threads,
            cache=_cache_bytes(2) // self.item_bytes,
        )
        return unfolding.elements() * self.item_bytes

    def _gathered_bytes(self, threads: int) -> int:
        """What a thread reads of an image with a kernel of 1 and strides, next to each other."""
        is_point = math.prod(self.kernel) == 1 and self._is_strided
        return threads * is_point * _padded(self.inputs) * math.prod(self.out) * self.item_bytes

    def _unfolded_bytes(self, positions: int) -> int:
        return self.inputs * math.prod(self.kernel) * positions * self.item_bytes

    @property
    def _image_bytes(self) -> int:
        return self.batch * self.inputs * math.prod(self.image) * self.item_bytes

    @property
    def _result_bytes(self) -> int:
        return self.batch * self.outputs * math.prod(self.out) * self.item_bytes

    @property
    def _weight_bytes(self) -> int:
        return self.outputs * (self.inputs // self.groups) * math.prod(self.kernel) * self.item_bytes

    @property
    def _image_block(self) -> int:
        return self.batch * _padded(self.inputs) * math.prod(self.image) * self.item_bytes

    @property
    def _result_block(self) -> int:
        return self.batch * _padded(self.outputs) * math.prod(self.out) * self.item_bytes

    @property
    def _weight_block(self) -> int:
        return self.outputs * _padded(self.inputs // self.groups) * math.prod(self.kernel) * self.item_bytes


def _padded(channels: int) -> int:
    return -(-channels // BLOCK_CHANNELS) * BLOCK_CHANNELS


def _with_primitive(copied_bytes: int) -> int:
    return math.ceil(copied_bytes * (1 + PRIMITIVE_SHARE)) + PRIMITIVE_BYTES


@cache
def _cache_bytes(level: int) -> int:
    """Of a core, for data."""
    for index in sorted(CACHES.glob("index*")):
        found = [(index / name).read_text().strip() for name in ("level", "type", "size")]
        if found[0] == str(level) and found[1] != "Instruction" and found[2].endswith("K"):
            return int(found[2][:-1]) * 1024
    return USUAL_CACHE_BYTES[level]
