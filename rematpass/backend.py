"""The torch.compile backend and the Inductor partitioner hook: thin.

In: what dynamo and Inductor hand over. Out: what they expect back, and a plan noted for `plans()`. Never plans itself.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from uuid import uuid4

import torch
from torch import fx

from . import torch_compat
from .accumulated import Accumulating, Built, beside, gradient_bytes
from .device import make_settings
from .emit.copies import copy_overwritten
from .emit.layouts import note_layouts
from .emit.ordered import order_gradients
from .emit.pooled import forget_pooled
from .errors import RematError
from .graph.capture import JointProgram, capture_joint, find_overwritten
from .graph.gradients import find_turned
from .graph.layouts import find_images
from .graph.origin import module_path
from .graph.sizes import open_sizes
from .lessons import Lessons, corrected, may_learn
from .options import Options, cache_dir, parse_options
from .pipeline import Settings, needs_plan, plan_and_split, room_beside_inputs
from .plan_types import Plan
from .ranks import compare_plans
from .report.sizes import format_bytes
from .store import PlanStore
from .verify import Listener, Remedy, verified

logger = logging.getLogger(__name__)

T = TypeVar("T")
Halves = tuple[fx.GraphModule, fx.GraphModule]

# Plans made while one dynamo graph is being compiled, for whoever asked for the compilation.
_NOTED: ContextVar[list[Plan] | None] = ContextVar("rematpass_noted", default=None)
_PLANS = "_rematpass_plans"
# What the reader of a plan is told of all graphs but the first.
_SEVERAL_GRAPHS = "one of several graphs, each of which has the whole budget; they do not share one yet"


def take_apart(gm: fx.GraphModule, num_fwd_outputs: int, static: list[int] | None, settings: Settings) -> JointProgram:
    """A joint graph as it is planned; see `capture_joint`."""
    copy_overwritten(gm, find_overwritten(gm))
    if settings.is_fusing:
        forget_pooled(gm)
        order_gradients(gm, find_turned(gm, num_fwd_outputs, static, settings.device_type))
    is_fusing, device_type = settings.is_fusing, settings.device_type
    return capture_joint(gm, num_fwd_outputs, static, is_fusing=is_fusing, device_type=device_type)


class Partitioner(torch_compat.CustomPartitionerFn):
    """Splits joint graphs for Inductor. Holds settings only: Inductor pickles it into its cache key.

    `is_guarded` says that the halves are lowered under our fusion guard; code made without it must not be taken for it.
    `may_cache`: what is in the settings says all that the partition hangs on besides the graph.
    """

    def __init__(
        self, settings: Settings, on_error: str = "raise", *, is_guarded: bool = False, may_cache: bool = True
    ) -> None:
        self._settings = settings
        self._on_error = on_error
        self._is_guarded = is_guarded
        self._may_cache = may_cache

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **facts: Any) -> Halves:
        """Inductor's hook: (joint graph, its inputs) -> (forward, backward)."""
        static = facts.get("static_lifetime_input_indices")
        with errors_pass():
            return self._split(gm, joint_inputs, facts["num_fwd_outputs"], static)

    def _split(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], num_fwd_outputs: int, static: list[int] | None
    ) -> Halves:
        joint = take_apart(gm, num_fwd_outputs, static, self._settings)
        if needs_plan(joint):
            try:
                planned = plan_and_split(joint, self._settings, f"graph {len(_noted())}")
            except RematError as error:
                if self._on_error != "fallback":
                    raise
                warnings.warn(f"rematpass: {error}\nFalling back to torch's own partition.", stacklevel=2)
            else:
                noted = _noted()
                noted.append(_numbered(planned.plan, len(noted)))
                return planned.forward, planned.backward
        return torch_compat.plain_partition(gm, joint_inputs, num_fwd_outputs=num_fwd_outputs, static_indices=static)

    def look(
        self,
        gm: fx.GraphModule,
        use: Callable[[JointProgram, Settings], T],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
        **_: object,
    ) -> T:
        """What `use` makes of the joint graph that the hook is handed."""
        with errors_pass():
            joint = take_apart(gm, num_fwd_outputs, static_lifetime_input_indices, self._settings)
            if not needs_plan(joint):
                raise RematError("nothing to plan: no parameter or input of the model needs a gradient")
            return use(joint, self._settings)

    def uuid(self) -> str:
        """Inductor's cache key for us: equal settings and code, equal partition; never the same twice if not cached.

        Inductor does not ask itself whether a backward may write over what it is handed: code that does would be taken
        for one that must not.
        """
        stands_for = f"{self._stands_for}-{torch_compat.donates_buffers()}"
        return stands_for if self._may_cache else f"{stands_for}-{uuid4().hex}"

    @property
    def _stands_for(self) -> str:
        return f"rematpass-{self._settings.fingerprint}-{self._on_error}-{self._is_guarded}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partitioner) and self._stands_for == other._stands_for

    def __hash__(self) -> int:
        return hash(self._stands_for)


