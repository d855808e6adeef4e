"""Scratch of convolutions on a CPU where images are not laid out channels last.

In: sizes of a convolution. Out: bytes beyond what it returns. Never looks at a tensor.

torch calls oneDNN but for small single images (`ConvParams::use_mkldnn` in `Convolution.cpp`, 2.13). oneDNN (3.12)
works on blocked copies of what it reads and writes; what its kernels refuse is unfolded and multiplied
(`gemm_convolution_utils.cpp`). Which those are depends on the processor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import avx2_convolution, avx512_convolution
from .caches import cache_bytes
from .channels_last import WEIGHT_COPIES, is_shared, strided_bytes
from .convolution import Convolution, Kernels
from .unfolding import Unfolding

# What a primitive takes besides its copies: 8,448 bytes at 16 and 32 channels, up to 1.3 % of the peak more with bias.
# With neither, a network of small convolutions measures 1.3 % above its prediction; twice as much would predict it
# about 2 % too high.
PRIMITIVE_BYTES = 8448
PRIMITIVE_SHARE = 0.02


def find_kernels(capability: str) -> Kernels:
    """Those for what `torch.backends.cpu.get_cpu_capability()` says; AVX-512's where none are known."""
    return avx2_convolution.KERNELS if capability == "AVX2" else avx512_convolution.KERNELS


@dataclass(frozen=True)
class Scratch:
    """Of one convolution and its gradients on a processor with such kernels, computed by so many threads."""

    convolution: Convolution
    kernels: Kernels
    threads: int

    def forward_bytes(self) -> int:
        """Scratch beyond what it returns."""
        if self.convolution.is_left_to_torch:
            return self.convolution.unfolded_by_torch_bytes(is_backward=False)
        if self.convolution.is_transposed:
            return _with_primitive(self._image_gradient_bytes() - self.convolution.image_bytes)
        return self._scratch_bytes()

    def backward_bytes(self, *, of_read: bool, of_weight: bool) -> int:
        """Scratch beyond the gradients asked for: that of what is read is computed first, then that of the weight."""
        sizes = self.convolution
        if sizes.is_left_to_torch:
            return sizes.unfolded_by_torch_bytes(is_backward=True)
        read_bytes = of_read * (sizes.result_bytes if sizes.is_transposed else sizes.image_bytes)
        if sizes.is_transposed:
            first = of_read * (read_bytes + self._scratch_bytes())
        else:
            first = of_read * self._image_gradient_bytes()
        second = of_weight * (read_bytes + self._weight_gradient_bytes())
        return _with_primitive(max(first, second) - read_bytes - of_weight * sizes.weight_bytes)

    def _scratch_bytes(self) -> int:
        """Of a forward beyond its result: blocked copies of all, then of the result alone, which is copied.

        What is unfolded takes at most so much; its result is copied as well.
        """
        sizes = self.convolution
        if sizes.is_refusable and self.kernels.refuses(sizes):
            return max(self.threads * self._unfolded_at_once_bytes(), sizes.result_bytes) + PRIMITIVE_BYTES
        copied = self._read_block + self._weight_block + self._result_block - sizes.result_bytes
        copied += self._gathered_bytes()
        return _with_primitive(max(copied, self._result_block))

    def _image_gradient_bytes(self) -> int:
        """All that is there."""
        sizes = self.convolution
        if sizes.is_refusable and self.kernels.refuses_image_gradient(sizes):
            own = self.threads if sizes.batch * sizes.groups % self.threads == 0 else 1
            unfolded = own * sizes.unfolded_bytes(math.prod(sizes.out))
            return sizes.image_bytes + max(unfolded, sizes.image_bytes)
        copies = self._image_block + self._result_block + self._weight_block
        if sizes.is_depthwise:
            return max(self._image_block + sizes.image_bytes, copies)
        copies += strided_bytes(sizes, self.threads)
        return max((2 + sizes.is_strided) * sizes.image_bytes, copies)

    def _weight_gradient_bytes(self) -> int:
        """All that is there, but for the image's gradient."""
        sizes = self.convolution
        if not self._refuses_weight_gradient:
            copies = self._read_block + self._result_block + self._weight_block
            return copies + sizes.weight_bytes + self._gathered_bytes()
        own_bytes = WEIGHT_COPIES * sizes.weight_bytes + self._unfolded_for_weight_bytes
        return sizes.weight_bytes + self._weight_gradients * own_bytes

    @property
    def _refuses_weight_gradient(self) -> bool:
        return self.convolution.is_refusable and self.kernels.refuses_weight_gradient(self.convolution)

    @property
    def _weight_gradients(self) -> int:
        """How many threads unfold images for one, each its own."""
        return self.threads if is_shared(self.convolution, self.threads) else 1

    @property
    def _unfolded_for_weight_bytes(self) -> int:
        """Of one image, for the gradient of the weight."""
        return self.convolution.unfolded_bytes(math.prod(self.convolution.out))

    def _unfolded_at_once_bytes(self) -> int:
        """By each thread."""
        sizes = self.convolution
        unfolding = Unfolding(
            batch=sizes.batch * sizes.groups,
            inputs=sizes.inputs // sizes.groups,
            outputs=sizes.outputs // sizes.groups,
            area=math.prod(sizes.kernel),
            stride=math.prod(sizes.stride),
            positions=math.prod(sizes.out),
            threads=self.threads,
            cache=cache_bytes(2) // sizes.item_bytes,
            vector=self.kernels.channels,
        )
        return unfolding.elements() * sizes.item_bytes

    def _gathered_bytes(self) -> int:
        """What a thread reads of an image with a kernel of 1 and strides, next to each other."""
        sizes = self.convolution
        is_gathered = sizes.is_point and sizes.is_strided and not sizes.is_depthwise
        return self.threads * is_gathered * self._padded(sizes.inputs) * math.prod(sizes.out) * sizes.item_bytes

    @property
    def _read_block(self) -> int:
        """Of the image, where it is read."""
        sizes = self.convolution
        return sizes.image_bytes if self.kernels.reads_as_it_lies(sizes) else self._image_block

    @property
    def _image_block(self) -> int:
        sizes = self.convolution
        return sizes.batch * self._padded(sizes.inputs) * math.prod(sizes.image) * sizes.item_bytes

    @property
    def _result_block(self) -> int:
        sizes = self.convolution
        return sizes.batch * self._padded(sizes.outputs) * math.prod(sizes.out) * sizes.item_bytes

    @property
    def _weight_block(self) -> int:
        sizes = self.convolution
        outputs, inputs = sizes.outputs, sizes.inputs // sizes.groups
        elements = self._padded(outputs) if sizes.is_depthwise else outputs * self._padded(inputs)
        return elements * math.prod(sizes.kernel) * sizes.item_bytes

    def _padded(self, channels: int) -> int:
        return -(-channels // self.kernels.channels) * self.kernels.channels


def _with_primitive(copied_bytes: int) -> int:
    return math.ceil(copied_bytes * (1 + PRIMITIVE_SHARE)) + PRIMITIVE_BYTES
