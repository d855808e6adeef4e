"""What the forward had better compute for the backward, as it is narrower than all that it is made of.

In: a `JointProgram`, its `Facts` and `Constraints`. Out: values. Never decides whether they are kept.

The mask of a ReLU is a byte where what it is made of has two or four: kept in its place, where nothing else needs that,
it leaves the backward as fast, at less memory. What torch's own partitioner (`min_cut_rematerialization_partition`)
saves is often just that.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..solve.program import Kind
from .capture import JointProgram
from .constraints import Constraints
from .facts import Facts


def find_narrow(joint: JointProgram, facts: Facts, constraints: Constraints, in_forward: Sequence[bool]) -> list[int]:
    """Values that only the backward wants, made element by element of the forward's, each of which takes more bytes.

    Those that are made of inputs alone are left out: inputs are there in the backward anyway.
    """
    values, found = facts.values, []
    is_given = [False] * len(values)
    # Per value: the fewest bytes of a value of the forward that it is made of; None where it cannot be narrow.
    least: list[int | None] = [None] * len(values)
    for i, value in enumerate(values):
        is_elementwise = value.kind in (Kind.POINTWISE, Kind.VIEW)
        is_given[i] = value.kind is Kind.INPUT or (is_elementwise and all(is_given[u] for u in value.inputs))
        if joint.is_backward[i] or is_given[i]:
            continue
        if in_forward[i]:
            least[i] = values[value.root].size_bytes
        elif is_elementwise and constraints.no_recompute[i] is None:
            made_of = [least[u] for u in value.inputs if not is_given[u]]
            sizes = [size for size in made_of if size is not None]
            least[i] = min(sizes) if len(sizes) == len(made_of) else None
            may_keep = value.kind is Kind.POINTWISE and constraints.no_keep[i] is None
            if may_keep and value.size_bytes < (least[i] or 0):
                found.append(i)
    return found