@contextmanager
def errors_pass() -> Iterator[None]:
    """Let our errors reach the user as they are, not wrapped in the compiler's."""
    try:
        yield
    except RematError as error:
        raise torch_compat.as_compile_error(error) from None


def _noted() -> list[Plan]:
    """Where plans made now are noted: the compilation in progress, or the torch.compile object itself."""
    noted = _NOTED.get()
    if noted is not None:
        return noted
    return _plans_of(torch_compat.current_compile_wrapper())


def _plans_of(wrapper: object | None) -> list[Plan]:
    if wrapper is None:
        return []
    if not hasattr(wrapper, _PLANS):
        setattr(wrapper, _PLANS, [])
    found: list[Plan] = getattr(wrapper, _PLANS)
    return found


def rematpass(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
    **_: object,
) -> Callable[..., Any]:
    """The backend behind `torch.compile(model, backend="rematpass", options={...})`.

    Args:
        gm: the graph dynamo captured.
        example_inputs: its inputs.
        options: ours (see `rematpass.options.Options`) and Inductor's.
        mode: a torch.compile mode; torch.compile refuses it together with options, so it may stand in them.

    Raises:
        OptionError: an option or value that does not exist.
        BudgetTooSmall: no plan fits.
    """
    with errors_pass():
        parsed = parse_options(options, mode=mode, inductor_keys=torch_compat.inductor_keys())
    return compile_graph(gm, example_inputs, parsed)


def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], parsed: Options, listener: Listener | None = None
) -> Callable[..., Any]:
    """The backend with its options read.

    Args:
        gm: the graph dynamo captured.
        example_inputs: its inputs.
        parsed: what was asked.
        listener: told of the step that `verify` measures, in place of the log.

    Raises:
        RematError: as the backend does.
    """
    with errors_pass():
        topic = plan_topic(gm, example_inputs, parsed)
        settings = _with_names(make_settings(parsed, device_type(example_inputs), topic, inputs=example_inputs), gm)
    step = _Step(parsed, settings, topic, torch_compat.current_compile_wrapper(), listener)
    is_open = settings.budget_bytes is not None and settings.replay is None
    later = torch_compat.keep_for_later(gm, example_inputs) if is_open else None
    gradients = gradient_bytes(example_inputs) if is_open else 0
    is_above = settings.is_budget_above_inputs  # and above the gradients that are there
    compiled, made = step.build(gm, example_inputs, 0 if is_above else gradients, later)
    if not made or gradients or made[0].budget_bytes is None:
        return compiled

    def again(later: torch_compat.LaterCompilation, gradients: int) -> Built:
        with later.surroundings():
            compiled, made = step.build(later.gm, later.inputs, gradients, None)
        return Built(compiled, made[0])

    plan_beside = None if later is None else functools.partial(again, later)
    return Accumulating(Built(compiled, made[0]), example_inputs, plan_beside)


