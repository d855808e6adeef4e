"""Scratch of convolutions in half precision on a CPU over images laid out channels last.

In: sizes of a convolution. Out: bytes beyond what it returns and a copy of its weight. Never looks at a tensor.

Forwards and gradients of images are as those of float32. For the gradient of a weight oneDNN (3.12) turns images and
results as it does where they are not channels last. Measured 2026-11 (torch 2.13, AMD Zen 5, two threads) on 200
convolutions without groups, mostly exact to a few pages where threads share work as expected.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..formula.pieces import round_up
from .channels_last import PAGE, ChannelsLast
from .half_convolution import CHANNELS, HalfScratch

# What a weight's gradient takes besides what is turned: at most so many pages, and 388 bytes.
MARGIN_BYTES = 4 * PAGE + 512


@dataclass(frozen=True)
class HalfChannelsLast(ChannelsLast):
    """Of one convolution in half precision and its gradients."""

    def _turned_weight_gradient(self) -> int:
        sizes = self.convolution
        if sizes.groups > 1:
            return super()._turned_weight_gradient()
        turned = HalfScratch(sizes, self.kernels, self.threads).turned_bytes(is_relaid=True)
        read = sizes.inputs if sizes.inputs < CHANNELS else round_up(1, sizes.inputs, CHANNELS)
        padded = sizes.weight_bytes // (sizes.inputs * sizes.outputs) * read * round_up(1, sizes.outputs, CHANNELS)
        return turned + padded - sizes.weight_bytes + MARGIN_BYTES
