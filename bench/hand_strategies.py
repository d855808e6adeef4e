"""What people checkpoint by hand, as kept sets.

In: module paths of values, globs on them, a `Program`. Out: regions, and what checkpointing them keeps. Never prices.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bench.architectures import Case
from rematpass.solve.order import must_keep
from rematpass.solve.program import Kind, Program

Regions = tuple[int | None, ...]
"""Per value, the number of the checkpointed region that computes it, in the order they run; None outside of all."""


@dataclass(frozen=True)
class Strategy:
    """`torch.utils.checkpoint` around modules.

    Attributes:
        name: how the table calls it.
        globs: on module paths, one pattern per component; what lies below a matching module belongs to it.
        group: successive modules (of one glob, which is one list of modules) in one region.
        every: only each so-manieth region is checkpointed, the first one among them.
    """

    name: str
    globs: tuple[str, ...]
    group: int = 1
    every: int = 1


def strategies_of(case: Case) -> tuple[Strategy, ...]:
    """What people would try on this model."""
    found = [Strategy(_group_name(group), case.blocks, group) for group in case.groups]
    found.append(Strategy("every 2nd block", case.blocks, every=2))
    parts = (("attention only", case.attention), ("FFN only", case.feed))
    found += [Strategy(name, globs) for name, globs in parts if globs]
    return tuple(found)


def _group_name(group: int) -> str:
    return "every block" if group == 1 else f"{group} blocks a region"


def matched_module(path: str, globs: Collection[str]) -> tuple[str, str] | None:
    """(glob, module) for the first glob that matches `path` or a module around it, None when none does."""
    parts = path.split(".")
    for glob in globs:
        patterns = glob.split(".")
        head = parts[: len(patterns)]
        if len(head) == len(patterns) and all(map(fnmatch.fnmatchcase, head, patterns)):
            return glob, ".".join(head)
    return None


def find_regions(modules: Sequence[str], strategy: Strategy) -> Regions:
    """The region of every value, from the module path of every value, in the order the values are computed."""
    found = [matched_module(path, strategy.globs) for path in modules]
    counts: dict[str, int] = {}
    number: dict[tuple[str, int], int] = {}
    region: dict[tuple[str, str], int | None] = {}
    for match in found:
        if match is None or match in region:
            continue
        glob = match[0]
        group = counts.get(glob, 0) // strategy.group
        counts[glob] = counts.get(glob, 0) + 1
        place = number.setdefault((glob, group), len(number))
        region[match] = place if place % strategy.every == 0 else None
    return tuple(None if match is None else region[match] for match in found)


def kept_by_regions(program: Program, regions: Regions) -> frozenset[int]:
    """What is kept when everything inside the regions is computed again from what they read from outside.

    Kept are the inputs of every region, what the backward needs of values outside, and what must not run again. The
    output of a region is kept where something outside needs it for its backward, or another region reads it.
    """
    kept = set()
    leaving = _leaving(program, regions)
    for op in range(len(program)):
        if program.kind[op] is Kind.VIEW:
            continue
        is_first_run = program.in_forward[op] and not program.is_backward[op]
        for base in {program.root[u] for u in program.inputs[op]}:
            if _is_needed(base, op, regions, leaving, is_first_run=is_first_run):
                kept.add(base)
    must = must_keep(program, range(len(program)))
    return frozenset(must) | frozenset(v for v in kept if program.in_forward[v] and is_keepable(program, v))


def is_keepable(program: Program, value: int) -> bool:
    """Whether the value can be handed from the forward to the backward and takes memory of its own."""
    is_unpaid = program.kind[value] in (Kind.INPUT, Kind.SYMBOL, Kind.VIEW)
    return program.may_keep[value] and not program.is_backward[value] and not is_unpaid


def _leaving(program: Program, regions: Regions) -> frozenset[int]:
    """Storages that the forward reads outside of the region that made them, or returns."""
    found = {program.root[v] for v in program.forward_outputs}
    for op in range(len(program)):
        if program.is_backward[op] or program.kind[op] is Kind.VIEW:
            continue
        bases = {program.root[u] for u in program.inputs[op]}
        found |= {base for base in bases if regions[base] != regions[op]}
    return frozenset(found)


def _is_needed(base: int, op: int, regions: Regions, leaving: frozenset[int], *, is_first_run: bool) -> bool:
    """Whether `op` reading the storage `base` means that it has to be kept."""
    home, reader = regions[base], regions[op]
    if is_first_run:
        return reader is not None and reader != home  # an input of a region
    if home is None:
        return True
    # Backward ops do not all tell their module: one that does not is taken for one of the region where that may be.
    return base in leaving and reader != home
