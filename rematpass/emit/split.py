"""Write the two FX graphs of a decision.

In: the `JointProgram` and a `Decision`. Out: forward and backward GraphModules, ops in the planned order. Never
changes the order, never merges two computations of one value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torch import fx

from .. import torch_compat
from ..graph.capture import JointProgram
from ..graph.op_traits import base_name, is_largest, is_pointwise, is_unrolled
from ..graph.words import words
from ..solve.liveness import find_put_off, kept_values
from ..solve.program import Decision, Kind, Program
from .layouts import is_static
from .sums import keep_products_in_place

# What Inductor's passes write anew.
_WRITTEN_ANEW = words("as_strided_scatter diagonal_scatter select_scatter slice_scatter")
# Values of the forward and positions in the backward whose results are stored where they are computed.
_Marked = tuple[frozenset[int], frozenset[int]]
_NOTHING: _Marked = frozenset(), frozenset()


def split_program(joint: JointProgram, program: Program, decision: Decision) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Make recomputations explicit nodes of the joint graph, then cut it.

    Where Inductor runs the halves, it is told to store what it would not, or later than the plan has it.

    Args:
        joint: the graph.
        program: the same, as it was solved.
        decision: what to compute where.

    Returns:
        (forward, backward). The forward returns its outputs, then what is kept; the backward takes what is kept,
        then the tangents.
    """
    kept_order = _kept_order(program, decision)
    marked = _stored_in_place(joint, program, decision) if program.is_fusing else _NOTHING
    environment = _expand(joint, program, decision, marked)
    _check_versions(program, decision, environment)
    # Constants and inner graphs are attributes of both halves: nothing to hand over.
    handed = [v for v in kept_order if joint.nodes[v].op != "get_attr"]
    kept = [environment[v] for v in handed if program.kind[v] is not Kind.SYMBOL]
    symbols = [environment[v] for v in handed if program.kind[v] is Kind.SYMBOL]
    forward, backward = torch_compat.extract_halves(
        joint.gm,
        kept,
        symbols,
        num_fwd_outputs=joint.num_fwd_outputs,
        static_inputs=[environment[i] for i in joint.static_inputs],
    )
    if program.is_fusing:
        keep_products_in_place(forward)
        keep_products_in_place(backward)
    for given in backward.graph.find_nodes(op="placeholder"):  # stored by the forward, as it lies
        given.meta = {key: value for key, value in given.meta.items() if key != torch_compat.STORE_HERE}
    held_bytes = sum(program.size_bytes[v] for v in _held_roots(program))
    backward.graph.output_node().meta[torch_compat.HELD_BYTES] = held_bytes
    return forward, backward


def _held_roots(program: Program) -> set[int]:
    """Values in whose memory lies what the forward returns: its caller holds it while the backward runs."""
    return {program.root[v] for v in program.forward_outputs}


def _stored_in_place(joint: JointProgram, program: Program, decision: Decision) -> _Marked:
    """What Inductor would put off or lay out otherwise (`find_put_off`), and what it fuses.

    That is sums and maxima of few elements, maxima of windows, and where in these they lie. These take little memory,
    and what they are made from would live on until it is read there. So would it of what running sums ask for
    (`find_asked_for`).
    """
    values, positions = find_put_off(program, decision.schedule)
    schedule = decision.schedule
    others = {v for v, node in enumerate(joint.nodes) if _would_be_fused(node, program.kind[v])}
    positions |= {i for i, v in enumerate(schedule.backward) if v in others}
    return values | others.intersection(schedule.forward), positions


def _would_be_fused(node: fx.Node, kind: Kind) -> bool:
    """Whether Inductor computes in readers, whatever they are, what the program has in memory."""
    if kind in (Kind.REDUCTION, Kind.PART) and is_unrolled(node):
        return True
    return is_largest(node) or (kind is Kind.REDUCTION and is_pointwise(node))


def _kept_order(program: Program, decision: Decision) -> tuple[int, ...]:
    return tuple(sorted(kept_values(program, decision.schedule.backward)))


