"""Several compiled graphs of one step, or one that runs several times before its backward: one budget for all.

In: compiled graphs, as they are called. Out: the same graphs; from the second step on they follow plans that keep the
budget together. Never changes what is computed, never holds a tensor.

Each graph is compiled before anybody knows what comes after it. So the first step is watched: which graphs hold what
they keep while another one runs, and what else is live that is not that one's own. Before the second, plans are chosen
for all of them (`shares.py`). Until then a graph that is known to have company leaves half of the budget to it, or
follows the plan that holds least.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from . import torch_compat
from .accumulated import Accumulating
from .report.sizes import format_bytes
from .shares import Moment, Offer, choose_together, excess_bytes, offer_of
from .verify import backward_of, tensors_in

logger = logging.getLogger(__name__)

# Steps in which nothing new is seen; after so many, nobody looks until another graph is compiled.
QUIET_STEPS = 8

_LEDGERS: dict[str, Ledger] = {}

Parameters = dict[int, "weakref.ref[torch.Tensor]"]
"""By their identity."""


def ledger_of(device_type: str) -> Ledger:
    """What the compiled graphs of this process hold on a device of this type."""
    return _LEDGERS.setdefault(device_type, Ledger())


class Together:
    """A compiled graph that shares its budget with those that run in the same step.

    Args:
        form: the graph.
        offers: what its plans would take; None where it has one plan only.
        ledger: where graphs of a step meet.
        is_followed: it was planned for graphs to come.

    Attributes:
        is_settled: a step with it is over, so that its company has been seen.
        beside: what was live beside it while it ran that no plan changes: the most bytes, by the graphs that waited.
        most_runs: how often it ran in one step.
    """

    def __init__(
        self,
        form: Accumulating,
        offers: Callable[[], Sequence[Offer]] | None,
        ledger: Ledger,
        *,
        is_followed: bool = False,
    ) -> None:
        self._form = form
        self._awaits_company = is_followed and self.present.extra_seconds > 0
        self.is_settled = False
        self._trace_offers = offers
        self._offers: tuple[Offer, ...] = ()
        self._ledger = ledger
        self.beside: dict[tuple[weakref.ref[Together], ...], int] = {}
        self.most_runs = 1
        ledger.look_again()

    @property
    def name(self) -> str:
        """Of the graph, among those of one `torch.compile`."""
        return self._form.plan.graph_name

    def share(self) -> None:
        """Other graphs run in the same step."""
        self._form.is_shared = True

    @property
    def whole_bytes(self) -> int:
        """The budget of everything."""
        return self._form.whole_bytes

    @property
    def present(self) -> Offer:
        """What the plan takes that it follows now."""
        return offer_of(self._form.plan)

    def offers(self) -> tuple[Offer, ...]:
        """What it could follow that keeps the budget when it runs alone; worked out once."""
        if not self._offers:
            traced = () if self._trace_offers is None else self._trace_offers()
            self._offers = tuple(o for o in traced if o.peak_bytes <= self.whole_bytes) or (self.present,)
        return self._offers

    def follow(self, offer: Offer) -> None:
        """The plan of an offer, from the next call on."""
        present = self.present
        if (offer.peak_bytes, offer.held_bytes) != (present.peak_bytes, present.held_bytes):
            self._form.follow(offer)

    def settle(self, *, is_alone: bool) -> None:
        """A step is over. Where nobody came, the whole budget is the graph's."""
        if is_alone and self._awaits_company:
            self._form.follow(None)
        self._awaits_company = False
        self.is_settled = True

    def __call__(self, *inputs: Any) -> Any:
        """One forward, as part of a step."""
        if not torch.is_grad_enabled() or torch_compat.is_in_backward():
            return self._form(*inputs)
        run = Run(self, *_split(inputs))
        self._ledger.begin(run)
        outputs = self._form(*inputs)
        tensors = tensors_in(outputs)
        node = backward_of(tensors)
        if node is not None:
            run.returned.update(_storages(tensors))
            run.gradient_bytes = sum(_storages(t for t in tensors if t.requires_grad).values())
            self._ledger.wait(run, node)
        return outputs


