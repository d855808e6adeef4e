"""Autocast as on a GPU, though a step is traced on CPU tensors.

In: torch, 2.11 to 2.15. Out: while a context lasts, `torch.autocast` casts as it does on CUDA tensors. Never casts
outside of autocast, never runs anything by itself.

torch has a list of operators per kind of device, with a policy for each (ATen/autocast_mode.h). The lists differ: on a
GPU a LayerNorm, a softmax, a sum or a power is computed in 32 bits, on a CPU in what came in; on a CPU a concatenation
and some paddings are cast, on a GPU not.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Operator: TypeAlias = Any  # torch._ops.OpOverload
Kernel: TypeAlias = Callable[..., Any]

# CUDA's policies by operator, the same in 2.11 and 2.13; whatever else it has a rule for is computed in 32 bits.
TO_16_BITS = frozenset(
    [
        "_convolution",
        "_convolution.deprecated",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d.input",
        "conv_transpose3d.input",
        "convolution",
        "prelu",
        "addmm",
        "addmv",
        "addr",
        "matmul",
        "einsum",
        "mm",
        "mv",
        "linalg_vecdot",
        "linear",
        "addbmm",
        "baddbmm",
        "bmm",
        "chain_matmul",
        "linalg_multi_dot",
        "_thnn_fused_lstm_cell",
        "_thnn_fused_gru_cell",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
        "_scaled_dot_product_flash_attention",
        "scaled_dot_product_attention",
    ]
)
RESULT_OF_32_BITS = frozenset(
    [
        "prod",
        "prod.dim_int",
        "softmax.int",
        "log_softmax.int",
        "cumprod",
        "cumsum",
        "linalg_vector_norm",
        "linalg_matrix_norm",
        "linalg_matrix_norm.str_ord",
        "sum",
        "sum.dim_IntList",
    ]
)
TO_THE_WIDEST = frozenset(
    [
        "addcdiv",
        "addcmul",
        "atan2",
        "bilinear",
        "cross",
        "dot",
        "vdot",
        "grid_sampler",
        "index_put",
        "tensordot",
        "scatter_add",
    ]
)
# Those that return what they are told by another overload.
WITH_DTYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
REFUSED = frozenset({"binary_cross_entropy"})
# Of those that have a rule on a CPU, too, these have another one there.
_OTHERWISE = frozenset({"prod", "prod.dim_int", "grid_sampler"}) | REFUSED
# Kernels of one library, which a step on CPU tensors never calls, and of named tensors (2.11), which do not trace.
_OF_LIBRARIES, _NAMED = ("cudnn_", "_cudnn_", "miopen_"), "name"


@contextlib.contextmanager
def autocast_as_on_gpu() -> Iterator[None]:
    """Inside, autocast of CPU tensors follows CUDA's rules, and `torch.autocast("cuda")` is that of CPU tensors.

    It holds for the whole process: nothing else may run under autocast on a CPU meanwhile.
    """
    autocast = torch.amp.autocast_mode.autocast
    own = autocast.__init__

    # Dynamo reads the arguments by name.
    def init(
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        own(self, device_type, dtype, enabled, cache_enabled)

    with contextlib.ExitStack() as stack:
        stack.callback(setattr, autocast, "__init__", own)
        autocast.__init__ = init  # type: ignore[method-assign]  # the stack puts it back
        stack.enter_context(_rules_of_gpu())
        yield


@contextlib.contextmanager
def _rules_of_gpu() -> Iterator[None]:
    there, here = cuda_rules(), _ruled("AutocastCPU")
    kernels = dict.fromkeys(here - there, torch.library.fallthrough_kernel)
    kernels |= {name: _kernel(name) for name in there - here | there & _OTHERWISE}
    rules: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # torch's own, untyped
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="[\\s\\S]*Overriding a previously registered kernel")
            for name, kernel in sorted(kernels.items()):
                rules.impl(name, kernel, "AutocastCPU")
        yield
    finally:
        rules._destroy()


def cuda_rules() -> set[str]:
    """Operators that autocast on a GPU has a rule for: "softmax.int"."""
    found = _ruled("AutocastCUDA")
    return {name for name in found if not name.startswith(_OF_LIBRARIES) and _NAMED not in name.lower()}


def _ruled(key: str) -> set[str]:
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


def _kernel(name: str) -> Kernel:
    """What autocast does with a call of this operator on a GPU."""
    operator = _operator(name)
    if name in REFUSED:
        return _refuse(operator)
    if name in WITH_DTYPE:
        return _call_with_dtype(operator, _operator(WITH_DTYPE[name]))
    if name in RESULT_OF_32_BITS:
        return _call_for_32_bits(operator)
    if name in TO_THE_WIDEST:
        return _cast(operator, _widest)
    return _cast(operator, _half if name in TO_16_BITS else _single)


def _operator(name: str) -> Operator:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _cast(operator: Operator, choose: Callable[[list[Tensor]], torch.dtype]) -> Kernel:
    """Cast all tensors that autocast may cast, then go on."""

    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = choose([x for x in pytree.tree_leaves((args, kwargs)) if may_cast(x)])
        with _past_autocast():
            args, kwargs = pytree.tree_map(lambda x: x.to(dtype) if may_cast(x) else x, (args, kwargs))
            return operator(*args, **kwargs)

    return run


def _call_for_32_bits(operator: Operator) -> Kernel:
    """Ask for a result of 32 bits where the caller asks for none."""
    place = [argument.name for argument in operator._schema.arguments].index("dtype")

    def run(x: object, *args: Any, **kwargs: Any) -> Any:
        given = args[place - 1] if len(args) >= place else kwargs.get("dtype")
        if may_cast(x) and given is None:
            args, kwargs = args[: place - 1], {**kwargs, "dtype": torch.float32}
        with _past_autocast():
            return operator(x, *args, **kwargs)

    return run


def _call_with_dtype(operator: Operator, told: Operator) -> Kernel:
    """Call the overload that is told the type of its result. It has no defaults: torch leaves out what equals them."""
    asked = operator._schema.arguments

    def run(*args: Any, **kwargs: Any) -> Any:
        with _past_autocast():
            if not may_cast(args[0]):
                return operator(*args, **kwargs)
            left_out = [kwargs.get(argument.name, argument.default_value) for argument in asked[len(args) :]]
            return told(*args, *left_out, dtype=torch.float32)

    return run


def _refuse(operator: Operator) -> Kernel:
    def run(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"{operator} is unsafe to autocast, and torch refuses it on a GPU. Try: binary_cross_entropy_with_logits, "
            "or BCEWithLogitsLoss, in place of a sigmoid before it"
        )

    return run


def may_cast(x: object) -> bool:
    """Autocast leaves integers and 64 bits alone."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64


def _half(_: list[Tensor]) -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def _single(_: list[Tensor]) -> torch.dtype:
    return torch.float32


def _widest(tensors: list[Tensor]) -> torch.dtype:
    return torch.float32 if any(x.dtype == torch.float32 for x in tensors) else torch.get_autocast_dtype("cpu")


def _past_autocast() -> contextlib.AbstractContextManager[Any]:
    """What is called inside is not under autocast."""
    guard: contextlib.AbstractContextManager[Any] = torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    )
    return guard
