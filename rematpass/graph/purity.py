"""Why an operator must not run again: it is random, has effects, or nobody knows.

In: one FX node, and what the user declared of custom operators. Out: a reason, or None. Never looks at the rest of the
graph, and never at the user's wishes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import cache

import torch
from torch import fx

from ..declared import TRITON, DeclaredOp
from ..torch_compat import HigherOrderOperator, OpOverload, triton_kernel_name
from .op_traits import base_name, inner_nodes, is_builtin, is_random, is_symbol

Declared = Mapping[str, DeclaredOp]

_COLLECTIVE_NAMESPACES = frozenset(("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d"))
# Higher-order operators that do what their inner graphs do, and nothing else.
_TRANSPARENT = frozenset(
    ("cond", "scan", "map_impl", "while_loop", "associative_scan", "invoke_subgraph", "wrap", "flex_attention")
)
_SEEDS = ("inductor_seed", "inductor_seeds")


def is_seed(node: fx.Node) -> bool:
    """Whether the node draws the few bytes from which Inductor's random numbers are made, again and again alike."""
    return node.op == "call_function" and base_name(node.target) in _SEEDS


def never_again_reason(node: fx.Node, declared: Declared) -> str | None:
    """Why this result must not be computed again, whatever anybody wishes; None where it may."""
    if node.op != "call_function" or is_symbol(node) or node.target is operator.getitem:
        return None
    target = node.target
    if isinstance(target, OpOverload):
        return _target_reason(target) or _custom_reason(target, declared) or _random_reason(node)
    return _higher_order_reason(node, declared) if isinstance(target, HigherOrderOperator) else None


def unknown_op(node: fx.Node, declared: Declared) -> str | None:
    """The name of a custom operator or kernel that nobody declared."""
    kernel = triton_kernel_name(node)
    if kernel is not None:
        name = f"{TRITON}::{kernel}"
    elif isinstance(node.target, OpOverload) and not is_builtin(node.target):
        name = str(node.target._schema.name)
    else:
        return None
    is_collective = name.partition("::")[0] in _COLLECTIVE_NAMESPACES
    return None if is_collective or name in declared else name


def _higher_order_reason(node: fx.Node, declared: Declared) -> str | None:
    name = base_name(node.target)
    kernel = triton_kernel_name(node)
    if kernel is not None:
        return _declared_reason(declared.get(f"{TRITON}::{kernel}"), f"the Triton kernel {kernel}")
    if name not in _TRANSPARENT:
        return f"{name} is a higher-order operator that may have effects"
    inside = (never_again_reason(inner, declared) for inner in inner_nodes(node))
    found = next((reason for reason in inside if reason is not None), None)
    return found and f"inside {name}: {found}"


def _declared_reason(declaration: DeclaredOp | None, what: str) -> str | None:
    if declaration is None:
        return f"{what} is custom and its purity is not known; say so with rematpass.register_op"
    if declaration.is_random:
        return f"{what} is random and would draw again"
    return None if declaration.is_pure else f"{what} is not declared pure"


def _custom_reason(target: OpOverload, declared: Declared) -> str | None:
    if is_builtin(target):
        return None
    name = str(target._schema.name)
    return _declared_reason(declared.get(name), name)


@cache
def _target_reason(target: OpOverload) -> str | None:
    """What the schema and the tags say."""
    if target.namespace in _COLLECTIVE_NAMESPACES:
        return "a collective must run as often on every rank"
    if target._schema.is_mutable:
        return f"{base_name(target)} writes to its input"
    if not is_builtin(target):
        return None
    tags = target.tags
    if torch.Tag.data_dependent_output in tags:
        return f"the result of {base_name(target)} leaves the graph"
    if torch.Tag.dynamic_output_shape in tags and base_name(target) != "index":
        return f"the shape of {base_name(target)} depends on data"
    return None


def _random_reason(node: fx.Node) -> str | None:
    target = node.target
    assert isinstance(target, OpOverload)
    if is_seed(node):
        return "random seed: the masks drawn from it are recomputed exactly"
    if not is_random(node) or _argument(node, "dropout_p") == 0:
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