@dataclass(eq=False)
class Run:
    """A graph between its forward and the end of its backward.

    Attributes:
        graph: the compiled graph.
        handed: bytes by address of what it was handed, parameters left out.
        parameters: those it was handed.
        returned: bytes by address of what it returned; its plan counts them as held.
        gradient_bytes: of what it returned and what its backward is handed gradients of.
    """

    graph: Together
    handed: dict[int, int]
    parameters: Parameters
    returned: dict[int, int] = field(default_factory=dict)
    gradient_bytes: int = 0


class Ledger:
    """Which graphs run in a step, and what is live beside each."""

    def __init__(self) -> None:
        self._graphs: weakref.WeakSet[Together] = weakref.WeakSet()  # of the present step
        self._waiting: dict[int, Run] = {}
        self._runs: Counter[int] = Counter()
        self._parameters: Parameters = {}
        self._done: set[int] = set()
        self._has_news = False
        self._quiet_steps = 0

    def look_again(self) -> None:
        """A graph was compiled: steps may change."""
        self._quiet_steps = 0

    def begin(self, run: Run) -> None:
        """Before a forward. Where no graph waits for its backward, a step begins."""
        if not self._waiting:
            self._begin_step()
        self._graphs.add(run.graph)
        self._runs[id(run.graph)] += 1
        run.graph.most_runs = max(run.graph.most_runs, self._runs[id(run.graph)])
        self._parameters.update(run.parameters)
        found = self._note(run, is_backward=False)
        if found is not None:
            self._make_room(run.graph, *found)

    def wait(self, run: Run, node: Any) -> None:
        """The graph's forward is over; `node` is its backward."""

        def before(_: object) -> None:
            self._note(run, is_backward=True)

        key = id(run)
        self._waiting[key] = run
        node.register_prehook(before)
        node.register_hook(lambda *_: self._close(run))
        torch_compat.when_node_is_gone(node, lambda: self._waiting.pop(key, None))

    def waiting_bytes(self, inputs: Sequence[object]) -> int:
        """What graphs of the present step hold beside these inputs of one that is about to be compiled."""
        waiting = list(self._waiting.values())
        if not waiting:
            return 0
        held = sum(run.graph.present.held_bytes for run in waiting)
        return held + self._live_beside(*_split(inputs), waiting, is_backward=False)

    @staticmethod
    def _make_room(graph: Together, moment: Moment, present: Sequence[Offer]) -> None:
        """Where too little is left, what is left of this step takes as little as it can."""
        excess = excess_bytes(moment, present)
        if not graph.is_settled:
            excess += moment.budget_bytes // 2  # for graphs to come
        if excess > 0:
            waiting = present[1:]
            graph.follow(min(graph.offers(), key=lambda o: excess_bytes(moment, [o, *waiting]) + o.held_bytes))

    def _begin_step(self) -> None:
        self._runs.clear()
        self._parameters, self._done = {}, set()
        self._quiet_steps += not self._has_news
        if self._has_news:
            self._quiet_steps = 0
            self._choose()
        for graph in self._graphs:
            graph.settle(is_alone=not self._has_news)
        self._has_news = False
        self._graphs.clear()

    def _close(self, run: Run) -> None:
        self._waiting.pop(id(run), None)
        self._done.update(run.parameters)

    def _note(self, run: Run, *, is_backward: bool) -> tuple[Moment, list[Offer]] | None:
        """As a forward or a backward begins: what is live beside it, where that was never more."""
        waiting = [other for other in self._waiting.values() if other is not run]
        is_alone = len(self._parameters) == len(run.parameters) and not self._done and not waiting
        if is_alone or self._quiet_steps > QUIET_STEPS:
            return None
        run.graph.share()
        found = self._live_beside(run.handed, run.parameters, waiting, is_backward=is_backward)
        graphs = sorted((other.graph for other in waiting), key=id)
        key = tuple(map(weakref.ref, graphs))
        if found <= run.graph.beside.get(key, -1):
            return None
        run.graph.beside[key] = found
        self._has_news = True
        moment = Moment(0, tuple(range(1, 1 + len(graphs))), found, run.graph.whole_bytes)
        return moment, [graph.present for graph in (run.graph, *graphs)]

    def _live_beside(
        self, own: dict[int, int], parameters: Parameters, waiting: Sequence[Run], *, is_backward: bool
    ) -> int:
        """Bytes of the step that are not a graph's own, nor held by the waiting ones.

        Others' parameters, gradients of earlier backwards and, of the same parameters, of this one; what the waiting
        graphs were handed, and gradients that wait for their backwards; less what one of them returned and this one is
        handed, which both count. Gradients that are there for a forward may be cleared before the backward, which is
        looked at for itself.
        """
        returned = {at: size for other in waiting for at, size in other.returned.items()}
        handed = {at: size for other in waiting for at, size in other.handed.items()}
        total = sum(size for at, size in handed.items() if at not in own and at not in returned)
        total -= sum(size for at, size in returned.items() if at in own)
        mine = _storages(p for ref in parameters.values() if (p := ref()) is not None)
        theirs = _storages(p for ref in self._parameters.values() if (p := ref()) is not None)
        total += sum(size for at, size in theirs.items() if at not in mine)
        if not is_backward:
            return total
        read_later = own.keys() | handed.keys()
        # Whatever reads what they returned is over: its gradient is there.
        total += sum(other.gradient_bytes for other in waiting if read_later.isdisjoint(other.returned))
        return total + self._gradient_bytes(parameters.keys() | {at for other in waiting for at in other.parameters})

    def _gradient_bytes(self, to_come: Set[int]) -> int:
        """Gradients that are there, and those that wait to be added, as large as the memory of their parameters now.

        Sharded training takes that of a parameter whose graph is over, and of its gradient with it. A gradient waits
        where another backward, `to_come`, has a part of it.
        """
        found = {at: p for at, ref in self._parameters.items() if (p := ref()) is not None and p.requires_grad}
        there = _storages(p for p in found.values() if p.grad is not None)
        waiting = _storages(p for at, p in found.items() if at in self._done and (p.grad is None or at in to_come))
        return sum(there.values()) + sum(waiting.values())

    def _choose(self) -> None:
        """Choose plans for the graphs of the steps so far, if those they follow break a budget or could be faster."""
        moments, graphs = _moments(self._graphs)
        present = [graph.present for graph in graphs]
        if all(excess_bytes(m, present) <= 0 for m in moments) and not any(o.extra_seconds for o in present):
            return
        offers = [graph.offers() for graph in graphs]
        picks = choose_together(offers, [graph.most_runs for graph in graphs], moments)
        for graph, those, place in zip(graphs, offers, picks, strict=True):
            graph.follow(those[place])
        _tell(graphs, moments)


