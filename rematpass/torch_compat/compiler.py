"""The compiler around us: Inductor's entry point, its options, and the objects of torch.compile.

In: torch, 2.11 to 2.15. Out: small functions with stable names and meanings. Never decides anything, never holds state.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._dynamo.eval_frame import innermost_backend  # 2.11-2.15
from torch._dynamo.exc import ShortenTraceback  # 2.11-2.15

from .calls import calls_within
from .draws import draws_in_order
from .flaws import flaws_mended
from .fusion import guarded_choices
from .places import IMAGE_RANK, images_as_read, parts_in_place, stored_places_first
from .scheduled import IMAGES_LAST, STORE_HERE


def compile_fx(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    patches: dict[str, Any],
    room_bytes: Callable[[bool], int | None] = lambda _: None,
    find_images: Callable[[Sequence[fx.Node]], Collection[fx.Node]] = lambda nodes: nodes,
    store_images: Callable[[fx.Graph], None] = lambda _: None,
) -> Callable[..., Any]:
    """Inductor's entry point (2.11-2.15) with `patches` in force for forward and, later, backward.

    Args:
        gm: the graph as dynamo hands it over.
        inputs: likewise.
        patches: Inductor options.
        room_bytes: asked when a half is lowered, whether that is the backward: how much may be live beside its static
            inputs. Fusion that would need more is refused (see `_FusionGuard`), freed buffers are held back only where
            they fit (see `calls_within`), and the order of the graph stands; with None, of a graph without a plan, only
            that of random draws does.
        find_images: which nodes of a forward the backward may be handed laid out channels last.
        store_images: called with a half that Inductor lays out channels last, before; may note other strides in it.
    """
    from torch._inductor.compile_fx import compile_fx as inductor

    inner = inner_compiler(room_bytes, patches, find_images, store_images)
    return cast("Callable[..., Any]", inductor(gm, list(inputs), inner_compile=inner, config_patches=patches))


def inner_compiler(
    room_bytes: Callable[[bool], int | None],
    patches: Collection[str] = (),
    find_images: Callable[[Sequence[fx.Node]], Collection[fx.Node]] = lambda nodes: nodes,
    store_images: Callable[[fx.Graph], None] = lambda _: None,
) -> Callable[..., Any]:
    """What Inductor compiles a half with (`compile_fx_inner`, 2.11-2.15), so that the half runs as planned.

    Args:
        room_bytes: as in `compile_fx`.
        patches: the Inductor options that the user has set.
        find_images: as in `compile_fx`.
        store_images: likewise.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    # The order is the plan's: Inductor's own orders look better only to an estimate that knows no reuse in place.
    held = {"reorder_for_peak_memory": False}
    layouts = ("layout_optimization", "force_layout_optimization")
    is_relaid = False

    @functools.wraps(compile_fx_inner)
    def inner(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_relaid
        is_backward = bool(kwargs.get("is_backward"))
        room = room_bytes(is_backward)
        with contextlib.ExitStack() as stack:
            stack.enter_context(flaws_mended())
            stack.enter_context(draws_in_order())
            stack.enter_context(stored_places_first())
            stack.enter_context(_images_laid_out(store_images, None if is_backward else find_images))
            planned = None if any(key in patches for key in layouts) else _planned_layout(args[0])
            if not is_backward:
                decide = GraphLowering.decide_layout_opt
                is_relaid = bool(decide(args[0], is_inference=False) if planned is None else planned)
            is_told = _has_image_gradients(args[0]) if is_backward else planned is not None
            if is_told:
                stack.enter_context(config.patch({layouts[is_relaid]: is_relaid}))
            if is_relaid:
                stack.enter_context(images_as_read())
            if room is not None:
                stack.enter_context(V.set_choices_handler(guarded_choices(room)))
                given = held if _is_counted(args[0]) else {**held, "allow_buffer_reuse": False}
                stack.enter_context(config.patch({key: is_on for key, is_on in given.items() if key not in patches}))
                stack.enter_context(calls_within(room))
                stack.enter_context(parts_in_place())
            return compile_fx_inner(*args, **kwargs)

    return inner


def _planned_layout(half: fx.GraphModule) -> bool | None:
    """Whether images are planned to be channels last; None where nobody said."""
    return half.graph.output_node().meta.get(IMAGES_LAST)


def _is_counted(half: fx.GraphModule) -> bool:
    """Whether `calls_within` knows what is live: sizes stand still, and there are no graphs inside.

    Inductor plans the buffers of these with those around them, by numbers of kernels in lists of their own (2.11-2.14).
    """
    inner = (getattr(half, str(node.target), None) for node in half.graph.find_nodes(op="get_attr"))
    given = (node.meta.get("val") for node in half.graph.find_nodes(op="placeholder"))
    has_inner = any(isinstance(one, fx.GraphModule) for one in inner)
    return not has_inner and not any(isinstance(value, torch.SymInt) for value in given)


@contextlib.contextmanager
def _images_laid_out(
    store_images: Callable[[fx.Graph], None],
    find_images: Callable[[Sequence[fx.Node]], Collection[fx.Node]] | None,
) -> Iterator[None]:
    """Inside, a half that Inductor lays out channels last is given to `store_images` before.

    With `find_images`, for a forward, only images are handed to the backward channels last. By itself Inductor
    (2.11-2.15, `GraphLowering.run_node`) does so with all of four dimensions that leads to a convolution or comes from
    one: weights, hidden layers whose channels are last in the shape, what attention reads and returns. All weights of a
    ResNet were held twice, and changes to them after the forward were not seen.
    """
    from torch._inductor.graph import GraphLowering

    lowering: Any = GraphLowering
    original = lowering.find_nodes_prefer_channels_last

    def find(self: Any) -> Any:
        store_images(self.module.graph)
        found = original(self)
        if find_images is None:
            return found
        images = frozenset(find_images([*self.module.graph.nodes]))
        return type(found)(node for node in found if node in images and not _is_stored_in_rows(node))

    lowering.find_nodes_prefer_channels_last = find
    try:
        yield
    finally:
        lowering.find_nodes_prefer_channels_last = original


def _is_stored_in_rows(node: fx.Node) -> bool:
    """Whether a result of four dimensions is stored where the plan has it, in rows by its strides.

    To hand it over channels last, Inductor copies it: channels that were shuffled behind a convolution were stored
    twice, a tenth above the smallest plan of a small ShuffleNet (2026-11, torch 2.13).
    """
    value = node.meta.get("val") if node.meta.get(STORE_HERE) else None
    if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in (*value.shape, *value.stride())):
        return False
    return value.is_contiguous() and not value.is_contiguous(memory_format=torch.channels_last)


