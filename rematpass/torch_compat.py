"""Every private torch name we touch, in one place, with the versions it was checked on.

In: torch, 2.11 to 2.15. Out: small functions with stable names and meanings.
Never decides anything, never holds state.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._dynamo.eval_frame import innermost_backend  # 2.11-2.15
from torch._dynamo.exc import ShortenTraceback, Unsupported  # 2.11-2.15
from torch._functorch.compile_utils import fx_graph_cse  # 2.11-2.15
from torch._functorch.partitioners import (  # 2.11-2.15
    _extract_fwd_bwd_modules,
    thread_graphsafe_rng_from_hops,
)
from torch._inductor.custom_graph_pass import CustomPartitionerFn  # since 2.9
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

__all__ = [
    "NO_VERSION_CHECK",
    "CustomPartitionerFn",
    "HigherOrderOperator",
    "Node",
    "OpOverload",
    "ShortenTraceback",
    "Unsupported",
    "as_compile_error",
    "common_subexpressions",
    "compile_fx",
    "compile_uncached",
    "compile_wrapper_of",
    "current_compile_wrapper",
    "extract_halves",
    "inductor_keys",
    "is_must_be_in_backward",
    "is_must_be_in_forward",
    "leaves",
    "mode_patches",
    "mutated_input_positions",
    "num_threads",
    "plain_partition",
    "python_version",
    "storage_key",
    "torch_version",
    "user_policy",
]


# Key of `node.meta`: the runtime hands this value to the backward without looking whether it was changed in place
# (2.13; where torch knows no such key, every kept tensor is checked).
NO_VERSION_CHECK = "saved_tensor_with_no_vc_check"


def compile_fx(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    patches: dict[str, Any],
    room_bytes: Callable[[], int | None] = lambda: None,
) -> Callable[..., Any]:
    """Inductor's entry point (2.11-2.15) with `patches` in force for forward and, later, backward.

    Args:
        gm: the graph as dynamo hands it over.
        inputs: likewise.
        patches: Inductor options.
        room_bytes: asked when a half is lowered: how much may be live beside the graph's static inputs. Fusion that
            would need more is refused (see `_FusionGuard`), and freed buffers are not held back; None leaves Inductor
            as it is.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx as inductor
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.virtualized import V

    # Inductor holds freed buffers for later ones of the same size, also across a peak; the allocator does not.
    held = {} if "allow_buffer_reuse" in patches else {"allow_buffer_reuse": False}

    @functools.wraps(compile_fx_inner)
    def inner(*args: Any, **kwargs: Any) -> Any:
        room = room_bytes()
        if room is None:
            return compile_fx_inner(*args, **kwargs)
        with V.set_choices_handler(guarded_choices(room)), config.patch(held):
            return compile_fx_inner(*args, **kwargs)

    return cast("Callable[..., Any]", inductor(gm, list(inputs), inner_compile=inner, config_patches=patches))


# Kernels further apart than this in Inductor's order are not fused where a plan is followed. Fusing moves one of them,
# and many small moves add up: an unrolled recurrent loop that needs 1.7 MiB at 4 and at 8 took 4.9 at 12; at 64,
# torch's own limit (for readers of one tensor only), an 8-block transformer planned at 76 MiB took 80 to 90 (2026-11,
# torch 2.13 on CPU; below 4 not tried).
FUSION_REACH = 4


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

    return GuardedChoices()


