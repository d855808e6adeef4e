"""Facts about every value: bytes, storage, shape, side, and where the user wrote it.

In: a `JointProgram`. Out: `Facts`, plain records without torch objects. Never prices, never decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import fx

from .. import torch_compat
from ..declared import DeclaredOp
from ..solve.program import STRAIGHT, Addend, Kind, Way
from .addressing import PICKING, Addressing
from .capture import JointProgram, device_of
from .demands import find_asked_for, find_copied_views
from .joins import is_stored_whole
from .layouts import find_images, is_convolution, lays_out_images, relaid_bytes
from .operators import Called, Describer, block_bytes, round_up
from .origin import module_path, source_line
from .sizes import OpenSize, open_sizes, storage_bytes
from .sums import find_partial_sums


class ValueFacts(NamedTuple):
    """One value. A named tuple, since thousands are made while a user waits.

    `size_bytes` is its whole storage when it owns one, else 0; `view_bytes` what it shows of it; `workspace_bytes` is
    live beside inputs and result while it is computed; `access`, `addend`, `operations`, `constants` and `broadcasts`
    are as in `Program`; `is_copied`: a view of which Inductor makes a copy in each half (`find_copied_views`);
    `labels` are the user's names for it (`rematpass.name`).
    """

    name: str
    op: str
    kind: Kind
    inputs: tuple[int, ...]
    root: int
    size_bytes: int
    view_bytes: int
    shape: tuple[int, ...]
    dtype: str
    flops: int
    workspace_bytes: int
    is_heavy: bool
    is_drawn: bool
    is_summed: bool
    is_scattered: bool
    reads_often: bool
    access: tuple[int, ...]
    addend: Addend
    operations: int
    constants: tuple[int, ...]
    module: str
    source: str
    is_joined: bool = False
    is_copied: bool = False
    broadcasts: tuple[bool, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def is_view(self) -> bool:
        """Whether it shows another value, at any rate to those who do not read the copy."""
        return self.kind is Kind.VIEW or self.is_copied


@dataclass(frozen=True)
class Facts:
    """All values of a joint graph in order, and the bytes of the forward's inputs (distinct storages).

    `is_relaid`: images are laid out channels last; `relaid_bytes` are copies of inputs for that, held as long as the
    inputs; `open_sizes` dynamic dimensions that may become larger than what these figures stand for; `static_inputs`
    the values of parameters and buffers; `ways` what `ValueFacts.access` stands for, `cuts` as in
    `Program`.
    """

    values: tuple[ValueFacts, ...]
    static_bytes: int
    device_type: str
    ways: tuple[Way, ...] = (STRAIGHT,)
    cuts: tuple[int, ...] = ()
    is_relaid: bool = False
    relaid_bytes: int = 0
    open_sizes: tuple[OpenSize, ...] = ()
    static_inputs: tuple[int, ...] = ()

    def shown(self, i: int) -> int:
        """Whose elements value i has, itself or through views, copied or not."""
        root = self.values[i].root
        while self.values[root].is_copied:
            root = self.values[self.values[root].inputs[0]].root
        return root


def collect_facts(
    joint: JointProgram,
    declared: Mapping[str, DeclaredOp] = MappingProxyType({}),
    device_type: str | None = None,
    *,
    is_fusing: bool = False,
) -> Facts:
    """One `ValueFacts` per node of the joint graph, in order.

    Args:
        joint: the graph.
        declared: what users said of custom operators.
        device_type: of the device that will run it ("cpu", "cuda"); None for the one it was traced on.
        is_fusing: Inductor runs the halves, in layouts of its own.
    """
    device_type = device_type or device_of(joint.nodes)
    forward = [node for node, is_late in zip(joint.nodes, joint.is_backward, strict=True) if not is_late]
    is_relaid = is_fusing and lays_out_images(forward, device_type)
    describer = Describer(device_type, declared, is_relaid=is_relaid)
    addressing = Addressing(find_images(joint.nodes) if is_relaid else ())
    asked_for = find_asked_for(joint.nodes, device_type) if is_fusing else frozenset()
    copied = find_copied_views(joint.nodes, device_type) if is_fusing else frozenset()
    summed = find_partial_sums(joint) if is_fusing else frozenset()
    ids = {node: i for i, node in enumerate(joint.nodes)}
    values: list[ValueFacts] = []
    for i, node in enumerate(joint.nodes):
        operands = tuple(node.all_input_nodes)
        inputs = tuple([ids[u] for u in operands])
        called, key = describer.describe(node, operands)
        if node in copied:
            called = describer.as_copy(node, called)
        kind = called.kind
        if kind is Kind.PART and values[inputs[0]].kind is Kind.VIEW:
            kind = Kind.VIEW  # one of several views (split, unbind): no memory of its own
        is_joined = False
        if is_fusing and kind in (Kind.POINTWISE, Kind.REDUCTION):
            is_joined = called.parts > 0 and is_stored_whole(node, device_type)
            kind = _kind_when_fused(called, is_stored=node in asked_for or is_joined)
            if kind is not called.kind:  # its own function is done with where it is stored: readers have no share in it
                called = replace(called, operations=0, constants=())
        root = values[inputs[0]].root if kind is Kind.VIEW and inputs else i
        access = addressing.note(node, kind, operands, key)
        value = _value(node, called, kind, inputs, root, access, is_owner=i == root, is_summed=node in summed)
        broadcasts = _broadcasts(value, values)
        values.append(value._replace(is_joined=is_joined, is_copied=node in copied, broadcasts=broadcasts))
    convolutions = filter(is_convolution, forward if is_relaid else ())
    relaid = {node.args[0]: relaid_bytes(node) for node in convolutions}  # an image that several read is copied once
    return Facts(
        values=_labelled(joint, values),
        static_bytes=_static_bytes(joint, block_bytes(device_type)),
        device_type=device_type,
        ways=addressing.ways,
        cuts=addressing.cuts,
        is_relaid=is_relaid,
        relaid_bytes=sum(round_up(size, block_bytes(device_type)) for size in relaid.values()),
        open_sizes=open_sizes(node.meta.get("val") for node in joint.nodes),
        static_inputs=joint.static_inputs,
    )


def _broadcasts(value: ValueFacts, before: Sequence[ValueFacts]) -> tuple[bool, ...]:
    """Per input, whether its elements are repeated, by this value or by a view that it is read through.

    Source: `expand` in torch/_inductor/lowering.py (2.13), which each pointwise operator calls for what is smaller.
    """
    may_repeat = value.op == "expand" or (value.kind is Kind.POINTWISE and value.op not in PICKING)
    most = math.prod(value.shape) // 2 if may_repeat else 0
    inputs = [before[u] for u in value.inputs]
    return tuple([0 < math.prod(u.shape) <= most or (u.kind is Kind.VIEW and any(u.broadcasts)) for u in inputs])


def _labelled(joint: JointProgram, values: list[ValueFacts]) -> tuple[ValueFacts, ...]:
    """With the user's names, each at the value that is shown where the name was given."""
    facts = Facts(tuple(values), 0, "")
    for i, node in enumerate(joint.nodes):
        label = "" if joint.is_backward[i] else torch_compat.user_label(node)
        if label and values[i].is_view:
            shown = facts.shown(i)
            labels = dict.fromkeys((*values[shown].labels, label))
            values[shown] = values[shown]._replace(labels=tuple(labels))
    return tuple(values)


