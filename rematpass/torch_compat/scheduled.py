"""What Inductor's scheduled kernels read and write, and the memory that takes.

In: kernels of a half that is being lowered, and our notes on the graph that it is lowered from. Out: names, bytes.
Checked on torch 2.11 to 2.15. Never changes a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

# Set in a node's `meta`: its result is to be in memory from there on (`GraphLowering.run_node`, 2.11-2.15). By itself
# Inductor computes what a matmul reads right before that matmul, wherever the graph has it.
STORE_HERE = "inductor_realize_to_strides"
# Set in a node's `meta` by us: bytes that its operator allocates while it runs, and frees.
SCRATCH_BYTES = "rematpass_scratch_bytes"
# Set in a node's `meta` by us: the forward returns it, and its caller holds it, whoever reads it last in the backward.
HELD = "rematpass_held"
# Set in the `meta` of the backward's output by us: bytes of all that is held so, also what the backward is not handed.
HELD_BYTES = "rematpass_held_bytes"
# Set in the `meta` of the forward's output by us: whether images are planned to be laid out channels last.
IMAGES_LAST = "rematpass_images_last"


def stored_names(nodes: Iterable[Any]) -> set[str]:
    """What kernels write to memory."""
    return {name for node in nodes for name in set(written_names(node)) - made_inside(node)}


def made_inside(*nodes: Any) -> set[str]:
    """What one kernel of `nodes` writes for itself only and does not store; sums that its other loops read are."""
    return set().union(*map(_made_by_loops, _loops_together(nodes)))


def _made_by_loops(nodes: Sequence[Any]) -> set[str]:
    own = {name for node in nodes for name in node.get_operation_names()}
    parts = [part for node in nodes for part in node.get_nodes()]
    made = (buffer for part in parts if _is_at_hand(part) for buffer in part.get_outputs())
    inside = {buffer.get_name() for buffer in made if all(user.get_name() in own for user in buffer.users)}
    return inside - _handed_to_later_loops(parts, inside)


def _is_at_hand(part: Any) -> bool:
    """Whether what reads a result in the same kernel has it in registers.

    What is reduced is stored, but where a Triton kernel goes on with it element for element. Where in 25 elements the
    largest lies takes 8 bytes until it is a byte; counted as stored, it had to be: 15 % above the smallest plan of a
    small pyramid of poolings.
    """
    if not part.is_reduction():
        return True
    if part.get_device().type == "cpu":
        return False
    as_reduced = part.group[1][0], 1
    readers = (user.node for buffer in part.get_outputs() for user in buffer.users)
    return all(getattr(reader, "group", (None, None))[1] == as_reduced for reader in readers)


def _handed_to_later_loops(parts: Sequence[Any], inside: set[str]) -> set[str]:
    """What a Triton kernel that goes through its rows piece by piece stores though only itself reads it.

    It does so once per sum and once more with the sum known; what was computed in one loop is read from memory in the
    next (`generate_node_schedule`, `CSEProxy.load`, 2.13). A row that fits at once stays in registers.
    """
    sums = [part for part in parts if part.is_reduction()]
    if not sums or not inside or sums[0].get_device().type == "cpu":
        return set()
    loop, found, unknown = 0, set[str](), set[str]()  # unknown: sums of this loop
    made_in: dict[str, int] = {}
    for part in parts:
        if unknown & part.ancestors:
            loop += 1
            unknown.clear()
        found.update(dep.name for dep in part.read_writes.reads if made_in.get(dep.name, loop) < loop)
        made_in.update((buffer.get_name(), loop) for buffer in part.get_outputs())
        if part.is_reduction():
            unknown.add(part.get_name())
    found &= inside
    return found if found and not _fits_at_once(parts, sums[0]) else set()


def _fits_at_once(parts: Sequence[Any], sums: Any) -> bool:
    """Whether Triton holds a whole row in registers (`should_use_persistent_reduction`, read in 2.13 alone)."""
    from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
    from torch._inductor.virtualized import V

    _, (rows, length) = sums.group
    features = SIMDKernelFeatures(list(parts), rows, length)
    return bool(V.choices.should_use_persistent_reduction(features, cooperative_reduction=False))


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


def scratch_bytes(node: Any) -> int:
    """Bytes that an operator with a kernel of its own takes while it runs (`SCRATCH_BYTES`)."""
    origins = node.node.origins if node.is_extern() else ()
    return max((origin.meta.get(SCRATCH_BYTES, 0) for origin in origins), default=0)


def several_of(node: Any) -> str:
    """The buffer that stands for all results of an operator, of which the node hands out one: all are made there."""
    from torch._inductor.ir import MultiOutput

    source: Any = node.node.inputs[0] if isinstance(node.node, MultiOutput) else None
    return "" if source is None else str(source.get_name())


def can_take(node: Any, donor: str) -> bool:
    """Whether `node` may write in the place of what it reads, element for element."""
    known = node.scheduler.name_to_buf
    buffer = known.get(donor) or node.scheduler.name_to_donated_buffer.get(donor)
    return buffer is not None and any(user.node is node and user.can_inplace for user in buffer.users)


def read_names(node: Any) -> list[str]:
    """The buffers whose memory a kernel reads."""
    known = node.scheduler.name_to_buf
    return [_home(known[dep.name]).get_name() if dep.name in known else dep.name for dep in node.read_writes.reads]


def written_names(node: Any) -> list[str]:
    """The buffers whose memory a kernel writes."""
    return [_home(buffer).get_name() for buffer in node.get_outputs()]


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


def output_names() -> list[str]:
    """The buffers that the half returns."""
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
