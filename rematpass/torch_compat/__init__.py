"""Every private torch name we touch, in one package, with the versions it was checked on.

In: torch, 2.11 to 2.15. Out: small functions with stable names and meanings. Never decides anything, never holds state.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch._dynamo.exc import ShortenTraceback, Unsupported  # 2.11-2.15
from torch._inductor.custom_graph_pass import CustomPartitionerFn  # since 2.9
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from .again import LaterCompilation, is_followed, keep_for_later
from .allocations import abandon_profile, cpu_allocations, cpu_peak, highest_live, memory_profile
from .autocast import autocast_as_on_gpu
from .compiler import (
    as_compile_error,
    compile_fx,
    compile_uncached,
    compile_wrapper_of,
    config_state,
    current_compile_wrapper,
    donates_buffers,
    has_onednn,
    inductor_keys,
    inner_compiler,
    mode_patches,
    outside_tracing,
    register_backend,
    tracing_state,
    uses_cuda_graphs,
)
from .elsewhere import as_on_gpu
from .fakes import (
    StandIns,
    TorchDynamoException,
    has_no_memory,
    is_wrapper,
    map_leaves,
    tensor_places,
    use_modes_of,
)
from .graphs import (
    NO_VERSION_CHECK,
    checkpoint_region,
    extract_halves,
    half_tag,
    is_must_be_in_backward,
    is_must_be_in_forward,
    is_mutable,
    leaves,
    makes_unbacked_size,
    mutated_input_positions,
    name_traced,
    order_strides,
    plain_partition,
    side_tag,
    storage_key,
    triton_kernel_name,
    user_label,
    user_policy,
)
from .job import (
    COMPILED_NODE,
    default_store,
    is_in_backward,
    is_profiling,
    watch_storage,
    when_backward_is_gone,
    when_node_is_gone,
)
from .places import IMAGE_RANK
from .refusals import is_at_logger, loggers_ignored, refusal_hints, refusal_reason, refused_line
from .scheduled import HELD, HELD_BYTES, IMAGES_LAST, SCRATCH_BYTES, STORE_HERE
from .sizes import evaluated, guard_limit, is_guarded, is_known_equal, limit_size, symbol_of, traced_with, upper_bounds
from .uncompiled import has_storage, kept_uncompiled

__all__ = [
    "COMPILED_NODE",
    "HELD",
    "HELD_BYTES",
    "IMAGES_LAST",
    "IMAGE_RANK",
    "NO_VERSION_CHECK",
    "SCRATCH_BYTES",
    "STORE_HERE",
    "CustomPartitionerFn",
    "HigherOrderOperator",
    "LaterCompilation",
    "Node",
    "OpOverload",
    "ShortenTraceback",
    "StandIns",
    "TorchDynamoException",
    "Unsupported",
    "abandon_profile",
    "adds_half_bias_in_matmul",
    "as_compile_error",
    "as_on_gpu",
    "autocast_as_on_gpu",
    "checkpoint_region",
    "compile_fx",
    "compile_uncached",
    "compile_wrapper_of",
    "config_state",
    "cpu_allocations",
    "cpu_capability",
    "cpu_peak",
    "current_compile_wrapper",
    "default_store",
    "donates_buffers",
    "evaluated",
    "extract_halves",
    "guard_limit",
    "half_tag",
    "has_bfloat16_atomics",
    "has_no_memory",
    "has_onednn",
    "has_storage",
    "highest_live",
    "inductor_keys",
    "inner_compiler",
    "is_at_logger",
    "is_followed",
    "is_guarded",
    "is_in_backward",
    "is_known_equal",
    "is_must_be_in_backward",
    "is_must_be_in_forward",
    "is_mutable",
    "is_onednn",
    "is_profiling",
    "is_wrapper",
    "keep_for_later",
    "kept_uncompiled",
    "leaves",
    "limit_size",
    "loggers_ignored",
    "makes_unbacked_size",
    "map_leaves",
    "matmul_precision",
    "memory_profile",
    "mode_patches",
    "most_in_two_steps",
    "most_operations",
    "most_reads",
    "mutated_input_positions",
    "name_traced",
    "num_threads",
    "order_strides",
    "outside_tracing",
    "plain_partition",
    "python_version",
    "refusal_hints",
    "refusal_reason",
    "refused_line",
    "register_backend",
    "side_tag",
    "storage_key",
    "symbol_of",
    "tensor_places",
    "torch_version",
    "traced_with",
    "tracing_state",
    "triton_kernel_name",
    "unrolled_below",
    "upper_bounds",
    "use_modes_of",
    "user_label",
    "user_policy",
    "uses_cuda_graphs",
    "watch_storage",
    "when_backward_is_gone",
    "when_node_is_gone",
]


def torch_version() -> str:
    """Torch's version, with its local part."""
    return str(torch.__version__)


