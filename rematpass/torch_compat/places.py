"""Places in memory that generated kernels share, as the plan has them.

In: Inductor's lowering and code generation, 2.11 to 2.15. Out: the same with other choices of place. Never changes what
is computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from .scheduled import made_inside

# Dimensions of a batch of images.
IMAGE_RANK = 4


@contextlib.contextmanager
def stored_places_first() -> Iterator[None]:
    """Inside, a kernel writes over what is in memory if it can, only then over what it makes for itself.

    By itself Inductor (2.11-2.15, `decide_inplace_update`) takes the first of what a result reads, in the order of its
    loads: often random numbers of the same kernel, which are not in memory at all, so what else is read there for the
    last time stays. Attention with dropout took up to 15 % more, and a perceptron with dropout 9 %. Of what the kernel
    makes for itself it writes over what lies in the place of something in memory first: the probabilities of a DeBERTa,
    which lie in that of the scores, before the random numbers they are multiplied with; its smallest plan took 11 %
    more.
    """
    from torch._inductor.scheduler import BaseSchedulerNode

    node: Any = BaseSchedulerNode
    original = node.decide_inplace_update

    def decide(self: Any) -> None:
        reads = self.read_writes.reads
        own = made_inside(self.scheduler.get_fused_node(self))
        self.read_writes.reads = type(reads)(sorted(reads, key=lambda dep: _first_in_place(dep.name) in own))
        try:
            original(self)
        finally:
            self.read_writes.reads = reads

    node.decide_inplace_update = decide
    try:
        yield
    finally:
        node.decide_inplace_update = original


@contextlib.contextmanager
def parts_in_place() -> Iterator[None]:
    """Inside, what is concatenated and read elsewhere, too, is no part of the whole (`ConcatKernel`, 2.11-2.15).

    By itself Inductor has each part written into the whole, for all its readers. What is in memory before has the whole
    allocated as early; what other readers could compute again lets the whole live as long as they do. Hidden states of
    an unrolled recurrent loop, each with the input of a step, took 4 % more than planned for the one, 2 % for the
    other. Here the one stays where it is, and is copied; of the other the whole has a computation of its own.
    """
    from torch._inductor.ir import Buffer, ConcatKernel

    kernel: Any = ConcatKernel
    create, may_move = kernel.create, kernel.can_realize_into_without_copy
    originals = {name: vars(kernel)[name] for name in ("create", "can_realize_into_without_copy")}
    there: list[Any] = []

    def create_in_place(inputs: Any, dim: int) -> Any:
        boxes = [_storage_box(part) for part in inputs]
        there[:] = [box for box in boxes if box is not None and isinstance(box.data, Buffer)]
        try:
            return create([*map(_computed_apart, inputs)], dim)
        finally:
            there.clear()

    def may_move_late(source: Any, *whole: Any) -> bool:
        box = _storage_box(source)
        return all(box is not other for other in there) and bool(may_move(source, *whole))

    kernel.create, kernel.can_realize_into_without_copy = create_in_place, may_move_late
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(kernel, name, original)


@contextlib.contextmanager
def images_as_read() -> Iterator[None]:
    """Inside, what is made of images lies as these do, whatever is read of it row by row or channel by channel.

    By itself Inductor (2.11-2.15, `ComputedBuffer.get_fill_order`) lets all that is read vote, however small, and where
    a sum is what first asks, takes images that are not laid out yet for rows. What a gate's gradient is made of then
    lay in rows, so it could not take the place of an image that lay channels last: a small network with squeeze and
    excitation took 16 to 29 % more than planned.
    """
    from torch._inductor.dependencies import MemoryDep
    from torch._inductor.ir import ComputedBuffer
    from torch._inductor.virtualized import V

    kernel: Any = ComputedBuffer
    original = kernel.get_fill_order

    def fill_order(self: Any) -> Any:
        if len(self.get_size()) != IMAGE_RANK:
            return original(self)
        for source in map(V.graph.name_to_buffer.get, self.get_read_names()):
            if isinstance(source, ComputedBuffer):
                source.decide_layout()
        reads = [dep for dep in self.get_read_writes().reads if isinstance(dep, MemoryDep)]
        whole = [dep for dep in reads if dep.index.free_symbols.issuperset(dep.ranges)]
        self.get_read_writes = lambda: SimpleNamespace(reads=whole or reads)
        try:
            return original(self)
        finally:
            del self.get_read_writes

    kernel.get_fill_order = fill_order
    try:
        yield
    finally:
        kernel.get_fill_order = original


def _first_in_place(name: str) -> str:
    """What lay first where the kernel that is being generated has `name` lie."""
    from torch._inductor.codegen.common import InplacedBuffer
    from torch._inductor.virtualized import V

    arguments = getattr(V.kernel, "args", None)  # none where nothing is generated
    place = arguments.inplace_buffers.get(name) if arguments is not None else None
    return place.other_names[0] if isinstance(place, InplacedBuffer) else name


def _storage_box(tensor: Any) -> Any:
    """What holds the buffer or the function of a tensor; None of a view."""
    from torch._inductor.ir import StorageBox, TensorBox

    box = tensor.data if isinstance(tensor, TensorBox) else tensor
    return box if isinstance(box, StorageBox) else None


def _computed_apart(part: Any) -> Any:
    """The same function in a box of its own, where nothing is in memory yet."""
    from torch._inductor.ir import Pointwise

    box = _storage_box(part)
    if box is None or not isinstance(box.data, Pointwise):
        return part
    function = box.data
    return Pointwise.create(
        device=function.get_device(),
        dtype=function.get_dtype(),
        inner_fn=function.make_loader(),
        ranges=function.get_size(),
    )
