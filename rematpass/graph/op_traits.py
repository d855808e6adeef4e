"""What an operator is like, read from its schema, tags and arguments.

In: one FX node. Out: its `Kind` and the reason, if any, why its result must not be computed again.
Never looks at the rest of the graph.
"""

from __future__ import annotations

import operator
from functools import cache

import torch
from torch import fx

from ..solve.program import Kind
from ..torch_compat import HigherOrderOperator, OpOverload, user_policy
from .flops import words

# Operators that Inductor computes inside their readers though torch does not tag them pointwise (lowering.py, 2.13).
_POINTWISE = words(
    "arange cat clone constant_pad_nd convert_element_type copy embedding empty empty_like empty_strided eye",
    "fill flip full full_like gather index index_select inductor_lookup_seed inductor_random inductor_randint",
    "iota lift_fresh_copy masked_fill new_empty new_empty_strided new_full new_ones new_zeros ones ones_like",
    "repeat roll scalar_tensor select_scatter slice_scatter _to_copy tril triu _unsafe_index",
    "_unsafe_masked_index upsample_nearest2d zeros zeros_like reflection_pad2d replication_pad2d",
    "pixel_shuffle fmod remainder",
)
# Reductions of torch versions that lack the tag, and scatters: inputs may be fused, the result is stored.
_REDUCTION = words(
    "all amax amin any argmax argmin avg_pool2d avg_pool2d_backward cumprod cumsum embedding_dense_backward",
    "index_put logcumsumexp max_pool2d_with_indices_backward _low_memory_max_pool_with_offsets",
    "_low_memory_max_pool_offsets_to_indices mean min max norm prod scatter scatter_add scatter_reduce std",
    "sum var var_mean _unsafe_index_put _softmax _log_softmax adaptive_avg_pool2d _adaptive_avg_pool2d",
)
_VIEW = frozenset(("_unsafe_view", "reshape"))
# A rounding difference in their input may flip their result.
_DISCRETE = words(
    "argmax argmin argsort bucketize histc kthvalue median mode msort multinomial nonzero round searchsorted",
    "sort topk unique unique2 _unique2 unique_consecutive unique_dim",
)
_HEAVY = words(
    "exp sigmoid tanh erf log sin cos pow expm1 log1p gelu rsqrt atan2 lgamma digamma",
)
# Namespaces whose operators are described truthfully by schema and tags.
_KNOWN_NAMESPACES = frozenset(("aten", "prims", "inductor", "quantized_decomposed", "quantized", "mkldnn"))
_COLLECTIVE_NAMESPACES = frozenset(("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d"))


@cache
def base_name(target: object) -> str:
    """`aten.mm.default` -> `mm`; higher-order operators and functions give their own name."""
    if isinstance(target, OpOverload):
        return str(target.overloadpacket.__name__)
    return str(getattr(target, "__name__", target))


def is_builtin(target: OpOverload) -> bool:
    """Whether schema and tags describe the operator truthfully: torch's own do, a custom one need not."""
    return target.namespace in _KNOWN_NAMESPACES


def is_symbol(node: fx.Node) -> bool:
    """Whether the node's value is a symbolic scalar, which costs no memory."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def kind_of(node: fx.Node) -> Kind:
    """How the node executes, see `Kind`."""
    if node.op in ("placeholder", "get_attr"):
        return Kind.SYMBOL if is_symbol(node) else Kind.INPUT
    if is_symbol(node):
        return Kind.SYMBOL
    if node.target is operator.getitem:
        return Kind.PART
    return _kind_of_target(node.target)


@cache
def _kind_of_target(target: object) -> Kind:
    if not isinstance(target, OpOverload):
        return Kind.EXTERN
    name = base_name(target)
    returns_alias = any(r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns)
    if name in _VIEW or (returns_alias and len(target._schema.returns) == 1):
        return Kind.VIEW
    if name in _POINTWISE or torch.Tag.pointwise in target.tags:
        return Kind.POINTWISE
    if name in _REDUCTION or getattr(torch.Tag, "reduction", None) in target.tags:
        return Kind.REDUCTION
    return Kind.EXTERN


def is_heavy(node: fx.Node) -> bool:
    """A transcendental function: Inductor on CPU stores it when it has several readers."""
    return base_name(node.target) in _HEAVY


def never_recompute_reason(node: fx.Node) -> str | None:
    """Why this result must not be computed again, or None. User policies come first, then safety."""
    if node.op != "call_function" or is_symbol(node) or node.target is operator.getitem:
        return None
    policy = user_policy(node)
    if policy == "MUST_SAVE":
        return "your checkpoint policy says MUST_SAVE"
    if isinstance(node.target, HigherOrderOperator):
        return _higher_order_reason(node)
    if not isinstance(node.target, OpOverload):
        return None
    return _target_reason(node.target) or _random_reason(node)


def _higher_order_reason(node: fx.Node) -> str | None:
    name = base_name(node.target)
    if name in ("flex_attention", "flex_attention_backward"):
        return None
    return f"{name} is a higher-order operator whose body may have effects"


@cache
def _target_reason(target: OpOverload) -> str | None:
    name, tags = base_name(target), target.tags
    if target.namespace in _COLLECTIVE_NAMESPACES:
        return "a collective must run as often on every rank"
    if target._schema.is_mutable:
        return f"{name} writes to its input"
    if not is_builtin(target):
        return f"{target.namespace}::{name} is a custom operator whose purity is not known"
    if name in _DISCRETE:
        return f"{name} is a discrete choice that rounding could flip"
    if torch.Tag.data_dependent_output in tags or (torch.Tag.dynamic_output_shape in tags and name != "index"):
        return f"the shape of {name} depends on data"
    return None


def _random_reason(node: fx.Node) -> str | None:
    target = node.target
    if base_name(target) in ("inductor_seed", "inductor_seeds"):
        return "random seed: the masks drawn from it are recomputed exactly"
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return None
    dropout = _argument(node, "dropout_p")
    if dropout is not None and dropout == 0:
        return None
    return f"{base_name(target)} is random and would draw again"


def _argument(node: fx.Node, name: str) -> object:
    """The value of the argument `name`, its schema default, or None when the operator has no such argument."""
    target = node.target
    assert isinstance(target, OpOverload)
    for position, argument in enumerate(target._schema.arguments):
        if argument.name == name:
            positional = node.args[position] if position < len(node.args) else argument.default_value
            return node.kwargs.get(name, positional)
    return None