def _can_be_measured(gm: fx.GraphModule, options: Options) -> bool:
    """Whether a step tells if the plan is kept: not one replayed from CUDA graphs, nor one larger than planned for."""
    given = (node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder")
    return not (torch_compat.uses_cuda_graphs(inductor_patches(options)) or open_sizes(given))


class _Step:
    """One dynamo graph, to be compiled with what is known of it, perhaps several times."""

    def __init__(
        self, options: Options, settings: Settings, topic: str, wrapper: object | None, listener: Listener | None
    ) -> None:
        self._options, self._settings, self._topic, self._listener = options, settings, topic, listener
        self._plans = _plans_of(wrapper)
        self._first: int | None = None

    def build(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        gradients: int,
        later: torch_compat.LaterCompilation | None,
    ) -> tuple[Callable[..., Any], list[Plan]]:
        """The compiled step, verified where that was asked for, and its plans.

        Args:
            gm: the graph dynamo captured.
            inputs: its inputs.
            gradients: bytes of gradients of earlier backwards.
            later: to plan anew what a measured step shows to be over its budget.
        """
        settings = beside(self._settings, gradients, has_run=self._first is not None)
        is_verified = self._options.verify and _can_be_measured(gm, self._options)
        lessons = Lessons(cache_dir(), self._key(settings)) if is_verified and may_learn(settings) else None
        learned = lessons.recall() if lessons is not None else 0
        compiled, made = self._compile(gm, inputs, corrected(settings, learned))
        if not (is_verified and made):
            return compiled, made

        def again(later: torch_compat.LaterCompilation, excess_bytes: int) -> tuple[Callable[..., Any], Plan]:
            with later.surroundings():
                compiled, made = self._compile(later.gm, later.inputs, corrected(settings, excess_bytes))
            return compiled, made[0]

        plan_again = None if later is None or learned else functools.partial(again, later)
        remedy = None if lessons is None else Remedy(lessons, plan_again)
        return verified(compiled, made, inputs, self._listener, remedy), made

    def _key(self, settings: Settings) -> str:
        """Under which its plans are stored."""
        parts = f"{settings.fingerprint} {self._topic} {torch_compat.config_state()}"
        return hashlib.sha256(parts.encode()).hexdigest()

    def _compile(
        self, gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings
    ) -> tuple[Callable[..., Any], list[Plan]]:
        """The compiled step and its plans, which take the place of those of an earlier call for `plans()`."""
        patches = compile_patches(self._options, Partitioner(settings, self._options.on_error, is_guarded=True))
        compiled, made = _compile_noted(gm, inputs, patches, self._key(settings))
        compare_plans(f"{self._topic}/{settings.beside_bytes}", made)
        first = len(self._plans) if self._first is None else self._first
        numbered = [_numbered(plan, first + i) for i, plan in enumerate(made)]
        self._plans[first : first + (0 if self._first is None else len(numbered))] = numbered
        self._first = first
        return compiled, numbered


def _numbered(plan: Plan, place: int) -> Plan:
    """The plan of the graph that was compiled after so many others of the same `torch.compile`."""
    notes = tuple(note for note in plan.notes if note != _SEVERAL_GRAPHS)
    notes = (_SEVERAL_GRAPHS, *notes) if place else notes
    return dataclasses.replace(plan, graph_name=f"graph {place}", notes=notes)


def _with_names(settings: Settings, gm: fx.GraphModule) -> Settings:
    """Settings that also stand for the names by which pins find values: torch's caches do not look at them."""
    if not (settings.save or settings.recompute):
        return settings
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    names = [(module_path(node), torch_compat.user_label(node)) for graph in graphs for node in graph.nodes]
    digest = hashlib.sha256(repr((settings.fingerprint, names)).encode()).hexdigest()
    return dataclasses.replace(settings, fingerprint=digest)


def compile_patches(options: Options, partitioner: torch_compat.CustomPartitionerFn) -> dict[str, Any]:
    """Inductor options for a step of ours: mode, the user's own, then the hook."""
    return {**inductor_patches(options), "custom_partitioner_fn": partitioner}


def inductor_patches(options: Options) -> dict[str, Any]:
    """What mode and user ask of Inductor."""
    return {**torch_compat.mode_patches(options.mode), **options.inductor_patches()}


def _compile_noted(
    gm: fx.GraphModule, inputs: Sequence[Any], patches: dict[str, Any], key: str
) -> tuple[Callable[..., Any], list[Plan]]:
    """Compile and say which plans it follows, also when Inductor's cache spared the planning."""
    store = PlanStore(cache_dir())
    stored = store.load(key)
    noted: list[Plan] = []
    is_lowered = False

    def room_bytes(is_backward: bool) -> int | None:
        nonlocal is_lowered
        is_lowered = True
        return room_beside_inputs(noted[-1], is_backward=is_backward) if noted else None

    compile_both = functools.partial(
        torch_compat.compile_fx, gm, inputs, patches, room_bytes, find_images, note_layouts
    )
    token = _NOTED.set(noted)
    try:
        compiled = compile_both()
        if not is_lowered and stored is None and _may_hit(inputs):
            # torch had the step in its cache but nobody kept its plan: compile once more, planning this time.
            with torch_compat.compile_uncached():
                compiled = compile_both()
    finally:
        _NOTED.reset(token)
    if noted or stored is None:
        store.save(key, noted)
        return compiled, noted
    logger.info("rematpass: compiled step from the cache, plan from %s", key[:16])
    for plan in stored:
        if plan.budget_bytes is not None and plan.peak_bytes > plan.budget_bytes:
            size, budget = format_bytes(plan.peak_bytes), format_bytes(plan.budget_bytes)
            reasons = "; ".join(plan.notes)
            warnings.warn(f"rematpass: the smallest peak is {size}, the budget {budget}: {reasons}", stacklevel=2)
    return compiled, list(stored)


def _may_hit(inputs: Sequence[Any]) -> bool:
    """Whether a cached step could be found for which no plan is stored (only training graphs have plans)."""
    return torch.is_grad_enabled() and any(isinstance(i, torch.Tensor) and i.requires_grad for i in inputs)


# Which of several equal devices: ranks of a job differ in it, plans do not.
_DEVICE_NUMBER = re.compile(r"(device\(type='\w+'), index=\d+|\b(cuda|xpu):\d+")


def plan_topic(gm: fx.GraphModule, inputs: Sequence[Any], options: Options) -> str:
    """What is asked for: a digest of graph, inputs and options, the same on all ranks that ask for the same.

    Of the graph's surroundings it holds what torch's own cache distinguishes, too: gradients wanted or not, autocast.
    """
    digest = hashlib.sha256(f"{options.fingerprint()} {torch_compat.tracing_state()}".encode())
    for value in (gm.graph, *inputs):
        is_tensor = isinstance(value, torch.Tensor)
        facts = (value.shape, value.stride(), value.dtype, value.device, value.requires_grad) if is_tensor else value
        digest.update(_DEVICE_NUMBER.sub(r"\1\2", f"{facts}\n").encode())
    return digest.hexdigest()


def device_type(inputs: Sequence[Any]) -> str:
    """The device type to plan for: "cuda" when any input lives there, else "cpu"."""
    types = {i.device.type for i in inputs if isinstance(i, torch.Tensor)}
    return "cuda" if "cuda" in types else "cpu"


def plans_of(compiled: object) -> list[Plan]:
    """The plans noted for a compiled module or function, in the order the graphs were compiled."""
    return list(_plans_of(torch_compat.compile_wrapper_of(compiled)))
