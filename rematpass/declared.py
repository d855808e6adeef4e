"""What users say of operators that torch says nothing reliable about.

In: `register_op` calls. Out: `DeclaredOp` records, read once per compilation into the settings. Never looks at a graph.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .errors import OptionError

# Described by torch itself.
BUILTIN_NAMESPACES = frozenset(("aten", "prims", "inductor", "quantized_decomposed", "quantized", "mkldnn"))
TRITON = "triton"


@dataclass(frozen=True)
class DeclaredOp:
    """One declaration. `name` is "namespace::operator", or "triton::kernel"."""

    name: str
    is_pure: bool
    is_random: bool
    flops: Callable[..., int] | None

    @property
    def fingerprint(self) -> str:
        """Equal for equal declarations in any process; a formula counts by its code."""
        code = getattr(self.flops, "__code__", None)
        formula = (code.co_code.hex(), repr(code.co_consts), code.co_names) if code else repr(self.flops is None)
        return hashlib.sha256(repr((self.name, self.is_pure, self.is_random, formula)).encode()).hexdigest()

    def __getstate__(self) -> dict[str, object]:
        """For cache keys, which pickle us: a formula need not be picklable, its fingerprint stands for it."""
        return {**self.__dict__, "flops": None, "formula": self.fingerprint}

    def __deepcopy__(self, memo: object) -> DeclaredOp:
        return self


_DECLARED: dict[str, DeclaredOp] = {}


def register_op(
    op: object, *, is_pure: bool = False, is_random: bool = False, flops: Callable[..., int] | None = None
) -> None:
    """Say what a custom operator or Triton kernel is like, so that it can be planned as torch's own operators are.

    Without a declaration a custom operator is never computed again: its results are kept, and the plan says so.

    Args:
        op: "namespace::operator", the operator (`torch.ops.namespace.operator`, with or without overload), what
            `torch.library.custom_op` returned, or a Triton kernel (a function under `triton.jit`).
        is_pure: equal inputs give equal results, nothing else happens: it may be computed again.
        is_random: it draws random numbers: never computed again, and said to be so.
        flops: floating-point operations of one call; gets the operator's arguments, tensors without data.

    A later declaration of the same operator takes the place of the earlier one. Graphs that were compiled before keep
    their plans.

    Raises:
        OptionError: no such operator, one of torch's own, one that writes to its inputs and is said to be pure, or pure
            and random at once.

    Example:
        >>> import torch, rematpass
        >>> @torch.library.custom_op("rematpass_doc::twice", mutates_args=())
        ... def twice(x: torch.Tensor) -> torch.Tensor:
        ...     return x * 2
        >>> rematpass.register_op(twice, is_pure=True, flops=lambda x: x.numel())
    """
    name = _name_of(op)
    for label, value in (("is_pure", is_pure), ("is_random", is_random)):
        if not isinstance(value, bool):
            raise OptionError(f"register_op({name!r}): {label} is {value!r}; it must be True or False")
    if is_pure and is_random:
        raise OptionError(f"register_op({name!r}): an operator that draws random numbers is not pure. Try: one of both")
    if flops is not None and not callable(flops):
        raise OptionError(f"register_op({name!r}): flops is {flops!r}; it must be a function of the arguments")
    if is_pure and _writes(name):
        raise OptionError(f"register_op({name!r}): it writes to its inputs, so it is not pure. Try: without is_pure")
    _DECLARED[name] = DeclaredOp(name, is_pure, is_random, flops)


def declared_ops() -> tuple[DeclaredOp, ...]:
    """All declarations, by name."""
    return tuple(_DECLARED[name] for name in sorted(_DECLARED))


def _name_of(op: object) -> str:
    kernel = getattr(op, "fn", None)
    if not isinstance(op, str) and callable(kernel) and not hasattr(op, "_qualname"):
        return f"{TRITON}::{kernel_name(op)}"
    name = op if isinstance(op, str) else _qualified(op)
    namespace, _, operator = name.partition("::")
    if not operator:
        raise OptionError(f"register_op({op!r}): this names no operator. Try: 'namespace::operator'")
    if namespace in BUILTIN_NAMESPACES:
        raise OptionError(f"register_op({name!r}): torch's own operators need no declaration. Try: a custom operator")
    if namespace != TRITON and not _overloads(name):
        raise OptionError(f"register_op({name!r}): no such operator.{_nearest(name)} Try: import its module first")
    return name


def kernel_name(kernel: object) -> str:
    """The name of a Triton kernel, below autotuners and heuristics."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", kernel))


def _qualified(op: Any) -> str:
    for attribute in ("_qualified_op_name", "_qualname"):
        if isinstance(getattr(op, attribute, None), str):
            return str(getattr(op, attribute))
    schema = getattr(op, "_schema", None)
    if schema is None:
        raise OptionError(f"register_op({op!r}): this is no operator. Try: 'namespace::operator'")
    return str(schema.name)


def _overloads(name: str) -> list[Any]:
    namespace, _, operator = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    return [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []


def _writes(name: str) -> bool:
    return not name.startswith(f"{TRITON}::") and any(o._schema.is_mutable for o in _overloads(name))


def _nearest(name: str) -> str:
    namespace = name.partition("::")[0]
    known = [f"{namespace}::{operator}" for operator in dir(getattr(torch.ops, namespace))]
    near = difflib.get_close_matches(name, known, n=3)
    return f" Nearest: {', '.join(near)}." if near else ""
