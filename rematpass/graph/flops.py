"""Operations of one aten node.

In: an FX node whose `meta["val"]` holds its fake tensors. Out: floating-point operations as an int.
Never writes `meta`, never adds a guard, never prices: nanoseconds are made in `cost/`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from ..declared import DeclaredOp
from ..errors import OptionError
from .op_traits import inner_nodes
from .sizes import concrete, elements_of
from .words import words

Formula = Callable[..., int]

TRANSCENDENTAL_FLOPS = 10
"""Operations per element of exp, tanh, erf, log and their like.

Origin: vectorised implementations evaluate polynomials of degree 5 to 11 after a range reduction; set 2026-11. It
matters on CPU, where arithmetic is scarce; on GPUs such ops are bound by memory. At half, recomputing GELU or softmax
on CPU looks nearly as cheap as an addition; at twice, they are kept where recomputing them is the better choice.
"""


_TRANSCENDENTAL = words(
    "exp exp2 expm1 log log2 log10 log1p pow sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf",
    "erfc erfinv lgamma digamma sigmoid logit silu silu_backward gelu gelu_backward mish mish_backward softplus",
    "softplus_backward elu log_sigmoid_forward logaddexp logsumexp logcumsumexp _softmax _log_softmax",
    "_log_softmax_backward_data",
)
_CHEAP_EXPONENTS = (0.5, 1, 2, 3)  # powers that compile to multiplications or a square root

# Made without arithmetic, or renamed. Views are known by their schema.
_FREE = words(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided full full_like new_full zeros",
    "zeros_like new_zeros ones ones_like new_ones scalar_tensor lift_fresh _unsafe_view _reshape_alias",
)

# Reductions that torch does not tag: they read more than they return.
_UNTAGGED_REDUCTIONS = words(
    "avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d max_pool2d_with_indices max_pool3d_with_indices",
    "adaptive_max_pool2d topk mse_loss sum_to_size",
)

# Kernels that do the products torch has a formula for, with the same leading arguments.
_FLASH = "_scaled_dot_product_flash_attention"
_SAME_FORMULA = {
    "_int_mm": "mm",
    "_scaled_mm_v2": "mm",
    "_addmm_activation": "addmm",
    "addbmm": "baddbmm",
    "_scaled_dot_product_cudnn_attention": _FLASH,
    "_scaled_dot_product_flash_attention_for_cpu": _FLASH,
    "_scaled_dot_product_fused_attention_overrideable": _FLASH,
    "_scaled_dot_product_cudnn_attention_backward": f"{_FLASH}_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward": f"{_FLASH}_backward",
    "_scaled_dot_product_fused_attention_overrideable_backward": f"{_FLASH}_backward",
}


def count_flops(node: fx.Node, declared: Mapping[str, DeclaredOp] = MappingProxyType({})) -> int:
    """Floating-point operations of one node; a multiplication and an addition are two.

    Matrix products, convolutions and attention: torch's registered formulas (`torch.utils.flop_counter`) and the ones
    added here. Attention counts every pair of positions, also under a causal or block mask. Ops with inner graphs: the
    sum of these, each once. All else: one per element of the output, or of the largest input for a reduction, times
    `TRANSCENDENTAL_FLOPS` where it applies. Views and factories: 0.

    Args:
        node: any node; those that compute no tensor (placeholders, `getitem`, sizes) count 0.
        declared: what users said of custom operators, by name; their formulas come first.

    Raises:
        OptionError: a user's formula fails, or gives no number of operations.
    """
    own = _declared_formula(node, declared)
    if own is not None:
        return _apply_declared(own, node)
    formula = _find_formula(node)
    if formula is not None:
        return _apply_formula(formula, _plain(node.args), _plain(node.kwargs), _plain(node))
    if not _is_operator(node):
        return sum(count_flops(inner, declared) for inner in inner_nodes(node))
    return _streamed_elements(node) * _flops_per_element(node)


def _declared_formula(node: fx.Node, declared: Mapping[str, DeclaredOp]) -> DeclaredOp | None:
    schema = getattr(node.target, "_schema", None)
    found = declared.get(str(schema.name)) if schema is not None and declared else None
    return found if found is not None and found.flops is not None else None


def _apply_declared(own: DeclaredOp, node: fx.Node) -> int:
    assert own.flops is not None
    try:
        count = own.flops(*_tensors_of(_plain(node.args)), **_tensors_of(_plain(node.kwargs)))
    except Exception as error:  # the user's own function, whatever it raises
        raise OptionError(f"the flops formula registered for {own.name} failed: {error!r}. Try: mend it") from error
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise OptionError(f"the flops formula registered for {own.name} gave {count!r}. Try: an int of at least 0")
    return count


def is_compute_intensive(node: fx.Node) -> bool:
    """Whether the node, or a graph inside it, is a matrix product, a convolution or attention."""
    return _find_formula(node) is not None or any(map(is_compute_intensive, inner_nodes(node)))


def _is_operator(node: fx.Node) -> bool:
    """Whether the target is an overload of a dispatcher op (`aten.exp.default`), with a schema and tags."""
    return node.op == "call_function" and hasattr(node.target, "overloadpacket")


def _find_formula(node: fx.Node) -> Formula | None:
    """Ours before torch's; where both exist they differ only at `_convolution_backward`, which says why."""
    if node.op != "call_function":
        return None
    packet = getattr(node.target, "overloadpacket", node.target)
    return _OURS.get(packet) or flop_registry.get(packet)


