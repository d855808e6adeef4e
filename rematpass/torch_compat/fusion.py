"""Inductor's fusion, held to the plan.

In: the bytes that may be live beside a half's static inputs. Out: Inductor's own heuristics, less the fusions that
would need more. Checked on torch 2.11 to 2.15. Never changes what is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .scheduled import (
    buffer_bytes,
    can_take,
    held_bytes,
    made_inside,
    output_names,
    read_names,
    scratch_bytes,
    several_of,
    written_names,
)


def guarded_choices(room_bytes: int) -> Any:
    """Inductor's own fusion heuristics (`torch._inductor.choices`, 2.11-2.15), less what would break the plan."""
    from torch._inductor.choices import InductorChoices

    guard = _FusionGuard(room_bytes)

    class GuardedChoices(InductorChoices):
        @staticmethod
        def can_fuse_horizontal(scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            may = InductorChoices.can_fuse_horizontal(scheduler, node1, node2, shared_data_score)
            return bool(may) and guard.allows(scheduler, node1, node2)

        @staticmethod
        def can_fuse_vertical(scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            may = InductorChoices.can_fuse_vertical(scheduler, node1, node2, shared_data_score)
            return bool(may) and guard.allows(scheduler, node1, node2)

        @staticmethod
        def score_fusion(scheduler: Any, node1: Any, node2: Any) -> Any:
            # Before others, after which something else may stand between the two.
            return (_vanishes(node1, node2), InductorChoices.score_fusion(scheduler, node1, node2))

    return GuardedChoices()


def _vanishes(earlier: Any, later: Any) -> bool:
    """Whether fusing takes all that the earlier kernel writes out of memory: only its successor reads it.

    Random numbers are planned so (`solve.liveness`): they must not stay because their reader was fused first.
    """
    if earlier.max_order + 1 != later.min_order or earlier.is_reduction():
        return False
    own = {*earlier.get_operation_names(), *later.get_operation_names()}
    return all(user.get_name() in own for buffer in earlier.get_outputs() for user in buffer.users)


_Heir = tuple[int, str]  # the place of a kernel in the unfused order, and what it writes in the place of what it reads


@dataclass(frozen=True)
class _Move:
    """What it does to memory that some kernels run as one."""

    low: int  # the place where all of them run, and before them
    ahead: list[Any]  # what they need of what is after it
    moved: set[str]  # what is written there that has been later
    inside: set[str]  # what they hand to each other: it is not stored
    unstored: set[str]  # what no kernel stores then
    heirs: set[_Heir]  # what is written at `low` in the place of what is read there
    alive: npt.NDArray[np.int64]  # bytes alive from `low` on, where it ends as before

    @property
    def places(self) -> slice:
        return slice(self.low, self.low + len(self.alive))


class _FusionGuard:
    """Refuses a fusion that would lift live memory above the plan's.

    Inductor runs two kernels as one where the first of them stands, right after what the second needs of what is
    between (`topological_sort_schedule`). What all these write is alive from there on; what the two hand to each other
    is not stored. Live bytes along Inductor's unfused order, with what the fusions so far have moved, with that added
    and what operators take while they run, must stay within the room; of neighbours, or within what is alive there one
    by one. The estimate is high: what a kernel reads that runs earlier counts for as long as before.
    """

    def __init__(self, room_bytes: int) -> None:
        self._room = self._beside = room_bytes
        self._scheduler: Any = None
        self._asked = ""
        self._unstored: set[str] = set()
        self._at: list[dict[str, Any]] = []
        self._place: dict[str, int] = {}
        self._together: dict[str, str] = {}
        self._alive: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._taken: dict[_Heir, list[str]] = {}
        self._heirs: list[set[_Heir]] = []
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._size: dict[str, int] = {}
        self._written: dict[str, list[str]] = {}
        self._read: dict[str, list[str]] = {}
        self._readers: dict[str, list[Any]] = {}

    def allows(self, scheduler: Any, node1: Any, node2: Any) -> bool:
        """Whether two kernels may become one."""
        if self._scheduler is not scheduler:
            self._measure(scheduler)
        self._follow(node1, node2)
        move = self._move(node1, node2)
        are_neighbours = len(move.alive) <= 2 or _vanishes(node1, node2)
        # What is alive above the room is so only in the estimate; two that nothing is between add nothing to it.
        before = self._alive[move.places].max() if are_neighbours else 0
        may = bool(move.alive.max() <= max(self._beside, before))
        if may:
            self._asked = node1.get_nodes()[0].get_name()
        return may

    def _follow(self, *asked: Any) -> None:
        """Take account of what Inductor has fused since the last question; it may have refused what was allowed.

        What it fuses later, after timing both (`benchmark_fusion`, off by default), is seen when it asks about that.
        """
        fused = self._scheduler.name_to_fused_node.get(self._asked)
        for group in (fused, *asked) if fused is not None else asked:
            nodes = group.get_nodes()
            if len({self._together.get(node.get_name()) for node in nodes}) > 1:
                self._apply(self._move(group), nodes)

    def _apply(self, move: _Move, nodes: Sequence[Any]) -> None:
        self._alive[move.places] = move.alive
        for node in (*nodes, *move.ahead):
            name = node.get_name()
            self._at[self._place_of(node)].pop(name, None)
            self._at[move.low][name] = node
            self._place[name] = move.low
        self._together.update((node.get_name(), nodes[0].get_name()) for node in nodes)
        self._first.update((name, move.low) for name in move.moved if self._first[name] > move.low)
        for order in {node.min_order for node in nodes}:
            self._heirs[order] = self._heirs_without(order, move.inside)
        self._heirs[move.low] = move.heirs
        self._unstored = move.unstored

    def _move(self, *groups: Any) -> _Move:
        """What it would do if all of `groups` ran as one kernel."""
        nodes = [node for group in groups for node in group.get_nodes()]
        low = min(map(self._place_of, nodes))
        inside = made_inside(*groups)
        ahead = self._run_ahead(groups, nodes, low)
        back = (self._unstored & self._all_written(nodes)) - inside
        unstored = (self._unstored | inside) - back
        moved = self._all_written((*nodes, *ahead)) - unstored
        alive = self._alive[low : 1 + max(node.max_order for node in nodes)].copy()
        for names, sign in ((inside - self._unstored, -1), (back, 1)):
            for name in names:
                alive[max(0, self._first[name] - low) : self._last[name] - low + 1] += sign * self._size.get(name, 0)
        for order in {node.min_order for node in nodes}:
            alive[order - low] += self._bytes_of(self._heirs[order] - self._heirs_without(order, inside))
        scratch = max((scratch_bytes(node) for node in ahead if not several_of(node)), default=0)
        if scratch:  # taken where the first stood, with what that reads still there
            early = (name for name in self._all_written(ahead) - unstored if self._first[name] > low)
            scratch += int(alive[0]) + sum(self._size.get(name, 0) for name in early)
        for name in moved:
            alive[: max(0, self._first[name] - low)] += self._size.get(name, 0)
        heirs = self._heirs[low]
        if any(node.min_order == low for node in nodes):  # there, what takes over a place is known only of all of them
            heirs = self._heirs_of_all(nodes, inside, low)
            alive[0] += self._bytes_of(self._heirs_without(low, inside)) - self._bytes_of(heirs)
        alive[0] = max(int(alive[0]), scratch)
        return _Move(low, ahead, moved, inside, unstored, heirs, alive)

    def _all_written(self, nodes: Iterable[Any]) -> set[str]:
        return {name for node in nodes for name in self._written[node.get_name()]}

    def _bytes_of(self, heirs: Iterable[_Heir]) -> int:
        return sum(self._size[name] for _, name in heirs)

    def _place_of(self, node: Any) -> int:
        return self._place.get(node.get_name(), int(node.min_order))

    def _run_ahead(self, groups: Sequence[Any], nodes: Sequence[Any], low: int) -> list[Any]:
        """What runs at `low`, before all of `nodes`: what they need of what is after it, with what is fused to that."""
        fused = self._scheduler.name_to_fused_node
        own = {node.get_name() for node in nodes}
        after = range(low + 1, 1 + max(map(self._place_of, nodes)))
        waiting = {name: node for place in after for name, node in self._at[place].items() if name not in own}
        needs = [group.ancestors for group in groups]
        ahead: list[Any] = []
        while found := set().union(*(waiting.keys() & names for names in needs)):
            ahead += [waiting.pop(name) for name in found]
            drawn = {id(group): group for group in (fused.get(name) for name in found) if group is not None}.values()
            needs = [names for group in drawn for names in (group.ancestors, group.get_operation_names())]
        return ahead

    def _heirs_without(self, place: int, inside: set[str]) -> set[_Heir]:
        """What is counted as written in the place of something there, if all `inside` is not stored."""
        heirs = (heir for heir in self._heirs[place] if heir[1] not in inside)
        return {heir for heir in heirs if not inside.issuperset(self._taken[heir])}

    def _heirs_of_all(self, nodes: Sequence[Any], inside: set[str], low: int) -> set[_Heir]:
        """The same where `nodes` run as one: no result takes the place of what is read besides, or after them.

        What is written in the place of a result that is not stored lies where that would have lain, if no other of the
        kernels reads that; not where sums part the loops that make and read it: then it has a buffer of its own for a
        row (`_loops_together`).
        """
        passes = not any(node.is_reduction() and node.get_device().type == "cpu" for node in nodes)
        own = {node.get_name() for node in nodes}

        def is_read_between(name: str) -> bool:
            return any(n.min_order >= low and n.get_name() not in own for n in self._readers.get(name, ()))

        def has_place(node: Any, result: str, others: Iterable[Any]) -> bool:
            is_read = set[str]().union(*(self._read[n.get_name()] for n in others))
            dying = set(self._taken.get((node.min_order, result), ())) - is_read
            makers = ((n, name) for n in nodes for name in inside.intersection(self._written[n.get_name()], dying))
            is_passed_on = passes and any(has_place(n, name, [o for o in nodes if o is not n]) for n, name in makers)
            return not inside.union(filter(is_read_between, dying)).issuperset(dying) or is_passed_on

        found: set[_Heir] = set()
        for node in nodes:
            others = [n for n in nodes if n is not node and n.get_name() not in node.ancestors]
            heirs = set(self._written[node.get_name()]) - inside
            found.update((node.min_order, heir) for heir in heirs if has_place(node, heir, others))
        return found

    def _measure(self, scheduler: Any) -> None:
        """Per place of the unfused order: nodes, live bytes, places taken over; per buffer: size, first, last place."""
        groups = list(scheduler.nodes)
        nodes = sorted((n for group in groups for n in group.get_nodes()), key=lambda n: n.min_order)
        count = 1 + max((n.max_order for n in nodes), default=0)
        self._scheduler, self._first, self._last, self._size = scheduler, {}, {}, buffer_bytes(scheduler)
        self._asked, self._unstored, self._beside = "", set(), self._room - held_bytes()
        self._together = {n.get_name(): group.get_name() for group in groups for n in group.get_nodes()}
        self._place = {node.get_name(): node.min_order for node in nodes}
        self._at = [{} for _ in range(count)]
        self._written = {node.get_name(): written_names(node) for node in nodes}
        self._read = {node.get_name(): read_names(node) for node in nodes}
        self._readers = {}
        for node in nodes:
            self._at[node.min_order][node.get_name()] = node
            first = self._first.get(several_of(node), node.min_order)
            for name in self._written[node.get_name()]:
                self._first.setdefault(name, first)
                self._last.setdefault(name, node.min_order)
            for name in self._read[node.get_name()]:
                self._readers.setdefault(name, []).append(node)
                self._last[name] = max(self._last.get(name, 0), node.max_order)
        self._last.update(dict.fromkeys(output_names(), count))
        self._taken = dict(pair for node in nodes for pair in self._find_taken(node))
        self._heirs = [set() for _ in range(count)]
        for heir in self._taken:
            self._heirs[heir[0]].add(heir)
        self._alive = self._count_alive(nodes, count)

    def _count_alive(self, nodes: Iterable[Any], count: int) -> npt.NDArray[np.int64]:
        """Bytes per place of the unfused order, less what takes over a place."""
        change = np.zeros(count + 2, dtype=np.int64)  # what the last kernel reads is gone after it
        for name, last in self._last.items():
            change[self._first.get(name, 0)] += self._size.get(name, 0)
            change[last + 1] -= self._size.get(name, 0)
        alive = np.cumsum(change)[:count]
        alive -= [self._bytes_of(heirs) for heirs in self._heirs]  # counted twice: see `stored_places_first`
        for node in nodes:
            if not several_of(node):  # results of one operator: it ran where that stands
                alive[node.min_order] += scratch_bytes(node)
        return alive

    def _find_taken(self, node: Any) -> Iterator[tuple[_Heir, list[str]]]:
        """What `node` writes in the place of what it is the last to read, and of what (`decide_inplace_update`)."""
        dying = [
            name for name in self._read[node.get_name()] if self._last[name] == node.min_order and can_take(node, name)
        ]
        for heir in self._written[node.get_name()]:
            found = [name for name in dying if name != heir and 0 < self._size.get(name, 0) == self._size.get(heir)]
            if found:
                yield (node.min_order, heir), found
