"""The step of a command at other sizes: the model is built anew for each.

In: what was typed, and the work at the sizes typed. Out: `SizedSteps`. Never plans, never prints.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import OptionError
from .arguments import Work, read_work

if TYPE_CHECKING:
    from ..look import Step
    from ..sized.steps import SizedSteps


def rebuilt_steps(work: Work, arguments: argparse.Namespace) -> SizedSteps:
    """Steps that the source of `work` builds.

    Raises:
        OptionError: arguments whose sizes do not tell what to vary.
    """
    from ..sized.steps import SizedSteps
    from ..sources.source import Sizes

    planned = _sizes(work)

    def step_at(*values: int) -> Step:
        wanted = dict(zip(planned, values, strict=True))
        # A source is not asked for a size that it chose itself: not every one takes both.
        asked = {"batch": arguments.batch, "sequence": arguments.sequence}
        asked |= {name: size for name, size in wanted.items() if size != planned[name]}
        there = read_work(arguments, Sizes(**asked))
        if len(set(values)) == len(values) and _sizes(there) != wanted:
            raise OptionError(f"{work.source.words} makes arguments of {_sizes(there)} where {wanted} was asked for")
        return _step(there)

    return SizedSteps(planned, step_at)


def _sizes(work: Work) -> dict[str, int]:
    from ..sized.steps import resized_steps

    return dict(resized_steps(_step(work), work.source.args).planned)


def _step(work: Work) -> Step:
    from ..look import Step

    source = work.source
    return Step(source.model, source.args, source.kwargs, source.loss, work.device, work.dtype)
