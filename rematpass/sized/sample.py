"""One step at one size, as numbers, and what must be the same at another.

In: a joint graph and settings. Out: `Sample`, without torch objects. Never decides.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ..formula.polynomial import Point
from ..graph.capture import JointProgram
from ..graph.facts import Facts, ValueFacts
from ..graph.size_parts import Parts, SizeParts, describe_parts
from ..pipeline import Settings, collect_inputs
from ..solve.program import Kind, Program


@dataclass(frozen=True)
class Sample:
    """A step at `point`: its program, facts about its values, and how their bytes come about."""

    point: Point
    program: Program
    facts: Facts
    parts: SizeParts


def take_sample(point: Point, joint: JointProgram, settings: Settings) -> Sample:
    """What the planner would know of the step, but for measured prices, which change no byte."""
    inputs = collect_inputs(joint, dataclasses.replace(settings, book=None))
    parts = describe_parts(joint, inputs.facts)
    sample = Sample(point, inputs.program, inputs.facts, parts)
    assert next(_miscounted(sample), None) is None, f"{next(_miscounted(sample))}: parts are not the bytes"
    return sample


def find_difference(one: Sample, other: Sample) -> str | None:
    """The first thing in which the steps differ beyond their sizes, as words; None where there is none."""
    return next(_differences(one, other), None)


def _miscounted(sample: Sample) -> Iterator[str]:
    """Values whose parts do not add up to what the program has."""
    program, parts, values = sample.program, sample.parts, sample.facts.values
    for v, value in enumerate(values):
        if program.size_bytes[v] and program.size_bytes[v] != _sum(parts.storage[v]):
            yield value.name
        if program.workspace_bytes[v] != _sum(parts.scratch[v]):
            yield f"scratch of {value.name}"
    if sum(part.bytes for _, part in parts.static) != program.static_bytes:
        yield "inputs"


def _sum(parts: Parts) -> int:
    return sum(part.bytes for part in parts)


def _differences(one: Sample, other: Sample) -> Iterator[str]:
    pairs = itertools.zip_longest(one.facts.values, other.facts.values)
    for i, (mine, theirs) in enumerate(pairs):
        if mine is None or theirs is None or mine.op != theirs.op:
            yield f"op {i} is {_words(mine)} in one and {_words(theirs)} in the other"
            return
        if mine.inputs != theirs.inputs:
            yield f"{mine.name} ({mine.op}) reads other values"
    yield from _program_differences(one, other)
    if one.facts.device_type != other.facts.device_type:
        yield "they are traced for other kinds of devices"
    if [name for name, _ in one.parts.static] != [name for name, _ in other.parts.static]:
        yield "their inputs share memory in another way"


def _program_differences(one: Sample, other: Sample) -> Iterator[str]:
    a, b = one.program, other.program
    if _turns(a) != _turns(b):
        yield "they read other parts of their tensors, or in another order"
    if _lengths(a) != _lengths(b):
        yield "they compute elements in another number of steps"
    traits = ("is_heavy", "is_drawn", "is_summed", "is_scattered", "is_joined", "reads_often")
    for name in ("kind", "root", "is_backward", "in_forward", *traits):
        for v, (mine_is, theirs_is) in enumerate(zip(getattr(a, name), getattr(b, name), strict=True)):
            if mine_is != theirs_is:
                yield f"{one.facts.values[v].name} has {name} {mine_is} in one and {theirs_is} in the other"
    for name in ("forward_outputs", "backward_outputs", "is_fusing", "most_reads", "most_operations", "addend"):
        if getattr(a, name) != getattr(b, name):
            yield f"{name} differ"


def _lengths(program: Program) -> list[int]:
    """Steps of what is computed element by element.

    Those behind a reduction may be others for more elements, as its scalars are: Inductor takes a variance of up to
    1,024 in two steps on a CPU. That makes no other graph; whether it makes a function too long is not asked.
    """
    return [n for n, kind in zip(program.operations, program.kind, strict=True) if kind is Kind.POINTWISE]


def _turns(program: Program) -> list[list[tuple[int, ...]]]:
    """How each op addresses what it reads; how often it goes through it depends on the sizes."""
    return [[program.ways[way][0] for way in row] for row in program.access]


def _words(value: ValueFacts | None) -> str:
    return "nothing" if value is None else f"{value.op} ({value.name})"
