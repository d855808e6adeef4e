"""What may be recomputed and what may be kept, with a reason for every no.

In: a `JointProgram` and its `Facts`. Out: `Constraints`, one reason or None per value. Never prices, never decides.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from .. import torch_compat
from ..errors import OptionError
from ..solve.program import Kind
from .capture import JointProgram
from .facts import Facts
from .op_traits import never_recompute_reason


@dataclass(frozen=True)
class Constraints:
    """Per value: why it must not be recomputed, why it cannot be kept; None where it may."""

    no_recompute: tuple[str | None, ...]
    no_keep: tuple[str | None, ...]


def collect_constraints(
    joint: JointProgram, facts: Facts, save: Sequence[str] = (), recompute: Sequence[str] = ()
) -> Constraints:
    """Reasons from the operator, from the user's policies and globs, and from inputs that the step writes to.

    Args:
        joint: the graph.
        facts: what is known of its values.
        save: globs on module path, operator or value name; the user's pins win over prices, not over safety.
        recompute: likewise.

    Raises:
        OptionError: a glob matches nothing, or asks to recompute what must not be.
    """
    pinned = {glob: _matches(glob, joint, facts) for glob in (*save, *recompute)}
    saved = {i: glob for glob in save for i in pinned[glob]}
    again = {i: glob for glob in recompute for i in pinned[glob] if i not in saved}
    mutated = set(joint.mutated_inputs)
    no_recompute: list[str | None] = []
    no_keep: list[str | None] = []
    for i, node in enumerate(joint.nodes):
        value = facts.values[i]
        reads_mutated = any(facts.values[u].root in mutated for u in value.inputs)
        unsafe = _recompute_reason(node, value.kind, reads_mutated)
        if value.kind is Kind.PART:
            unsafe = no_recompute[value.inputs[0]]
        if i in again and unsafe is not None:
            raise OptionError(
                f"recompute={again[i]!r} names {value.name}, but {unsafe}. Try: a narrower glob that leaves it out"
            )
        no_recompute.append(unsafe or (f"save={saved[i]!r}" if i in saved else None))
        no_keep.append(f"recompute={again[i]!r}" if i in again else _keep_reason(node, value.kind, unsafe))
    return Constraints(tuple(no_recompute), tuple(no_keep))


def _matches(glob: str, joint: JointProgram, facts: Facts) -> list[int]:
    """Forward values with memory whose module, operator or name the glob matches."""
    words: set[str] = set()
    found = []
    for i, value in enumerate(facts.values):
        if joint.is_backward[i] or value.kind in (Kind.INPUT, Kind.SYMBOL, Kind.VIEW) or not value.shape:
            continue
        own = (value.module, f"{value.module}.{value.op}", value.op, value.name)
        words.update(own)
        if any(fnmatch.fnmatchcase(word, glob) for word in own):
            found.append(i)
    if not found:
        near = difflib.get_close_matches(glob, sorted(words), n=3, cutoff=0.4)
        hint = f" Nearest: {', '.join(near)}." if near else ""
        raise OptionError(
            f"glob {glob!r} matches no module path, operator or value of this graph.{hint} "
            "Try: print(rematpass.plan(...)) to see the names"
        )
    return found


def _recompute_reason(node: torch_compat.Node, kind: Kind, reads_mutated: bool) -> str | None:
    if kind is Kind.SYMBOL:
        return "a size; kept as a scalar at no cost"
    reason = never_recompute_reason(node)
    if reason is not None:
        return reason
    if torch_compat.is_must_be_in_forward(node):
        return "must run in the forward"
    if reads_mutated and kind is not Kind.VIEW:
        return "reads an input that the step writes to"
    return None


def _keep_reason(node: torch_compat.Node, kind: Kind, no_recompute: str | None) -> str | None:
    if kind is Kind.VIEW:
        return "a view; its base is kept or recomputed"
    if isinstance(node.meta.get("val"), (tuple, list)):
        return "several results; each is kept or recomputed"
    if torch_compat.user_policy(node) == "MUST_RECOMPUTE" and no_recompute is None:
        return "your checkpoint policy says MUST_RECOMPUTE"
    return None
