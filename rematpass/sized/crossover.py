"""At which size a budget makes a plan give something up.

In: steps at any size, what was asked. Out: `Crossover`: the largest size that keeps it, and the next, both planned
exactly. Never traces itself.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from ..errors import BudgetTooSmall, OptionError
from ..globs import is_named
from ..graph.capture import JointProgram
from ..look import look_at_step
from ..options import Options, parse_memory_budget
from ..other_sizes import Crossover, CrossoverSearch
from ..pipeline import Settings, make_plan
from ..plan_types import Decision, Plan, ValueRecord
from ..report.explain import find_values
from ..report.sizes import format_bytes
from ..sizing import SizeSearch
from .steps import SizedSteps


def find_crossover(plan: Plan, steps: SizedSteps, options: Options, asked: CrossoverSearch) -> Crossover:
    """The answer, by the search that `max_size` uses.

    Raises:
        OptionError: nothing matches, no budget, or no such end between one step and `most`.
    """
    if asked.vary not in steps.planned:
        raise OptionError(f"vary={asked.vary!r} is not taken. Try: {' or '.join(map(repr, steps.planned))}")
    find_values(plan, asked.glob)  # refused now, not after long traces
    budget = plan.budget_bytes if asked.memory_budget is None else asked.memory_budget
    if budget is None or budget == "none":
        raise OptionError("without a budget everything is kept at every size. Try: memory_budget='20GiB'")
    tries = _Tries(steps, dataclasses.replace(options, memory_budget=parse_memory_budget(budget)), asked)
    search = SizeSearch(tries.measure, asked.step, asked.most)
    size = search.run(steps.planned[asked.vary])
    above = size + asked.step
    name = f"{asked.vary} {asked.step}"
    if not size:
        raise OptionError(
            f"{asked.glob!r} is not even kept at {name}: {tries.found[asked.step].words}. Try: a larger budget"
        )
    if above not in tries.found:
        raise OptionError(
            f"{asked.glob!r} is kept up to {asked.vary} {size}, and nothing larger was tried. Try: a larger most="
        )
    best, next_ = tries.found[size], tries.found[above]
    assert best.plan is not None, "a size at which nothing fits keeps nothing"
    assert best.plan.budget_bytes is not None, "there is a budget"
    tried = tuple((at, one.kept_bytes, one.again_bytes) for at, one in tries.found.items())
    return Crossover(asked.glob, asked.vary, best.plan.budget_bytes, size, above, best.plan, next_.plan, tried)


@dataclass(frozen=True)
class _Try:
    """A size: its plan, None where none fits; bytes of what was asked for that it keeps and computes again; why."""

    plan: Plan | None
    kept_bytes: int
    again_bytes: int
    words: str

    @property
    def excess_bytes(self) -> int:
        """Above zero where something is given up."""
        return self.again_bytes or -self.kept_bytes


@dataclass
class _Tries:
    """Plans at the sizes that the search asks for."""

    steps: SizedSteps
    options: Options
    asked: CrossoverSearch
    found: dict[int, _Try] = field(default_factory=dict)

    def measure(self, size: int) -> tuple[int, int]:
        """As `SizeSearch` wants it: what is too much, and what of it may be."""
        self.found[size] = self._plan(size)
        return self.found[size].excess_bytes, 0

    def _plan(self, size: int) -> _Try:
        point = {**self.steps.planned, self.asked.vary: size}
        try:
            plan, paid = look_at_step(self.steps.step_at(*point.values()), self.options, _plan_with_prices)
        except BudgetTooSmall as error:
            missing = max(1, error.minimum_bytes - error.budget_bytes)
            return _Try(None, 0, missing, f"no plan fits, the smallest needs {format_bytes(error.minimum_bytes)}")
        values = [v for v in plan.values if is_named(self.asked.glob, v.module, v.op, v.name, *v.label.split(", "))]
        kept = sum(v.bytes for v in values if v.decision is Decision.KEEP)
        again = [v for v in values if v.decision is Decision.RECOMPUTE and v.name in paid]
        if not again and not kept:
            raise OptionError(
                f"{self.asked.glob!r} names nothing that is kept at {self.asked.vary} {size}: computing it again is "
                "free, or the backward does not need it. Try: plan.explain() shows what is kept"
            )
        return _Try(plan, kept, sum(v.bytes for v in again), _words(again))


def _words(again: list[ValueRecord]) -> str:
    if not again:
        return ""
    most = max(again, key=lambda value: value.bytes)
    return f"{most.name} in {most.module or 'the model'} is computed again, which {most.because}"


def _plan_with_prices(joint: JointProgram, settings: Settings) -> tuple[Plan, frozenset[str]]:
    """The plan, and the values that cost time to compute again."""
    plan, inputs, _ = make_plan(joint, settings, "graph 0")
    names = (value.name for value in inputs.facts.values)
    paid = (name for name, time in zip(names, inputs.program.duration_ns, strict=True) if time)
    return plan, frozenset(paid)
