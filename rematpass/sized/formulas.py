"""A plan's decision at a grid of sizes, and the formula that goes through all of them.

In: steps at any size, a plan, its decision. Out: `PeakFormula`, checked to the byte at every position of every sample.
Never plans.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from ..errors import OptionError, RematError
from ..formula.polynomial import Grid, Point
from ..formula.record import PeakFormula
from ..look import look_at_step
from ..options import Options
from ..plan_types import Plan
from ..report.progress import Tick, open_progress
from ..report.sizes import format_bytes
from ..solve.liveness import simulate
from ..solve.program import Decision, Kind, Program, Schedule
from .describe import describe_formula
from .forms import FormError, Forms, name_sizes
from .sample import Sample, find_difference, take_sample
from .seen import lift_seen
from .steps import SizedSteps
from .timeline import SizedTimeline, trace_sums

# Highest power of each size in a formula: samples of a batch do not meet each other in one step, tokens of a sequence
# do.
DEGREES = {"batch": 1, "sequence": 2}
# A formula reaches from one part of the planned size to so many times as much. Both ends are traced, so wider costs
# nothing; near size 1 graphs begin to differ.
REACH = 4
# Where a formula does not hold at every length it may at multiples of this, or of what divides the planned length:
# kernels pad to it.
MOST_STEP = 64


class StructureError(RematError):
    """A step that is another one at another size."""


@dataclass(frozen=True)
class Source:
    """What a formula is made from: the plan, its decision, and its step at any size."""

    plan: Plan
    decision: Decision
    steps: SizedSteps
    options: Options


def make_formula(source: Source, ranges: Mapping[str, range]) -> PeakFormula:
    """The peak of the plan on `ranges`; sizes left out get ranges of their own.

    Raises:
        RematError: another size gives another graph, or bytes that no formula here explains.
        OptionError: ranges of other sizes, or without the planned one.
    """
    planned = source.steps.planned
    _check_ranges(planned, ranges)
    wanted: dict[str, range | None] = {name: ranges.get(name, _default(name, size)) for name, size in planned.items()}
    expected = 1 + _count(wanted)
    with open_progress(sys.stderr, expected) if sys.stderr.isatty() else nullcontext(lambda _: None) as advance:
        looks = _Looks(source, lambda done: advance(Tick("sizes", done, expected)))
        looks.take(tuple(planned.values()))
        notes = [] if "batch" in ranges else _narrow_batch(looks, wanted)
        if "sequence" in planned and "sequence" not in ranges:
            wanted["sequence"] = _reachable(looks, _default("sequence", planned["sequence"]))
        return _Maker(looks, wanted, tuple(notes), is_step_free="sequence" not in ranges).make()


def _check_ranges(planned: Mapping[str, int], ranges: Mapping[str, range]) -> None:
    for name, sizes in ranges.items():
        if name not in planned:
            raise OptionError(f"{name!r} does not vary here. Try: {' and '.join(planned)}")
        if not isinstance(sizes, range) or len(sizes) == 0 or sizes.step < 1 or sizes[0] < 1:
            raise OptionError(f"{name}={sizes!r} is not taken. Try: {name}=range({planned[name]}, {planned[name]} + 1)")
        if planned[name] not in sizes:
            raise OptionError(
                f"the plan was made at {name} {planned[name]}, which is not in {sizes}. Try: a range with it, or a "
                "plan made in the range"
            )


def _default(name: str, size: int) -> range:
    step = _whole_step(size) if name == "sequence" else 1
    least = min(size, max(2, size // REACH))
    return range(-(-least // step) * step, REACH * size + 1)


def _whole_step(size: int) -> int:
    """The largest power of two that divides the size and leaves some smaller ones."""
    step = min(MOST_STEP, size & -size)
    while step > 1 and 2 * step > size:
        step //= 2
    return step


def _count(ranges: Mapping[str, range | None]) -> int:
    counts = [min(DEGREES[name] + 1, len(sizes)) for name, sizes in ranges.items() if sizes is not None]
    return math.prod(counts) if len(counts) > 1 else 3


@dataclass
class _Looks:
    """Samples taken so far, by their sizes."""

    source: Source
    on_taken: Callable[[int], object]
    samples: dict[Point, Sample] = field(default_factory=dict)

    @property
    def planned(self) -> Point:
        return tuple(self.source.steps.planned.values())

    def take(self, point: Point) -> Sample:
        """The step at these sizes.

        Raises:
            StructureError: it cannot be traced there, or is another one.
        """
        if point not in self.samples:
            self.samples[point] = self._look(point)
            self.on_taken(len(self.samples))
        return self.samples[point]

    def _look(self, point: Point) -> Sample:
        here, there = (name_sizes(self.source.steps.symbols, p) for p in (self.planned, point))
        try:
            step = self.source.steps.step_at(*point)
            sample = look_at_step(step, self.source.options, lambda *seen: take_sample(point, *seen))
        except RematError as error:
            raise UntraceableError(
                f"the step cannot be traced at {there}, as it was at {here}: {error}\nTry: a narrower range; or, where "
                "other dimensions were taken for these, rematpass.plan(model, args=lambda batch, sequence: (...), "
                f"sizes={dict(self.source.steps.planned)!r})"
            ) from error
        if point == self.planned:
            self._check_planned(sample)
            return sample
        difference = find_difference(self.samples[self.planned], sample)
        if difference is None:
            return sample
        raise StructureError(
            f"the step at {there} is another graph than at {here}: {difference}. Try: a narrower range, such as "
            f"plan.formula_on({_narrower(self.source.steps.planned, point)}), or a plan made beyond where it changes"
        )

    def _check_planned(self, sample: Sample) -> None:
        program, schedule = sample.program, self.source.decision.schedule
        names = dict(enumerate(value.name for value in sample.facts.values))
        unpaid = (Kind.INPUT, Kind.SYMBOL)
        ops = (v for v in (*schedule.forward, *schedule.backward) if v >= len(program) or program.kind[v] not in unpaid)
        executed = [names.get(v) for v in ops]
        moments = self.source.plan.timeline
        is_same = executed == [moment.op for moment in moments]
        if not is_same or _live(program, schedule) != [moment.live_bytes for moment in moments]:
            raise RematError(
                "the step is not the one that was planned: the model, its mode or its arguments were changed since. "
                "Try: plan again"
            )


class UntraceableError(StructureError):
    """A size at which the step cannot be traced."""


def _narrower(planned: Mapping[str, int], point: Point) -> str:
    """Ranges that leave out what was tried."""
    texts = []
    for (name, size), tried in zip(planned.items(), point, strict=True):
        first, last = (size, max(size, tried - 1)) if tried > size else (min(size, tried + 1), size)
        if tried != size:
            texts.append(f"{name}=range({first}, {last + 1})")
    return ", ".join(texts)


def _narrow_batch(looks: _Looks, wanted: dict[str, range | None]) -> list[str]:
    """Leave a batch of one alone if others give another graph; as notes, why."""
    batch, *rest = looks.planned
    if batch > 1:
        return []
    try:
        looks.take((REACH * batch, *rest))
    except StructureError as error:
        wanted["batch"] = range(batch, batch + 1)
        return [f"only at batch {batch}: {str(error).split(' Try: ')[0]}. Try: a plan at a batch of 2 or more"]
    return []


def _reachable(looks: _Looks, wanted: range) -> range | None:
    """The part of `wanted` that can be traced; None where no other sequence can, so that there is none."""
    batch, size = looks.planned
    ends = []
    for end in (wanted[0], wanted[-1]):
        try:
            looks.take((batch, end))
            ends.append(end)
        except UntraceableError:
            ends.append(size)
    if ends == [size, size] and len(wanted) > 1:
        return None
    return range(ends[0], ends[1] + 1)


@dataclass
class _Maker:
    """Takes what samples are missing, and fits."""

    looks: _Looks
    wanted: dict[str, range | None]
    notes: tuple[str, ...]
    is_step_free: bool

    def make(self) -> PeakFormula:
        """The formula on what was wanted, or on multiples where it only holds there."""
        ranges = [sizes for sizes in self.wanted.values() if sizes is not None]
        try:
            return self._make(tuple(ranges), self.notes)
        except (StructureError, FormError) as error:
            step = _whole_step(self.looks.planned[-1]) if len(ranges) > 1 and self.is_step_free else 1
            if step == 1:
                raise
            last = ranges[-1]
            multiples = range(-(-last[0] // step) * step, last[-1] + 1, step)
            if self.looks.planned[-1] not in multiples:
                raise
            words = str(error).split(" Try: ")[0]
            return self._make((*ranges[:-1], multiples), (*self.notes, f"only at multiples of {step}: {words}"))

    def _make(self, ranges: tuple[range, ...], notes: tuple[str, ...]) -> PeakFormula:
        symbols = [name for name, sizes in self.wanted.items() if sizes is not None]
        fixed = self.looks.planned[len(ranges) :]
        planned = self.looks.planned[: len(ranges)]
        axes = [
            _axis(own, at, _degree(name, len(ranges))) for name, own, at in zip(symbols, ranges, planned, strict=True)
        ]
        grid = Grid(axes)
        beside = [planned, tuple(_between(own, axis) for own, axis in zip(ranges, axes, strict=True))]
        points = list(dict.fromkeys([*grid.points, *beside]))
        counted = [_shortened(self.looks.take((*point, *fixed)), len(ranges)) for point in points]
        samples, seen = lift_seen(counted)
        forms = Forms(grid, samples, symbols, ranges)
        schedule = self.looks.source.decision.schedule
        timeline = trace_sums(samples[0].program, schedule, forms, ranges)
        self._check(timeline, samples, symbols)
        if fixed:
            notes = (*notes, "no sequence: the step cannot be traced at another second dimension of its arguments")
        place = points.index(planned)
        formula = describe_formula(self.looks.source, samples[place], timeline, forms, (tuple(symbols), ranges, notes))
        return _with_excess(formula, seen, [max(_live(own.program, schedule)) for own in counted], points)

    def _check(self, timeline: SizedTimeline, samples: Sequence[Sample], symbols: Sequence[str]) -> None:
        """What the formula says is what is counted, at every position of every sample."""
        source = self.looks.source
        for sample in samples:
            counted = _live(sample.program, source.decision.schedule)
            pairs = zip(timeline.at(sample.point), counted, strict=True)
            wrong = next((i for i, (said, live) in enumerate(pairs) if said != live), None)
            if wrong is not None:
                raise FormError(
                    f"{source.plan.timeline[wrong].op} has other bytes alive at {name_sizes(symbols, sample.point)} "
                    "than the sums of its tensors: memory is shared in another way there. Try: a narrower range"
                )


def _with_excess(
    formula: PeakFormula, names: Sequence[str], peaks: Sequence[int], points: Sequence[Point]
) -> PeakFormula:
    """The formula with what lines above measured scratch add to it, and why in words."""
    if not names:
        return formula
    at = [formula.at(**dict(zip(formula.symbols, point, strict=True))) for point in points]
    excess = max(said - peak for said, peak in zip(at, peaks, strict=True))
    note = (
        f"the scratch of {names[0]}{f' and {len(names) - 1} more ops' if names[1:] else ''} was measured on this "
        f"processor and jumps from size to size; with a line above it the peak is up to {format_bytes(excess)} too "
        "high at the sizes tried"
    )
    return dataclasses.replace(formula, excess_bytes=excess, notes=(*formula.notes, note))


def _live(program: Program, schedule: Schedule) -> list[int]:
    timeline = simulate(program, schedule)
    return [*timeline.forward_bytes, *timeline.backward_bytes]


def _shortened(sample: Sample, count: int) -> Sample:
    """The sample with the sizes that vary alone."""
    return Sample(sample.point[:count], sample.program, sample.facts, sample.parts)


def _degree(name: str, count: int) -> int:
    # Without a sequence there are few samples to take, so a loss over all pairs of a batch can be told, too.
    return 2 if count == 1 else DEGREES[name]


def _axis(sizes: range, planned: int, degree: int) -> tuple[int, ...]:
    """Sizes to sample: the ends, and the planned one; less where the range has fewer."""
    middle = sizes[len(sizes) // 2]
    inner = planned if planned not in (sizes[0], sizes[-1]) else middle
    other = sizes[-1] if planned != sizes[-1] else sizes[0]
    axis = (planned, other) if degree == 1 else (sizes[0], inner, sizes[-1])
    return tuple(sorted(set(axis)))


def _between(sizes: range, axis: Sequence[int]) -> int:
    """A size that is not sampled yet: an end, or else an odd one inside if there is one."""
    end = next((end for end in (sizes[0], sizes[-1]) if end not in axis), None)
    if end is not None:
        return end
    third = len(sizes) // 3
    inside = [*itertools.islice(sizes, third, third + len(axis) + 2)]
    return next((s for s in inside if s % 2 and s not in axis), next((s for s in inside if s not in axis), sizes[0]))
