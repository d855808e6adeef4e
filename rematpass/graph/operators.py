"""What is known of an operator and what it is called with, whoever reads the result.

In: the nodes of a joint graph, in order. Out: `Called` per node, each kind of call looked at once. Never prices.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from ..declared import DeclaredOp
from ..solve.program import Addend, Kind
from .alike import Alike
from .flops import count_flops, tensors_in
from .joins import joined_parts
from .op_traits import (
    addend_of,
    base_name,
    constants_in,
    count_operations,
    is_drawn,
    is_heavy,
    is_index,
    is_scattered,
    kind_of,
    reads_often,
)
from .sizes import bytes_of, concrete, storage_bytes
from .tails import is_of_variance, tail_of
from .workspace import looks_around, workspace_bytes

# CUDA's caching allocator hands out multiples of 512 bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
CUDA_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class Called:
    """One call of an operator; as in `ValueFacts`.

    `kind` is how it executes by itself, `is_complex` whether a tensor that it reads or returns is, `parts` how many
    Inductor joins into its result.
    """

    op: str
    kind: Kind
    view_bytes: int
    shape: tuple[int, ...]
    dtype: str
    flops: int
    workspace_bytes: int
    is_heavy: bool
    is_drawn: bool
    is_scattered: bool
    reads_often: bool
    addend: Addend
    operations: int
    constants: tuple[int, ...]
    is_complex: bool
    parts: int


class Describer:
    """Describes nodes for one device, equal scalars by equal numbers.

    Args:
        device_type: of the device that will run them.
        declared: what users said of custom operators.
        is_relaid: images are laid out channels last.
    """

    def __init__(self, device_type: str, declared: Mapping[str, DeclaredOp], *, is_relaid: bool) -> None:
        self._device_type = device_type
        self._declared = declared
        self._is_relaid = is_relaid
        self._block = block_bytes(device_type)
        self._scalars: dict[str, int] = {}
        self._alike = Alike()
        self._known: dict[Hashable, Called] = {}

    def _number_of(self, constant: str) -> int:
        """As in `Program.constants`."""
        number = self._scalars.setdefault(constant, len(self._scalars))
        return -1 - number if is_index(constant) else number

    def describe(self, node: fx.Node, operands: Sequence[fx.Node]) -> tuple[Called, Hashable | None]:
        """What is known of the next node in order, and its key if others may be like it (`Alike`)."""
        key = self._alike.note(node, operands)
        if key is None or looks_around(node) or is_of_variance(node):
            return self._look_at(node), None
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._look_at(node)
        return found, key

    def as_copy(self, view: fx.Node, called: Called) -> Called:
        """Of a view that is copied: a loop of its own, whose result is stored."""
        size = round_up(bytes_of(view.meta["val"]), self._block)
        return replace(called, kind=Kind.REDUCTION, view_bytes=size, operations=0, constants=())

    def _look_at(self, node: fx.Node) -> Called:
        value, device_type, is_call = node.meta.get("val"), self._device_type, node.op == "call_function"
        tensor = value if isinstance(value, torch.Tensor) else None
        first = next(tensors_in(value), None)
        kind = kind_of(node)
        parts = joined_parts(node, device_type)
        if kind in (Kind.REDUCTION, Kind.PART):
            steps, constants = tail_of(node, device_type)
        else:
            steps, constants = count_operations(node, parts), constants_in(node, device_type)
        return Called(
            op=base_name(node.target) if is_call else node.op,
            kind=kind,
            view_bytes=round_up(storage_bytes(tensor), self._block) if tensor is not None else 0,
            shape=tuple(concrete(s) for s in tensor.shape) if tensor is not None else (),
            dtype=str(first.dtype).removeprefix("torch.") if first is not None else "",
            flops=count_flops(node, self._declared) if is_call else 0,
            workspace_bytes=self._scratch_bytes(node, kind),
            is_heavy=device_type == "cpu" and is_heavy(node),
            is_drawn=is_drawn(node),
            is_scattered=is_scattered(node),
            reads_often=reads_often(node),
            addend=addend_of(node, device_type),
            operations=steps,
            constants=tuple(map(self._number_of, constants)),
            is_complex=_is_complex(node),
            parts=parts,
        )

    def _scratch_bytes(self, node: fx.Node, kind: Kind) -> int:
        """Scratch of the op, and everything a multi-result op returns: its parts are counted one by one after it."""
        value = node.meta.get("val")
        parts = value if isinstance(value, (tuple, list)) and kind is not Kind.VIEW else ()
        returned = sum(round_up(storage_bytes(t), self._block) for t in parts if isinstance(t, torch.Tensor))
        return returned + workspace_bytes(node, self._device_type, is_relaid=self._is_relaid)


def _is_complex(node: fx.Node) -> bool:
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return any(tensor.dtype.is_complex for value in values for tensor in tensors_in(value))


def block_bytes(device_type: str) -> int:
    """What the device's allocator hands out a multiple of."""
    return CUDA_BLOCK_BYTES if device_type == "cuda" else 1


def round_up(size: int, block: int) -> int:
    """The next multiple of `block`."""
    return -(-size // block) * block
