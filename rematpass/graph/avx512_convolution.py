"""Which convolutions oneDNN's kernels for AVX-512 refuse, and to what they pad channels.

In: a `Convolution`. Out: yes or no, or channels, as `KERNELS`. Never looks at a tensor.

They refuse wide padding and long kernels; groups of other than whole blocks of channels are left to other kernels
(oneDNN 3.12, `init_conf` in `jit_avx512_common_conv_kernel.cpp`). Measured 2026-11 (torch 2.13, two threads) on some
700 convolutions over one dimension and 200 over two, without groups.
"""

from __future__ import annotations

import math

from ..formula.pieces import round_up
from . import avx2_convolution
from .caches import cache_bytes
from .convolution import OWN_KERNEL, Convolution, Kernels

# Channels per block of its layouts, and elements of float32 in a register.
CHANNELS = 16
# Of its kernels: results that are computed together, blocks of channels (with a register besides for each result),
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
# Results that its kernel for depthwise convolutions computes together.
DEPTHWISE_TOGETHER = 6
# Results of an image from which three blocks of channels are computed together (between 108 and 140, most of them).
MANY_POSITIONS = 112
# Single images up to this width and to so many channels are computed as those of long kernels.
SINGLE_WIDTH = 147
SINGLE_CHANNELS = 96


