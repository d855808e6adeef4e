"""Facts about every value: bytes, storage, shape, side, and where the user wrote it.

In: a `JointProgram`. Out: `Facts`, plain records without torch objects. Never prices, never decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import torch
from torch import fx

from .. import torch_compat
from ..declared import DeclaredOp
from ..solve.program import STRAIGHT, Addend, Kind, Way
from .addressing import Addressing
from .capture import JointProgram, device_of
from .demands import is_asked_for
from .flops import count_flops, tensors_in
from .joins import is_stored_whole, joined_parts
from .layouts import find_images, is_convolution, lays_out_images, relaid_bytes
from .op_traits import (
    addend_of,
    base_name,
    constants_in,
    count_operations,
    is_drawn,
    is_heavy,
    is_scattered,
    kind_of,
    reads_often,
)
from .sizes import OpenSize, concrete, open_sizes
from .workspace import workspace_bytes

# CUDA's caching allocator hands out multiples of 512 bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
CUDA_BLOCK_BYTES = 512
# Paths and stack traces that many nodes share, remembered. Graphs of 15,000 nodes have some 3,000 (2026-11).
CACHED_TEXTS = 8192


@dataclass(frozen=True, slots=True)
class ValueFacts:
    """One value.

    `size_bytes` is its whole storage when it owns one, else 0; `view_bytes` what it shows of it; `workspace_bytes` is
    live beside inputs and result while it is computed; `access`, `addend`, `operations` and `constants` are as in
    `Program`; `labels` are the user's names for it (`rematpass.name`).
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
    is_scattered: bool
    reads_often: bool
    access: tuple[int, ...]
    addend: Addend
    operations: int
    constants: tuple[int, ...]
    module: str
    source: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """All values of a joint graph in order, and the bytes of the forward's inputs (distinct storages).

    `is_relaid`: images are laid out channels last; `relaid_bytes` are copies of inputs for that, held as long as the
    inputs; `open_sizes` dynamic dimensions that may become larger than what these figures stand for; `static_inputs`
    the values of parameters and buffers; `ways` what `ValueFacts.access` stands for.
    """

    values: tuple[ValueFacts, ...]
    static_bytes: int
    device_type: str
    ways: tuple[Way, ...] = (STRAIGHT,)
    is_relaid: bool = False
    relaid_bytes: int = 0
    open_sizes: tuple[OpenSize, ...] = ()
    static_inputs: tuple[int, ...] = ()


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
    ids = {node: i for i, node in enumerate(joint.nodes)}
    device_type = device_type or device_of(joint.nodes)
    forward = [node for node, is_late in zip(joint.nodes, joint.is_backward, strict=True) if not is_late]
    is_relaid = is_fusing and lays_out_images(forward, device_type)
    values: list[ValueFacts] = []
    addressing = Addressing(find_images(joint.nodes) if is_relaid else ())
    describer = _Describer(device_type, declared, is_relaid)
    for i, node in enumerate(joint.nodes):
        operands = tuple(dict.fromkeys(node.all_input_nodes))
        inputs = tuple(ids[u] for u in operands)
        kind = kind_of(node)
        if kind is Kind.PART and values[inputs[0]].kind is Kind.VIEW:
            kind = Kind.VIEW  # one of several views (split, unbind): no memory of its own
        if is_fusing and kind is Kind.POINTWISE and _is_stored(node, device_type):
            kind = Kind.REDUCTION  # what is read may be fused into it, what it returns is stored
        if is_fusing and kind in (Kind.POINTWISE, Kind.REDUCTION) and _is_complex(node):
            kind = Kind.EXTERN
        root = values[inputs[0]].root if kind is Kind.VIEW and inputs else i
        read = _Read(kind, inputs, root, addressing.note(node, kind, operands))
        values.append(describer.describe(node, read, is_owner=i == root))
    for i, node in enumerate(joint.nodes):
        label = "" if joint.is_backward[i] else torch_compat.user_label(node)
        if label and values[i].kind is Kind.VIEW:
            owner = values[values[i].root]
            values[values[i].root] = replace(owner, labels=tuple(dict.fromkeys((*owner.labels, label))))
    convolutions = filter(is_convolution, forward if is_relaid else ())
    relaid = {node.args[0]: relaid_bytes(node) for node in convolutions}  # an image that several read is copied once
    return Facts(
        values=tuple(values),
        static_bytes=_static_bytes(joint, _block_bytes(device_type)),
        device_type=device_type,
        ways=addressing.ways,
        is_relaid=is_relaid,
        relaid_bytes=sum(_round_up(size, _block_bytes(device_type)) for size in relaid.values()),
        open_sizes=open_sizes(node.meta.get("val") for node in joint.nodes),
        static_inputs=joint.static_inputs,
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """How a node stands to those before it; as in `ValueFacts`."""

    kind: Kind
    inputs: tuple[int, ...]
    root: int
    access: tuple[int, ...]


class _Describer:
    """Describes nodes for one device, equal scalars by equal numbers."""

    def __init__(self, device_type: str, declared: Mapping[str, DeclaredOp], is_relaid: bool) -> None:
        self._device_type = device_type
        self._declared = declared
        self._is_relaid = is_relaid
        self._block = _block_bytes(device_type)
        self._scalars: dict[str, int] = {}

    def describe(self, node: fx.Node, read: _Read, *, is_owner: bool) -> ValueFacts:
        """All that is known of a node."""
        value, device_type, is_call = node.meta.get("val"), self._device_type, node.op == "call_function"
        tensor = value if isinstance(value, torch.Tensor) else None
        first = next(tensors_in(value), None)
        size = _round_up(storage_bytes(tensor), self._block) if tensor is not None else 0
        return ValueFacts(
            name=node.name,
            op=base_name(node.target) if is_call else node.op,
            kind=read.kind,
            inputs=read.inputs,
            root=read.root,
            size_bytes=size if is_owner else 0,
            view_bytes=size,
            shape=tuple(concrete(s) for s in tensor.shape) if tensor is not None else (),
            dtype=str(first.dtype).removeprefix("torch.") if first is not None else "",
            flops=count_flops(node, self._declared) if is_call else 0,
            workspace_bytes=self._scratch_bytes(node, read.kind),
            is_heavy=device_type == "cpu" and is_heavy(node),
            is_drawn=is_drawn(node),
            is_scattered=is_scattered(node),
            reads_often=reads_often(node),
            access=read.access,
            addend=addend_of(node, device_type),
            operations=count_operations(node, joined_parts(node, device_type)),
            constants=tuple(self._scalars.setdefault(c, len(self._scalars)) for c in constants_in(node)),
            module=module_path(node),
            source=source_line(node),
        )

    def _scratch_bytes(self, node: fx.Node, kind: Kind) -> int:
        """Scratch of the op, and everything a multi-result op returns: its parts are counted one by one after it."""
        value = node.meta.get("val")
        parts = value if isinstance(value, (tuple, list)) and kind is not Kind.VIEW else ()
        returned = sum(_round_up(storage_bytes(t), self._block) for t in parts if isinstance(t, torch.Tensor))
        return returned + workspace_bytes(node, self._device_type, is_relaid=self._is_relaid)


def _is_stored(node: fx.Node, device_type: str) -> bool:
    return is_asked_for(node, device_type) or is_stored_whole(node, device_type)


def _is_complex(node: fx.Node) -> bool:
    """Whether a tensor of it is: Inductor (`fallback_node_due_to_unsupported_type`, 2.11 to 2.15) calls torch then."""
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return any(tensor.dtype.is_complex for value in values for tensor in tensors_in(value))


def _block_bytes(device_type: str) -> int:
    return CUDA_BLOCK_BYTES if device_type == "cuda" else 1


def storage_bytes(value: torch.Tensor) -> int:
    """Bytes a tensor of this shape and stride occupies: the span of its elements, not their number."""
    if value.layout is not torch.strided:
        return sum(concrete(s) for s in value.shape) * value.element_size()
    span = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        if concrete(size) == 0:
            return 0
        span += (concrete(size) - 1) * concrete(stride)
    return span * value.element_size()


def _round_up(size: int, block: int) -> int:
    return -(-size // block) * block


def _static_bytes(joint: JointProgram, block: int) -> int:
    seen: dict[object, int] = {}
    for i, node in enumerate(joint.nodes):
        value = node.meta.get("val")
        if node.op == "placeholder" and not joint.is_backward[i] and isinstance(value, torch.Tensor):
            size = _round_up(storage_bytes(value), block)
            key = torch_compat.storage_key(value)
            seen[key] = max(seen.get(key, 0), size)
    return sum(seen.values())


_INDEX = re.compile(r"\['?([^\]']+)'?\]")


def module_path(node: fx.Node) -> str:
    """Path of the innermost module that ran the op, as in `model.named_modules()`; "" for the root or none."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    return _without_locals(str(next(reversed(stack.values()))[0]))


@lru_cache(maxsize=CACHED_TEXTS)
def _without_locals(path: str) -> str:
    path = path.removeprefix("L['self']").removeprefix("L['fn']").removeprefix("L['model']")
    path = _INDEX.sub(r".\1", path).replace("._modules.", ".").replace("._modules", "")
    return path.strip(".")


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')


def source_line(node: fx.Node) -> str:
    """`file.py:12 x = f(x)` of the innermost frame of the user's code, "" when unknown."""
    trace = node.meta.get("stack_trace")
    return _innermost_line(trace) if trace else ""


@lru_cache(maxsize=CACHED_TEXTS)
def _innermost_line(trace: str) -> str:
    frames = _FRAME.findall(trace)
    if not frames:
        return ""
    file, line, _, code = frames[-1]
    return f"{file.rsplit('/', 1)[-1]}:{line} {code.strip()}"
