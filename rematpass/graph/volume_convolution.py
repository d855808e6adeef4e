"""Scratch of convolutions over three dimensions on a CPU.

In: sizes of a convolution. Out: bytes beyond what it returns. Never looks at a tensor.

As over fewer (`blocked_convolution.py`), but for what is said here. Measured 2026-11 on some 100: those of 3-D U-Nets,
video patches and depthwise video networks (torch 2.13, two threads, AVX-512).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .avx512_convolution import LONGEST_KERNEL
from .blocked_convolution import PRIMITIVE_BYTES, Scratch
from .channels_last import FEW_GROUPS

# Images of so few channels have kernels of their own (2026-11). Twice as many were not tried, half would count colours
# several times too high.
FEW_CHANNELS = 3


@dataclass(frozen=True)
class VolumeScratch(Scratch):
    """Of one convolution over three dimensions and its gradients."""

    def _scratch_bytes(self) -> int:
        """Of few channels the image is read as it lies. Of what is depthwise no channels are padded."""
        sizes = self.convolution
        if self._has_few_channels:
            return max(sizes.weight_bytes, self._result_block)
        if not sizes.is_depthwise:
            return super()._scratch_bytes()
        # With strides the result's copy is made when the image's is gone.
        copied = sizes.image_bytes + self._weight_block + (0 if sizes.is_strided else sizes.result_bytes)
        return max(copied, sizes.result_bytes)

    def _image_gradient_bytes(self) -> int:
        sizes = self.convolution
        if not sizes.is_depthwise:
            return super()._image_gradient_bytes()
        return sizes.image_bytes + max(sizes.image_bytes, sizes.result_bytes + self._weight_block)

    def _weight_gradient_bytes(self) -> int:
        sizes = self.convolution
        if self._refuses_weight_gradient or not self._has_few_channels:
            return super()._weight_gradient_bytes()
        summed = self._result_block + self._sums_of_few * sizes.weight_bytes
        return max(summed, 2 * sizes.weight_bytes) + PRIMITIVE_BYTES

    @property
    def _refuses_weight_gradient(self) -> bool:
        """Long kernels, and groups of other than whole blocks of channels."""
        sizes = self.convolution
        return sizes.kernel[-1] > LONGEST_KERNEL or not sizes.has_whole_groups(self.kernels.channels)

    @property
    def _weight_gradients(self) -> int:
        sizes = self.convolution
        return self.threads if sizes.batch > 1 or sizes.groups > FEW_GROUPS else 1

    @property
    def _unfolded_for_weight_bytes(self) -> int:
        """Plane by plane."""
        return self.convolution.unfolded_bytes(math.prod(self.convolution.out[1:]))

    @property
    def _has_few_channels(self) -> bool:
        sizes = self.convolution
        return sizes.inputs <= FEW_CHANNELS and sizes.groups == 1 and not sizes.is_point

    @property
    def _sums_of_few(self) -> int:
        """Copies of a weight of few channels: one per thread where they cannot share the blocks of what is returned."""
        blocks = self._padded(self.convolution.outputs) // self.kernels.channels
        return self.threads if blocks % self.threads else 1

    @property
    def _weight_block(self) -> int:
        """Without groups both kinds of channels are padded."""
        sizes = self.convolution
        if sizes.groups > 1:
            return super()._weight_block
        return self._padded(sizes.inputs) * self._padded(sizes.outputs) * math.prod(sizes.kernel) * sizes.item_bytes