def _has_image_gradients(half: fx.GraphModule) -> bool:
    """Whether it must be told to lay images out as the forward does.

    Inductor (2.11-2.15, `GraphLowering.decide_layout_opt`) looks at convolutions only, and a backward recomputes none
    or some. Gradients of convolutions then read copies in another layout, and on a CPU those of depthwise ones take two
    to five times as long (2026-11, torch 2.13).
    """
    gradients = half.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default)
    tensors = [u.meta["val"] for n in gradients for u in n.args[:3]]
    return any(t.ndim == IMAGE_RANK for t in tensors)  # of other ranks are left in rows


def has_onednn() -> bool:
    """Whether convolutions on the CPU are oneDNN's (2.11-2.15)."""
    return bool(torch._C._has_mkldnn)


def register_backend(name: str, backend: Callable[..., Any]) -> None:
    """Let `torch.compile(backend=name)` find `backend`, whatever an installed package says; once (2.11-2.15)."""
    from torch._dynamo import register_backend as register

    register(functools.partial(backend), name)  # it writes tags on what it gets


def inductor_keys() -> Collection[str]:
    """The names of Inductor's options (2.11-2.15)."""
    from torch._inductor import config

    return cast("Collection[str]", cast("Any", config).get_config_copy().keys())


def mode_patches(mode: str | None) -> dict[str, Any]:
    """Inductor options that a torch.compile mode stands for (2.11-2.15)."""
    from torch._inductor import list_mode_options

    return dict(list_mode_options(mode)) if mode and mode != "default" else {}


def uses_cuda_graphs(patches: dict[str, Any]) -> bool:
    """Whether compiled steps are recorded and replayed, so that the allocator sees none of them (2.11-2.15)."""
    from torch._inductor import config

    return bool(patches.get("triton.cudagraphs", cast("Any", config).triton.cudagraphs))


def tracing_state() -> str:
    """What is in force around a compilation and decides what becomes of one dynamo graph (2.11-2.15)."""
    devices = filter(torch.is_autocast_enabled, torch._C._autocast_supported_devices())
    casts = {device: torch.get_autocast_dtype(device) for device in devices}
    return f"{torch.is_grad_enabled()} {casts} {torch.are_deterministic_algorithms_enabled()}"


def donates_buffers() -> bool:
    """Whether a backward may write over what the forward hands it (2.11-2.15)."""
    from torch._functorch import config as functorch_config

    return bool(functorch_config.donated_buffer)


def config_state() -> str:
    """The switches and numbers of AOTAutograd's and Inductor's configuration (2.11-2.15)."""
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    plain = (bool, int, float, str)
    configs = [cast("Any", config).get_config_copy() for config in (functorch_config, inductor_config)]
    return str([sorted((k, v) for k, v in config.items() if isinstance(v, plain)) for config in configs])


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


@contextlib.contextmanager
def outside_tracing(device_type: str) -> Iterator[None]:
    """Inside, operators run on real tensors as in any program, and random states are as before at its end (2.11-2.15).

    The partitioner is called amid tracing: under fake tensors, and perhaps under autocast.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    devices = [torch.cuda.current_device()] if device_type == "cuda" else []
    with (
        _disable_current_modes(),
        torch.random.fork_rng(devices),
        torch.autocast(device_type, enabled=False),
        torch.no_grad(),
    ):
        yield


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
