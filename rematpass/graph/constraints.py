"""What may be recomputed and what may be kept, with a reason for every no.

In: a `JointProgram` and its `Facts`, the user's pins and declarations. Out: `Constraints`, one reason or None per
value. Never prices, never decides.
"""

from __future__ import annotations

import difflib
import fnmatch
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import torch_compat
from ..declared import DeclaredOp
from ..errors import OptionError
from ..solve.program import Kind
from .capture import JointProgram
from .discrete import Exactness
from .facts import Facts, ValueFacts
from .purity import Declared, is_seed, never_again_reason, unknown_op
from .unread import is_unread

_UNPINNED = (Kind.INPUT, Kind.SYMBOL)


@dataclass(frozen=True)
class Constraints:
    """Per value: why it must not be recomputed, why it cannot be kept, what the user would rather have; or None.

    `unknown_ops`: custom operators kept because nobody declared them, with the number of calls. `pinned`: the values
    that only a wish of the user keeps. `has_effects`: its operator writes, draws, talks to other ranks, or is
    unknown.
    """

    no_recompute: tuple[str | None, ...]
    no_keep: tuple[str | None, ...]
    wishes: tuple[str | None, ...]
    unknown_ops: tuple[tuple[str, int], ...]
    pinned: frozenset[int]
    has_effects: tuple[bool, ...]


def collect_constraints(
    joint: JointProgram,
    facts: Facts,
    save: Sequence[str] = (),
    recompute: Sequence[str] = (),
    declared: Sequence[DeclaredOp] = (),
) -> Constraints:
    """Reasons from the operator, from the user's policies and globs, and from inputs that the step writes to.

    Args:
        joint: the graph.
        facts: what is known of its values.
        save: globs on module path, operator, value name or `rematpass.name`; pins win over prices, not over safety.
        recompute: likewise.
        declared: what users said of custom operators.

    Raises:
        OptionError: a glob matches nothing; a pin or a MUST policy asks for what is not safe, or for both at once.
    """
    pins = _pins(joint, facts, save, recompute)
    ops = {op.name: op for op in declared}
    mutated = set(joint.mutated_inputs)
    exactness = Exactness(joint, facts)
    effects = [never_again_reason(node, ops) for node in joint.nodes]
    safety: list[str | None] = []
    for i, node in enumerate(joint.nodes):
        value = facts.values[i]
        if value.kind is Kind.PART:
            unsafe = safety[value.inputs[0]]
        else:
            reads_mutated = any(facts.shown(u) in mutated for u in value.inputs)
            unsafe = _safety_reason(node, value, reads_mutated, effects[i]) or exactness.reason(i)
        safety.append(unsafe)
        exactness.note(i, is_fixed=unsafe is not None and not value.is_view)
    for i, unsafe in enumerate(safety):
        _check_possible(pins.again.get(i), facts.values[i].name, unsafe, joint.nodes[i])
    has_effects = tuple(reason is not None for reason in effects)
    return _combine(joint, facts, safety, pins, ops, has_effects)


@dataclass(frozen=True)
class _Pins:
    """What the user demands: value -> how they said so; and what they would rather have."""

    saved: dict[int, str]
    again: dict[int, str]
    wishes: dict[int, str]


def _pins(joint: JointProgram, facts: Facts, save: Sequence[str], recompute: Sequence[str]) -> _Pins:
    """Globs before policies; `save` before `recompute` where two globs match one value."""
    found = {glob: _matches(glob, joint, facts) for glob in (*save, *recompute)}
    saved = {_maker(facts, i): f"save={glob!r}" for glob in reversed(save) for i in found[glob]}
    again = {i: f"recompute={glob!r}" for glob in reversed(recompute) for i in found[glob]}
    again = {i: words for i, words in again.items() if _maker(facts, i) not in saved}
    asked_again = {_maker(facts, i) for i in again}
    wishes: dict[int, str] = {}
    leaving = {facts.shown(i) for i in range(len(facts.values)) if _leaves_region(joint, i)}
    for i, value in enumerate(facts.values):
        shown = facts.shown(i)
        policy = None if joint.is_backward[i] else torch_compat.user_policy(joint.nodes[_maker(facts, i)])
        if policy is None or facts.values[shown].kind in _UNPINNED:
            continue
        words = f"your checkpoint policy says {policy}"
        if policy.startswith("PREFER"):
            wishes[i] = words
        elif policy == "MUST_SAVE" and (owner := _maker(facts, shown)) not in asked_again:
            saved.setdefault(owner, words)
        elif policy == "MUST_RECOMPUTE" and _maker(facts, i) not in saved and shown not in leaving:
            again.setdefault(i, words)
        elif policy == "MUST_CPU_OFFLOAD":
            raise OptionError(f"{value.name}: {words}, but nothing goes to host memory yet. Try: PREFER_CPU_OFFLOAD")
    return _Pins(saved, again, wishes)


