"""A plan that knows its step.

In: a step, options. Out: a `Plan` whose `sized` looks at the step at other sizes. Never decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from ..formula.record import PeakFormula
from ..graph.capture import JointProgram
from ..look import Step, look_at_step
from ..options import Options
from ..other_sizes import Crossover, CrossoverSearch
from ..pipeline import Settings, make_plan
from ..plan_types import Plan
from ..solve.program import Decision
from .crossover import find_crossover
from .formulas import Source, make_formula
from .steps import SizedSteps


class PlannedStep:
    """What `Plan.sized` is.

    Args:
        steps: the step at any size; asked for when first needed, for not every step has sizes that can be told.
        options: of the plan.
        decision: of the plan.
    """

    def __init__(self, steps: Callable[[], SizedSteps], options: Options, decision: Decision) -> None:
        self._steps, self._options, self._decision = steps, options, decision
        self._formulas: dict[tuple[tuple[str, range], ...], PeakFormula] = {}

    def formula(self, plan: Plan, ranges: Mapping[str, range]) -> PeakFormula:
        """As `Plan.formula_on`; made once for the same ranges."""
        key = tuple(sorted(ranges.items(), key=lambda item: item[0]))
        if key not in self._formulas:
            source = Source(plan, self._decision, self._steps(), self._options)
            self._formulas[key] = make_formula(source, ranges)
        return self._formulas[key]

    def crossover(self, plan: Plan, search: CrossoverSearch) -> Crossover:
        """As `Plan.crossover`."""
        return find_crossover(plan, self._steps(), self._options, search)

    def built_by(self, steps: Callable[[], SizedSteps]) -> PlannedStep:
        """The same with steps made in another way."""
        return PlannedStep(steps, self._options, self._decision)


def plan_step(step: Step, options: Options, steps: Callable[[], SizedSteps]) -> Plan:
    """The plan of `step`, which `steps` has at other sizes.

    Raises:
        OptionError, BudgetTooSmall, RematError: as `rematpass.plan`.
    """

    def use(joint: JointProgram, settings: Settings) -> tuple[Plan, Decision]:
        plan, _, decision = make_plan(joint, settings, "graph 0")
        return plan, decision

    plan, decision = look_at_step(step, options, use)
    return dataclasses.replace(plan, sized=PlannedStep(steps, options, decision))