def _refuses(convolution: Convolution) -> bool:
    """What is 1 x 1 other kernels take, and of channels that are groups what returns one for each."""
    if convolution.is_separate:
        return not convolution.is_depthwise or convolution.padding_of_rows > DEPTHWISE_TOGETHER
    width, padding = convolution.out[-1], convolution.padding[-1]
    blocks = _blocks(convolution)
    together = min(width, REGISTERS if _is_broadcast(convolution) else SHARED_REGISTERS // (blocks + 1))
    behind = convolution.padding_behind
    loops = 1 + (padding > 0) + (behind(width - width % min(width, REGISTERS)) > 0)
    channels = min(convolution.inputs, CHANNELS)
    code_bytes = loops * convolution.kernel[-1] * channels * blocks * together * INSTRUCTION_BYTES
    is_wide = padding > together or behind(width - width % together) > together or convolution.reach[-1] <= padding
    is_mine = not convolution.is_point and convolution.has_whole_groups(CHANNELS)
    return is_mine and (is_wide or code_bytes > CODE_BYTES)


def _refuses_image_gradient(convolution: Convolution) -> bool:
    """Of strided ones, those with gaps as well."""
    if convolution.is_separate:
        return not convolution.is_depthwise
    if convolution.is_strided:
        return convolution.has_gaps_and_strides
    width, kernel, blocks = convolution.image[-1], convolution.kernel[-1], -(-convolution.inputs // CHANNELS)
    rows = convolution.item_bytes * CHANNELS * math.prod(convolution.kernel[:-1])
    read_bytes = rows * (2 * width + convolution.out[-1] + 2 * CHANNELS * kernel)
    together = REGISTERS
    if kernel <= OWN_KERNEL and read_bytes > cache_bytes(1):
        count = max(n for n in range(1, MOST_GRADIENT_BLOCKS + 1) if n == 1 or blocks % n == 0)
        together = max(SHARED_REGISTERS // (count + 1), LEAST_TOGETHER)
    before = convolution.reach[-1] - 1 - convolution.padding[-1]
    behind = width + convolution.padding[-1] - convolution.out[-1]
    is_wide = max(before, behind) > min(width, together) or kernel > LONGEST_GRADIENT_KERNEL
    return not convolution.is_point and convolution.has_whole_groups(CHANNELS) and is_wide


def _refuses_weight_gradient(convolution: Convolution) -> bool:
    """Where the kernel is long, the padding wide, or it reaches across the image; of groups of one channel, most."""
    if convolution.is_separate:
        return not convolution.has_own_depthwise
    sides = zip(convolution.reach[:-1], convolution.image[:-1], strict=True)
    is_far = any(reach > size for reach, size in sides)
    is_refused = max(convolution.padding) > REGISTERS or max(convolution.kernel) > LONGEST_KERNEL or is_far
    is_refused |= len(convolution.kernel) > 1 and convolution.has_gaps_and_strides
    return is_refused and convolution.has_whole_groups(CHANNELS)


def _pads_groups(convolution: Convolution) -> bool:
    """Few channels read in each group; depthwise ones with gaps and more padding than results computed together."""
    if convolution.is_depthwise:
        return convolution.has_gaps and convolution.padding_of_rows > DEPTHWISE_TOGETHER
    return convolution.groups > 1 and convolution.of_a_group[0] <= CHANNELS


def _unfolds_depthwise(convolution: Convolution) -> bool:
    return _pads_groups(convolution) and convolution.kernel[-1] > LONGEST_KERNEL


def _pads_group_gradients(convolution: Convolution) -> bool:
    """Few channels returned in each group; depthwise ones with gaps."""
    if convolution.is_depthwise:
        return convolution.has_gaps
    return convolution.groups > 1 and convolution.of_a_group[1] <= CHANNELS


def _padded_channels(count: int, positions: int) -> int:
    """One block, pairs of blocks, or four together; three where there are many results."""
    if count <= CHANNELS:
        return CHANNELS
    if 2 * CHANNELS < count <= 3 * CHANNELS and positions >= MANY_POSITIONS:
        return 3 * CHANNELS
    return round_up(1, count, 4 * CHANNELS if count > 2 * CHANNELS and count % (2 * CHANNELS) else 2 * CHANNELS)


def _weight_block(convolution: Convolution) -> int:
    """Of what these kernels refuse, those for AVX2 take some."""
    if _refuses_channels_last(convolution):
        return avx2_convolution.weight_block(convolution)
    return 1 if convolution.has_own_depthwise else CHANNELS


def _refuses_channels_last(convolution: Convolution) -> bool:
    """Wide kernels, gaps with strides, gaps that reach beyond the rows there are, rows of half padding or more.

    Measured 2026-11 (torch 2.13) on 1,600 convolutions, half of them in groups.
    """
    if convolution.has_gaps and convolution.is_strided:
        return True
    is_far = convolution.has_gaps and any(
        reach > size for reach, size in zip(convolution.reach[:-1], convolution.image[:-1], strict=True)
    )
    is_long = convolution.kernel[-1] > LONGEST_KERNEL
    return not convolution.is_point and (is_long or is_far or _has_padding_mostly(convolution))


def _has_padding_mostly(convolution: Convolution) -> bool:
    """Whether more than half of what the kernel sees is padding, on a side other than those of a row."""
    sides = list(zip(convolution.reach, convolution.padding, convolution.out, strict=True))[:-1]
    return any(
        max(padding, convolution.padding_behind(size, i)) > reach // 2 for i, (reach, padding, size) in enumerate(sides)
    )


def _is_broadcast(convolution: Convolution) -> bool:
    """Whether its kernel computes one block of channels at a time, and so more results together."""
    is_narrow = convolution.out[-1] <= SINGLE_WIDTH and convolution.outputs <= SINGLE_CHANNELS
    is_single = convolution.batch == 1 and (is_narrow or convolution.out[-1] <= REGISTERS)
    return convolution.kernel[-1] > OWN_KERNEL or is_single


def _blocks(convolution: Convolution) -> int:
    """Blocks of channels that its kernel computes together."""
    count = -(-convolution.outputs // CHANNELS)
    return 1 if _is_broadcast(convolution) else max(n for n in range(1, MOST_BLOCKS + 1) if count % n == 0)


KERNELS = Kernels(
    channels=CHANNELS,
    refuses=_refuses,
    refuses_image_gradient=_refuses_image_gradient,
    refuses_weight_gradient=_refuses_weight_gradient,
    reads_as_it_lies=lambda _: False,  # not known of any (2026-11)
    pads_groups=_pads_groups,
    pads_group_gradients=_pads_group_gradients,
    unfolds_depthwise=_unfolds_depthwise,
    padded_channels=_padded_channels,
    weight_block=_weight_block,
)
