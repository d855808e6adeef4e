"""Lines above scratch that was measured, for formulas.

In: samples of one step. Out: the same with measured scratch on a line above it, and which ops have some. Never says
that a line is what is taken between the sizes seen.

How much a library copies for a product or a convolution jumps with the sizes: it chooses among kernels (oneDNN on
processors with AMX: 43 KB for 1024 rows, 403 KB for 512; 2026-11). No polynomial goes through such numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from ..formula.pieces import Part
from ..formula.polynomial import Point
from .sample import Sample


def lift_seen(samples: Sequence[Sample]) -> tuple[list[Sample], list[str]]:
    """Samples whose measured scratch follows a line in the product of the sizes, and the names of its ops.

    The line goes up as from the smallest to the largest size, and is nowhere below what was seen.
    """
    first = samples[0].parts.scratch
    names = []
    scratch = [list(sample.parts.scratch) for sample in samples]
    points = [sample.point for sample in samples]
    for v, parts in enumerate(first):
        for j in (j for j, part in enumerate(parts) if part.function == "seen"):
            sizes = [own[v][j].bytes for own in scratch]
            names += [samples[0].facts.values[v].name] if any(sizes) else []
            for own, size in zip(scratch, _line_above(points, sizes), strict=True):
                own[v] = (*own[v][:j], Part("round_up", (1, size, 1)), *own[v][j + 1 :])
    return [_with_scratch(sample, own) for sample, own in zip(samples, scratch, strict=True)], names


def _line_above(points: Sequence[Point], sizes: Sequence[int]) -> Iterator[int]:
    """The line at the points.

    >>> list(_line_above([(2, 10), (2, 20), (2, 40)], [100, 400, 300]))
    [320, 400, 560]
    """
    volumes = [math.prod(point) for point in points]
    low, high = volumes.index(min(volumes)), volumes.index(max(volumes))
    rise = max(0, -(-(sizes[high] - sizes[low]) // max(1, volumes[high] - volumes[low])))
    start = max(size - rise * volume for volume, size in zip(volumes, sizes, strict=True))
    return (start + rise * volume for volume in volumes)


def _with_scratch(sample: Sample, scratch: list[tuple[Part, ...]]) -> Sample:
    parts = dataclasses.replace(sample.parts, scratch=tuple(scratch))
    total = tuple(sum(part.bytes for part in own) for own in scratch)
    return dataclasses.replace(sample, parts=parts, program=dataclasses.replace(sample.program, workspace_bytes=total))