def _expand(joint: JointProgram, program: Program, decision: Decision, marked: _Marked) -> dict[int, fx.Node]:
    """Replace the joint graph by one in the planned order with every recomputation a node of its own.

    Returns the node of each value's first computation.
    """
    graph = fx.Graph(joint.gm)
    held = _held_roots(program)
    latest: dict[fx.Node, fx.Node] = {}
    first: dict[int, fx.Node] = {}
    for value, is_backward, position in _executed(joint, program, decision):
        node = joint.nodes[value]
        latest[node] = graph.node_copy(node, latest.__getitem__)
        if is_backward is not None:
            latest[node].meta.update(torch_compat.half_tag(is_backward=is_backward))
            latest[node].meta[torch_compat.SCRATCH_BYTES] = program.workspace_bytes[value]
            latest[node].meta[torch_compat.HELD] = program.root[value] in held
            if position in marked[is_backward]:
                latest[node] = _stored_here(latest[node])
        first.setdefault(value, latest[node])
    output = next(n for n in joint.gm.graph.nodes if n.op == "output")
    returned = graph.node_copy(output, latest.__getitem__)
    # The forward returns what it computed itself, not what the backward computes again; numbers stay as they are.
    leaves = cast("list[fx.Node | None]", torch_compat.leaves(returned.args))
    own = [leaves[i] if o is None else first[o] for i, o in enumerate(joint.forward_outputs)]
    returned.args = ((*own, *leaves[len(own) :]),)
    joint.gm.graph = graph
    return first


def _stored_here(node: fx.Node) -> fx.Node:
    """A node whose result Inductor stores where it stands.

    Inductor writes scatters into views anew (`canonicalize_view_scatter_ops`, 2.11 to 2.15) and forgets what was noted
    on them; behind such a one stands a node of our own that asks for the strides it has.
    """
    if base_name(node.target) in _WRITTEN_ANEW and is_static(node):
        scatter, strides = node, node.meta["val"].stride()
        node = node.graph.call_function(torch_compat.order_strides(), (scatter, [*strides]))
        node.meta = {**scatter.meta}
    node.meta[torch_compat.STORE_HERE] = True
    return node


def _check_versions(program: Program, decision: Decision, environment: dict[int, fx.Node]) -> None:
    """Let torch refuse the backward if the user has changed in place what values are computed again from.

    torch takes what a custom autograd function keeps on its context without a check, for every use of it: the function
    is to see the change. What we compute again must not. The nodes here are copies: the joint graph's keep their mark.
    """
    again = set(decision.schedule.forward) & set(decision.schedule.backward)
    for value in {u for v in again for u in program.inputs[v]}:
        environment[value].meta.pop(torch_compat.NO_VERSION_CHECK, None)


def _executed(joint: JointProgram, program: Program, decision: Decision) -> Iterator[tuple[int, bool | None, int]]:
    """Everything in the planned order and whether it runs in the backward; None: wherever somebody asks for it.

    The third is what tells computations of one half apart: in the forward the value, which is computed once, in the
    backward the position in the schedule.

    Symbolic scalars cost nothing, so schedules may leave them out: those of the forward keep their place in its
    order, those of the backward go right before their first reader.
    """
    given = {v for v, node in enumerate(joint.nodes) if node.op in ("placeholder", "get_attr")}
    is_scalar = [kind is Kind.SYMBOL and v not in given for v, kind in enumerate(program.kind)]
    scalars = [v for v, is_one in enumerate(is_scalar) if is_one and not program.is_backward[v]]
    yield from ((v, None, v) for v in sorted(given))
    for value in program.in_place({*(v for v in decision.schedule.forward if v not in given), *scalars}):
        yield value, None if is_scalar[value] else False, value
    done = set(scalars)
    for position, value in enumerate(decision.schedule.backward):
        yield from ((u, None, u) for u in _scalars_before(program, value, is_scalar, done))
        if not is_scalar[value] and value not in given:
            yield value, True, position


def _scalars_before(program: Program, value: int, is_scalar: list[bool], done: set[int]) -> Iterator[int]:
    """Scalars that `value` reads, or is, and that nobody computed yet, inputs first."""
    for u in program.inputs[value]:
        if is_scalar[u] and u not in done:
            yield from _scalars_before(program, u, is_scalar, done)
    if is_scalar[value] and value not in done:
        done.add(value)
        yield value
