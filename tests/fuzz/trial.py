"""One random program under every executor, and a tally of what became of it.

A program that torch itself cannot run, or runs differently under its own partitioner, too, is torch's: it is counted by
cause and discarded. Everything else that differs is a failure.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import torch
from functorch.compile import default_partition, nop
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

import rematpass
from rematpass.errors import OptionError
from tests.differential.steps import Outcome, Wrap, close, run_step

from .modules import Program
from .replay import Replay, between

Same = Callable[[Tensor, Tensor], bool]

# Relative to the largest element. Eager adds gradients up in another order, and bfloat16 has eight bits.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3, torch.bfloat16: 0.15}
# These compute in bfloat16 whatever the program's type.
IN_HALF = {"half_inside", "autocast"}


@dataclass
class Tally:
    """What became of the programs so far; shown every 50 programs inside of `announce`, where given."""

    name: str
    announce: Callable[[], contextlib.AbstractContextManager[Any]] | None = None
    programs: int = 0
    compared: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    start: float = field(default_factory=time.monotonic)

    def count(self) -> None:
        self.programs += 1
        if self.programs % 50 == 0:
            self.show()

    def discard(self, cause: str) -> None:
        """Leave the program out, seen in the counts."""
        self.discarded[cause] += 1
        hypothesis.reject()

    def __str__(self) -> str:
        found = f"{self.name}: {self.programs} programs, {self.compared} compared at {self.notes['budgets']} budgets,"
        lines = [f"{found} {self.discarded.total()} discarded, {time.monotonic() - self.start:.0f} s"]
        lines += [f"  discarded {n:5} {cause}" for cause, n in self.discarded.most_common()]
        lines += [f"  noted     {n:5} {what}" for what, n in self.notes.most_common()]
        return "\n".join(lines)

    def show(self) -> None:
        """On the terminal."""
        if self.announce is not None:
            with self.announce():
                sys.stderr.write(f"\n{self}\n")
                sys.stderr.flush()


def torch_op_by_op(model: Callable[..., Any]) -> Callable[..., Any]:
    """Both halves as torch's own simplest partitioner makes them, one op at a time."""
    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=nop, bw_compiler=nop, partition_fn=default_partition, keep_inference_input_mutations=True
    )
    return torch.compile(model, backend=backend)


@dataclass
class Attempt:
    """What running a program gave: an outcome, or how it failed."""

    outcome: Outcome | None = None
    error: Exception | None = None

    @property
    def cause(self) -> str:
        """Type and first line of the error, without names and numbers that differ from run to run."""
        lines = str(self.error).strip().splitlines() or [""]
        return (
            f"{type(self.error).__name__}: {re.sub(r'0x[0-9a-f]+|[0-9]+', 'N', lines[0].partition(', got')[0])[:110]}"
        )


def attempt(program: Program, wrap: Wrap | None = None) -> Attempt:
    try:
        return Attempt(run_step(program) if wrap is None else run_step(program, wrap))
    except Exception as error:  # whatever it is, it is judged by whether torch raises it, too
        return Attempt(error=getattr(error, "inner_exception", None) or error)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Recurrent layers are traced; torch's warnings are not ours, our own are errors."""
    with torch._dynamo.config.patch(allow_rnn=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="(?s).*rematpass")
        yield


def tolerance(program: Program) -> float:
    relative = TOLERANCE[program.dtype]
    return max(relative, TOLERANCE[torch.bfloat16]) if IN_HALF & {s.kind for s in program.steps} else relative


