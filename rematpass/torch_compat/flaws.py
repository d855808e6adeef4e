"""Flaws of Inductor that change what is computed, mended while we compile.

In: Inductor's code generation, 2.11 to 2.15. Out: the same without three known flaws. Never changes what is right.
Which kernels meet them hangs on what is recomputed where, so a budget could make gradients wrong that are right without
us.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def flaws_mended() -> Iterator[None]:
    """Inside, compiled kernels are free of what is described below."""
    from torch._inductor.codegen.cpp import CppKernelProxy, CppTile2DKernel
    from torch._inductor.scheduler import MixOrderReduction

    with contextlib.ExitStack() as stack:
        stack.enter_context(_wrapped(CppTile2DKernel, "store", _store_with_one_offset))
        stack.enter_context(_wrapped(CppKernelProxy, "aggregate_reduction_buffers", _aggregate_by_tiled_loops))
        stack.enter_context(_wrapped(MixOrderReduction, "can_fuse", _fuse_what_owns_its_place))
        yield


@contextlib.contextmanager
def _wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, the method is what `wrap` makes of it."""
    original = vars(owner)[name]
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _store_with_one_offset(original: Callable[..., None]) -> Callable[..., None]:
    """Sums that several threads scatter, in C++ kernels that go through tiles, are added where they belong.

    By itself Inductor counts the offset within a tile twice: it adds to other elements, also beyond the end of the
    tensor (pytorch/pytorch#191837; 2.13 has it). The gradients of a U-Net with most of it recomputed ended in an abort.
    The method below works the offset out by itself, and did so before the caller added it, too.
    """
    from torch._inductor import config
    from torch._inductor.codegen.cpp import CppVecKernel

    vec_kernel: Any = CppVecKernel

    def store(self: Any, name: str, index: Any, value: Any, mode: str | None = None) -> None:
        is_shared = mode == "atomic_add" and (config.cpp.dynamic_threads or self.num_threads != 1)
        if is_shared and not self.need_vec_transpose(self.rename_indexing(index)):
            vec_kernel.store(self, name, index, value, mode)
        else:
            original(self, name, index, value, mode)

    return store


def _aggregate_by_tiled_loops(original: Callable[..., None]) -> Callable[..., None]:
    """Reductions in C++ kernels that go through tiles write no more at the end of a row than the row has left.

    By itself Inductor asks whether the loop after the first tiled one reduces, not whether the second tiled one does.
    With a loop between the two, the last tile is written in full, over the next row or beyond the end of the tensor
    (pytorch/pytorch#196681; 2.13 has it).
    """
    from torch._inductor.codegen.cpp import CppTile2DKernel

    def aggregate(self: Any, is_inner_reduction: bool, outer_loop: Any) -> None:
        main = self.kernels[0]
        if isinstance(main, CppTile2DKernel):
            outer, inner = (self.loop_nest.loops[i].is_reduction for i in main.tiling_indices)
            is_inner_reduction = inner and not outer
        original(self, is_inner_reduction, outer_loop)

    return aggregate


def _fuse_what_owns_its_place(original: Any) -> classmethod[Any, Any, bool]:
    """Two reductions of one tensor in two directions are one Triton kernel only where neither is part of a whole.

    By itself Inductor gives the second a place of its own then, and its part of the whole is never written: gradients
    of a parameter that is used in chunks (pytorch/pytorch#193061; 2.10 to 2.13 have it).
    """

    def can_fuse(cls: Any, node1: Any, node2: Any) -> bool:
        return not (_is_part(node1) or _is_part(node2)) and bool(original.__get__(None, cls)(node1, node2))

    return classmethod(can_fuse)


def _is_part(node: Any) -> bool:
    """Whether a result lies in a larger one, or that of the reduction which ends it where it is split."""
    from torch._inductor.ir import NonOwningLayout
    from torch._inductor.scheduler import MixOrderReduction, OutputNode

    made = node.get_outputs()
    if MixOrderReduction.is_split_reduction(node):
        readers = [user.node for buffer in made for user in buffer.users if not isinstance(user.node, OutputNode)]
        made = [last for reader in readers for last in reader.get_outputs()]
    return any(isinstance(getattr(buffer.node, "layout", None), NonOwningLayout) for buffer in made)
