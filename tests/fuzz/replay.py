"""Many budgets for one trace: the halves of every budget are run on what the halves without limit were given.

Tracing takes most of the time of a small program. `Replay` compiles a module once, with no limit, and plans the same
joint graph at further budgets. When the step has run, each further pair of halves runs op by op on copies of the same
inputs, saved values and gradients, from the same state of the generator, and must leave the same bits everywhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import nop
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch.utils import _pytree

import rematpass
from tests.differential.steps import equal

Halves = tuple[fx.GraphModule, fx.GraphModule]


@dataclass
class Call:
    """One run of a half: what it was given, and all that it left."""

    before: torch.Tensor
    given: list[Any]
    returned: list[Any]
    inputs_after: list[Any]
    after: torch.Tensor

    def differences(self, other: Call, count: int | None = None) -> list[str]:
        """Names of what differs; of what is returned, the first `count`."""
        pairs = [
            (f"returned {i}", *p) for i, p in enumerate(zip(self.returned[:count], other.returned[:count], strict=True))
        ]
        pairs += [(f"input {i}", *p) for i, p in enumerate(zip(self.inputs_after, other.inputs_after, strict=True))]
        pairs.append(("generator", self.after, other.after))
        return [name for name, x, y in pairs if not _is_same(x, y)]


def _is_same(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x.shape == y.shape and x.stride() == y.stride() and x.dtype == y.dtype and equal(x, y)
    return type(x) is type(y) and x == y


def _copies(values: Sequence[Any]) -> list[Any]:
    return [v.detach().clone() if isinstance(v, Tensor) else v for v in values]


def run_half(half: Callable[..., Any], given: Sequence[Any]) -> Call:
    before, copied = torch.get_rng_state(), _copies(given)
    with torch.no_grad():
        returned = list(half(*given))
    return Call(before, copied, _copies(returned), _copies(given), torch.get_rng_state())


@dataclass
class Graph:
    """One joint graph: its plan without limit, further plans with their halves, and what the step gave it."""

    fastest: rematpass.Plan
    others: list[tuple[int, rematpass.Plan, Halves]]
    num_outputs: int
    halves: Halves
    calls: list[Call] = field(default_factory=list)

    def check(self) -> Iterator[str]:
        """What is wrong with the further plans: other bits, or a peak above a budget."""
        for budget, plan, halves in self.others:
            if plan.peak_bytes > budget:
                yield f"a peak of {plan.peak_bytes} at a budget of {budget}"
            yield from (f"{what} differs at a budget of {budget}" for what in self._replay(halves))
        peaks = [plan.peak_bytes for _, plan, _ in self.others]  # budgets fall
        yield from [f"peaks {peaks} rise while budgets fall"] if peaks != sorted(peaks, reverse=True) else []

    def _replay(self, halves: Halves) -> Iterator[str]:
        if not self.calls:
            return
        first = self.calls[0]
        torch.set_rng_state(first.before)
        forward = run_half(halves[0], _copies(first.given))
        yield from (f"forward: {what}" for what in forward.differences(first, self.num_outputs))
        if len(self.calls) < 2:
            return
        second = self.calls[1]
        tangents = dict(zip(_input_names(self.halves[1]), second.given, strict=True))
        saved = dict(
            zip(_output_names(halves[0])[self.num_outputs :], forward.returned[self.num_outputs :], strict=True)
        )
        torch.set_rng_state(second.before)
        backward = run_half(halves[1], [{**tangents, **saved}[name] for name in _input_names(halves[1])])
        backward.inputs_after = second.inputs_after  # other values are saved
        yield from (f"backward: {what}" for what in backward.differences(second))


def _input_names(half: fx.GraphModule) -> list[str]:
    return [str(n.target) for n in half.graph.nodes if n.op == "placeholder"]


def _output_names(half: fx.GraphModule) -> list[str]:
    output = next(n for n in half.graph.nodes if n.op == "output")
    return [getattr(leaf, "name", "") for leaf in _pytree.tree_leaves(output.args, is_leaf=lambda leaf: leaf is None)]


class Replay:
    """Wraps a model as `OpByOp("none")` does; `graphs` holds the plans at `shares` of the way between the two ends."""

    def __init__(self, shares: Sequence[int], **options: object) -> None:
        self._shares = sorted(shares, reverse=True)
        self._options = options
        self.graphs: list[Graph] = []

    @property
    def plans(self) -> list[rematpass.Plan]:
        return [graph.fastest for graph in self.graphs]

    def __call__(self, model: Callable[..., Any]) -> Callable[..., Any]:
        torch._dynamo.reset()
        backend = aot_autograd(
            fw_compiler=self._recorded,
            bw_compiler=self._recorded,
            inference_compiler=nop,
            partition_fn=self._split,
            keep_inference_input_mutations=True,
        )
        return torch.compile(model, backend=backend)

    def _split(self, gm: fx.GraphModule, inputs: Sequence[object], *, num_fwd_outputs: int, **facts: Any) -> Halves:
        def plan(budget: object) -> tuple[list[rematpass.Plan], Halves]:
            split = rematpass.partition_fn(memory_budget=budget, **self._options)
            joint = fx.GraphModule(gm, copy.deepcopy(gm.graph))
            halves = split(joint, inputs, num_fwd_outputs=num_fwd_outputs, **facts)
            return split.plans, halves

        plans, halves = plan("none")
        if not plans:
            return halves
        others = []
        for share in self._shares:
            budget = between(plans[0], share)
            found, limited = plan(budget)
            others.append((budget, found[0], limited))
        self.graphs.append(Graph(plans[0], others, num_fwd_outputs, halves))
        return halves

    def _recorded(self, half: fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        graph = next((g for g in reversed(self.graphs) if half in g.halves), None)
        if graph is None:
            return half

        def run(*given: Any) -> list[Any]:
            before, copied = torch.get_rng_state(), _copies(given)
            returned = list(half(*given))
            graph.calls.append(Call(before, copied, _copies(returned), _copies(given), torch.get_rng_state()))
            return returned

        return run


def between(plan: rematpass.Plan, share: int) -> int:
    """A budget, `share` percent of the way from the smallest peak to the fastest plan's."""
    bottom, top = plan.smallest_peak_bytes, plan.fastest_peak_bytes
    return bottom + (top - bottom) * share // 100
