"""What a plan answers about other sizes of its step.

In: a plan that knows how to look at its step again. Out: its peak as a formula, and where keeping stops paying. Never
traces itself, never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import RematError
from .formula.record import PeakFormula


@dataclass(frozen=True)
class CrossoverSearch:
    """What `Plan.crossover` was asked."""

    glob: str
    vary: str
    memory_budget: int | str | None
    step: int
    most: int


@dataclass(frozen=True)
class Crossover:
    """Where keeping stops paying; `print` it.

    Attributes:
        glob: what is kept up to there.
        vary: "batch" or "sequence".
        budget_bytes: for which every size was planned.
        size: the largest tried whose plan computes nothing of it again.
        above: the next one, whose plan does, or where no plan fits.
        plan: at `size`.
        plan_above: at `above`; None where no plan fits.
        tried: (size, bytes of it that are kept, bytes that are computed again) in the order of trying.
    """

    glob: str
    vary: str
    budget_bytes: int
    size: int
    above: int
    plan: Any
    plan_above: Any
    tried: tuple[tuple[int, int, int], ...]

    def __str__(self) -> str:
        from .report.size_table import format_crossover

        return format_crossover(self)


class SizedStep(Protocol):
    """Looks at the step of a plan at other sizes."""

    def formula(self, plan: Any, ranges: Mapping[str, range]) -> PeakFormula:
        """As `Plan.formula_on`."""

    def crossover(self, plan: Any, search: CrossoverSearch) -> Crossover:
        """As `Plan.crossover`."""


class AtOtherSizes:
    """The part of a plan that looks at its step at other sizes; `sized` does it, where there is one."""

    sized: SizedStep | None

    @property
    def peak_formula(self) -> Any:
        """The peak of this plan's decision as a sympy expression in `batch` and `sequence`: `formula.peak`."""
        return self.formula.peak

    @property
    def formula(self) -> PeakFormula:
        """The peak of this plan's decision as a formula from about a quarter to four times its sizes; `print` it.

        The step is traced at a few other sizes, once; the formula goes through all of them to the byte.

        Raises:
            RematError: the plan was read from a file or made by torch.compile; another size gives another graph, or
                bytes that no formula here explains.
            OptionError: sizes that cannot be told from the arguments.
        """
        return self.formula_on()

    def formula_on(self, **ranges: range) -> PeakFormula:
        """The same on other ranges, such as `plan.formula_on(batch=range(8, 9), sequence=range(128, 8193, 128))`.

        A range of one size fixes it. What is rounded to blocks needs no rounding where steps are multiples of them.
        """
        return self._step().formula(self, ranges)

    def crossover(
        self,
        glob: str,
        vary: str = "sequence",
        memory_budget: int | str | None = None,
        *,
        step: int = 1,
        most: int = 2**20,
    ) -> Crossover:
        """At which size keeping stops paying: the largest whose plan computes nothing that `glob` names again.

        Exact plans for the budget are made at every size tried. What is computed again for free does not count.

        Args:
            glob: a module path or a glob of such paths, operators, value names or labels, as for `explain`.
            vary: "sequence" or "batch".
            memory_budget: as for `rematpass.plan`; None for this plan's own bytes.
            step: sizes are multiples of it.
            most: no larger size is tried.

        Raises:
            OptionError: nothing matches, no budget, or no size has such an end.
            RematError: as for `formula`.
        """
        return self._step().crossover(self, CrossoverSearch(glob, vary, memory_budget, step, most))

    def _step(self) -> SizedStep:
        if self.sized is None:
            raise RematError(
                "this plan cannot be looked at for other sizes: it was read from a file, copied, or made inside "
                "torch.compile, and the model is no part of it. Try: rematpass.plan(model, args, ...)"
            )
        return self.sized
