"""What is usually a mistake, seen in a plan.

In: what the planner knew, and a decision. Out: sentences for single values, and for the whole plan. Never decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .graph.constraints import Constraints
from .graph.facts import Facts
from .plan_types import AliveRecord
from .report.sizes import format_bytes
from .solve.program import Decision, Kind, Program

FROM_PARAMETERS = "it derives from parameters only; computed once, outside of the step, it would not be kept"
WIDE_COPY = "a float32 copy of a half-sized tensor is kept; try: keep to one dtype, or recompute=[...]"
LOGITS = "logits and what the loss makes of them; a loss over chunks of the sequence would not hold them all at once"

# Logits are worth a word from this share of what a plan could move (2026-11). At half, small classifiers are told so,
# too; at twice, only models whose words are most of their memory.
LOGITS_SHARE = 0.05
# Bytes of one number, as a loss is.
LARGEST_LOSS = 8
_CASTS = ("convert_element_type", "_to_copy")
_HALF = ("float16", "bfloat16")


def find_flags(
    facts: Facts, program: Program, decision: Decision, values: Sequence[int], peak_bytes: int
) -> dict[int, tuple[str, ...]]:
    """Sentences for each of `values` about which there is something to say."""
    derived = _derived(facts)
    logits = _logits(facts, program) if any(value.op == "gather" for value in facts.values) else set()
    large = LOGITS_SHARE * (peak_bytes - program.static_bytes)
    found: dict[int, tuple[str, ...]] = {}
    for v in values:
        flags = []
        is_kept = v in decision.kept
        if is_kept and derived[v]:
            flags.append(FROM_PARAMETERS)
        if is_kept and _is_wide_copy(facts, v):
            flags.append(WIDE_COPY)
        if v in logits and program.size_bytes[v] >= large:
            flags.append(LOGITS)
        if flags:
            found[v] = tuple(flags)
    return found


def _derived(facts: Facts) -> list[bool]:
    """Whether a value is made of parameters, and nothing else but constants."""
    static = set(facts.static_inputs)
    has_parameter = [v in static for v in range(len(facts.values))]
    has_other = [value.kind is Kind.INPUT and v not in static for v, value in enumerate(facts.values)]
    for v, value in enumerate(facts.values):
        has_parameter[v] |= any(has_parameter[u] for u in value.inputs)
        has_other[v] |= any(has_other[u] for u in value.inputs)
    return [a and not b for a, b in zip(has_parameter, has_other, strict=True)]


def _is_wide_copy(facts: Facts, v: int) -> bool:
    value = facts.values[v]
    is_cast = value.op in _CASTS and value.dtype == "float32"
    return is_cast and any(facts.values[u].dtype in _HALF for u in value.inputs)


def _logits(facts: Facts, program: Program) -> set[int]:
    """What a forward lookup of one number a row (a loss) reads, back to where it is no longer as large."""
    found: set[int] = set()
    lookups = [v for v, value in enumerate(facts.values) if value.op == "gather" and not program.is_backward[v]]
    for lookup in lookups:
        pending = [facts.values[lookup].inputs[0]]
        count = math.prod(facts.values[pending[0]].shape)
        while pending:
            v = pending.pop()
            value = facts.values[v]
            if v in found or math.prod(value.shape) != count or value.kind is Kind.INPUT:
                continue
            found.add(v)
            pending += value.inputs
    return {program.root[v] for v in found if not program.is_backward[v]}


def idle_gradient_bytes(facts: Facts, program: Program, alive: Sequence[AliveRecord]) -> int:
    """Bytes of gradients that are handed in for outputs beside a loss, if they are much of a plan's peak; else 0.

    Args:
        facts: names.
        program: what is planned.
        alive: what is there at the peak.
    """
    handed = [v for v, kind in enumerate(program.kind) if kind is Kind.INPUT and program.is_backward[v]]
    if all(program.size_bytes[v] > LARGEST_LOSS for v in handed):
        return 0
    names = {facts.values[v].name for v in handed}
    found = sum(row.bytes for row in alive if row.name in names)
    return found if found >= LOGITS_SHARE * sum(row.bytes for row in alive if row.role != "input") else 0


def find_notes(constraints: Constraints, dominating: Dominating | None, idle_bytes: int) -> Iterator[str]:
    """Sentences about the whole plan; `idle_bytes` as from `idle_gradient_bytes`."""
    if idle_bytes:
        yield (
            f"{format_bytes(idle_bytes)} at the peak are gradients that autograd hands in for outputs beside the loss, "
            "zeros where nobody uses them. Try: return the loss alone, or the others detached"
        )
    asked = sum(wish is not None for wish in constraints.wishes)
    if asked:
        yield (
            f"your own checkpointing (torch.utils.checkpoint) is on, too, for {asked} values. Try: without it; the "
            "plan decides the same under the budget, with more freedom"
        )
    if dominating is not None:
        yield from dominating.words()


class Dominating:
    """Why memory hardly falls with the budget.

    Args:
        peak_bytes: of the fastest plan.
        static_bytes, gradient_bytes: what no plan can move.
        op, scratch_bytes: what runs at the peak of the smallest plan, and what is only there while it runs.
    """

    def __init__(self, peak_bytes: int, static_bytes: int, gradient_bytes: int, op: str, scratch_bytes: int) -> None:
        self._peak, self._static, self._gradients = peak_bytes, static_bytes, gradient_bytes
        self._op, self._scratch = op, scratch_bytes

    def words(self) -> Iterator[str]:
        """One sentence on what is fixed, one on the op where that is most of the rest."""
        fixed = self._static + self._gradients
        yield (
            f"memory hardly falls with the budget: {format_bytes(fixed)} of the peak of {format_bytes(self._peak)} are "
            f"parameters and inputs ({format_bytes(self._static)}) and gradients ({format_bytes(self._gradients)})"
        )
        if self._scratch > self._peak - fixed - self._scratch and self._scratch > 0:
            yield f"{format_bytes(self._scratch)} are scratch of one op, {self._op}, which no plan can spare"
