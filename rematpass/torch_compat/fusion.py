"""Inductor's fusion, held to the plan.

In: the bytes that may be live beside a half's static inputs. Out: Inductor's own heuristics, less the fusions that
would need more. Checked on torch 2.11 to 2.15. Never changes what is computed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

# Kernels further apart than this in Inductor's order are not fused where a plan is followed. Fusing moves one of them,
# and many small moves add up: an unrolled recurrent loop that needs 1.7 MiB at 4 and at 8 took 4.9 at 12; at 64,
# torch's own limit (for readers of one tensor only), an 8-block transformer planned at 76 MiB took 80 to 90 (2026-11,
# torch 2.13 on CPU; below 4 not tried).
FUSION_REACH = 4


# Set in a node's `meta`: its result is to be in memory from there on (`GraphLowering.run_node`, 2.11-2.15). By itself
# Inductor computes what a matmul reads right before that matmul, wherever the graph has it.
STORE_HERE = "inductor_realize_to_strides"
# Set in a node's `meta` by us: bytes that its operator allocates while it runs, and frees.
SCRATCH_BYTES = "rematpass_scratch_bytes"
# Set in a node's `meta` by us: the forward returns it, and its caller holds it, whoever reads it last in the backward.
HELD = "rematpass_held"
# Set in the `meta` of the backward's output by us: bytes of all that is held so, also what the backward is not handed.
HELD_BYTES = "rematpass_held_bytes"


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
            # Before others, which could put the two out of each other's reach.
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


def stored_names(nodes: Iterable[Any]) -> set[str]:
    """What kernels write to memory."""
    return {name for node in nodes for name in set(_written_names(node)) - made_inside(node)}


def made_inside(*nodes: Any) -> set[str]:
    """What one kernel of `nodes` writes for itself only and does not store; sums that its other loops read are."""
    return set().union(*map(_made_by_loops, _loops_together(nodes)))


def _made_by_loops(nodes: Sequence[Any]) -> set[str]:
    own = {name for node in nodes for name in node.get_operation_names()}
    parts = (part for node in nodes for part in node.get_nodes() if not part.is_reduction())
    made = (buffer for part in parts for buffer in part.get_outputs())
    return {buffer.get_name() for buffer in made if all(user.get_name() in own for user in buffer.users)}


def _loops_together(nodes: Sequence[Any]) -> list[Sequence[Any]]:
    """Loops that hand each other what they do not store: in C++ all under one outer loop, unless one goes less deep.

    Then none has a buffer of its own for a row (`try_outer_loop_fusion_with_local_buf`, 2.11-2.15).
    """
    outer = [loop for node in nodes for loop in _outer_loops(node)]
    is_generated = all(hasattr(part, "group") for loop in outer for part in loop.get_nodes())
    if not is_generated or any(loop.get_device().type != "cpu" for loop in outer):
        return [outer]
    return [outer] if len({_elements(loop) for loop in outer}) == 1 else [[loop] for loop in outer]


def _outer_loops(node: Any) -> Sequence[Any]:
    """The kernels that C++ puts under one outer loop (`OuterLoopFusedSchedulerNode`, 2.11-2.15), or the kernel."""
    return node.get_outer_nodes() if hasattr(node, "get_outer_nodes") else (node,)


def _elements(loop: Any) -> Any:
    """How many elements a loop goes through, those of its sums if it has any; symbolic where sizes are."""
    _, (outer, inner) = max(loop.get_nodes(), key=lambda part: part.is_reduction()).group
    return math.prod((*outer, *inner))


class _FusionGuard:
    """Refuses a fusion that would lift live memory above the plan's.

    Inductor runs two kernels as one where the first of them stands, right after what the second needs of what is
    between (`topological_sort_schedule`). What all these write is alive from there on; what the two hand to each other
    is not stored. Live bytes along Inductor's unfused order, with that added and what operators take while they run,
    must stay within the room; of neighbours, or within what is alive there one by one. The estimate is high where other
    fusions remove buffers, so it errs towards less fusion.
    """

    def __init__(self, room_bytes: int) -> None:
        self._room = self._beside = room_bytes
        self._scheduler: Any = None
        self._nodes: list[Any] = []
        self._live: list[int] = []
        self._taken: list[dict[str, list[str]]] = []
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._size: dict[str, int] = {}

    def allows(self, scheduler: Any, node1: Any, node2: Any) -> bool:
        """Whether two kernels may become one."""
        low, high = min(node1.min_order, node2.min_order), max(node1.max_order, node2.max_order)
        are_neighbours = high - low <= 1 or _vanishes(node1, node2)
        if high - low > FUSION_REACH and not are_neighbours:
            return False
        if self._scheduler is not scheduler:
            self._measure(scheduler)
        inside = made_inside(node1, node2)
        ahead = self._run_ahead(node1, node2, low, high)
        moved = _all_written((*node1.get_nodes(), *node2.get_nodes(), *ahead)) - inside
        places = range(low, high + 1)
        needed = [self._live[i] + self._added(i, moved, inside) - self._saved(i, inside) for i in places]
        # Where both run, what takes over a place is known only of the two.
        needed[0] += self._saved(low, inside) - self._saved_by_both(node1, node2, inside)
        scratch = max((scratch_bytes(node) for node in ahead if not several_of(node)), default=0)
        if scratch:  # taken where the first stood, with what that reads still there
            written = self._added(low, _all_written(ahead), inside)
            needed.append(self._live[low] + written - self._saved(low, inside) + scratch)
        # What is alive above the room is so only in the estimate; two that nothing is between add nothing to it.
        before = (self._live[i] - self._saved(i, set()) for i in places) if are_neighbours else ()
        return bool(max(needed) <= max((self._beside, *before)))

    def _run_ahead(self, node1: Any, node2: Any, low: int, high: int) -> list[Any]:
        """What runs at `low`, before both, if the two are one: what they need of what is before `high`."""
        needs = node1.ancestors | node2.ancestors
        between = itertools.chain(*self._nodes[low + 1 : high])
        return [node for node in between if node.get_name() in needs]

    def _added(self, order: int, moved: Set[str], inside: Set[str]) -> int:
        """Bytes that are alive there earlier than in the unfused order, less those that are not stored."""
        early = sum(self._size.get(name, 0) for name in moved if self._first[name] > order)
        return early - sum(self._size.get(name, 0) for name in inside if self._first[name] <= order <= self._last[name])

    def _saved(self, order: int, inside: set[str]) -> int:
        """Bytes counted twice there: of what is written in the place of what is read (`stored_places_first`)."""
        taken = self._taken[order].items()
        return sum(self._size[heir] for heir, dying in taken if heir not in inside and not inside.issuperset(dying))

    def _saved_by_both(self, node1: Any, node2: Any, inside: set[str]) -> int:
        """The same where the two run as one: no result takes the place of what is read besides, or after them.

        What is written in the place of a result that is not stored lies where that would have lain; not where sums
        part the loops that make and read it: then it has a buffer of its own for a row (`_loops_together`).
        """
        nodes = (*node1.get_nodes(), *node2.get_nodes())
        passes = not any(node.is_reduction() and node.get_device().type == "cpu" for node in nodes)
        orders = range(min(node.min_order for node in nodes), max(node.max_order for node in nodes) + 1)
        between = [node for order in orders for node in self._nodes[order] if node not in nodes]

        def has_place(node: Any, result: str, others: Iterable[Any]) -> bool:
            dying = self._taken[node.min_order].get(result, ())
            blocked = inside.union(*map(_read_names, (*others, *between)))
            makers = ((n, name) for n in nodes for name in inside.intersection(_written_names(n), dying))
            is_passed_on = passes and any(has_place(n, name, [o for o in nodes if o is not n]) for n, name in makers)
            return not blocked.issuperset(dying) or is_passed_on

        saved = 0
        for node in nodes:
            others = [n for n in nodes if n is not node and n.get_name() not in node.ancestors]
            heirs = set(_written_names(node)) - inside
            saved += sum(self._size.get(heir, 0) for heir in heirs if has_place(node, heir, others))
        return saved

    def _measure(self, scheduler: Any) -> None:
        """Per place of the unfused order: nodes, live bytes, places taken over; per buffer: size, first, last place."""
        nodes = sorted((n for group in scheduler.nodes for n in group.get_nodes()), key=lambda n: n.min_order)
        count = 1 + max((n.max_order for n in nodes), default=0)
        self._scheduler, self._first, self._last, self._size = scheduler, {}, {}, buffer_bytes(scheduler)
        self._beside = self._room - held_bytes()
        self._nodes = [[] for _ in range(count)]
        for node in nodes:
            self._nodes[node.min_order].append(node)
            first = self._first.get(several_of(node), node.min_order)
            for name in _written_names(node):
                self._first.setdefault(name, first)
                self._last.setdefault(name, node.min_order)
            for name in _read_names(node):
                self._last[name] = max(self._last.get(name, 0), node.max_order)
        self._last.update(dict.fromkeys(_output_names(), count))
        self._taken = [{} for _ in range(count)]
        for node in nodes:
            self._taken[node.min_order].update(self._find_taken(node))
        made, gone = [0] * count, [0] * (count + 2)  # what the last kernel reads is gone after it
        for name, last in self._last.items():
            made[self._first.get(name, 0)] += self._size.get(name, 0)
            gone[last + 1] += self._size.get(name, 0)
        self._live = list(itertools.accumulate(new - old for new, old in zip(made, gone, strict=False)))
        for node in nodes:
            if not several_of(node):  # results of one operator: it ran where that stands
                self._live[node.min_order] += scratch_bytes(node)

    def _find_taken(self, node: Any) -> Iterator[tuple[str, list[str]]]:
        """What `node` writes in the place of what it is the last to read, and of what (`decide_inplace_update`)."""
        dying = [name for name in _read_names(node) if self._last[name] == node.min_order and _can_take(node, name)]
        for heir in _written_names(node):
            found = [name for name in dying if 0 < self._size.get(name, 0) == self._size.get(heir)]
            if found:
                yield heir, found


def scratch_bytes(node: Any) -> int:
    """Bytes that an operator with a kernel of its own takes while it runs (`SCRATCH_BYTES`)."""
    origins = node.node.origins if node.is_extern() else ()
    return max((origin.meta.get(SCRATCH_BYTES, 0) for origin in origins), default=0)


def several_of(node: Any) -> str:
    """The buffer that stands for all results of an operator, of which the node hands out one: all are made there."""
    from torch._inductor.ir import MultiOutput

    source: Any = node.node.inputs[0] if isinstance(node.node, MultiOutput) else None
    return "" if source is None else str(source.get_name())


def _can_take(node: Any, donor: str) -> bool:
    """Whether `node` may write in the place of what it reads, element for element."""
    known = node.scheduler.name_to_buf
    buffer = known.get(donor) or node.scheduler.name_to_donated_buffer.get(donor)
    return buffer is not None and any(user.node is node and user.can_inplace for user in buffer.users)


def _read_names(node: Any) -> list[str]:
    known = node.scheduler.name_to_buf
    return [_home(known[dep.name]).get_name() if dep.name in known else dep.name for dep in node.read_writes.reads]


def _written_names(node: Any) -> list[str]:
    return [_home(buffer).get_name() for buffer in node.get_outputs()]


def _all_written(nodes: Iterable[Any]) -> set[str]:
    return {name for node in nodes for name in _written_names(node)}


def _home(buffer: Any) -> Any:
    """The buffer whose memory is written: a part of a concatenation lies in the whole, a mutated one where it was."""
    from torch._inductor.ir import NonOwningLayout

    known, mutated = buffer.scheduler.name_to_buf, buffer.scheduler.mutation_real_name
    while True:
        layout: Any = getattr(buffer.node, "layout", None)
        is_part = isinstance(layout, NonOwningLayout)
        name = layout.view.get_name() if is_part else mutated.get(buffer.get_name())
        if name not in known:  # it is its own home, or an input of the graph is
            return buffer
        buffer = known[name]


def _output_names() -> list[str]:
    from torch._inductor.virtualized import V

    return list(V.graph.get_output_names())


def _tangent_names() -> list[str]:
    """Gradients that the caller hands to the half and lets go: Inductor does not count them (2.11-2.15)."""
    from torch._inductor.virtualized import V

    given = V.graph.graph_inputs.items()
    return [name for name, value in given if name.startswith("tangents") and hasattr(value, "get_size")]


def _held_names() -> set[str]:
    """Inputs of the half that the caller holds (`HELD`)."""
    from torch._inductor.virtualized import V

    lowered: Any = V.graph.module
    given = lowered.graph.find_nodes(op="placeholder")
    return {str(node.target) for node in given if node.meta.get(HELD)}


def held_bytes() -> int:
    """What the caller holds while the half runs (`HELD_BYTES`)."""
    from torch._inductor.virtualized import V

    lowered: Any = V.graph.module
    return int(lowered.graph.output_node().meta.get(HELD_BYTES, 0))


def buffer_bytes(scheduler: Any) -> dict[str, int]:
    """Bytes of every buffer and of every graph input that dies inside: neither parameters nor what the caller holds."""
    from torch._inductor.dependencies import StarDep
    from torch._inductor.memory import compute_size_for_scheduler_buffer, get_freeable_input_buf
    from torch._inductor.virtualized import V
    from torch.utils._ordered_set import OrderedSet

    sizes = {name: pair[1] for name, pair in compute_size_for_scheduler_buffer(scheduler.name_to_buf).items()}
    sizes.update((name, 0) for name, buffer in scheduler.name_to_buf.items() if _home(buffer) is not buffer)
    freed = get_freeable_input_buf(scheduler.nodes, OrderedSet(V.graph.graph_inputs))
    for name in {*freed, *_tangent_names()} - _held_names():
        # The whole of it: the size that comes with the name is what one kernel reads, of a slice half.
        sizes[name] = V.graph.get_dep_size_hint(StarDep(name))
    return sizes
