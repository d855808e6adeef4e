"""Which convolutions oneDNN's kernels for AVX2 refuse, and to what they pad channels.

In: a `Convolution`. Out: yes or no, or channels, as `KERNELS`. Never looks at a tensor.

Padding wider than a few results, long kernels, and gaps where gradients of weights are asked for (oneDNN 3.12, the
three `init_conf` of `jit_avx2_conv_kernel_f32.cpp`). Measured 2026-11 (torch 2.13, two threads, AMD Zen 3) on some 400
convolutions over one dimension and 400 over two; of 30 oneDNN was asked what it runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..formula.pieces import round_up
from .convolution import Convolution, Kernels

# Channels per block of its layouts, and elements of float32 in a register.
CHANNELS = 8
# An image of so many channels is read as it lies.
COLOURS = 3
# Results that its kernel computes together, and at most where more padding asks for more; the longest kernel that may
# have padding and strides.
TOGETHER = 3
MOST_TOGETHER = 7
LONGEST_STRIDED_KERNEL = 7
# Registers of its kernel for images' gradients, and blocks of channels together.
REGISTERS = 15
MOST_BLOCKS = 4
# Results that its kernel for depthwise convolutions computes together, of images channels last and of others.
DEPTHWISE_TOGETHER, DEPTHWISE_BLOCKED_TOGETHER = 3, 4
# Up to so many channels returned are padded to blocks one by one where images are laid out channels last; of more,
# three or four are computed together: three counts what fits four as up to an eighth more than it takes (2026-11).
FEW_CHANNELS = 32
# Kernels of weights' gradients are shorter.
LONGEST_KERNEL = 14


def _reads_as_it_lies(convolution: Convolution) -> bool:
    """Whether images are read without a blocked copy: those of three colours."""
    return convolution.inputs == COLOURS and convolution.groups == 1 and not convolution.is_point


def _refuses(convolution: Convolution) -> bool:
    """What is 1 x 1 other kernels take, and of channels that are groups what returns one for each."""
    if convolution.is_separate:
        return not convolution.is_depthwise or convolution.padding_of_rows > DEPTHWISE_BLOCKED_TOGETHER
    if convolution.is_point:
        return False
    width, padding, stride = convolution.out[-1], convolution.padding[-1], convolution.stride[-1]
    together = min(TOGETHER, width)
    is_long = convolution.kernel[-1] > LONGEST_STRIDED_KERNEL
    is_odd = is_long and any(convolution.padding[-2:]) and any(step != 1 for step in convolution.stride[-2:])
    if padding > together or is_odd or _fits_nowhere(convolution):
        return True
    behind = convolution.padding_behind(width - width % together)
    if behind <= together * stride or width // together <= 1:
        return False
    together = min(behind // stride + width % together, width, MOST_TOGETHER)
    return together < max(padding, convolution.padding_behind(width - width % together))


def _refuses_image_gradient(convolution: Convolution) -> bool:
    """What is 1 x 1 other kernels take, and of strided ones those without gaps, and depthwise ones."""
    if convolution.is_separate:
        return not convolution.is_depthwise
    if convolution.is_strided or convolution.is_point:
        return convolution.has_gaps_and_strides
    return not convolution.has_whole_groups(CHANNELS) or _refuses_dense_gradient(convolution)


def _refuses_dense_gradient(convolution: Convolution) -> bool:
    """The gradient of an image without strides."""
    if _sees_padding_alone(convolution):
        return True
    found = list(_ways_together(convolution))
    if not found:
        return True
    width, padding_behind = convolution.image[-1], convolution.padding_behind(convolution.out[-1])
    _, together = max(found)
    rest = width % together
    over = convolution.reach[-1] - 1 - padding_behind - rest
    return over > together or (width > together and padding_behind + rest < 0)


def _refuses_weight_gradient(convolution: Convolution) -> bool:
    """Also where groups are of other than whole blocks of channels, but for some depthwise ones."""
    if convolution.is_separate:
        return not convolution.has_own_depthwise
    is_whole = convolution.is_point or convolution.has_whole_groups(CHANNELS)
    return not is_whole or _refuses_channels_last(convolution)


def _refuses_channels_last(convolution: Convolution) -> bool:
    """Gradients of weights with gaps, of long kernels, and of kernels taller than the image."""
    is_tall = any(length > size for length, size in zip(convolution.kernel[:-1], convolution.image[:-1], strict=True))
    has_gaps = any(step > 1 for step in convolution.dilation)
    is_refused = has_gaps or convolution.kernel[-1] >= LONGEST_KERNEL or is_tall
    return not convolution.is_point and (is_refused or _sees_padding_alone(convolution))


def _pads_group_gradients(convolution: Convolution) -> bool:
    """Depthwise ones with gaps, and few channels returned in each group with strides."""
    if convolution.is_depthwise:
        return convolution.has_gaps
    return convolution.groups > 1 and convolution.is_strided and convolution.of_a_group[1] <= CHANNELS


def _padded_channels(count: int, _positions: int) -> int:
    """Blocks one by one, or three together."""
    return round_up(1, count, CHANNELS if count <= FEW_CHANNELS else 3 * CHANNELS)


def weight_block(convolution: Convolution) -> int:
    """As `Kernels` asks. Groups of three channels are taken for images of three colours, which have none."""
    has_both = convolution.has_gaps and convolution.is_strided
    is_colour = convolution.groups > 1 and convolution.of_a_group[0] == COLOURS
    if has_both or is_colour or _refuses_channels_last(convolution):
        return 0
    return 1 if convolution.has_own_depthwise else CHANNELS


def _ways_together(convolution: Convolution) -> Iterator[tuple[int, int]]:
    """(results of all blocks of channels, results of each) that can be computed together for an image's gradient."""
    width, before = convolution.image[-1], convolution.reach[-1] - 1 - convolution.padding[-1]
    count = -(-convolution.inputs // CHANNELS)
    for blocks in (n for n in range(1, MOST_BLOCKS + 1) if count % n == 0):
        for together in range(1, min(width, REGISTERS // (blocks + 1)) + 1):
            if before <= together or together == width:
                yield together * blocks, together


def _fits_nowhere(convolution: Convolution) -> bool:
    """Whether blocks of channels cross groups, or the kernel sees nothing but padding somewhere."""
    return not convolution.has_whole_groups(CHANNELS) or _sees_padding_alone(convolution)


def _sees_padding_alone(convolution: Convolution) -> bool:
    """Whether the kernel fits into the padding of a side."""
    behind = [convolution.padding_behind(size, i) for i, size in enumerate(convolution.out)]
    sides = zip(convolution.reach, convolution.padding, behind, strict=True)
    return any(reach <= max(padding, after) for reach, padding, after in sides)


KERNELS = Kernels(
    channels=CHANNELS,
    refuses=_refuses,
    refuses_image_gradient=_refuses_image_gradient,
    refuses_weight_gradient=_refuses_weight_gradient,
    reads_as_it_lies=_reads_as_it_lies,
    pads_groups=lambda _: False,
    pads_group_gradients=_pads_group_gradients,
    unfolds_depthwise=lambda c: c.has_gaps and c.padding_of_rows > DEPTHWISE_TOGETHER,
    padded_channels=_padded_channels,
    weight_block=weight_block,
)
