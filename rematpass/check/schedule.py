"""Is this decision a correct program? Checked before anything is emitted, in linear time.

In: a `Program` and a `Decision`. Out: nothing, or `SplitError` naming the value. Never shares code
with what made the decision.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import SplitError
from ..solve.program import Decision, Kind, Program


def check_schedule(program: Program, decision: Decision, names: Sequence[str]) -> None:
    """Every read finds its value, every op runs as often as it must, nothing forbidden runs twice.

    Raises:
        SplitError: with the name of the first value that breaks a rule.
    """
    given = {v for v, kind in enumerate(program.kind) if kind in (Kind.INPUT, Kind.SYMBOL)}
    made = _run_forward(program, decision, names, given)
    kept = set(decision.kept)
    missing = sorted(v for v in kept if v not in made)
    if missing:
        raise SplitError(f"{names[missing[0]]} is kept but the forward does not compute it")
    forbidden = sorted(v for v in kept if not program.may_keep[v] and program.kind[v] is not Kind.VIEW)
    if forbidden:
        raise SplitError(f"{names[forbidden[0]]} is kept but must not be")
    _check_storages(program, kept, names)
    _run_backward(program, decision, names, given | kept, made)
    _check_effects(program, decision, names)
    _check_parts(program, decision.schedule.forward, names)
    _check_parts(program, decision.schedule.backward, names)


def _check_storages(program: Program, kept: set[int], names: Sequence[str]) -> None:
    """Of one storage, one value is kept: what is handed over is taken over, whoever else reads that memory."""
    first: dict[int, int] = {}
    for v in sorted(kept):
        other = first.setdefault(program.root[v], v)
        if other != v:
            raise SplitError(f"{names[other]} and {names[v]} are both kept, but share their memory")


def _run_forward(program: Program, decision: Decision, names: Sequence[str], given: set[int]) -> set[int]:
    made = set(given)
    for v in decision.schedule.forward:
        for u in program.inputs[v]:
            if u not in made:
                raise SplitError(f"the forward computes {names[v]} before {names[u]}")
        made.add(v)
    lost = [v for v in program.forward_outputs if v not in made]
    if lost:
        raise SplitError(f"the forward does not compute its output {names[lost[0]]}")
    return made


def _run_backward(
    program: Program, decision: Decision, names: Sequence[str], given: set[int], in_forward: set[int]
) -> None:
    made = set(given)
    count: dict[int, int] = {}
    for v in decision.schedule.backward:
        count[v] = count.get(v, 0) + 1
        if not program.is_backward[v] and not program.may_recompute[v] and v in in_forward:
            raise SplitError(f"{names[v]} is recomputed but must not be")
        for u in program.inputs[v]:
            if u not in made:
                raise SplitError(f"the backward computes {names[v]}, but {names[u]} is neither kept nor computed")
        made.add(v)
    for v, is_backward in enumerate(program.is_backward):
        runs = count.get(v, 0)
        if is_backward and v not in given and runs != 1:
            raise SplitError(f"{names[v]} belongs to the backward and runs {runs} times")
    lost = [v for v in program.backward_outputs if v not in made]
    if lost:
        raise SplitError(f"the backward does not compute its output {names[lost[0]]}")


def _check_effects(program: Program, decision: Decision, names: Sequence[str]) -> None:
    """What has effects keeps its place: between the same ops of the backward as in the given order."""
    ops = [v for v in decision.schedule.backward if program.is_backward[v] and program.kind[v] is not Kind.SYMBOL]
    latest = -1
    waiting = sorted(ops, reverse=True)
    done: set[int] = set()
    for v in ops:
        done.add(v)
        while waiting and waiting[-1] in done:
            waiting.pop()
        first_left = waiting[-1] if waiting else len(program)
        latest = max(latest, v)
        if program.is_fixed[v] and (first_left < v or latest > v):
            other = first_left if first_left < v else latest
            raise SplitError(f"{names[v]} has effects and changed places with {names[other]}")


def _check_parts(program: Program, sequence: Sequence[int], names: Sequence[str]) -> None:
    """An op makes all it returns at once, so its parts are counted from when it runs: they run right behind it."""
    latest = -1
    for v in sequence:
        if program.kind[v] is not Kind.PART:
            latest = v
        elif program.inputs[v][0] != latest:
            raise SplitError(f"{names[v]} does not run right behind {names[program.inputs[v][0]]}, which makes it")
