"""Plans at falling peaks, each made from the one before by local search.

In: a `Program`, the ends of its curve, a way to look up the listed plan for a peak. Out: `Ladder`: the two neighbouring
plans around a budget. Never looks at a budget: where the rungs are and which plan stands there depends on the program
alone.

The chain programme sees stages, and memory that one of them leaves it cannot give to another; the closure of the whole
graph sees every value, but one moment. The local search sees single values and every moment, but needs a plan to start
from. Going down from the fastest plan, each rung starts from the plan above it, made smaller. Where the curve is steep,
or where that ends far from the bound or behind the listed plan, it starts from that one as well and keeps what turns
out faster. A rung is never faster than the one above, so that a smaller budget never takes less time: a search that
finds such a plan spends the time it saved on more memory.
"""

from __future__ import annotations

from collections.abc import Callable

from .descent import Box, Evaluate, FrontierPoint
from .program import Program
from .repair import LocalSearch
from .squeeze import ROUND_WORK, Spend, fit, without_unread

# Rungs from the fastest plan to the smallest peak of the lists. On six models at nine budgets each, 5 cost 0.4 % of the
# step on average, 12 gain nothing and take a fifth longer (2026-11).
RUNGS = 8
# Further rungs between the last two, where the curve is steep: shares of the way up. Without them a ResNet takes 13.2 %
# of its step instead of 8.5 at a tenth of the way, and 16.3 instead of 11.0 at a twentieth; a mixture of experts 21.5
# instead of 22.5 at a tenth; two transformers the same. Above them the listed plan is no start: with it, plans of five
# of six models at 50, 20 and 5 % of the way are as fast, those of a U-Net take 5.0 % instead of 3.8 at 20 %, and
# finding them takes a third longer (2026-11).
LOW_RUNGS = (1 / 16, 1 / 32)
# Rounds to get a plan down to a rung; rounds to make it faster there. On ten models at eight budgets each, 6 of the
# latter take 4 % more extra time on average than these, and up to 2.6 times as much (U-Net, LSTM, ResNet: where stages
# differ) (2026-11).
FIT_ROUNDS = 40
ROUNDS = 200
# What a search from the plan above finds is far from its bound if it is more than this share above it, and more than so
# many times the coarse step: then the listed plan is another start. On 21 programs at 13 budgets each, never is 0.5 %
# of extra time worse on average (an LSTM 11 %), a quarter of both limits 0.1 % better in 12 % more work (2026-11). It
# is one as well where it is faster than what was found: on 30 programs at eight budgets each 0.2 % better; for plans
# between rungs, too, it takes a tenth longer for less than 0.1 % (2026-11).
FAR_SHARE = 0.2
FAR_STEPS = 4
# Between two rungs that are far apart in time, so many times the middle is tried. Once, on the same programs, is 0.9 %
# of extra time worse on average (up to 15 %, just below a rung), three times 0.1 % (2026-11).
HALVINGS = 4
# Rounds without a faster plan that end a rung: so many at first, so many more for each faster plan found, so many at
# most. On 30 programs at eight budgets each, 12 at first take 0.5 % more extra time on average, 8 and 20 take 0.7 %
# more in a tenth less time (a small U-Net a fifth at its smallest budgets), 16 and 28 the same in up to a third more
# time (2026-11).
PATIENCE = 14
MORE_PATIENCE = 6
MOST_PATIENCE = 24
PlanAt = Callable[[int], FrontierPoint]