def _maker(facts: Facts, i: int) -> int:
    """The operator that computes value i: of one of several results, the operator that returns them all."""
    value = facts.values[i]
    return value.inputs[0] if value.kind is Kind.PART else i


def _leaves_region(joint: JointProgram, i: int) -> bool:
    """Whether somebody reads value i outside of the checkpointed region that made it: the forward, or the caller.

    Eager checkpointing holds on to what enters a region, so the end of one region is kept at the start of the next
    (likewise `cleanup_recompute_tags` of torch/_functorch/partitioners.py, 2.13).
    """
    node = joint.nodes[i]
    maker = node.all_input_nodes[0] if node.target is operator.getitem else node
    region = torch_compat.checkpoint_region(maker)
    if region is None:
        return False
    readers = [u for u in node.users if torch_compat.side_tag(u) != "is_backward" and u.target is not operator.getitem]
    return any(u.op == "output" or torch_compat.checkpoint_region(u) != region for u in readers)


def _check_possible(pin: str | None, name: str, unsafe: str | None, node: torch_compat.Node) -> None:
    if pin is not None and unsafe is not None and not is_seed(node):
        raise OptionError(
            f"{pin} asks to compute {name} again, but {unsafe}. Try: PREFER_RECOMPUTE in a policy, a narrower glob"
        )


def _combine(
    joint: JointProgram,
    facts: Facts,
    safety: list[str | None],
    pins: _Pins,
    ops: Declared,
    has_effects: tuple[bool, ...],
) -> Constraints:
    no_recompute: list[str | None] = []
    no_keep: list[str | None] = []
    for i, node in enumerate(joint.nodes):
        value = facts.values[i]
        if value.kind is Kind.PART:
            safety[i] = safety[i] or no_recompute[value.inputs[0]]
        no_recompute.append(safety[i] or (None if value.is_view else pins.saved.get(i)))
        may_demand = value.kind is not Kind.INPUT and not is_seed(node)
        no_keep.append((pins.again.get(i) if may_demand else None) or _keep_reason(node, value))
    unknown = Counter(
        name
        for i, node in enumerate(joint.nodes)
        if not joint.is_backward[i] and (name := unknown_op(node, ops)) is not None
    )
    return Constraints(
        no_recompute=tuple(no_recompute),
        no_keep=tuple(no_keep),
        wishes=tuple(pins.wishes.get(i) for i in range(len(safety))),
        unknown_ops=tuple(sorted(unknown.items())),
        pinned=frozenset(i for i in pins.saved if safety[i] is None),
        has_effects=has_effects,
    )


def _matches(glob: str, joint: JointProgram, facts: Facts) -> list[int]:
    """Forward values with memory whose module, operator, name or label the glob matches."""
    words: set[str] = set()
    found = []
    for i, value in enumerate(facts.values):
        is_several = isinstance(joint.nodes[i].meta.get("val"), (tuple, list))
        if joint.is_backward[i] or value.kind in _UNPINNED or value.is_view or is_several or not value.dtype:
            continue
        op = facts.values[_maker(facts, i)].op
        own = (value.module, f"{value.module}.{op}", op, value.name, *value.labels)
        words.update(own)
        if any(fnmatch.fnmatchcase(word, glob) for word in own):
            found.append(i)
    if not found:
        near = difflib.get_close_matches(glob, sorted(filter(None, words)), n=3, cutoff=0.4)
        hint = f" Nearest: {', '.join(near)}." if near else ""
        raise OptionError(
            f"glob {glob!r} matches no module path, operator, value or rematpass.name of this graph.{hint} "
            "Try: print(rematpass.plan(...)) to see the names"
        )
    return found


def _safety_reason(node: torch_compat.Node, value: ValueFacts, reads_mutated: bool, effect: str | None) -> str | None:
    if value.kind is Kind.SYMBOL:
        return "a size; kept as a scalar at no cost"
    if effect is not None:
        return effect
    if torch_compat.is_must_be_in_forward(node):
        return "must run in the forward"
    if reads_mutated and not value.is_view:
        return "reads an input that the step writes to"
    return None


def _keep_reason(node: torch_compat.Node, value: ValueFacts) -> str | None:
    if value.is_copied:
        return "a copy that Inductor makes of a view in each half; what it shows is kept or recomputed"
    if value.kind is Kind.VIEW:
        return "a view; its base is kept or recomputed"
    if isinstance(node.meta.get("val"), (tuple, list)):
        return "several results; each is kept or recomputed"
    if is_unread(node):
        return "a number that is asked for its shape only"
    if _is_read_elsewhere(node):
        return "a number on another device than what is made of it"
    return None


def _is_read_elsewhere(node: torch_compat.Node) -> bool:
    """Whether a fill lies on another device than what reads it: a number for a kernel, not a tensor to hand over."""
    own = node.meta.get("val")
    if node.op != "call_function" or node.all_input_nodes or not isinstance(own, torch.Tensor):
        return False
    made = (user.meta.get("val") for user in node.users)
    return any(isinstance(value, torch.Tensor) and value.device.type != own.device.type for value in made)
