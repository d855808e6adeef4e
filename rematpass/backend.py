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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import fx

from . import torch_compat
from .accumulated import Accumulating, BuildBeside, Built, Company, beside, gradient_bytes, gradient_bytes_to_come
from .device import make_settings
from .emit.layouts import lay_out_images
from .graph.layouts import find_images
from .graph.origin import module_path
from .graph.sizes import growing_sizes, next_power, open_sizes
from .lessons import Lessons, corrected, may_learn
from .noted import NOTED, numbered, plans_of_wrapper
from .options import Options, cache_dir, parse_options
from .partitioner import Look, Partitioner, Seen, errors_pass
from .pipeline import Settings, room_beside_inputs, trace_offers
from .plan_types import Plan
from .ranks import compare_plans
from .report.sizes import format_bytes
from .shares import Offer
from .store import PlanStore
from .together import Together, ledger_of
from .verify import Listener, Remedy, verified

logger = logging.getLogger(__name__)


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
        settings = make_settings(parsed, device_type(example_inputs), topic, inputs=example_inputs)
        settings = _with_sizes(_with_names(settings, gm), example_inputs)
    step = _Step(parsed, settings, topic, torch_compat.current_compile_wrapper(), listener)
    is_open = settings.budget_bytes is not None and settings.replay is None
    later = torch_compat.keep_for_later(gm, example_inputs) if is_open else None
    ledger = ledger_of(device_type(example_inputs))
    live = gradient_bytes(example_inputs) if is_open else 0
    gradients = gradient_bytes_to_come(example_inputs) if is_open and later is None else live
    others = ledger.waiting_bytes(example_inputs) if is_open else 0
    # What is free does not have what is live.
    credit = live + others if settings.is_budget_above_inputs else 0
    is_followed = later is not None and (torch_compat.is_followed(gm) or others > 0)
    company = Company(gradients, others - credit, is_followed=is_followed)
    compiled, made = step.build(gm, example_inputs, company, later)
    if not made or made[0].budget_bytes is None:
        return compiled
    form = Accumulating(Built(compiled, made[0], gradients + others), example_inputs, step.again(later, credit))
    return Together(form, step.offers(later), ledger, is_followed=is_followed)


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
        self._plans = plans_of_wrapper(wrapper)
        self._first: int | None = None

    def build(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        company: Company,
        later: torch_compat.LaterCompilation | None,
    ) -> tuple[Callable[..., Any], list[Plan]]:
        """The compiled step, verified where that was asked for, and its plans.

        Args:
            gm: the graph dynamo captured.
            inputs: its inputs.
            company: what it runs beside.
            later: to plan anew what a measured step shows to be over its budget.
        """
        settings = beside(self._settings, company, has_run=self._first is not None)
        is_verified = self._options.verify and _can_be_measured(gm, self._options)
        lessons = Lessons(cache_dir(), self._key(settings)) if is_verified and may_learn(settings) else None
        learned = lessons.recall() if lessons is not None else 0
        compiled, made = self._compile(gm, inputs, corrected(settings, learned))
        if not (is_verified and made):
            return compiled, made

        def again(later: torch_compat.LaterCompilation, excess_bytes: int) -> tuple[Callable[..., Any], Plan]:
            with later.surroundings() as gm:
                compiled, made = self._compile(gm, later.inputs, corrected(settings, excess_bytes))
            return compiled, made[0]

        plan_again = None if later is None or learned else functools.partial(again, later)
        remedy = None if lessons is None else Remedy(lessons, plan_again)
        return verified(compiled, made, inputs, self._listener, remedy), made

    def again(self, later: torch_compat.LaterCompilation | None, credit: int) -> BuildBeside | None:
        """How to build the step in other company; `credit` bytes were live when the budget was worked out."""
        if later is None:
            return None

        def build(company: Company) -> Built:
            credited = dataclasses.replace(company, others=company.others - credit)
            with later.surroundings() as gm:
                compiled, made = self.build(gm, later.inputs, credited, None)
            return Built(compiled, made[0], company.total)

        return build

    def offers(self, later: torch_compat.LaterCompilation | None) -> Callable[[], Sequence[Offer]] | None:
        """How to learn what plans of the step would take."""
        if later is None:
            return None

        def trace() -> Sequence[Offer]:
            made: list[list[Offer]] = []
            look = Look(Partitioner(self._settings), trace_offers, made)
            with later.surroundings() as gm, torch_compat.compile_uncached(), suppress(Seen):
                torch_compat.compile_fx(gm, later.inputs, compile_patches(self._options, look))
            return made[-1]

        return trace

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
        plans = [numbered(plan, first + i) for i, plan in enumerate(made)]
        self._plans[first : first + (0 if self._first is None else len(plans))] = plans
        self._first = first
        return compiled, plans


def _with_names(settings: Settings, gm: fx.GraphModule) -> Settings:
    """Settings that also stand for the names by which pins find values: torch's caches do not look at them."""
    if not (settings.save or settings.recompute):
        return settings
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    names = [(module_path(node), torch_compat.user_label(node)) for graph in graphs for node in graph.nodes]
    digest = hashlib.sha256(repr((settings.fingerprint, names)).encode()).hexdigest()
    return dataclasses.replace(settings, fingerprint=digest)


def _with_sizes(settings: Settings, inputs: Sequence[Any]) -> Settings:
    """Settings that also stand for how large dynamic sizes are: torch's caches look at guards only.

    What is found in a cache is then what was planned for sizes of this class, so that its plan is known.
    """
    classes = {symbol: next_power(size.seen) for symbol, size in growing_sizes(inputs).items()}
    if not classes:
        return settings
    digest = hashlib.sha256(repr((settings.fingerprint, classes)).encode()).hexdigest()
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
        torch_compat.compile_fx, gm, inputs, patches, room_bytes, find_images, lay_out_images
    )
    token = NOTED.set(noted)
    try:
        compiled = compile_both()
        if not is_lowered and stored is None and _may_hit(inputs):
            # torch had the step in its cache but nobody kept its plan: compile once more, planning this time.
            with torch_compat.compile_uncached():
                compiled = compile_both()
    finally:
        NOTED.reset(token)
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
