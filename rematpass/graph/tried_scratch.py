"""Scratch of operators whose kernels are not known, seen by running each once on the processor that is here.

In: one FX node with fake tensors, and how its images lie. Out: bytes beyond what it returns. Never runs an operator
twice in a process, never looks at what it computes.

Which kernels oneDNN and torch choose depends on the processor. Those for float32 with AVX2 and AVX-512 have formulas,
which cost nothing and hold for any size. Others, such as those for half precision, differ too much: formulas fitted on
AVX-512 were up to 2 % of a step's peak off there, and up to 90 % of what an operator returns and takes too low on a
processor that multiplies whole blocks (AMX; 2026-11, torch 2.13: 180 convolutions of bfloat16). What an operator
allocates follows from its sizes, not from its numbers: one run on zeros says it to the byte. The 49 distinct operators
of a ResNet-50 in bfloat16 took 0.22 s (eight images of 128 x 128, two threads), its step 0.24 s, its compilation 38 s.
"""

from __future__ import annotations

import logging
import warnings
from functools import partial

import torch
from torch import fx

from ..cost.memory import host_memory
from ..torch_compat import IMAGE_RANK, cpu_peak, is_profiling, num_threads, outside_tracing
from .flops import count_flops
from .real_call import real_call, tensors_of, why_too_large
from .signature import call_text
from .sizes import concrete, storage_bytes

logger = logging.getLogger(__name__)

# Processors, by their vectors, whose kernels have formulas.
KNOWN = ("AVX2", "AVX512")
MOST_FLOPS = 4e11
"""Of an operator that is run. Set 2026-11: a product of bfloat16 of this size takes 0.2 to 0.3 s on two cores with
AMX. A choice, other values were not tried: plans reach up to 32 times the sizes seen, where attention takes a thousand
times as long."""

_seen: dict[str, int] = {}
_warned: set[str] = set()


def has_known_kernels(capability: str, item_bytes: int) -> bool:
    """Whether formulas are those of the kernels that such a processor runs for elements of so many bytes."""
    return capability in KNOWN and item_bytes >= torch.float32.itemsize


def tried_bytes(node: fx.Node, layout: torch.memory_format = torch.preserve_format) -> int | None:
    """Scratch of the node's operator on a CPU; None, with a warning, where it cannot be run.

    Args:
        node: an operator without side effects whose inputs' `meta["val"]` hold fake tensors; dynamic sizes count at
            what is planned for.
        layout: of its images; as the fake tensors lie by default.
    """
    key = f"{call_text(node)} {layout} {num_threads()}"
    if key in _seen:
        return _seen[key]
    refusal = _why_not(node)
    peak_bytes = 0
    if not refusal:
        try:
            with outside_tracing("cpu"):
                peak_bytes = cpu_peak(real_call(node, partial(_zeros, layout=layout)))
        except RuntimeError as error:
            refusal = f"running it on zeros failed ({error})"
    if refusal:
        _warn_once(node, refusal)
        return None
    found = _seen[key] = max(0, peak_bytes - sum(storage_bytes(tensor) for tensor in tensors_of(node)))
    logger.info("rematpass: %s takes %d bytes of scratch", key, found)
    return found


def _why_not(node: fx.Node) -> str:
    if is_profiling():
        return "a profiler is running, of which torch has one at a time"
    if count_flops(node) > MOST_FLOPS:
        return "it would take long to run it"
    return why_too_large(node, host_memory().free_bytes)


def _warn_once(node: fx.Node, reason: str) -> None:
    """Of several operators with one reason, whatever their sizes, the first is named."""
    kind = "".join(letter for letter in reason if not letter.isdigit())
    if kind in _warned:
        return
    _warned.add(kind)
    warnings.warn(
        f"rematpass: the scratch of {node.target} is estimated, since this processor's kernels are not known and "
        f"{reason}. The measured peak may be above the plan; verify says so",
        stacklevel=2,
    )


def _zeros(like: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    shape = [concrete(size) for size in like.shape]
    if layout is torch.preserve_format:
        count = storage_bytes(like) // like.element_size()
        strides = [concrete(stride) for stride in like.stride()]
        return torch.zeros(count, dtype=like.dtype, device="cpu").as_strided(shape, strides)
    # Not a copy laid out so: one channel may keep strides by which it is first.
    is_image = like.ndim == IMAGE_RANK
    return torch.empty(shape, dtype=like.dtype, device="cpu", memory_format=layout if is_image else None).zero_()
