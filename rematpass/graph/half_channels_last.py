"""Scratch of convolutions in half precision on a CPU over images laid out channels last.

In: sizes of a convolution. Out: bytes beyond what it returns and a copy of its weight. Never looks at a tensor.

Forwards and gradients of images are nearly as those of float32. For the gradient of a weight oneDNN (3.12) turns images
and results as it does where they are not channels last. Measured 2026-11 (torch 2.13, AMD Zen 5, two threads) on 300
convolutions without groups, mostly exact to a few pages where threads share work as expected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..formula.pieces import round_up
from .channels_last import PAGE, PRIMITIVE_BYTES, WEIGHT_COPIES, ChannelsLast
from .half_convolution import CHANNELS, SUM_BYTES, HalfScratch

# What a weight's gradient takes besides what is turned: at most so many pages, and 388 bytes; of groups, more for
# margins of rows.
MARGIN_BYTES = 4 * PAGE + 512
GROUP_PAGES = 8
# Copies of a depthwise weight that its own kernel takes for a gradient.
SUMMED_COPIES = 4
# What threads take together, besides copies of the weight, to sum a gradient that is unfolded.
SUMMING_BYTES = 512
# Pages of each thread for the gradient of an image with strides, at most, besides those that float32 takes.
STRIDED_PAGES = 2


@dataclass(frozen=True)
class HalfChannelsLast(ChannelsLast):
    """Of one convolution in half precision and its gradients."""

    def _blocked_weight_gradient(self) -> int:
        """Images and results are turned, and the gradient is summed in float32."""
        sizes = self.convolution
        if sizes.has_own_depthwise:
            return SUMMED_COPIES * sizes.weight_bytes + PRIMITIVE_BYTES
        if sizes.groups > 1:
            return self._of_groups()
        turned = HalfScratch(sizes, self.kernels, self.threads).turned_bytes(is_relaid=True)
        read = sizes.inputs if sizes.inputs < CHANNELS else round_up(1, sizes.inputs, CHANNELS)
        padded = math.prod(sizes.kernel) * sizes.item_bytes * round_up(read, sizes.outputs, CHANNELS)
        return turned + padded - sizes.weight_bytes + MARGIN_BYTES

    def _of_groups(self) -> int:
        """One image at a time, groups padded to whole blocks."""
        sizes = self.convolution
        summed = self._padded(CHANNELS) // sizes.item_bytes * SUM_BYTES
        image, result = (round_up(sizes.groups, channels, CHANNELS) for channels in sizes.of_a_group)
        rows = math.prod(sizes.image) // sizes.image[-1] * (sizes.image[-1] + 2 * sizes.padding[-1])
        turned = (image * rows + result * math.prod(sizes.out)) * sizes.item_bytes
        return turned + summed + self._padded(CHANNELS) + self._pages + GROUP_PAGES * PAGE

    def _unfolded_weight_gradient(self) -> int:
        """Threads sum it in copies of their own once more."""
        return super()._unfolded_weight_gradient() + WEIGHT_COPIES * self.convolution.weight_bytes + SUMMING_BYTES

    def _strided(self) -> int:
        return super()._strided() + self.threads * STRIDED_PAGES * PAGE