class _FusionGuard:
    """Refuses a fusion that would lift live memory above the plan's.

    Fusing two kernels runs one where the other stands. At the later place, what the earlier one alone read or wrote
    lives until there; at the earlier place, what the later one writes lives from there. Live bytes along Inductor's
    unfused order, plus the larger of the two, must stay within the room. The estimate is high where other fusions
    remove buffers, so it errs towards less fusion.
    """

    def __init__(self, room_bytes: int) -> None:
        self._room = room_bytes
        self._scheduler: Any = None
        self._live: list[int] = []
        self._last: dict[str, int] = {}
        self._size: dict[str, int] = {}

    def allows(self, scheduler: Any, node1: Any, node2: Any) -> bool:
        low = min(node1.min_order, node2.min_order)
        high = max(node1.max_order, node2.max_order)
        if high - low <= 1 or high - low > FUSION_REACH:
            return bool(high - low <= 1)
        if self._scheduler is not scheduler:
            self._measure(scheduler)
        earlier, later = (node1, node2) if node1.min_order == low else (node2, node1)
        touched = {name for node in earlier.get_nodes() for name in (*_read_names(node), *_written_names(node))}
        moved_down = sum(self._size.get(name, 0) for name in touched if self._last.get(name, high) < high)
        moved_up = sum(self._size.get(name, 0) for node in later.get_nodes() for name in _written_names(node))
        return max(self._live[low : high + 1], default=0) + max(moved_down, moved_up) <= self._room

    def _measure(self, scheduler: Any) -> None:
        """Live bytes per node of the unfused order, and each buffer's size and last reader."""
        nodes = sorted((n for group in scheduler.nodes for n in group.get_nodes()), key=lambda n: n.min_order)
        count = 1 + max((n.max_order for n in nodes), default=0)
        first: dict[str, int] = {}
        self._scheduler, self._last, self._size = scheduler, {}, _buffer_bytes(scheduler)
        for node in nodes:
            for name in _written_names(node):
                first[name] = node.min_order
                self._last.setdefault(name, node.min_order)
            for name in _read_names(node):
                self._last[name] = max(self._last.get(name, 0), node.max_order)
        self._last.update(dict.fromkeys(_output_names(), count - 1))
        change = [0] * (count + 1)
        for name, last in self._last.items():
            change[first.get(name, 0)] += self._size.get(name, 0)
            change[last + 1] -= self._size.get(name, 0)
        self._live = list(itertools.accumulate(change[:-1]))


def _read_names(node: Any) -> list[str]:
    return [dep.name for dep in node.read_writes.reads]


def _written_names(node: Any) -> list[str]:
    return [buffer.get_name() for buffer in node.get_outputs()]


def _output_names() -> list[str]:
    from torch._inductor.virtualized import V

    return list(V.graph.get_output_names())


def _buffer_bytes(scheduler: Any) -> dict[str, int]:
    """Bytes of every buffer and of every graph input that dies inside (parameters do not), 2.11-2.15."""
    from torch._inductor.memory import compute_size_for_scheduler_buffer, get_freeable_input_buf
    from torch._inductor.virtualized import V
    from torch.utils._ordered_set import OrderedSet

    sizes = {name: pair[1] for name, pair in compute_size_for_scheduler_buffer(scheduler.name_to_buf).items()}
    inputs = get_freeable_input_buf(scheduler.nodes, OrderedSet(V.graph.graph_inputs))
    return {**sizes, **{name: buffer.mpi_buffer.size_free for name, buffer in inputs.items()}}


def inductor_keys() -> Collection[str]:
    """The names of Inductor's options (2.11-2.15)."""
    from torch._inductor import config

    return cast("Collection[str]", cast("Any", config).get_config_copy().keys())


def mode_patches(mode: str | None) -> dict[str, Any]:
    """Inductor options that a torch.compile mode stands for (2.11-2.15)."""
    from torch._inductor import list_mode_options

    return dict(list_mode_options(mode)) if mode and mode != "default" else {}


@contextlib.contextmanager
def compile_uncached() -> Iterator[None]:
    """Inside, neither AOTAutograd nor Inductor reads or writes its caches (2.11-2.15)."""
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    with (
        functorch_config.patch(enable_autograd_cache=False),
        inductor_config.patch(fx_graph_cache=False, fx_graph_remote_cache=False),
    ):
        yield


def leaves(tree: object) -> list[object]:
    """The leaves of nested tuples, lists and dicts, None included (2.11-2.15)."""
    from torch.utils import _pytree

    return _pytree.tree_leaves(tree, is_leaf=lambda leaf: leaf is None)


def common_subexpressions(gm: fx.GraphModule) -> None:
    """Dead code out, then the one CSE of the whole road (2.11-2.15). Nothing may merge copies after it."""
    gm.graph.eliminate_dead_code()
    gm.graph = fx_graph_cse(gm.graph)
    gm.graph.eliminate_dead_code()
    gm.recompile()


