"""The cheapest plan found for any budget.

In: a `Program`. Out: `Frontier`, which finds plans when asked for a budget. Never estimates: a plan counts with its
simulated peak.

Three searches, each inside the box the one before leaves (see `descent`): the plans of the chain programme, those of
whole-graph closures, and what polishing makes of the plan that fits. Beside them stands a ladder of plans improved
value by value (see `ladder`). No box and no rung depends on the budget, so plans for falling budgets have falling peaks
and rising extra time, and so has the faster of the two.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Callable, Sequence
from functools import cached_property

from ._core import Closure
from .bound import Bound
from .chain import Chain
from .closure import closure_near, filled_hull, least_kept, values_of
from .descent import Box, FrontierPoint, PlanList, descend
from .effort import Effort, Work
from .frontier import Modeller, Passing, StageRun
from .ladder import Ladder
from .liveness import find_peak, simulate
from .lowest import in_lowest_order, without_trifling_masks
from .moments import whole_problem
from .nest import Nest
from .order import order_backward
from .polish import Polisher
from .program import Decision, Program
from .squeeze import Squeeze
from .stages import find_stages

# "Six graphs" below: 8-block transformers with written-out and with fused attention, 24 blocks and 12 blocks of a
# GPT, 100 linear layers, a ResNet of 3,580 values; five budgets each (2026-11).
#
# Ends of the chain's curve that are simulated to find the smallest peak: rounding to slots may change their order. 1
# and 6 changed nothing on the six graphs.
LOW_ENDS = 3
# Closures of the whole graph that are tried for the smallest peak, each keeping this share of the one before. Where the
# lowest is below the chain's smallest, both are made smaller still, and either may end lower: from closures alone the
# smallest peak of a Mistral is 14 % higher, from the chain alone those of a DenseNet, a Gemma 2 and a ResNet are 42, 13
# and 3 % higher. With 0.5 and 9 the last two are as from the chain alone, others within 1 % (thirty programs, 2026-11).
LESS_KEPT = 0.7
LOW_CLOSURES = 16
# Of these, so many are starts of the patient search for still smaller peaks (`squeeze`). With the lowest alone, those
# of two U-Nets and a Llama are 6, 1 and 1.5 % higher, of 19 others the same, in a third of the time (2026-11).
PATIENT_CLOSURES = 4
# Stages in a run that is computed again as a whole, from its boundary: what people do by hand, one op after the other
# and each once. Where an executor's fusing decides how much scores take, no plan of the chain may be as small: the
# smallest peak of a GPT-NeoX with written-out attention is 370 MiB without these, 320 with them, that of ten other
# models the same. Other lengths were not tried (2026-11).
PLAIN_RUNS = (1, 2, 3, 4)
# Ops of distinct stages and runs of stages that are modelled. With 1200, the smallest peak of a mixture of experts is
# 11 % higher, that of a ResNet 4 %, and 10,000 ops of equal layers take 3 to 6 % more extra time; 10,000 and 20,000
# changed plans of 13 programs by -30 to +30 %, none on average, in 10 to 30 % more time (2026-11).
RUN_OPS = 5000
# Beyond this many ops there is no local search, and closures of the whole graph are not tried beside the chain (but
# the fastest), unless the chain is far from its bound. At 10,000 ops closures take half a second and change plans by
# less than 1 %; the local search takes half a second to two, for at most 1.6 % less extra time (two programs of equal
# and unequal layers at four budgets, 2026-11). From so many ops on there is neither: at 30,000 they take ten seconds,
# at 100,000 forty.
MODERATE_OPS = 6000
LARGE_OPS = 40_000
# The chain is far from what is possible where its smallest peak is more than this times the least that any plan has,
# or where, three quarters of the way down to that, it takes more extra time than this times its bound, and this share
# of the step more: so it is on seven convolutional networks and a Swin of 6,400 to 18,900 ops. Layers of transformers
# take 1.15 times at most, and smallest peaks of 1.02 to 1.13 times the least (2026-11).
FAR_PEAK = 1.25
FAR_TIMES = 1.2
FAR_STEP = 0.005
# The chain programme counts in slots and takes stages for themselves: its promise may be off by about this share. Half
# and twice changed nothing on the six graphs.
PROMISE = 0.02
# Moments around the peak of a plan at which its bound is worked out: each costs about ten minimum cuts. 1 and 4 changed
# no bound on the six graphs.
BOUND_MOMENTS = 2
# Closures of the whole graph between two neighbours of its hull; each holds two bits per value of the graph, so 1,000
# equal layers would need gigabytes for all. Half and twice changed nothing on the six graphs.
WHOLE_FILL = 64
# Where a plan is as near its bound as one of these, the local search is not asked: a share of the bound itself, and of
# the time of the step. Of 0.001 and 0.002 of the step, the only two tried (on a GPT-2-like and a Llama-like of 24
# layers), the larger ended 0.02 to 0.15 % of the step slower at four of fourteen budgets (2026-11).
NEAR_SHARE = 0.02
NEAR_STEP = 0.001
# Share of the time of the step by which neighbouring plans of the local search may differ before one between is tried.
# At 0.01, plans of ten models at eight budgets take 0.3 % more extra time; 0.0025 changed nothing (2026-11).
COARSE_STEP = 0.005
# Steps of polishing that are tried between two neighbours. Half and twice changed nothing on the six graphs.
MAX_STEPS = 64
# Of so many equal steps from the fastest plan's peak to the smallest, the first is what a plan with room to spare names
# as the next smaller. A choice for readers (2026-11), other values were not tried: it changes no plan that is followed.
FIRST_STEPS = 16


class Frontier:
    """Plans from the fastest (highest peak) to the smallest peak, found when asked for.

    Attributes:
        fastest, smallest: the two ends; a budget below the smallest makes it look for smaller ones.
        bound: on extra time.
    """

    def __init__(self, program: Program, effort: Effort | None = None) -> None:
        self._program = program
        effort = effort or Effort()
        self._work = Work(effort)
        self._points: dict[tuple[int, ...], FrontierPoint] = {}
        self._orders: dict[Closure, Decision] = {}
        self._stages = find_stages(program)
        self.bound = Bound(program)
        problem, self._values = whole_problem(program)
        is_moderate = len(program) <= MODERATE_OPS
        self._hull = filled_hull(problem, WHOLE_FILL) if is_moderate else [*closure_near(problem, None)[:1]]
        self.fastest = self.smallest = self._simulate(self._whole(0))
        self._nest = Nest(program, self._stages, self._solve_chain())
        self._add_low_ends(values_of(self._values, least_kept(problem, self._hull[0]).kept))
        self._lowest = [self.smallest]
        self._is_thorough = is_moderate or (len(program) <= LARGE_OPS and self._is_chain_far())
        if self._is_thorough and not is_moderate:
            self._hull = filled_hull(problem, WHOLE_FILL)
        low = self._low_closures() if self._is_thorough else []
        starts = [self.smallest, *map(self._simulate, low[:1])]
        self.fastest = min([self.fastest, *starts], key=lambda p: (p.extra_ns, p.peak_bytes))
        self._hull = [c for i, c in enumerate(self._hull) if not i or self._is_promising(c)]
        self._work.forget()  # the first plans are free
        self._lowest = [min(starts, key=lambda p: (p.peak_bytes, p.extra_ns))]
        self._ladder: Ladder | None = None
        self._squeeze: Squeeze | None = None
        if effort.is_local and self._is_thorough:
            least_bytes, spend = self.bound.peak_bytes, self._work.spend_on_ends
            self._squeeze = Squeeze(program, starts, least_bytes, self._evaluate, spend)
            self._other_starts = [*(start.decision for start in starts), *low[1:PATIENT_CLOSURES]]
            self._lowest = self._squeeze.plans
            coarse_ns, finders = COARSE_STEP * self._step_ns, (self._listed, self._enough, self._evaluate)
            self._ladder = Ladder(program, self.fastest, self._lowest, *finders, self._work.spend, coarse_ns)
        self.smallest = self._lowest[-1]
        self._leaner, first = self.fastest, self._whole(0)
        if self._simulate(first) is self._leaner:
            self.fastest = without_trifling_masks(program, first, self._leaner)

    def _solve_chain(self) -> Chain:
        """The chain of all stages, with runs of 2, 4, 8, ... stages as far as `RUN_OPS` allows."""
        program, stages = self._program, self._stages
        modeller, count = Modeller(program, stages), len(stages)
        single = [modeller.run(s, s + 1) for s in range(count)]
        runs: list[StageRun] = []
        length = 2
        while length <= count and modeller.computed_ops <= RUN_OPS:
            for start in range(0, count - length + 1, length // 2):
                if modeller.computed_ops > RUN_OPS:
                    break
                runs.append(modeller.run(start, start + length))
            length *= 2
        passing = Passing(program, stages, self.fastest.decision)
        return Chain(single, stages.added_bytes(program.size_bytes), runs, passing.over)

    def _add_low_ends(self, least: Sequence[int]) -> None:
        """The last plans of the chain programme may have the smallest peak, or the plainest of all.

        `least`: values from which the backward can have everything, with the fewest bytes.
        """
        nest, count = self._nest, len(self._nest)
        places = range(max(0, count - LOW_ENDS), count)
        self._note_ends([*(nest.plan(place) for place in {0, *places}), self._plain(least)])
        peaks = [self._simulate(nest.plan(place)).peak_bytes - nest.promised_bytes(place) for place in places]
        nest.underestimate_bytes = max(0, *peaks)

    def _plain(self, least: Sequence[int]) -> Decision:
        """Every stage computed again from its boundary, or each run of a few; whichever takes least as it is.

        Runs are of all boundaries, and of those that are narrower than their neighbours: a stage that begins in the
        middle of an attention hands over its scores.
        """
        program, boundary = self._program, self._stages.boundary
        widths = [sum(program.size_bytes[v] for v in values) for values in boundary]
        necks = [boundary[i] for i in range(1, len(boundary)) if widths[i] <= min(widths[i - 1 : i + 2])]
        starts = [some[run - 1 :: run] for some in (boundary[1:], necks) for run in PLAIN_RUNS]
        orders = [order_backward(program, {*least, *itertools.chain(*some)}) for some in starts]
        return min(orders, key=lambda order: find_peak(program, order.schedule)[0])

    def _low_closures(self) -> list[Decision]:
        """Closures of the whole graph that keep less and less, those first that take least as they are."""
        kept, hull = [closure.kept_bytes for closure in self._hull], self._hull
        wanted = [kept[0] * LESS_KEPT**i for i in range(LOW_CLOSURES)]
        places = {min(bisect.bisect_left(kept, -size, key=operator.neg), len(hull) - 1) for size in wanted}
        orders = [self._whole(place) for place in sorted(places)]
        return sorted(orders, key=lambda order: find_peak(self._program, order.schedule)[0])

    def _note_ends(self, decisions: list[Decision]) -> None:
        points = [self.fastest, self.smallest, *(self._simulate(decision) for decision in decisions)]
        self.fastest = min(points, key=lambda p: (p.extra_ns, p.peak_bytes))
        self.smallest = min(points, key=lambda p: (p.peak_bytes, p.extra_ns))

    def _is_chain_far(self) -> bool:
        """Whether the chain's plans for small budgets are far from what is possible."""
        least_bytes = self.bound.peak_bytes
        budget = (self.fastest.peak_bytes + 3 * least_bytes) // 4
        if self.smallest.peak_bytes > min(budget, FAR_PEAK * least_bytes):
            return self.smallest.peak_bytes > FAR_PEAK * least_bytes
        extra = self._walk_chain(lambda p: p.peak_bytes <= budget).small.extra_ns
        least_ns = self.bound.extra_ns_at(budget)
        return extra > max(FAR_TIMES * least_ns, least_ns + FAR_STEP * self._step_ns)

    @property
    def is_complete(self) -> bool:
        """False when the work allowed was done before a search was over."""
        return self._work.is_complete

    @property
    def simulated(self) -> int:
        """Plans simulated so far."""
        return len(self._points)

    def choose(self, budget_bytes: int | None) -> FrontierPoint | None:
        """The cheapest plan found whose peak fits, None when none does; no budget means the fastest."""
        if budget_bytes is None or self.fastest.peak_bytes <= budget_bytes:
            return self.fastest
        if self._leaner.peak_bytes <= budget_bytes:
            return self._leaner
        if self.smallest.peak_bytes > budget_bytes:
            self._go_lower()
        if self.smallest.peak_bytes > budget_bytes:
            return None
        found = [self._listed(budget_bytes)]
        for floor_bytes, box in self._ladder.around(budget_bytes) if self._ladder else ():
            point = self._polish(box, budget_bytes)
            found += [point] if point.peak_bytes >= floor_bytes else []
        return min(found, key=lambda p: (p.extra_ns, p.peak_bytes))

    def _go_lower(self) -> None:
        """Look for still smaller peaks, once; plans for budgets that were kept already stay as they are."""
        if self._squeeze is not None and self._other_starts:
            self._squeeze.go_on([self._simulate(start) for start in self._other_starts])
            self._other_starts.clear()
            self._lowest = self._squeeze.plans
            self.smallest = self._lowest[-1]

    def _listed(self, budget_bytes: int) -> FrontierPoint:
        """The best plan of the lists: the chain programme's, closures of the whole graph, and the lowest."""
        place = next(i for i, point in enumerate(self._lowest) if point.peak_bytes <= budget_bytes)
        box = Box(self._lowest[place - 1], self._lowest[place]) if place else self._neighbours(budget_bytes)
        return self._polish(box, budget_bytes)

    def _neighbours(self, budget_bytes: int) -> Box:
        """The cheapest plan of all trees that fits, and the next faster one, which does not."""
        trees = (self._walk_chain, self._walk_hull)[: 1 + self._is_thorough]
        boxes = [walk(lambda p: p.peak_bytes <= budget_bytes) for walk in trees]
        small = min((box.small for box in boxes), key=lambda p: (p.extra_ns, p.peak_bytes))
        faster = []
        for walk, box in zip(trees, boxes, strict=True):
            if box.fast.extra_ns >= small.extra_ns:  # climb past what `small` beats
                faster.append(walk(lambda p: p.extra_ns >= small.extra_ns).fast)
            else:
                faster.append(box.fast)
        return Box(min(faster, key=lambda p: (p.peak_bytes, p.extra_ns)), small)

    def _walk_chain(self, is_small: Callable[[FrontierPoint], bool]) -> Box:
        """Neighbours among the plans of the chain programme."""
        tree = PlanList(self._nest.plan, 0, len(self._nest))
        return descend(tree, Box(self.fastest, self._lowest[0]), is_small, self._evaluate)

    def _walk_hull(self, is_small: Callable[[FrontierPoint], bool]) -> Box:
        """Neighbours among closures of the whole graph."""
        tree = PlanList(self._whole, 0, len(self._hull))
        return descend(tree, Box(self.fastest, self._lowest[0]), is_small, self._evaluate, self._is_worth)

    def _is_worth(self, point: FrontierPoint) -> bool:
        """Whether the chain promises nothing better; where too little is kept, closures need more memory, not less."""
        return point.peak_bytes * (1 - PROMISE) <= self._nest.promised_for(point.extra_ns)

    def _is_promising(self, closure: Closure) -> bool:
        """Whether what a closure keeps, all live when the backward starts, is less than the chain's peak."""
        return self.bound.fixed_bytes + closure.kept_bytes < self._nest.promised_for(closure.extra_ns)

    def curve(self, count: int, on_point: Callable[[int], object] | None = None) -> tuple[FrontierPoint, ...]:
        """The plans at `count` budgets spread evenly between the two ends, fastest first, each once.

        Args:
            count: at least 2.
            on_point: called with the number of budgets done, for a progress bar.
        """
        self._go_lower()
        top, bottom = self.fastest.peak_bytes, self.smallest.peak_bytes
        found: dict[int, FrontierPoint] = {}
        for i in range(count):
            point = self.choose(top - (top - bottom) * i // (count - 1))
            assert point is not None, "budgets between the ends are feasible"
            found[point.peak_bytes] = point
            if on_point is not None:
                on_point(i + 1)
        return tuple(found[peak] for peak in sorted(found, reverse=True))

    def sparing(self, count: int) -> tuple[FrontierPoint, ...]:
        """Up to `count` plans that keep less and less, whatever their peaks: closures of the whole graph.

        For graphs that wait while others run: a curve over peaks has no plan that keeps less than one of equal peak.
        """
        last = len(self._hull) - 1
        places = dict.fromkeys(last * i // max(1, count - 1) for i in range(count))
        return tuple(self._simulate(self._whole(place)) for place in places)

    def bound_ns(self, budget_bytes: int | None, point: FrontierPoint) -> float:
        """Least extra time of any plan at the budget, at most that of `point`, which says which moments to look at."""
        return self.bound.extra_ns_at(budget_bytes, self._moments_near(budget_bytes, point), point.extra_ns)

    def _moments_near(self, budget_bytes: int | None, point: FrontierPoint) -> list[int]:
        if budget_bytes is None or budget_bytes >= self.fastest.peak_bytes:
            return []
        heaviest = self.bound.moments.heaviest
        return [*dict.fromkeys([*self.moments(point.decision), *self._fastest_moments, *heaviest])]

    @cached_property
    def _fastest_moments(self) -> list[int]:
        """Where memory is short at first, it mostly stays short."""
        return self.moments(self.fastest.decision)

    def moments(self, decision: Decision) -> list[int]:
        """Backward ops nearest to the peak of a plan."""
        timeline = simulate(self._program, decision.schedule)
        ops = [v for v in decision.schedule.backward if self._program.is_paid[v]]
        at = max(0, timeline.peak_position - len(timeline.forward_bytes))
        around = itertools.zip_longest(ops[at::-1], ops[at + 1 :])
        outward = (v for pair in around for v in pair if v is not None)
        return self.bound.moments.first(outward, BOUND_MOMENTS)

    def _enough(self, peak_bytes: int, point: FrontierPoint) -> float:
        """Extra time at which it is not worth to look for less."""
        least = self.bound.extra_ns_at(peak_bytes, self._moments_near(peak_bytes, point))
        return max(least * (1 + NEAR_SHARE), least + NEAR_STEP * self._step_ns)

    @cached_property
    def _step_ns(self) -> int:
        program = self._program
        return sum(ns for v, ns in enumerate(program.duration_ns) if program.in_forward[v] or program.is_backward[v])

    def next_faster(self, point: FrontierPoint) -> FrontierPoint | None:
        """Of the plans simulated so far, the one with the smallest peak that takes less extra time."""
        faster = [p for p in self._points.values() if p.extra_ns < point.extra_ns]
        return min(faster, key=lambda p: (p.peak_bytes, p.extra_ns), default=None)

    def next_smaller(self, point: FrontierPoint) -> FrontierPoint | None:
        """Of the plans simulated so far, the cheapest with a smaller peak; below the fastest one it is looked up."""
        if point is self.fastest and self.smallest is not self.fastest:
            self._neighbours(point.peak_bytes - (point.peak_bytes - self.smallest.peak_bytes) // FIRST_STEPS)
        smaller = [p for p in self._points.values() if p.peak_bytes < point.peak_bytes]
        return min(smaller, key=lambda p: (p.extra_ns, p.peak_bytes), default=None)

    def _polish(self, box: Box, budget_bytes: int) -> FrontierPoint:
        """Take recomputations back: those that cost no memory always, then as many as the budget allows.

        The steps depend on `box.small` alone. A first run of them that leaves the peak where it was makes a better
        plan for every budget in the box.
        """
        polisher = Polisher(self._program, box.small.decision)
        static, time_ns, free = self._program.static_bytes, box.small.extra_ns, 0
        for count, (peak, saved) in enumerate(itertools.islice(polisher.steps(), MAX_STEPS), 1):
            time_ns -= saved
            if time_ns < box.fast.extra_ns or static + peak >= box.fast.peak_bytes:
                break
            free = count if static + peak <= box.small.peak_bytes else free
        steps = polisher.steps_taken
        while free:
            point = self._evaluate(polisher.decision(free))
            if point is None:
                return box.small
            if point.peak_bytes == box.small.peak_bytes and point.extra_ns >= box.fast.extra_ns:
                box = Box(box.fast, point)
                break
            free //= 2
        tree = PlanList(lambda i: polisher.decision(steps - i), 0, steps - free) if free < steps else None
        return descend(tree, box, lambda p: p.peak_bytes <= budget_bytes, self._evaluate).small

    def _whole(self, place: int) -> Decision:
        closure = self._hull[place]
        if closure not in self._orders:
            self._orders[closure] = order_backward(self._program, values_of(self._values, closure.kept))
        return self._orders[closure]

    def _evaluate(self, decision: Decision) -> FrontierPoint | None:
        """A simulated plan; None when all work allowed is done."""
        return self._simulate(decision) if self._work.may_go_on() else None

    def _simulate(self, decision: Decision) -> FrontierPoint:
        key = decision.schedule.backward
        self._work.add(len(decision.schedule.forward) + len(key))
        if key not in self._points:
            self._points[key] = in_lowest_order(self._program, decision)
        return self._points[key]
