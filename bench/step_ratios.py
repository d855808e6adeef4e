"""What the figures of `bench/step.py` come to: one ratio per promise, inside one run.

In: cases of a result. Out: ratios per case, their geometric means and worst cases, as data and as text. Never measures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.step_variants import CHECKPOINT, COMPILE, FASTEST, HALF, SMALLEST
from rematpass.report.table import align_columns

MIB = 2**20
PEAK_TOLERANCE = 1.01
"""A measured peak counts as above its budget from here on: allocators round sizes up."""

STEADY = 0.10
"""The largest `spread` of a variant's rounds that needs no word. The median of 15 ratios of such rounds is off by 3 %
(its standard error: 1.25 * sqrt(2) * spread / 1.35 / sqrt(15), if rounds are independent and normal)."""

Row = dict[str, Any]
Case = dict[str, Any]


@dataclass(frozen=True)
class Promise:
    """A ratio that must not exceed `mean` over the cases, nor `worst` in any one; None where nothing is promised."""

    key: str
    words: str
    mean: float
    worst: float | None = None


PROMISES = (
    Promise("fastest_time", "fastest plan / torch.compile, time", 1.02, 1.05),
    Promise("fastest_peak", "fastest plan / torch.compile, peak", 1.0, 1.05),
    Promise("fastest_above", "fastest plan / torch.compile, peak above parameters", 1.0),
    Promise("at_peaks", "at each peer's measured peak, time / that peer's", 1.0, 1.05),
    Promise("at_compiled_peaks", "the same, compiled peers only", 1.0, 1.05),
    Promise("smallest", "smallest peak above parameters / best peer's", 0.65, 0.9),
    Promise("checkpoint", "at the peak of eager + checkpoint per block, time / its", 0.85),
    Promise("half", "half the fastest plan's memory above parameters / that plan, time", 1 / 0.97),
    Promise("compile", "time to compile / torch.compile's", 1.10),
)

Ratios = dict[str, dict[str, float]]
"""Per promise, the ratio by what it is of: a case, or "case, peer"."""


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of the rounds: a slow minute of the machine is in both halves of a round's ratio.

    >>> paired_ratio([2.0, 9.0, 2.2], [1.0, 3.0, 2.0])
    2.0
    """
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def geometric_mean(ratios: Iterable[float]) -> float:
    """The n-th root of the product.

    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    return math.exp(statistics.fmean(map(math.log, ratios)))


def spread(times: Sequence[float]) -> float:
    """Between the quartiles of some times, as a share of the median.

    >>> spread([9.0, 10.0, 11.0])
    0.2
    >>> spread([9.0])
    0.0
    """
    if len(times) == 1:
        return 0.0
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def compile_seconds(row: Row) -> float:
    """The first step less an ordinary one; the median where it was compiled several times."""
    return float(statistics.median(row["first_step_seconds"]) - row["step_ms"] / 1e3)


def peers(case: Case) -> list[Row]:
    """The rows that are not ours."""
    return [row for row in case["rows"] if not row["is_ours"]]


def row_called(case: Case, name: str) -> Row | None:
    """The peer of this name, None where it failed."""
    return next((row for row in peers(case) if row["name"] == name), None)


def row_serving(case: Case, label: str) -> Row | None:
    """Our row for a peer's peak, the fastest or the smallest plan; None where there is none."""
    return next((row for row in case["rows"] if row["is_ours"] and label in row["serves"]), None)


def case_ratios(case: Case) -> Ratios:
    """Every promise's ratios for one case; those that have no figures are left out."""
    found: Ratios = {promise.key: {} for promise in PROMISES}
    name, compiled = case["name"], row_called(case, COMPILE)
    fastest, smallest = row_serving(case, FASTEST), row_serving(case, SMALLEST)
    if fastest is not None and compiled is not None:
        found["fastest_time"][name] = paired_ratio(fastest["times_ms"], compiled["times_ms"])
        found["fastest_peak"][name] = fastest["peak_bytes"] / compiled["peak_bytes"]
        found["fastest_above"][name] = fastest["above_bytes"] / compiled["above_bytes"]
        found["compile"][name] = compile_seconds(fastest) / compile_seconds(compiled)
    half = row_serving(case, HALF)
    if half is not None and fastest is not None and case["hardware"]["device"] != "cpu":  # promised for GPUs
        found["half"][name] = paired_ratio(half["times_ms"], fastest["times_ms"])
    if smallest is not None and peers(case):
        found["smallest"][name] = smallest["above_bytes"] / min(row["above_bytes"] for row in peers(case))
    for row in peers(case):
        ours = row_serving(case, row["name"])
        if ours is None:
            continue
        ratio = paired_ratio(ours["times_ms"], row["times_ms"])
        found["at_peaks"][f"{name}, {row['name']}"] = ratio
        if row["name"].startswith(COMPILE):
            found["at_compiled_peaks"][f"{name}, {row['name']}"] = ratio
        if row["name"] == CHECKPOINT:
            found["checkpoint"][name] = ratio
    return {key: ratios for key, ratios in found.items() if ratios}


