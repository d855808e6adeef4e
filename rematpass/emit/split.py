"""Write the two FX graphs of a decision.

In: the `JointProgram` and a `Decision`. Out: forward and backward GraphModules, ops in the planned order. Never
changes the order, never merges two computations of one value.
"""

from __future__ import annotations

from torch import fx

from .. import torch_compat
from ..graph.capture import JointProgram
from ..solve.program import Decision, Kind, Program


def split_program(joint: JointProgram, program: Program, decision: Decision) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Make recomputations explicit nodes of the joint graph, then cut it.

    Returns:
        (forward, backward). The forward returns its outputs, then what is kept; the backward takes what is kept,
        then the tangents.
    """
    kept_order = _kept_order(program, decision)
    environment = _expand(joint, program, decision)
    _check_versions(program, decision, environment)
    kept = [environment[v] for v in kept_order if program.kind[v] is not Kind.SYMBOL]
    symbols = [environment[v] for v in kept_order if program.kind[v] is Kind.SYMBOL]
    return torch_compat.extract_halves(
        joint.gm,
        kept,
        symbols,
        num_fwd_outputs=joint.num_fwd_outputs,
        static_inputs=[environment[i] for i in joint.static_inputs],
    )


def _kept_order(program: Program, decision: Decision) -> tuple[int, ...]:
    from ..solve.trace import kept_values

    return tuple(sorted(kept_values(program, decision.schedule.backward)))


def _expand(joint: JointProgram, program: Program, decision: Decision) -> dict[int, fx.Node]:
    """Replace the joint graph by one in the planned order with every recomputation a node of its own.

    Returns the node of each value's first computation: what the forward keeps.
    """
    graph = fx.Graph(joint.gm)
    latest: dict[fx.Node, fx.Node] = {}
    first: dict[int, fx.Node] = {}

    def copy(value: int) -> None:
        node = joint.nodes[value]
        latest[node] = graph.node_copy(node, latest.__getitem__)
        first.setdefault(value, latest[node])

    for value, node in enumerate(joint.nodes):
        if node.op in ("placeholder", "get_attr"):
            copy(value)
    given = set(first)
    sequence = (*decision.schedule.forward, *_backward_symbols(program, decision), *decision.schedule.backward)
    for value in sequence:
        if value not in given:
            copy(value)
    output = next(n for n in joint.gm.graph.nodes if n.op == "output")
    graph.node_copy(output, latest.__getitem__)
    joint.gm.graph = graph
    return first


def _check_versions(program: Program, decision: Decision, environment: dict[int, fx.Node]) -> None:
    """Let torch refuse the backward if the user has changed in place what values are computed again from.

    torch takes what a custom autograd function keeps on its context without a check, for every use of it: the function
    is to see the change. What we compute again must not. The nodes here are copies: the joint graph's keep their mark.
    """
    again = set(decision.schedule.forward) & set(decision.schedule.backward)
    for value in {u for v in again for u in program.inputs[v]}:
        environment[value].meta.pop(torch_compat.NO_VERSION_CHECK, None)


def _backward_symbols(program: Program, decision: Decision) -> list[int]:
    """Symbolic scalars that no half has computed yet: they cost nothing and go before their readers."""
    done = set(decision.schedule.forward) | set(decision.schedule.backward)
    return [
        v for v, kind in enumerate(program.kind) if kind is Kind.SYMBOL and v not in done and not program.is_backward[v]
    ]