@dataclass(frozen=True)
class Trial:
    """How programs are compared.

    Attributes:
        executor: `OpByOp` or `Backend`.
        options: further options of the executor.
        reference: torch's own way to do the same.
        same: what counts as equal between two budgets, given a program.
        may_draw_alike: whether random numbers are those of eager.
        tally: where counts go.
    """

    executor: Callable[..., Any]
    reference: Wrap
    same: Callable[[Program], Same]
    tally: Tally
    options: tuple[tuple[str, object], ...] = ()
    may_draw_alike: bool = True

    def run(self, program: Program) -> None:
        """Raise what is wrong with the program; hypothesis leaves it out if that is torch's."""
        self.tally.count()
        with quiet():
            eager = attempt(program)
            if eager.error is not None:
                self.tally.discard(f"eager raises {eager.cause}")
            pins, unlimited, expected = self._without_limit(program)
            self._compare_with_eager(program, expected, eager.outcome)
            self.tally.compared += 1
            self._note(unlimited, expected)
            if isinstance(unlimited, Replay):
                self._replay(unlimited)
            elif plans_of(unlimited):
                self._compare_budgets(program, pins, plans_of(unlimited), expected)

    def _make(self, program: Program, budget: object, pins: dict[str, Any]) -> Any:
        if self.executor is Replay:
            return Replay(program.shares, **pins)
        return self.executor(budget, **pins, **dict(self.options))

    def _without_limit(self, program: Program) -> tuple[dict[str, Any], Any, Outcome]:
        """(pins that were taken, executor, outcome) with no limit."""
        pins = program.pinned()
        unlimited = self._make(program, "none", pins)
        found = attempt(program, unlimited)
        if isinstance(found.error, OptionError) and pins:
            self.tally.notes[f"pins refused: {_wish(found.error)}"] += 1
            pins = {}
            unlimited = self._make(program, "none", pins)
            found = attempt(program, unlimited)
        if isinstance(found.error, OptionError):
            self.tally.discard(f"refused: {_wish(found.error)}")
        if found.error is not None:
            theirs = attempt(program, self.reference)
            if theirs.error is not None and theirs.cause == found.cause:
                self.tally.discard(f"torch raises {theirs.cause}")
            raise found.error
        self.tally.notes["programs with pins"] += bool(pins)
        return pins, unlimited, found.outcome

    def _compare_with_eager(self, program: Program, found: Outcome, eager: Outcome) -> None:
        if program.is_random and not self.may_draw_alike:
            return
        is_close = close(tolerance(program))
        differences = found.differences(eager, is_close)
        if not differences:
            return
        theirs = attempt(program, self.reference)
        if theirs.outcome is not None and not found.differences(theirs.outcome, is_close):
            names = sorted({re.sub(r"\b(of|output|argument|buffer) .*|: .*| differs.*", r"\1", d) for d in differences})
            self.tally.discard(f"torch's own partition differs from eager, too: {', '.join(names)}")
        raise AssertionError(f"differs from eager, not from torch's own partition: {differences}")

    def _note(self, unlimited: Any, outcome: Outcome) -> None:
        self.tally.notes[f"{len(plans_of(unlimited))} graphs planned"] += 1
        finite = all(t is None or bool(torch.isfinite(t).all()) for t in outcome.tensors.values())
        self.tally.notes["outcomes that are not finite"] += not finite

    def _replay(self, unlimited: Replay) -> None:
        for graph in unlimited.graphs:
            assert list(graph.check()) == []
            budgets = [budget for budget, _, _ in graph.others]
            self._note_budgets(budgets, graph.fastest)

    def _note_budgets(self, budgets: list[int], fastest: rematpass.Plan) -> None:
        self.tally.notes["budgets"] += len(budgets)
        self.tally.notes["budgets below the fastest plan's peak"] += sum(
            b < fastest.fastest_peak_bytes for b in budgets
        )

    def _compare_budgets(
        self, program: Program, pins: dict[str, Any], fastest: list[rematpass.Plan], expected: Outcome
    ) -> None:
        above = None
        for share in program.shares:
            budget = max(between(plan, share) for plan in fastest)
            limited = self._make(program, budget, pins)
            found = run_step(program, limited)
            peaks = [plan.peak_bytes for plan in plans_of(limited)]
            differences = found.differences(expected, self.same(program))
            assert differences == [], f"at a budget of {budget} bytes"
            assert max(peaks) <= budget
            assert above is None or all(p <= a for p, a in zip(peaks, above, strict=True)), f"{peaks} above {above}"
            above = peaks
            self._note_budgets([budget], fastest[0])


def _wish(refused: OptionError) -> str:
    """What was refused, without names that differ from program to program."""
    what = re.sub(r"'blocks[^']*'|\b\w*\d+\b", "_", str(refused))
    return re.split(r" Nearest|\. Try", what)[0][:110]


def plans_of(executor: Any) -> list[rematpass.Plan]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="rematpass: 0 graphs planned")
        return list(executor.plans)