def extract_halves(
    joint: fx.GraphModule,
    kept: list[fx.Node],
    kept_symbols: list[fx.Node],
    *,
    num_fwd_outputs: int,
    static_inputs: Collection[fx.Node],
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Cut a joint graph whose recomputations are already explicit nodes (2.11-2.15).

    The helper keeps node order, so what is planned is what is emitted. It sorts the kept values as the runtime wants
    them, adds the symbols their shapes need, and drops dead code on both sides.
    """
    from torch.utils._ordered_set import OrderedSet

    halves = _extract_fwd_bwd_modules(
        joint,
        kept,
        saved_sym_nodes=kept_symbols,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_nodes=OrderedSet(static_inputs),
    )
    forward = thread_graphsafe_rng_from_hops(halves[0], is_backward=False)
    backward = thread_graphsafe_rng_from_hops(halves[1], is_backward=True)
    return forward, backward


def plain_partition(
    gm: fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int, static_indices: list[int] | None
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Torch's own partition (2.11-2.15), for graphs without a backward and for `on_error="fallback"`."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition(
        gm, inputs, num_fwd_outputs=num_fwd_outputs, static_lifetime_input_indices=static_indices
    )


def _tag(node: fx.Node) -> str | None:
    return cast("str | None", node.meta.get("partitioner_tag"))


def _is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def is_must_be_in_forward(node: fx.Node) -> bool:
    """AOTAutograd's rule (2.11-2.15): tagged so, or mutating and not tagged as backward."""
    tag = _tag(node)
    if tag == "must_be_in_forward":
        return True
    return tag not in ("is_backward", "must_be_in_backward") and _is_mutable(node)


def is_must_be_in_backward(node: fx.Node) -> bool:
    """AOTAutograd's rule (2.11-2.15): tagged so, or mutating and tagged as backward."""
    tag = _tag(node)
    return tag == "must_be_in_backward" or (tag == "is_backward" and _is_mutable(node))


def user_policy(node: fx.Node) -> str | None:
    """The user's checkpoint policy on `node`, as its name ("MUST_SAVE", ...), or None (2.11-2.15)."""
    policy = node.meta.get("recompute")
    return getattr(policy, "name", None)


def mutated_input_positions(gm: fx.GraphModule) -> tuple[int, ...]:
    """Positions among the primals of inputs that the step writes to, from AOTAutograd's metadata (2.11-2.15)."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    if metadata is not None:
        return tuple(i for i, info in enumerate(metadata.input_info) if info.mutates_data)
    return tuple(sorted(_mutations_described(gm)))


def _mutations_described(gm: fx.GraphModule) -> set[int]:
    """The same from the descriptions on the joint graph's output and inputs, where AOTAutograd is used on its own."""
    output = next(n for n in gm.graph.nodes if n.op == "output")
    written = [getattr(d, "mutated_input", None) for d in leaves(output.meta.get("desc", ()))]
    primals = [n for n in gm.graph.nodes if n.op == "placeholder" and "tangents" not in str(n.target)]
    return {i for i, n in enumerate(primals) if n.meta.get("desc") in [w for w in written if w is not None]}


def current_compile_wrapper() -> object | None:
    """The object torch.compile made for the call being compiled now, found on the stack (2.11-2.15)."""
    wrappers = (torch._TorchCompileWrapper, torch._TorchCompileInductorWrapper)
    codes = {w.__call__.__code__ for w in wrappers}
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code in codes:
            return cast("object", frame.f_locals["self"])
        frame = frame.f_back
    return None


def compile_wrapper_of(compiled: object) -> object | None:
    """The same object, from what the user holds: a compiled module, function, or a module compiled in place."""
    context = getattr(compiled, "dynamo_ctx", None)
    callback = getattr(context, "callback", None)
    if callback is None:
        function = getattr(compiled, "_compiled_call_impl", None) or compiled
        closure = getattr(function, "__closure__", None) or ()
        names = getattr(getattr(function, "__code__", None), "co_freevars", ())
        callback = next((c.cell_contents for n, c in zip(names, closure, strict=True) if n == "callback"), None)
    return innermost_backend(callback) if callback is not None else None


def as_compile_error(error: Exception) -> Exception:
    """The same error, of a class that torch.compile lets through as it is instead of wrapping it (2.11-2.15).

    The class inherits from the error's own, so `except rematpass.BudgetTooSmall` catches it.
    """
    if isinstance(error, ShortenTraceback):
        return error
    original = type(error)
    merged = type(original.__name__, (original, ShortenTraceback), {"__module__": original.__module__})
    passed = cast("Any", merged).__new__(merged)
    passed.args = error.args
    passed.__dict__.update(error.__dict__)
    passed.first_useful_frame = None
    return cast("Exception", passed.with_traceback(error.__traceback__))


def torch_version() -> str:
    """Torch's version, with its local part."""
    return str(torch.__version__)


def storage_key(tensor: torch.Tensor) -> object:
    """Equal for tensors that share a storage, fake ones included (2.11-2.15)."""
    return tensor.untyped_storage()._cdata


def num_threads() -> int:
    """Threads that CPU kernels use now; their scratch grows with it."""
    return int(torch.get_num_threads())


def python_version() -> str:
    """The interpreter's version."""
    return sys.version.split()[0]