def summarise(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Per promise: how many ratios, their geometric mean, the worst one and whose it is, and whether both hold."""
    found = [case_ratios(case) for case in cases]
    lines = []
    for promise in PROMISES:
        ratios = {of: ratio for case in found for of, ratio in case.get(promise.key, {}).items()}
        if not ratios:
            continue
        mean, whose = geometric_mean(ratios.values()), max(ratios, key=lambda of: ratios[of])
        is_kept = mean <= promise.mean and (promise.worst is None or ratios[whose] <= promise.worst)
        line = {"key": promise.key, "words": promise.words, "count": len(ratios), "mean": mean, "is_kept": is_kept}
        line |= {"worst": ratios[whose], "worst_of": whose}
        lines.append(line | {"mean_limit": promise.mean, "worst_limit": promise.worst})
    return lines


def exceeded(cases: Sequence[Case]) -> list[str]:
    """Our rows whose measured peak is above their budget."""
    rows = [(case["name"], row) for case in cases for row in case["rows"] if row["budget_bytes"] is not None]
    return [
        f"{name}, {row['name']}: measured {_mib(row['peak_bytes'])} MiB, budget {_mib(row['budget_bytes'])} MiB"
        for name, row in rows
        if row["peak_bytes"] > row["budget_bytes"] * PEAK_TOLERANCE
    ]


def unsteady(cases: Sequence[Case]) -> list[str]:
    """Cases whose times of one and the same variant are far apart, as they are beside other work."""
    spreads = {c["name"]: statistics.median(spread(row["times_ms"]) for row in c["rows"]) for c in cases if c["rows"]}
    return [
        f"{name}: half of the steps of one variant are up to {found:.0%} apart. Try: again, with nothing else running"
        for name, found in spreads.items()
        if found > STEADY
    ]


def format_summary(cases: Sequence[Case]) -> str:
    """The promises as a table, then what does not fit into one."""
    titles = ("ratio", "figures", "mean", "limit", "worst", "limit", "", "of")
    rows = [_summary_cells(line) for line in summarise(cases)]
    lines = align_columns([titles, *rows], right=(1, 2, 3, 4, 5))
    skipped = [f"{case['name']}, {skip['name']}: {skip['reason']}" for case in cases for skip in case["skipped"]]
    failed = [f"{case['name']}, {f['name']}: {f['reason']}" for case in cases for f in case["failures"]]
    lists = (
        ("No plan of ours is as small", skipped),
        ("Failed", failed),
        ("Above the budget", exceeded(cases)),
        ("Unsteady", unsteady(cases)),
    )
    lines += [f"{title}: {what}" for title, entries in lists for what in entries]
    return "\n".join(lines)


def _summary_cells(line: dict[str, Any]) -> tuple[str, ...]:
    worst_limit = "" if line["worst_limit"] is None else f"{line['worst_limit']:.2f}"
    figures = (str(line["count"]), f"{line['mean']:.3f}", f"{line['mean_limit']:.2f}", f"{line['worst']:.3f}")
    return (line["words"], *figures, worst_limit, "kept" if line["is_kept"] else "MISSED", line["worst_of"])


def format_case(case: Case) -> str:
    """The table of one case: every variant, then ours beside the peer at whose peak it was asked for."""
    head = (
        f"{case['name']}: {case['summary']}; {case['parameters'] / 1e6:.1f} million parameters, {case['dtype']}; "
        f"parameters, buffers and batch {_mib(case['static_bytes'])} MiB"
    )
    titles = (
        *("", "budget MiB", "peak MiB", "above", "predicted", "ms", "compile s", "gradient"),
        *("ours at its peak: ms", "ratio"),
    )
    rows = [_row_cells(case, row) for row in case["rows"]]
    lines = align_columns([titles, *rows], right=range(1, len(titles)))
    notes = [f"{skip['name']}: {skip['reason']}" for skip in case["skipped"]]
    notes += [f"{failure['name']} failed: {failure['reason']}" for failure in case["failures"]]
    return "\n".join([head, *lines, *notes]) + "\n"


def _row_cells(case: Case, row: Row) -> tuple[str, ...]:
    ours = None if row["is_ours"] else row_serving(case, row["name"])
    beside = ("", "")
    if ours is not None:
        beside = (f"{ours['step_ms']:.1f}", f"{paired_ratio(ours['times_ms'], row['times_ms']):.3f}")
    return (
        row["name"],
        _mib(row["budget_bytes"]),
        _mib(row["peak_bytes"]),
        _mib(row["above_bytes"]),
        _mib(row["predicted_bytes"]),
        f"{row['step_ms']:.1f}",
        f"{compile_seconds(row):.1f}" if row["is_compiled"] else "",
        f"{row['gradient_error']:.0e}",
        *beside,
    )


def _mib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / MIB:.1f}"
