"""Kernels as Inductor's scheduler has them, and what they need one after the other, counted naively."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from torch._inductor.ir import MultiOutput

from rematpass.torch_compat import SCRATCH_BYTES


@dataclass(eq=False)
class Kernel:
    """A scheduler's node that writes one buffer, with what Inductor's nodes are asked."""

    order: int
    reads: Sequence[str]
    size: int
    ancestors: set[str]
    users: list[Any] = field(default_factory=list)
    scheduler: Any = None
    result_of: str = ""
    scratch: int = 0

    @property
    def min_order(self) -> int:
        return self.order

    max_order = min_order
    can_inplace = True

    @property
    def node(self) -> Kernel | MultiOutput:
        if not self.result_of:
            return self
        one_of_several = MultiOutput.__new__(MultiOutput)
        object.__setattr__(one_of_several, "inputs", [SimpleNamespace(get_name=lambda: self.result_of)])
        return one_of_several

    def get_name(self) -> str:
        return f"op{self.order}"

    def get_operation_names(self) -> set[str]:
        return {self.get_name()}

    def get_nodes(self) -> list[Kernel]:
        return [self]

    def is_reduction(self) -> bool:
        return False

    def is_extern(self) -> bool:
        return self.scratch > 0

    @property
    def origins(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(meta={SCRATCH_BYTES: self.scratch})]

    @property
    def read_writes(self) -> SimpleNamespace:
        return SimpleNamespace(reads=[SimpleNamespace(name=name) for name in self.reads])

    @property
    def written(self) -> str:
        return f"buf{self.order}"

    def get_outputs(self) -> list[SimpleNamespace]:
        buffer = SimpleNamespace(node=None, users=self.users, scheduler=self.scheduler, get_name=lambda: self.written)
        return [buffer]


OUTPUT = SimpleNamespace(order=None, node=None, can_inplace=False, get_name=lambda: "OUTPUT")


def make_kernels(layout: Sequence[tuple[Sequence[int], int]]) -> list[Kernel]:
    """Kernels from what each reads, as places before it, and writes, in bytes; they know their scheduler."""
    kernels: list[Kernel] = []
    for order, (places, size) in enumerate(layout):
        read = [kernels[i] for i in sorted(set(places))]
        ancestors = {k.get_name() for k in read}.union(*(k.ancestors for k in read))
        kernels.append(Kernel(order, [k.written for k in read], size, ancestors))
        for kernel in read:
            kernel.users.append(kernels[-1])
    for kernel in kernels:
        kernel.users = kernel.users or [OUTPUT]
    scheduler = SimpleNamespace(nodes=kernels, mutation_real_name={}, name_to_donated_buffer={})
    for kernel in kernels:
        kernel.scheduler = scheduler
    scheduler.name_to_fused_node = {kernel.get_name(): kernel for kernel in kernels}
    scheduler.name_to_buf = {kernel.written: kernel.get_outputs()[0] for kernel in kernels}
    return kernels


@dataclass(eq=False)
class Fused:
    """A scheduler's node that runs several kernels as one."""

    parts: tuple[Kernel, ...]

    @property
    def min_order(self) -> int:
        return self.parts[0].order

    @property
    def max_order(self) -> int:
        return self.parts[-1].order

    @property
    def ancestors(self) -> set[str]:
        return set().union(*(part.ancestors for part in self.parts)) - self.get_operation_names()

    def get_operation_names(self) -> set[str]:
        return {part.get_name() for part in self.parts}

    def get_nodes(self) -> tuple[Kernel, ...]:
        return self.parts

    def get_outputs(self) -> list[SimpleNamespace]:
        return [buffer for part in self.parts for buffer in part.get_outputs()]

    def get_name(self) -> str:
        return "_".join(part.get_name() for part in self.parts)

    def is_reduction(self) -> bool:
        return False


def in_order(kernels: list[Kernel], groups: Sequence[Sequence[Kernel]]) -> list[Sequence[Kernel]]:
    """What runs as one, in the order into which Inductor puts it."""
    group_of = {kernel.order: group for group in groups for kernel in group}
    done: list[Sequence[Kernel]] = []

    def visit(kernel: Kernel) -> None:
        group = group_of.get(kernel.order, [kernel])
        if group not in done:
            for name in sorted({name for k in group for name in k.reads} - {k.written for k in group}):
                visit(kernels[int(name.removeprefix("buf"))])
            done.append(group)

    for kernel in kernels:
        visit(kernel)
    return done


def simulate(kernels: list[Kernel], *groups: Sequence[Kernel]) -> int:
    """Most bytes alive when each of `groups` runs as one kernel."""
    done = in_order(kernels, groups)
    place = {kernel.order: i for i, group in enumerate(done) for kernel in group}
    last = [max(place.get(user.order, len(done)) for user in kernel.users) for kernel in kernels]
    is_inside = [all(place.get(user.order) == place[kernel.order] for user in kernel.users) for kernel in kernels]
    alive = [0] * (len(done) + 1)
    for kernel in kernels:
        start, here = place[kernel.order], done[place[kernel.order]]
        alive[start] += kernel.scratch
        for i in range(start, last[kernel.order] + 1):
            alive[i] += 0 if is_inside[kernel.order] else kernel.size

        def has_place(kernel: Kernel, others: list[Kernel], start: int = start, here: Any = here) -> bool:
            donors = [kernels[int(name.removeprefix("buf"))] for name in kernel.reads]
            dying = [d for d in donors if last[d.order] == start and d.size == kernel.size]
            dying = [d for d in dying if not any(d.written in k.reads for k in others)]
            if any(not is_inside[d.order] for d in dying):
                return True
            passing = [d for d in dying if is_inside[d.order]]
            return any(has_place(d, [k for k in here if k is not d]) for d in passing)

        others = [k for k in here if k is not kernel and k.get_name() not in kernel.ancestors]
        if not is_inside[kernel.order] and has_place(kernel, others):
            alive[start] -= kernel.size
    return max(alive)


def has_cycle(fused: Fused) -> bool:
    """Whether something reads what `fused` writes and is read by it, also through other groups."""
    group_of = fused.parts[0].scheduler.name_to_fused_node
    needs: set[str] = set()
    waiting = set(fused.ancestors)
    while waiting:
        needs |= waiting
        groups = [group_of[name] for name in waiting]
        waiting = set().union(*(group.ancestors for group in groups)) - needs
    return bool(needs & fused.get_operation_names())
