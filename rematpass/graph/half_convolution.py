"""Scratch of convolutions in half precision on a CPU where images are not laid out channels last.

In: sizes of a convolution. Out: bytes beyond what it returns. Never looks at a tensor.

oneDNN's kernels for bfloat16 (3.12: `jit_avx512_core_bf16_conv_kernel.cpp`, `jit_avx512_core_bf16_1x1_conv_kernel.cpp`,
`init_conf` and `init_scratchpad`) keep sums in float32, those of 1 x 1 kernels a whole image of each thread, and turn
both images for the gradient of a weight. What they refuse is unfolded and multiplied, its results summed in float32
(`gemm_convolution_utils.cpp`). Read off oneDNN and measured on a processor with AVX-512 (AMD Zen 4, two threads).
Processors with units for matrices have other kernels (`tried_scratch.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..formula.pieces import round_up
from .blocked_convolution import PRIMITIVE_BYTES, Scratch
from .channels_last import NARROW_BLOCK, PAGE, WEIGHT_COPIES, strided_bytes
from .convolution import Convolution

CHANNELS = 16
SUM_BYTES = 4
# Registers for results; blocks of channels that are computed together in a forward and in the gradient of an image.
REGISTERS = 31
MOST_BLOCKS = 4
# The longest kernel for gradients of weights; of few channels.
LONGEST_KERNEL, LONGEST_FIRST_KERNEL = 14, 24
# From this padding on, gradients of weights of few channels are refused.
WIDEST = 28
# Blocks of channels that a thread turns at least, of what is returned and of what is read, by kernels of 1 x 1.
LEAST_RETURNED, LEAST_READ = 16, 5
# What gradients with strides take, at most, where every channel is a group: images, and pages of each thread, besides
# what others with strides do (2026-11, 60 over one dimension).
STRIDED_IMAGES, STRIDED_MARGINS = 3, 3
# How much dearer reading images is than weights where those are larger.
DEAR_IMAGES = 4


@dataclass(frozen=True)
class HalfScratch(Scratch):
    """Of one convolution in half precision and its gradients."""

    def _scratch_bytes(self) -> int:
        sizes = self.convolution
        if _is_refused(sizes):
            unfolded = sizes.unfolded_bytes(math.prod(sizes.out))
            summed = sizes.of_a_group[1] * math.prod(sizes.out) * SUM_BYTES
            return max(self._unfolding * (unfolded + summed), sizes.result_bytes) + PRIMITIVE_BYTES
        return super()._scratch_bytes()

    def _image_gradient_bytes(self) -> int:
        sizes = self.convolution
        if sizes.is_separate and sizes.is_strided and not sizes.has_gaps:
            margins = self.threads * STRIDED_MARGINS * PAGE
            return STRIDED_IMAGES * sizes.image_bytes + strided_bytes(sizes, self.threads) + margins
        if _is_gradient_refused(sizes):
            unfolded = sizes.unfolded_bytes(math.prod(sizes.out)) // sizes.item_bytes * SUM_BYTES
            summed = sizes.of_a_group[0] * math.prod(sizes.image) * SUM_BYTES
            return sizes.image_bytes + max(self._unfolding * (unfolded + summed), sizes.image_bytes)
        return super()._image_gradient_bytes()

    def _weight_gradient_bytes(self) -> int:
        sizes = self.convolution
        if sizes.has_own_depthwise:
            return super()._weight_gradient_bytes()
        if _is_weight_gradient_refused(sizes):
            copies = WEIGHT_COPIES * sizes.weight_bytes
            return sizes.weight_bytes + copies + self._weight_gradients * (copies + self._unfolded_for_weight_bytes)
        weight = sizes.weight_bytes if _is_first(sizes) else self._weight_block
        copies = self._read_block + self._result_block + weight
        return copies + max(sizes.weight_bytes, self.turned_bytes())

    def turned_bytes(self, *, is_relaid: bool = False) -> int:
        """What is turned for a weight's gradient, and copies of the weight that are summed in the end.

        Images of few channels only where they are laid out channels last (`is_relaid`).
        """
        if _is_point(self.convolution):
            return self._turned_points() + self._gathered_bytes()
        return self._turned(turns_few=is_relaid)

    @property
    def _images_shared(self) -> int:
        """Over how many threads, for the gradient of a weight; each sums one."""
        return _Sharing(self.convolution, self.threads).images()

    @property
    def _unfolding(self) -> int:
        """How many threads do: each its own images, or one by one."""
        return self.threads if self.convolution.batch * self.convolution.groups % self.threads == 0 else 1

    @property
    def _read_block(self) -> int:
        return self.convolution.image_bytes if _is_first(self.convolution) else super()._read_block

    def _summed_bytes(self, channels: int) -> int:
        """Each thread has an image for results of a kernel of 1 x 1."""
        sizes = self.convolution
        return _is_point(sizes) * self.threads * self._padded(channels) * math.prod(sizes.out) * SUM_BYTES

    def _turned(self, *, turns_few: bool) -> int:
        """Images and results, row by row."""
        sizes = self.convolution
        over = self._images_shared
        read = turns_few * sizes.inputs if _is_first(sizes) else self._padded(sizes.inputs)
        image = _row(sizes) * math.prod(sizes.image[:-1]) * read
        result = round_up(1, sizes.out[-1], 2) * math.prod(sizes.out[:-1]) * self._padded(sizes.outputs)
        return over * (sizes.item_bytes * (image + result) + SUM_BYTES * self._elements())

    def _turned_points(self) -> int:
        """The same for kernels of 1 x 1; of many channels a thread turns some."""
        sizes = self.convolution
        blocks = (
            _part(self._padded(channels) // CHANNELS, least)
            for channels, least in ((sizes.outputs, LEAST_RETURNED), (sizes.inputs, LEAST_READ))
        )
        turned = round_up(1, math.prod(sizes.out), 2) * CHANNELS * sum(blocks) * sizes.item_bytes
        return self.threads * (turned + SUM_BYTES * self._elements())

    def _elements(self) -> int:
        """Of the weight, with whole blocks of channels."""
        sizes = self.convolution
        returned, read = (self._padded(channels) for channels in (sizes.outputs, sizes.of_a_group[0]))
        return returned * (sizes.inputs if _is_first(sizes) else read) * math.prod(sizes.kernel)


@dataclass(frozen=True)
class _Sharing:
    """How threads share a weight's gradient: images, and blocks of channels returned and read (`balance`)."""

    sizes: Convolution
    threads: int

    def images(self) -> int:
        """Over how many threads images are shared, each with sums of its own."""
        ways = [*self._ways()]
        if not ways:
            return 1  # more groups than threads
        return min(reversed(ways), key=lambda way: self._cost(*way))[0]

    def _ways(self) -> Iterator[tuple[int, int, int]]:
        returned, read = self._blocks
        of_group = self.threads // self.sizes.groups
        for images in range(1, min(of_group, self._work) + 1):
            for over in range(1, min(of_group // images, returned) + 1):
                yield images, over, min(of_group // images // over, read)

    def _cost(self, images: int, over_returned: int, over_read: int) -> float:
        sizes, (returned, read) = self.sizes, self._blocks
        width = _row(sizes)
        rows, out_rows = math.prod(sizes.image[:-1]), math.prod(sizes.out[:-1])
        positions, results = rows * width, out_rows * round_up(1, sizes.out[-1], 2)
        weight = CHANNELS**2 * returned * read * math.prod(sizes.kernel)
        scale = CHANNELS * sizes.batch * (returned * results + read * positions) / 2 / (2 * weight)
        share = -(-self._work // images) / self._work * sizes.batch * CHANNELS
        of_images = share * -(-read // over_read) * positions / math.prod(sizes.stride)
        of_images *= max(1, read // returned) * (DEAR_IMAGES if scale < 1 else 1)
        of_results = share * -(-returned // over_returned) * results * max(1, returned // read)
        of_weights = max(1, int(scale)) * -(-returned // over_returned) * -(-read // over_read)
        return of_images + of_results + of_weights * math.prod(sizes.kernel) * CHANNELS**2

    @property
    def _blocks(self) -> tuple[int, int]:
        read, returned = self.sizes.of_a_group
        return -(-returned // CHANNELS), -(-read // CHANNELS)

    @property
    def _work(self) -> int:
        """Rows of results, as threads share them."""
        return self.sizes.batch * math.prod(self.sizes.out[:-1])


def _is_point(sizes: Convolution) -> bool:
    return sizes.is_point and sizes.groups == 1 and not any(sizes.padding)


def _is_first(sizes: Convolution) -> bool:
    """Whether it reads so few channels that they are not padded."""
    return sizes.inputs < CHANNELS and sizes.groups == 1 and not _is_point(sizes)


def _row(sizes: Convolution) -> int:
    """Elements of a turned row of the image, which shares its margins with the next."""
    stride = sizes.stride[-1]
    margin = round_up(1, max(sizes.padding[-1], 1 + max(0, sizes.padding_behind(sizes.out[-1]))), 2)
    return round_up(1, -(-sizes.image[-1] // stride) + margin, 2) * stride


def _part(blocks: int, least: int) -> int:
    """The smallest part of so many blocks that divides them, if they are more than `least`."""
    return next((n for n in range(least, blocks) if blocks % n == 0), blocks)


def _is_outside(sizes: Convolution) -> bool:
    """Whether the kernel sees nothing but padding somewhere."""
    sides = zip(sizes.reach, sizes.padding, sizes.out, strict=True)
    return any(reach <= max(padding, sizes.padding_behind(out, i)) for i, (reach, padding, out) in enumerate(sides))


def _is_refused(sizes: Convolution) -> bool:
    """What is 1 x 1 other kernels take, and those of a channel each."""
    if _is_point(sizes) or sizes.is_depthwise:
        return False
    width, padding = sizes.out[-1], sizes.padding[-1]
    blocks = -(-sizes.of_a_group[1] // CHANNELS)
    fitting = (
        n
        for n in range(min(MOST_BLOCKS, blocks), 1, -1)
        if blocks % n == 0 and padding <= (own := REGISTERS // (n + 1)) and (width == 1 or width % own != 1)
    )
    together = min(width, REGISTERS // (next(fitting, 1) + 1))
    is_odd = not sizes.has_whole_groups(NARROW_BLOCK)
    return is_odd or _is_outside(sizes) or max(padding, sizes.padding_behind(width - width % together)) > together


def _is_gradient_refused(sizes: Convolution) -> bool:
    """Of an image."""
    if _is_point(sizes) or sizes.is_depthwise:
        return False
    width, stride, padding = sizes.image[-1], sizes.stride[-1], sizes.padding[-1]
    if (sizes.is_strided and sizes.has_gaps) or _is_outside(sizes) or not sizes.has_whole_groups(NARROW_BLOCK):
        return True
    before = max(0, (sizes.reach[-1] - 1 - padding) // stride)
    together = _find_together(sizes, before)
    if not together:
        return True
    rest = sizes.padding_behind(sizes.out[-1]) + width % together
    behind = max(0, (sizes.reach[-1] - 1 - max(0, rest)) // stride)
    is_uneven = width > together and (together % stride != 0 or rest < 0)
    return before * stride > together or behind * stride > together or is_uneven


def _find_together(sizes: Convolution, before: int) -> int:
    """Elements of a row of the gradient that are computed together; 0 where there is no way."""
    width, stride, blocks = sizes.image[-1], sizes.stride[-1], -(-sizes.of_a_group[0] // CHANNELS)
    best = (0, 0)
    for n in (n for n in range(1, MOST_BLOCKS + 1) if blocks % n == 0):
        for most in range(stride, width + stride, stride):
            own = min(most, width)
            if most * n + most // stride <= REGISTERS and (before * stride <= own or own == width):
                best = max(best, (-(-own // stride) * n, own))
    return best[1]


def _is_weight_gradient_refused(sizes: Convolution) -> bool:
    if _is_point(sizes):
        return False
    sides = [(p, sizes.padding_behind(out, i)) for i, (p, out) in enumerate(zip(sizes.padding, sizes.out, strict=True))]
    is_far = any(max(side) > reach // 2 for side, reach in zip(sides[:-1], sizes.reach, strict=False))
    is_far |= any(
        reach > size and step > 1
        for reach, size, step in zip(sizes.reach[:-1], sizes.image[:-1], sizes.dilation[:-1], strict=True)
    )
    if _is_first(sizes) and (max(sides[-1]) >= WIDEST or sizes.reach[-1] > min(sizes.image[-1] + 1, sizes.out[-1])):
        return True
    longest = LONGEST_FIRST_KERNEL if _is_first(sizes) else LONGEST_KERNEL
    is_long = sizes.kernel[-1] > longest or max(sides[-1]) >= sizes.reach[-1]
    is_far |= not sizes.has_whole_groups(CHANNELS)  # those of a channel each as well
    return is_far or is_long or (sizes.is_strided and sizes.has_gaps)
