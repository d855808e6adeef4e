"""Turn a recipe of the chain into a schedule.

In: a `Program`, its `Stages`, a `Recipe`. Out: a `Decision`. Never chooses.
"""

from __future__ import annotations

from .chain import Alone, Keep, Recipe
from .order import Recorder, keep_instead, must_keep
from .program import Decision, Program
from .stages import Stages


def run_recipe(program: Program, stages: Stages, recipe: Recipe | None) -> Decision:
    """Execute `recipe`: the kept set it implies, and a backward with its runs of stages computed again."""
    kept = {*must_keep(program, range(len(program))), *_kept_by(stages, recipe)}
    recorder = Recorder(program, keep_instead(program, kept))
    _Runner(program, stages, recorder).first(recipe)
    return recorder.finish()


def _kept_by(stages: Stages, recipe: Recipe | None) -> list[int]:
    """What the first forward saves: options held and boundaries kept along the first forward."""
    kept: list[int] = []
    while recipe is not None and not isinstance(recipe, Alone):
        if isinstance(recipe, Keep):
            kept += recipe.kept
            kept += _boundary(stages, recipe.stop)
            recipe = recipe.rest
        else:
            kept += _boundary(stages, recipe.split)
            recipe = recipe.later
    return kept


def _boundary(stages: Stages, s: int) -> tuple[int, ...]:
    return stages.boundary[s] if s < len(stages) else ()


class _Runner:
    """Walks a recipe while the recorder writes the backward."""

    def __init__(self, program: Program, stages: Stages, recorder: Recorder) -> None:
        self._program = program
        self._stages = stages
        self._recorder = recorder

    def first(self, recipe: Recipe | None) -> None:
        """Backward of what the first forward has run: later stages first."""
        if recipe is None:
            return
        assert not isinstance(recipe, Alone)
        if isinstance(recipe, Keep):
            self.first(recipe.rest)
            self._backward(recipe.start, recipe.stop)
        else:
            self.first(recipe.later)
            self._again(recipe.earlier)

    def _again(self, recipe: Recipe) -> None:
        """Forward and backward of stages whose input boundary is at hand."""
        if isinstance(recipe, Alone):
            self._backward(recipe.start, recipe.stop)
        elif isinstance(recipe, Keep):
            assert recipe.rest is not None
            self._forward([*recipe.kept, *_boundary(self._stages, recipe.stop)])
            self._again(recipe.rest)
            self._backward(recipe.start, recipe.stop)
        else:
            assert recipe.later is not None
            self._forward(_boundary(self._stages, recipe.split))
            self._again(recipe.later)
            self._again(recipe.earlier)

    def _forward(self, wanted: list[int] | tuple[int, ...]) -> None:
        self._recorder.drop(set(self._recorder.demand(wanted)) - set(wanted))

    def _backward(self, start: int, stop: int) -> None:
        computed: list[int] = []
        for stage in range(stop - 1, start - 1, -1):
            computed += self._recorder.run(self._stages.backward[stage])
        self._recorder.drop(computed)
        for stage in range(start, stop):
            self._recorder.drop(self._stages.forward[stage])
