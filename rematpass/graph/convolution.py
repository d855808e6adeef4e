"""Sizes of a convolution, and what follows from them alone.

In: numbers. Out: `Convolution`; what is asked of a processor's `Kernels` about one. Never looks at a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# torch leaves single images of up to so many elements to its own kernels, unless both sides of the kernel are longer
# than 3. It multiplies the first four sizes of what is read, so of three dimensions the last is left out
# (`ConvParams::use_mkldnn` in `Convolution.cpp`, 2.13).
OWN_ELEMENTS = 20_480
OWN_KERNEL = 3
COUNTED_DIMENSIONS = 2
# Which of convolutions over more oneDNN's kernels refuse is not known, but for gradients of weights (`VolumeScratch`).
MOST_DIMENSIONS = 2
# So many are a block of oneDNN's with AVX-512; of fewer it makes none, or fills it up.
FEW_CHANNELS = 16
# Up to this size of a kernel oneDNN has one of its own for the gradient of a depthwise weight.
DEPTHWISE_KERNEL = 3


@dataclass(frozen=True)
class Convolution:
    """Sizes of a convolution, or of a transposed one; those from `image` to `dilation` one per dimension of the image.

    Attributes:
        batch: images.
        inputs, outputs: channels.
        image, out: sizes of what is read, and of the result.
        kernel, stride, padding, dilation: as in `torch.nn.functional.conv2d`.
        groups: of channels.
        is_transposed: whether `out` is read and `image` returned.
        item_bytes: of an element.
        is_float32: whether it reads float32 and multiplies it with float32.
        is_onednn: whether its type is one that torch leaves to oneDNN.
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
    is_float32: bool
    is_onednn: bool

    @property
    def has_one_channel(self) -> bool:
        """Whether it reads or returns gray images."""
        return self.groups == 1 and min(self.inputs, self.outputs) == 1

    @property
    def is_of_waves(self) -> bool:
        """Whether waves of few channels, one dimension long, are taken apart or put together, with strides mostly."""
        has_few = self.groups == 1 and min(self.inputs, self.outputs) < FEW_CHANNELS
        return has_few and len(self.image) == 1 and (self.is_strided or self.is_transposed)

    @property
    def is_refusable(self) -> bool:
        """Whether it is known what becomes of it where oneDNN's kernels refuse it.

        Not in other types than float32, over three dimensions, or a transposed one with every channel a group.
        """
        is_known = not (self.is_separate and self.is_transposed)
        return self.is_float32 and is_known and not self.is_volume

    @property
    def is_volume(self) -> bool:
        """Whether it is over three dimensions."""
        return len(self.image) > MOST_DIMENSIONS

    @property
    def reach(self) -> list[int]:
        """Of the kernel, gaps counted."""
        return [1 + (length - 1) * step for length, step in zip(self.kernel, self.dilation, strict=True)]

    @property
    def is_point(self) -> bool:
        """Whether the kernel has one element per pair of channels."""
        return math.prod(self.kernel) == 1

    @property
    def is_strided(self) -> bool:
        """Whether it leaves out places of the image."""
        return math.prod(self.stride) > 1

    @property
    def has_gaps(self) -> bool:
        """Whether the kernel is dilated."""
        return math.prod(self.dilation) > 1

    @property
    def has_gaps_and_strides(self) -> bool:
        """Gradients of such are unfolded, over one dimension that of the image alone."""
        return self.is_refusable and self.is_strided and self.has_gaps and not self.is_point

    @property
    def is_separate(self) -> bool:
        """Whether every channel read is a group of its own."""
        return self.groups == self.inputs > 1

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel is a group of its own."""
        return self.groups == self.inputs == self.outputs > 1

    @property
    def has_own_depthwise(self) -> bool:
        """Whether oneDNN's kernel for gradients of depthwise weights takes it, which pads no channels.

        Narrow kernels without gaps, no narrower than the stride, half of them padding at most, and rows enough
        (`init_conf` in `jit_uni_dw_conv_kernel_utils.hpp`, oneDNN 3.12).
        """
        width, rows = self.kernel[-1], 1
        if len(self.kernel) > 1:
            rows = self.kernel[-2] + -self.padding[-2] % self.stride[-2]
        is_narrow = self.stride[-1] <= width <= DEPTHWISE_KERNEL and math.prod(self.image[-2:-1]) >= rows
        is_inside = all(padding <= size // 2 for padding, size in zip(self.padding, self.kernel, strict=True))
        return self.is_depthwise and is_narrow and is_inside and not self.has_gaps

    @property
    def of_a_group(self) -> tuple[int, int]:
        """Channels read and returned."""
        return self.inputs // self.groups, self.outputs // self.groups

    @property
    def is_left_to_torch(self) -> bool:
        """Whether torch computes it without oneDNN, unfolding all that the kernel sees."""
        if self.groups > 1:
            return False
        is_long = len(self.kernel) > 1 and min(self.kernel[-2:]) > OWN_KERNEL
        channels, read = (self.outputs, self.out) if self.is_transposed else (self.inputs, self.image)
        is_small = self.batch == 1 and channels * math.prod(read[:COUNTED_DIMENSIONS]) <= OWN_ELEMENTS
        return not self.is_onednn or (self.is_float32 and is_small and not is_long)

    def unfolded_by_torch_bytes(self, *, is_backward: bool) -> int:
        """Where it is left to torch; what is multiplied as it lies is not unfolded.

        All images at once (`slow_conv2d`, `slow_conv3d`, `slow_conv_transpose2d`), or one after another where the
        kernel has gaps (`slow_conv_dilated2d`), for gradients of transposed ones and all of those over three dimensions
        (`slow_conv_transpose3d`, torch 2.13).
        """
        is_plain = self.is_point and not (self.is_strided or any(self.padding) or self.has_gaps)
        lies_ready = is_backward if self.is_transposed else not (is_backward and self.is_volume)
        if is_plain and lies_ready:
            return 0
        is_by_image = (is_backward or self.is_volume) if self.is_transposed else self.has_gaps
        return (1 if is_by_image else self.batch) * self.unfolded_bytes(math.prod(self.out))

    def padding_behind(self, count: int, dimension: int = -1) -> int:
        """Elements that the kernel reaches beyond the image for the first `count` results; negative: not so far."""
        reached = (count - 1) * self.stride[dimension] + self.reach[dimension]
        return reached - (self.image[dimension] + self.padding[dimension])

    @property
    def padding_of_rows(self) -> int:
        """The wider of both sides."""
        return max(self.padding[-1], self.padding_behind(self.out[-1]))

    def has_whole_groups(self, block: int) -> bool:
        """Whether its groups, if it has any, have multiples of so many channels."""
        is_whole = self.inputs // self.groups % block == self.outputs // self.groups % block == 0
        return self.groups == 1 or is_whole

    def unfolded_bytes(self, positions: int) -> int:
        """What the kernel of a group sees at so many positions."""
        return self.inputs // self.groups * math.prod(self.kernel) * positions * self.item_bytes

    @property
    def image_bytes(self) -> int:
        """Of what a convolution reads."""
        return self.batch * self.inputs * math.prod(self.image) * self.item_bytes

    @property
    def result_bytes(self) -> int:
        """Of what it returns."""
        return self.batch * self.outputs * math.prod(self.out) * self.item_bytes

    @property
    def weight_bytes(self) -> int:
        """Of its weight."""
        return self.outputs * (self.inputs // self.groups) * math.prod(self.kernel) * self.item_bytes


@dataclass(frozen=True)
class Kernels:
    """OneDNN's for one kind of processor.

    Attributes:
        channels: per block of their layouts; elements of float32 in a register.
        refuses, refuses_image_gradient, refuses_weight_gradient: whether they leave one to be unfolded.
        reads_as_it_lies: whether the image is read without a blocked copy.
        pads_groups: whether a forward over images laid out channels last pads every group to whole blocks of channels.
        pads_group_gradients: whether the gradient of such an image does.
        unfolds_depthwise: whether a depthwise forward over such images is unfolded.
        padded_channels: so many channels returned at so many positions, with those that such a kernel pads them to.
        weight_block: channels that the gradient of a weight is padded to for such images; 0 where it is unfolded.
    """

    channels: int
    refuses: Callable[[Convolution], bool]
    refuses_image_gradient: Callable[[Convolution], bool]
    refuses_weight_gradient: Callable[[Convolution], bool]
    reads_as_it_lies: Callable[[Convolution], bool]
    pads_groups: Callable[[Convolution], bool]
    pads_group_gradients: Callable[[Convolution], bool]
    unfolds_depthwise: Callable[[Convolution], bool]
    padded_channels: Callable[[int, int], int]
    weight_block: Callable[[Convolution], int]