def _kind_when_fused(called: Called, *, is_stored: bool) -> Kind:
    """Of what Inductor writes itself, unless it is complex: torch is called then.

    Source: `fallback_node_due_to_unsupported_type`, 2.11 to 2.15.
    """
    if called.is_complex:
        return Kind.EXTERN
    return Kind.REDUCTION if is_stored else called.kind  # what is read may be fused into it, what it returns is stored


def _value(
    node: fx.Node,
    called: Called,
    kind: Kind,
    inputs: tuple[int, ...],
    root: int,
    access: tuple[int, ...],
    *,
    is_owner: bool,
    is_summed: bool,
) -> ValueFacts:
    return ValueFacts(
        name=node.name,
        op=called.op,
        kind=kind,
        inputs=inputs,
        root=root,
        size_bytes=called.view_bytes if is_owner else 0,
        view_bytes=called.view_bytes,
        shape=called.shape,
        dtype=called.dtype,
        flops=called.flops,
        workspace_bytes=called.workspace_bytes,
        is_heavy=called.is_heavy,
        is_drawn=called.is_drawn,
        is_summed=is_summed,
        is_scattered=called.is_scattered,
        reads_often=called.reads_often,
        access=access,
        addend=called.addend,
        operations=called.operations,
        constants=called.constants,
        module=module_path(node),
        source=source_line(node),
    )


def _static_bytes(joint: JointProgram, block: int) -> int:
    seen: dict[object, int] = {}
    for i, node in enumerate(joint.nodes):
        value = node.meta.get("val")
        if node.op == "placeholder" and not joint.is_backward[i] and isinstance(value, torch.Tensor):
            size = round_up(storage_bytes(value), block)
            key = torch_compat.storage_key(value)
            seen[key] = max(seen.get(key, 0), size)
    return sum(seen.values())
