"""A training step at any batch and sequence.

In: a step at one size. Out: `SizedSteps`: its sizes, and the step at others. Never traces.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from ..look import Step
from ..resize import VARIED, SizedArguments
from ..stand_in import needs_stand_ins

MakeArguments = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class SizedSteps:
    """A step whose sizes can be chosen.

    Attributes:
        planned: the sizes of the step that was planned, by name.
        step_at: the step at other values of these sizes, in this order.
    """

    planned: Mapping[str, int]
    step_at: Callable[..., Step]

    @property
    def symbols(self) -> tuple[str, ...]:
        """What the sizes are called."""
        return tuple(self.planned)


def read_arguments(args: Sequence[Any] | MakeArguments, sizes: Mapping[str, int] | None) -> Sequence[Any]:
    """The arguments at `sizes`.

    Raises:
        OptionError: a function without sizes, sizes without a function, or other names.
    """
    if callable(args) != (sizes is not None):
        raise OptionError("args as a function and sizes= go together. Try: sizes={'batch': 8, 'sequence': 1024}")
    if not callable(args):
        return args
    assert sizes is not None
    names = tuple(sizes)
    if names not in (VARIED, VARIED[:1]) or any(
        isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes.values()
    ):
        raise OptionError(f"sizes={dict(sizes)!r} is not taken. Try: {{'batch': 8, 'sequence': 1024}}, in this order")
    return args(*sizes.values())


def resized_steps(
    step: Step, args: Sequence[Any] | MakeArguments, sizes: Mapping[str, int] | None = None
) -> SizedSteps:
    """Steps whose arguments are those of `step` with other dimensions, or made by a function.

    Args:
        step: the step that was planned.
        args: its arguments, or the function of `sizes` that made them.
        sizes: of the planned step, where a function made its arguments.

    Raises:
        OptionError: arguments whose sizes do not tell what to vary.
    """
    arguments = (step.args, step.kwargs or {})
    # A tensor on a GPU must not be replaced by one that is planned for elsewhere.
    is_real = step.device is None and step.dtype is None and not needs_stand_ins(step.model, arguments)
    if callable(args):
        assert sizes is not None, "a function of sizes comes with them"
        sized = SizedArguments(args, step.kwargs or {}, tuple(sizes), is_real=is_real)
        planned = dict(sizes)
    else:
        sized, planned = _read(args, step.kwargs or {}, is_real=is_real)

    def step_at(*values: int) -> Step:
        there, kwargs = sized.at(*values)
        return dataclasses.replace(step, args=there, kwargs=kwargs)

    return SizedSteps(planned, step_at)


def _read(args: Sequence[Any], kwargs: Mapping[str, Any], *, is_real: bool) -> tuple[SizedArguments, dict[str, int]]:
    """With a sequence where some tensor has a second dimension."""
    batch = SizedArguments(args, kwargs, "batch", is_real=is_real)
    try:
        both = SizedArguments(args, kwargs, VARIED, is_real=is_real)
    except OptionError as error:
        if "no argument has a sequence" not in str(error):
            raise
        return batch, {"batch": batch.sizes[0]}
    return both, dict(zip(VARIED, both.sizes, strict=True))