class Ladder:
    """Rungs from the fastest plan down, searched for when asked for.

    Args:
        program: what is planned.
        fastest: the highest rung.
        lowest: plans of smaller and smaller peaks, none of them faster; each is a rung, the others lie above.
        plan_at: the listed plan for a peak; falling peaks give plans that are never faster.
        enough_ns: extra time at a peak at which a plan is good enough, given the listed one.
        evaluate: simulates a plan; None when no work is left.
        spend: counts ops that were walked through; whether there is work left.
        coarse_ns: where two rungs are further apart in time, one more between them is tried.
    """

    def __init__(
        self,
        program: Program,
        fastest: FrontierPoint,
        lowest: list[FrontierPoint],
        plan_at: PlanAt,
        enough_ns: Callable[[int, FrontierPoint], float],
        evaluate: Evaluate,
        spend: Spend,
        coarse_ns: float,
    ) -> None:
        self._program = program
        self._plan_at = plan_at
        self._enough_ns = enough_ns
        self._evaluate = evaluate
        self._spend = spend
        self._coarse_ns = coarse_ns
        top, bottom = fastest.peak_bytes, lowest[0].peak_bytes
        self._targets = [top - (top - bottom) * i // RUNGS for i in range(RUNGS)]
        self._steep_bytes = self._targets[-1]
        self._targets += [bottom + int((top - bottom) * share) for share in LOW_RUNGS]
        self._targets += [point.peak_bytes for point in lowest]
        self._rungs = {0: fastest}
        self._between: dict[tuple[int, int, int], FrontierPoint | None] = {}

    def around(self, budget_bytes: int) -> list[tuple[int, Box]]:
        """The slowest plan that does not fit and the fastest that does; the budget is below the fastest plan.

        Returns:
            Boxes, the later ones narrower, and for each a peak below which nothing made from it may be taken: there
            another budget has not seen that box. None below the last rung.
        """
        place = next((i for i, target in enumerate(self._targets) if target <= budget_bytes), None)
        if place is None:
            return []
        while self.rung(place - 1).peak_bytes <= budget_bytes:
            place -= 1
        return self._halve(Box(self.rung(place - 1), self.rung(place)), budget_bytes)

    def _halve(self, box: Box, budget_bytes: int) -> list[tuple[int, Box]]:
        """The box and narrower ones, where its ends are far apart in time.

        Where nothing is found half way, budgets above go on from there; those below have the box they had.
        """
        found = [(0, box)]
        top, bottom, floor = box.fast.peak_bytes, box.small.peak_bytes, 0
        for _ in range(HALVINGS):
            if box.small.extra_ns - box.fast.extra_ns <= self._coarse_ns:
                break
            target = (top + bottom) // 2
            point = self._between_ends(target, box)
            if point is None and target > budget_bytes:
                break
            if point is None:
                bottom = floor = target
                continue
            if point.peak_bytes <= budget_bytes:
                box, bottom = Box(box.fast, point), max(bottom, point.peak_bytes)
            else:
                box, top = Box(point, box.small), point.peak_bytes
            found = [*(pair for pair in found if pair[0] < floor), (floor, box)]
        return found

    def _between_ends(self, target_bytes: int, box: Box) -> FrontierPoint | None:
        """A plan inside the box whose peak is at most the target; None where none was found."""
        key = target_bytes, box.fast.peak_bytes, box.small.peak_bytes
        if key not in self._between:
            point = self._improve(target_bytes, box.fast, box.small)
            self._between[key] = point if point is not None and box.holds(point) else None
        return self._between[key]

    def rung(self, place: int) -> FrontierPoint:
        """The plan of a rung: its peak is at most the rung's target, and falls from rung to rung."""
        if place not in self._rungs:
            self._rungs[place] = self._find(self._targets[place], self.rung(place - 1))
        return self._rungs[place]

    def _find(self, target_bytes: int, above: FrontierPoint) -> FrontierPoint:
        if above.peak_bytes <= target_bytes:
            return above
        found = self._improve(target_bytes, above) if target_bytes > self._steep_bytes else None
        if found is not None:
            return found
        listed = self._plan_at(target_bytes)
        found = self._improve(target_bytes, above, listed)
        return listed if found is None or found.extra_ns > listed.extra_ns else found

    def _improve(self, target_bytes: int, above: FrontierPoint, *others: FrontierPoint) -> FrontierPoint | None:
        """The fastest plan found that fits, from the best of some starts, unless one of them is near enough its bound.

        None where nothing was found that is a rung below `above`.
        """
        starts = [above, *others]
        near_ns = self._enough_ns(target_bytes, starts[-1])
        if any(p.extra_ns <= near_ns for p in others) or not self._spend(0):
            return None
        enough_ns = max(above.extra_ns, near_ns)
        best = self._search(target_bytes, starts, enough_ns)
        if not others and best.best_ns > near_ns:
            listed = self._plan_at(target_bytes)
            far_ns = max((1 + FAR_SHARE) * near_ns, near_ns + FAR_STEPS * self._coarse_ns)
            if best.best_ns > min(far_ns, listed.extra_ns):
                best = min(best, self._search(target_bytes, [listed], enough_ns), key=lambda search: search.best_ns)
        plan = best.best()
        found = None if plan is None else self._evaluate(without_unread(self._program, plan))
        if found is not None and found.extra_ns < above.extra_ns:
            found = self._lower(found, above.extra_ns)
        # Below the last rung no budget is kept, so no plan may be named.
        if found is None or not self._targets[-1] <= found.peak_bytes <= target_bytes:
            return None
        return found if found.extra_ns >= above.extra_ns else None

    def _search(self, target_bytes: int, starts: list[FrontierPoint], enough_ns: float) -> LocalSearch:
        """A search from each start until it fits; the best of them goes on and is returned."""
        searches = [LocalSearch(self._program, p.start, target_bytes, enough_ns) for p in starts]
        for search in searches:
            fit(search, FIT_ROUNDS, self._spend)
        best = min(searches, key=lambda search: search.best_ns)
        _speed_up(best, self._spend)
        return best

    def _lower(self, point: FrontierPoint, least_ns: float) -> FrontierPoint | None:
        """A plan made from `point` by evictions, the first that takes `least_ns`; None where that takes too long."""
        search = LocalSearch(self._program, point.start, self._targets[-1], least_ns)
        for _ in range(FIT_ROUNDS):
            if search.present_ns >= least_ns:
                return self._evaluate(without_unread(self._program, search.present()))
            if not self._spend(ROUND_WORK * len(search.program)):
                return None
            search.step()
        return None


def _speed_up(search: LocalSearch, spend: Spend) -> None:
    """Rounds while plans become faster."""
    idle, patience = 0, PATIENCE
    for _ in range(ROUNDS):
        is_over = search.best_ns <= search.enough_ns or idle >= patience
        if is_over or not spend(ROUND_WORK * len(search.program)):
            return
        if search.step():
            idle, patience = 0, min(patience + MORE_PATIENCE, MOST_PATIENCE)
        else:
            idle += 1
