"""Put a formula together: what can be the peak, what is alive there, what is kept.

In: a plan's decision, functions for the bytes of its values, its timeline as sums. Out: `PeakFormula`. Never traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..formula.largest import find_largest
from ..formula.record import Held, PeakFormula, Position
from ..formula.sums import ByteSum
from ..lives import find_role
from ..solve.liveness import find_lives, find_spans
from ..solve.program import Decision, Kind
from .forms import Forms
from .sample import Sample
from .timeline import SizedTimeline, storage_owner, storages

if TYPE_CHECKING:
    from .formulas import Source

Where = tuple[tuple[str, ...], tuple[range, ...], tuple[str, ...]]


def describe_formula(
    source: Source, sample: Sample, timeline: SizedTimeline, forms: Forms, where: Where
) -> PeakFormula:
    """The record.

    Args:
        source: the plan and its decision.
        sample: of the planned size.
        timeline: as sums.
        forms: bytes of values.
        where: symbols, ranges, notes.
    """
    symbols, ranges, notes = where
    moments = source.plan.timeline
    positions = []
    for largest in find_largest(timeline.sums, ranges):
        moment = moments[timeline.places.index(largest)]
        positions.append(Position(moment.phase, moment.op, timeline.sums[largest]))
    writer = _Writer(source.decision, sample, forms)
    return PeakFormula(
        symbols=symbols,
        planned=sample.point,
        ranges=ranges,
        positions=tuple(positions),
        alive=(_inputs(timeline), *writer.alive(source.plan.peak_position)),
        kept_values=tuple(writer.kept()),
        notes=notes,
    )


def _inputs(timeline: SizedTimeline) -> Held:
    total = ByteSum()
    for _, size in timeline.static:
        total = total + size
    return Held("inputs", "parameters, buffers and batch", "", "", "input", total)


class _Writer:
    """Names pieces of memory."""

    def __init__(self, decision: Decision, sample: Sample, forms: Forms) -> None:
        self._decision, self._program, self._forms = decision, sample.program, forms
        self._values = sample.facts.values
        self._gradients = {sample.program.root[v] for v in sample.program.backward_outputs}

    def kept(self) -> Iterator[Held]:
        """What the forward keeps for the backward, the graph's inputs left out."""
        program = self._program
        for v in sorted(self._decision.kept):
            if program.size_bytes[v] and program.kind[v] is not Kind.INPUT and not program.is_backward[v]:
                yield self._held(v, "kept", self._forms.storage(v))

    def alive(self, position: int) -> Iterator[Held]:
        """What is alive at a position of the timeline, inputs left out."""
        forward, backward = find_lives(self._program, self._decision.schedule)
        split = len(forward.ops) - forward.given
        is_backward = position >= split
        half = backward if is_backward else forward
        now = half.given + position - (split if is_backward else 0)
        _, start, stop = find_spans(half)
        for i in storages(half):
            # What takes the place of an input is not counted beside it.
            is_counted = start[i] <= now < stop[i] and not (i == now and half.taken[i])
            v = storage_owner(self._program, half, i)
            if is_counted:
                yield self._held(v, self._role(v, is_backward=is_backward), self._forms.storage(v))
        op = int(half.ops[now])
        if self._program.workspace_bytes[op]:
            yield self._held(op, "scratch", self._forms.scratch(op))

    def _role(self, v: int, *, is_backward: bool) -> str:
        if v in self._gradients:
            return "gradient"
        return find_role(self._program, self._decision, v, is_backward=is_backward)

    def _held(self, v: int, role: str, size: ByteSum) -> Held:
        value = self._values[v]
        return Held(value.name, value.op, value.module, ", ".join(value.labels), role, size)