def cpu_capability() -> str:
    """The widest vectors that CPU kernels use here, such as AVX2 or AVX512."""
    return str(torch.backends.cpu.get_cpu_capability())


def is_onednn(dtype: torch.dtype) -> bool:
    """Whether torch leaves convolutions of this type to oneDNN here (`ConvParams::use_mkldnn`, 2.11 to 2.15)."""
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype is torch.float32


def num_threads() -> int:
    """Threads that CPU kernels use now; their scratch grows with it."""
    return int(torch.get_num_threads())


def most_reads(device_type: str) -> int:
    """How many tensors Inductor lets a pointwise result be made from before it stores it (2.11-2.15)."""
    return _fusion_limit("acc_reads", device_type, 8)


def most_operations(device_type: str) -> int:
    """How many steps, reads and constants a fused function may have before Inductor stores its result (2.11-2.15)."""
    return _fusion_limit("opcount", device_type, 30)


def merges_loops_first(device_type: str) -> bool:
    """Whether Inductor merges the loops of a result before it looks for others to make one kernel with (2.11-2.15)."""
    from torch._inductor import config

    return device_type == "cpu" or not config.loop_ordering_after_fusion


def is_broadcast_shared() -> bool:
    """Whether Inductor takes a result that is broadcast for one with several readers: no longer by itself in 2.13.

    Expensive and long functions it takes for that in any version (`should_realize_on_reuse`, 2.11-2.15).
    """
    from torch._inductor import config, ir

    asks = inspect.signature(ir.StorageBox.mark_reuse).parameters
    is_deterministic = getattr(config, "deterministic", False) or torch.are_deterministic_algorithms_enabled()
    return is_deterministic or "graph_reuse" not in asks


def adds_half_bias_in_matmul() -> bool:
    """Whether biases of 16 bits stay with their product on a GPU (where torch has no option for it, none stays)."""
    from torch._inductor import config

    return bool(getattr(config, "keep_addmm_fused_for_half_dtypes", False))


def has_bfloat16_atomics() -> bool:
    """Whether there is a GPU that adds bfloat16 numbers in place (2.11-2.15: from capability 9.0 on)."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def unrolled_below() -> int:
    """Elements from which on Inductor makes a reduction of one, not a pointwise function (2.11-2.15)."""
    from torch._inductor import config

    settings: Any = config
    return int(settings.unroll_reductions_threshold)


def most_in_two_steps(device_type: str) -> int:
    """Up to how many elements Inductor takes variances as means of squares, not in one pass (2.11-2.15).

    On a GPU only those of 16 bits could be so for more; they are converted before as a rule.
    """
    from torch._inductor import config

    settings: Any = config
    few = settings.unroll_reductions_threshold
    return int(getattr(settings.cpp, "use_two_step_variance_threshold", few) if device_type == "cpu" else few)


def _fusion_limit(name: str, device_type: str, default: int) -> int:
    from torch._inductor import config

    settings: Any = config
    own = getattr(settings, f"realize_{name}_threshold")
    if own is not None:
        return int(own)
    if device_type == "cpu" and hasattr(settings, f"realize_cpu_{name}_threshold"):
        return int(getattr(settings, f"realize_cpu_{name}_threshold"))
    return int(getattr(settings, f"_realize_{name}_threshold_default", default))


def matmul_precision() -> str:
    """How products of float32 are rounded inside: "highest", "high" or "medium"."""
    return str(torch.get_float32_matmul_precision())


def python_version() -> str:
    """The interpreter's version."""
    return sys.version.split()[0]
