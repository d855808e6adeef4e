"""How the bytes of every value come about: what is counted before anything is rounded.

In: a `JointProgram` and its `Facts`. Out: `SizeParts`, whose sums are the bytes that the facts have. Never decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from .. import torch_compat
from ..formula.pieces import Part
from ..solve.program import Kind
from .capture import JointProgram
from .facts import Facts
from .operators import CUDA_BLOCK_BYTES
from .sizes import bytes_of, storage_bytes
from .workspace import workspace_parts

Parts = tuple[Part, ...]


@dataclass(frozen=True)
class SizeParts:
    """Bytes before rounding.

    Attributes:
        storage: per value, of the storage that it owns.
        scratch: per value, of what is there while it is computed.
        static: of each input of the forward, with its name; inputs that share memory count once.
    """

    storage: tuple[Parts, ...]
    scratch: tuple[Parts, ...]
    static: tuple[tuple[str, Part], ...]


def describe_parts(joint: JointProgram, facts: Facts) -> SizeParts:
    """The parts of every size in `facts`."""
    block = CUDA_BLOCK_BYTES if facts.device_type == "cuda" else 1
    storage: list[Parts] = []
    scratch: list[Parts] = []
    for i, (node, value) in enumerate(zip(joint.nodes, facts.values, strict=True)):
        tensor = node.meta.get("val")
        is_owner = value.root == i
        if is_owner and isinstance(tensor, torch.Tensor):
            storage.append((_stored(tensor, block, is_copied=value.is_copied),))
        else:
            storage.append(())
        returned = _returned(node, value.kind, block)
        scratch.append((*returned, *workspace_parts(node, facts.device_type, is_relaid=facts.is_relaid)))
    static = _static(joint, block)
    if facts.relaid_bytes:
        static.append(("batch, laid out channels last", Part("round_up", (1, facts.relaid_bytes, 1))))
    return SizeParts(tuple(storage), tuple(scratch), tuple(static))


def _stored(tensor: torch.Tensor, block: int, *, is_copied: bool = False) -> Part:
    return Part("round_up", (1, bytes_of(tensor) if is_copied else storage_bytes(tensor), block))


def _returned(node: fx.Node, kind: Kind, block: int) -> Parts:
    """Everything that an op of several results returns; its parts are counted one by one after it ran."""
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) and kind is not Kind.VIEW else ()
    return tuple(_stored(t, block) for t in parts if isinstance(t, torch.Tensor))


def _static(joint: JointProgram, block: int) -> list[tuple[str, Part]]:
    largest: dict[object, tuple[str, Part]] = {}
    for i, node in enumerate(joint.nodes):
        value = node.meta.get("val")
        if node.op != "placeholder" or joint.is_backward[i] or not isinstance(value, torch.Tensor):
            continue
        key, part = torch_compat.storage_key(value), _stored(value, block)
        if key not in largest or largest[key][1].bytes < part.bytes:
            largest[key] = (node.name, part)
    return list(largest.values())
