"""The plans of a chain programme, and what it promises of them.

In: a `Program`, its stages, its solved chain. Out: `Nest`. Never simulates: its peaks are the chain's own count.
"""

from __future__ import annotations

import bisect
import math

from .chain import Chain
from .program import Decision, Program
from .recipe import run_recipe
from .stages import Stages


class Nest:
    """The plans of a chain programme, fastest first.

    Attributes:
        underestimate_bytes: by how much its lowest plans took more than promised; set by who simulated them.
    """

    def __init__(self, program: Program, stages: Stages, chain: Chain) -> None:
        self._program = program
        self._stages = stages
        self._chain = chain
        self._places = chain.points()[::-1]
        self._times = [place.extra_ns for place in self._places]
        self._plans: dict[int, Decision] = {}
        self.underestimate_bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def plan(self, place: int) -> Decision:
        """The schedule of a place."""
        if place not in self._plans:
            recipe = self._chain.recipe(self._places[place])
            self._plans[place] = run_recipe(self._program, self._stages, recipe)
        return self._plans[place]

    def promised_bytes(self, place: int) -> int:
        """Its peak as the chain counts it."""
        return self._places[place].peak_bytes + self._program.static_bytes

    def promised_for(self, extra_ns: int) -> float:
        """The peak promised for that much extra time, corrected by what the lowest plans really took."""
        place = bisect.bisect_right(self._times, extra_ns) - 1
        return self.promised_bytes(place) + self.underestimate_bytes if place >= 0 else math.inf
