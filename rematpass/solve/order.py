"""The backward sequence: recomputation just in time, once or several times.

In: a `Program`, what is kept, and phases. Out: ops in the order they run. Never prices, never counts bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import _core
from .program import Decision, Program, Schedule


class Recorder:
    """Writes a backward sequence while keeping track of what is available.

    Kept values are always, recomputed ones until they are dropped. Compiled: core/order.cpp.
    """

    def __init__(self, program: Program, kept: Iterable[int]) -> None:
        self._program = program
        self._core = _core.Recorder(program.core, list(kept))

    @property
    def sequence(self) -> tuple[int, ...]:
        """What was recorded so far."""
        return self._core.sequence

    def demand(self, values: Iterable[int]) -> list[int]:
        """Compute what is missing of `values`, and what that needs, in the given order; returns what was computed.

        Raises:
            SolverError: something is needed that was not kept and must not be recomputed.
        """
        return self._core.demand(list(values))

    def run(self, ops: Sequence[int]) -> list[int]:
        """Run backward ops, each right after what it misses was computed; returns what was."""
        return self._core.run(ops)

    def drop(self, values: Iterable[int]) -> None:
        """Forget recomputed values; a later use computes them again."""
        self._core.drop(list(values))

    def finish(self) -> Decision:
        """The decision whose backward is what was recorded and read, the forward values that it returns at its end."""
        program = self._program
        self.demand(v for v in program.backward_outputs if not program.is_backward[v])
        return make_decision(program, drop_unread(program, Schedule(program.forward_ops, self.sequence)))


def drop_unread(program: Program, schedule: Schedule) -> Schedule:
    """Without recomputations that nothing reads, such as boundaries whose later stages were kept after all.

    They would never run, but count as time, and what they alone read as kept. What has effects stays.
    """
    return Schedule(schedule.forward, program.core.drop_unread(schedule.backward))


def let_wait(program: Program, schedule: Schedule) -> Schedule:
    """The same executions, with gradients of weights that are the peak of the backward later where that is lower.

    The gradient of a large head stands beside that of its result, which is larger still. Both are there while the last
    layers' backward runs if it waits; but what these layers kept is gone by then, which may be more.
    """
    return Schedule(schedule.forward, program.core.let_wait(schedule.backward))


def let_wait_longer(program: Program, schedule: Schedule) -> Schedule:
    """The same where only functions that run earlier (core/hurry.cpp) make place for what a gradient is made of.

    Where the gradient of a head waits, its tangent stands beside the gradients of the last layer's two halves.
    """
    return Schedule(schedule.forward, program.core.let_wait_longer(schedule.backward))


def make_decision(program: Program, schedule: Schedule) -> Decision:
    """Read off a schedule what it keeps and what it spends."""
    backward = schedule.backward
    kept = frozenset(filter(program.is_paid.__getitem__, program.core.kept_values(backward)))
    return Decision(kept, schedule, program.core.recompute_ns(backward))


def must_keep(program: Program, values: Iterable[int]) -> list[int]:
    """Of `values`, those that the backward can only have by keeping: not recomputable, or part of an op that is not."""
    return program.core.must_keep(list(values))


def keep_instead(program: Program, values: Iterable[int]) -> list[int]:
    """What to keep so that `values` can be had: what must not be kept is computed again from what may be.

    Boundaries between stages and outputs of the forward cost nothing to keep, so they are chosen without asking.
    """
    return program.core.keep_instead(list(values))


def order_backward(program: Program, kept: Iterable[int]) -> Decision:
    """Each missing value is computed right before its first use and stays until its last."""
    recorder = Recorder(program, keep_instead(program, kept))
    recorder.run(program.backward_ops)
    return recorder.finish()