def _streamed_elements(node: fx.Node) -> int:
    """Elements a kernel without a product works through: of its largest output or, for a reduction, largest input."""
    name = _base_name(node)
    if name in _FREE or getattr(node.target, "is_view", False):
        return 0
    is_reduction = name in _UNTAGGED_REDUCTIONS or torch.Tag.reduction in getattr(node.target, "tags", ())
    shaped = [arg.meta.get("val") for arg in node.all_input_nodes] if is_reduction else node.meta.get("val")
    return max(map(elements_of, tensors_in(shaped)), default=0)


def _flops_per_element(node: fx.Node) -> int:
    """`TRANSCENDENTAL_FLOPS` or 1."""
    name = _base_name(node)
    if name == "pow" and len(node.args) > 1 and node.args[1] in _CHEAP_EXPONENTS:
        return 1
    return TRANSCENDENTAL_FLOPS if name in _TRANSCENDENTAL else 1


def _base_name(node: fx.Node) -> str:
    """The op without namespace and overload, "exp" for `aten.exp.default`."""
    packet: Any = getattr(node.target, "overloadpacket", node.target)
    return str(packet.__name__)


def _plain(value: Any) -> Any:
    """Nodes to their values, tensors to their plain sizes, symbols to their hints; all of it hashable."""
    if isinstance(value, fx.Node):
        return _plain(value.meta.get("val"))
    if isinstance(value, torch.Tensor):
        return _Sizes(tuple(concrete(size) for size in value.shape))
    if isinstance(value, torch.SymInt):
        return concrete(value)
    if isinstance(value, dict):
        return _Named(tuple((key, _plain(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return value


@dataclass(frozen=True)
class _Sizes:
    """The sizes of a tensor."""

    sizes: tuple[int, ...]


@dataclass(frozen=True)
class _Named:
    """The items of a dict."""

    items: tuple[tuple[str, Any], ...]


@lru_cache(maxsize=4096)
def _apply_formula(formula: Formula, positional: Any, named: Any, result: Any) -> int:
    """Equal layers ask for equal products again and again; making tensors for the formulas is slow."""
    return int(formula(*_tensors_of(positional), **_tensors_of(named), out_val=_tensors_of(result)))


def _tensors_of(value: Any) -> Any:
    """Storage-free tensors of plain sizes: the formulas see integers only and cannot add a guard by comparing sizes."""
    if isinstance(value, _Sizes):
        return torch.empty(value.sizes, device="meta")
    if isinstance(value, _Named):
        return {key: _tensors_of(item) for key, item in value.items}
    if isinstance(value, tuple):
        return [_tensors_of(item) for item in value]
    return value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def _linear(layer_input: torch.Tensor, *_: Any, out_val: torch.Tensor, **__: Any) -> int:
    """`[..., k] x [n, k]`: 2 k per element of the output. The weight may be packed, so its shape is not read."""
    return 2 * out_val.numel() * layer_input.shape[-1]


def _dot(left: torch.Tensor, *_: Any, **__: Any) -> int:
    """`[n] x [n]`: 2 n. Also `[m, n] x [n]`: 2 m n."""
    return 2 * left.numel()


def _addmv(_bias: torch.Tensor, matrix: torch.Tensor, *_: Any, **__: Any) -> int:
    """`[m, n] x [n]`: 2 m n."""
    return 2 * matrix.numel()


def _grouped_mm(left: torch.Tensor, right: torch.Tensor, *_: Any, **__: Any) -> int:
    """Products of matching groups, given as a third dimension or as slices of a shared one.

    `[g, m, k] x [g, k, n]`: 2 g m k n. With one or both operands 2-d, `offs` cuts one shared dimension into the groups,
    whose lengths add up to it: 2 m k n with that dimension whole.
    """
    groups = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return 2 * groups * math.prod(left.shape[-2:]) * right.shape[-1]


def _convolution_backward(
    grad_out: torch.Tensor, layer_input: torch.Tensor, weight: torch.Tensor, *rest: Any, **__: Any
) -> int:
    """As many operations as the forward for each of the two gradients that is asked for.

    Replaces torch's formula, which leaves the groups out of the weight's gradient and so counts a depthwise one as many
    times as it has channels. `rest`: bias sizes, stride, padding, dilation, transposed, output padding, groups, mask.
    """
    is_transposed, mask = rest[4], rest[7]
    positions = (layer_input if is_transposed else grad_out).shape[2:]
    forward_flops = 2 * layer_input.shape[0] * math.prod(positions) * weight.numel()
    return forward_flops * (bool(mask[0]) + bool(mask[1]))


def _flex_attention(*args: Any, out_val: Any, **__: Any) -> int:
    """As plain attention: the block mask is data, which a trace does not have."""
    return int(flop_registry[getattr(torch.ops.aten, _FLASH)](*args[:3], out_val=out_val))


def _flex_attention_backward(
    query: Any, key: Any, value: Any, out: Any, _logsumexp: Any, grad_out: Any, *_: Any, out_val: Any, **__: Any
) -> int:
    """As plain attention's backward; `grad_out` may be None, then it has the shape of `out`."""
    formula = flop_registry[getattr(torch.ops.aten, f"{_FLASH}_backward")]
    return int(formula(out if grad_out is None else grad_out, query, key, value, out_val=out_val))


def _own_formulas() -> dict[Any, Formula]:
    """Our formulas by op, without the ops this build of torch lacks."""
    aten, higher_order, mkldnn = torch.ops.aten, torch.ops.higher_order, torch.ops.mkldnn
    entries: list[tuple[Any, str, Formula]] = [
        (aten, "linear", _linear),
        (aten, "mkldnn_linear", _linear),
        (mkldnn, "_linear_pointwise", _linear),
        (aten, "dot", _dot),
        (aten, "vdot", _dot),
        (aten, "mv", _dot),
        (aten, "addmv", _addmv),
        (aten, "_grouped_mm", _grouped_mm),
        (aten, "_scaled_grouped_mm", _grouped_mm),
        (aten, "_scaled_grouped_mm_v2", _grouped_mm),
        (aten, "convolution_backward", _convolution_backward),
        (higher_order, "flex_attention", _flex_attention),
        (higher_order, "flex_attention_backward", _flex_attention_backward),
    ]
    entries += [(aten, name, flop_registry[getattr(aten, same)]) for name, same in _SAME_FORMULA.items()]
    return {getattr(place, name): formula for place, name, formula in entries if hasattr(place, name)}


_OURS = _own_formulas()
