"""Put facts, constraints and prices together into the solver's `Program`.

In: a `JointProgram`, its `Facts` and `Constraints`, and a price list. Out: `ValueWork` per value, then `Program`.
Never decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import torch_compat
from ..cost.values import Prices, ValueWork
from ..solve.program import DEPTHS, Kind, Program
from .capture import JointProgram
from .constraints import Constraints
from .facts import Facts
from .narrow import find_narrow

_FREE = (Kind.INPUT, Kind.SYMBOL, Kind.VIEW, Kind.PART)


def describe_work(joint: JointProgram, facts: Facts, *, is_fusing: bool) -> tuple[ValueWork, ...]:
    """What computing each value takes, were it computed with the readers it has in the joint graph."""
    roots = [value.root for value in facts.values]
    reads = [tuple({roots[u]: None for u in value.inputs}) for value in facts.values]
    stored = {side: _stored_for(joint, facts, reads, side) if is_fusing else None for side in (False, True)}
    read_backward = {u for i, used in enumerate(reads) if joint.is_backward[i] for u in used}
    return tuple(
        ValueWork(
            flops=value.flops,
            dtype=value.dtype,
            size_bytes=value.view_bytes,
            reads=_read_bytes(facts, i),
            is_backward=joint.is_backward[i],
            is_read_backward=i in read_backward,
            is_stored_forward=_lookup(stored[False], i),
            is_stored_backward=_lookup(stored[True], i),
            is_free=value.kind in _FREE or value.is_copied,  # in each half, whatever is kept
        )
        for i, value in enumerate(facts.values)
    )


def _read_bytes(facts: Facts, i: int) -> tuple[tuple[int, int], ...]:
    """Whose memory a value reads, and how much of it: of a view what it shows, once where it is expanded."""
    found: dict[int, int] = {}
    for u in dict.fromkeys(facts.values[i].inputs):
        root = facts.values[u].root
        found[root] = min(facts.values[root].view_bytes, found.get(root, 0) + facts.values[u].view_bytes)
    return tuple(found.items())


def _lookup(stored: list[bool] | None, i: int) -> bool:
    return True if stored is None else stored[i]


def _stored_for(joint: JointProgram, facts: Facts, reads: Sequence[tuple[int, ...]], is_backward: bool) -> list[bool]:
    """Which values reach memory on one side, seen from the readers they have there."""
    readers = [0] * len(facts.values)
    stored = [v.kind is not Kind.POINTWISE for v in facts.values]
    for i, value in enumerate(facts.values):
        if value.kind is Kind.VIEW or joint.is_backward[i] != is_backward:
            continue
        for u in reads[i]:
            readers[u] += 1
            stored[u] = stored[u] or value.kind in (Kind.EXTERN, Kind.PART)
    returned = joint.backward_outputs if is_backward else joint.forward_outputs
    for o in returned:
        if o is not None:
            stored[facts.values[o].root] = True
    return [s or (facts.values[i].is_heavy and readers[i] > 1) for i, s in enumerate(stored)]


def build_program(
    joint: JointProgram, facts: Facts, constraints: Constraints, prices: Prices, *, is_fusing: bool
) -> Program:
    """The solver's view of the joint graph; value ids are positions in `joint.nodes`."""
    values = facts.values
    tangents = [joint.is_backward[i] and v.kind is Kind.INPUT for i, v in enumerate(values)]
    in_forward, is_ahead = _in_forward(joint, facts, constraints)
    sizes = [v.size_bytes if v.kind is not Kind.INPUT or tangents[i] else 0 for i, v in enumerate(values)]
    return Program(
        kind=tuple(v.kind for v in values),
        inputs=tuple(v.inputs for v in values),
        root=tuple(v.root for v in values),
        size_bytes=tuple(sizes),
        # What runs for the backward alone runs once in either half.
        duration_ns=tuple(0 if ahead else ns for ns, ahead in zip(prices.again_ns, is_ahead, strict=True)),
        workspace_bytes=tuple(v.workspace_bytes for v in values),
        is_backward=joint.is_backward,
        in_forward=in_forward,
        may_recompute=tuple(r is None for r in constraints.no_recompute),
        may_keep=tuple(r is None for r in constraints.no_keep),
        is_fixed=constraints.has_effects,
        is_heavy=tuple(v.is_heavy for v in values),
        is_drawn=tuple(v.is_drawn for v in values),
        is_summed=tuple(v.is_summed for v in values),
        is_scattered=tuple(v.is_scattered for v in values),
        is_joined=tuple(v.is_joined for v in values),
        reads_often=tuple(v.reads_often for v in values),
        forward_outputs=tuple(o for o in joint.forward_outputs if o is not None),
        backward_outputs=tuple(o for o in joint.backward_outputs if o is not None),
        static_bytes=facts.static_bytes + facts.relaid_bytes,
        is_fusing=is_fusing,
        most_reads=torch_compat.most_reads(facts.device_type),
        access=tuple(v.access for v in values),
        broadcasts=tuple(v.broadcasts for v in values),
        is_broadcast_shared=torch_compat.is_broadcast_shared(),
        ways=facts.ways,
        cuts=facts.cuts,
        elements=tuple(math.prod(v.shape) for v in values),
        loops=() if torch_compat.merges_loops_first(facts.device_type) else _loops_of(facts),
        operations=tuple(v.operations for v in values),
        constants=tuple(v.constants for v in values),
        most_operations=torch_compat.most_operations(facts.device_type),
        addend=tuple(v.addend for v in values) if any(v.addend for v in values) else (),
        is_ahead=is_ahead if any(is_ahead) else (),
    )


def _loops_of(facts: Facts) -> tuple[int, ...]:
    """`loops` of `Program`: one for each size but 1."""
    sizes = [tuple(size for size in value.shape if size != 1) for value in facts.values]
    numbers = {shape: i for i, shape in enumerate(dict.fromkeys(sizes))}
    return tuple(numbers[shape] * DEPTHS + len(shape) for shape in sizes)


def _in_forward(
    joint: JointProgram, facts: Facts, constraints: Constraints
) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """What the forward runs, and which of it for the backward alone.

    It runs ancestors of its outputs, whatever must not be left to the backward, and what is narrow (`find_narrow`).
    """
    needed = list(joint.in_forward)
    for i, value in enumerate(facts.values):
        is_pinned = constraints.no_recompute[i] is not None and value.kind is not Kind.INPUT
        needed[i] = needed[i] or (is_pinned and not joint.is_backward[i])
    _need_inputs(needed, facts)
    for i, value in enumerate(facts.values):
        # An op returns all its results at once: the forward has them even if only the backward reads one.
        if value.kind is Kind.PART and not joint.is_backward[i]:
            needed[i] = needed[value.inputs[0]]
    with_narrow = list(needed)
    for i in find_narrow(joint, facts, constraints, needed):
        with_narrow[i] = True
    _need_inputs(with_narrow, facts)
    return tuple(with_narrow), tuple(now != before for now, before in zip(with_narrow, needed, strict=True))


def _need_inputs(needed: list[bool], facts: Facts) -> None:
    """What is needed needs its inputs; in place."""
    for i in range(len(needed) - 1, -1, -1):
        if needed[i]:
            for u in facts.values[i].inputs:
                needed[u] = True
