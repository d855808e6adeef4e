"""Use the memory a plan leaves: take recomputations back, one by one.

In: a `Program` and a plan. Out: the plan with more and more recomputations left out, the ones that raise the peak least
first. Never adds a recomputation.

Leaving out a recomputation means that its readers read the computation before it: the value stays alive from there.
Ops that only served the recomputation go as well, and what they read may die earlier. The steps themselves are
compiled: core/polish.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from . import _core
from .order import make_decision
from .program import Decision, Program, Schedule


class Polisher:
    """Steps from one plan, found by estimate; what they lead to is simulated before it counts.

    Which results reach memory is taken as in the plan at hand.
    """

    def __init__(self, program: Program, decision: Decision) -> None:
        self._program = program
        self._forward = decision.schedule.forward
        self._core = _core.Polisher(program.core, self._forward, decision.schedule.backward)

    @property
    def steps_taken(self) -> int:
        """Steps so far."""
        return self._core.steps_taken

    def steps(self) -> Iterator[tuple[int, int]]:
        """(peak in bytes above the graph's inputs, ns saved) after each step, until nothing is left to take back.

        What raises the peak not at all goes first, most time saved first; then what raises it least.
        """
        while (taken := self._core.next()) is not None:
            yield taken

    def repeated(self) -> list[int]:
        """Executions that cost time and repeat an earlier one, by their place on the axis of forward and backward."""
        return self._core.repeated()

    def without(self, executions: Iterable[int]) -> Decision:
        """The plan without some repeated executions and what goes with each."""
        return self._decide(self._core.without(list(executions)))

    def decision(self, count: int) -> Decision:
        """The plan after the first `count` steps."""
        return self._decide(self._core.backward(count))

    def _decide(self, backward: tuple[int, ...]) -> Decision:
        return make_decision(self._program, Schedule(self._forward, backward))