def _moments(graphs: Iterable[Together]) -> tuple[list[Moment], list[Together]]:
    """All that was noted of these graphs among themselves, and the graphs by number."""
    number: dict[Together, int] = {}
    those, moments = set(graphs), []
    for graph in those:
        for refs, size in {(): 0, **graph.beside}.items():
            waiting = [ref() for ref in refs]
            if all(other in those for other in waiting):
                places = [number.setdefault(g, len(number)) for g in (graph, *waiting) if g is not None]
                moments.append(Moment(places[0], tuple(places[1:]), size, graph.whole_bytes))
    return moments, list(number)


def _tell(graphs: Sequence[Together], moments: Sequence[Moment]) -> None:
    present = [graph.present for graph in graphs]
    names = ", ".join(f"{graph.name} {format_bytes(o.peak_bytes)}" for graph, o in zip(graphs, present, strict=True))
    worst = max(moments, key=lambda moment: excess_bytes(moment, present))
    excess = excess_bytes(worst, present)
    if excess <= 0:
        logger.info("rematpass: graphs of one step share a budget of %s: %s", format_bytes(worst.budget_bytes), names)
        return
    warnings.warn(
        f"rematpass: the graphs of one step take {format_bytes(worst.budget_bytes + excess)} together, the budget is "
        f"{format_bytes(worst.budget_bytes)}: {names}, with the smallest peaks possible. Try: that budget; a smaller "
        "batch; one graph in place of several (fullgraph=True says where they break)",
        stacklevel=2,
    )


def _split(inputs: Iterable[object]) -> tuple[dict[int, int], Parameters]:
    """What a graph is handed: storages of values, and parameters."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    parameters = [value for value in tensors if isinstance(value, torch.nn.Parameter)]
    known = {id(p) for p in parameters}
    values = [value for value in tensors if id(value) not in known]
    return _storages(values), {id(p): weakref.ref(p) for p in parameters}


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Bytes of storages by address, without those of tensors made of others, and of sparse ones, which have none."""
    plain = [t for t in tensors if t.layout is torch.strided and not torch_compat.is_wrapper(t)]
    return {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in plain)}
