"""The ways to run one training step that `bench/step.py` compares.

In: a model, its blocks, a variant. Out: a `Runner` that makes real steps on its own copy of the model's structure, all
of them with the same parameters. Never times rounds, never compares.
"""

from __future__ import annotations

import copy
import functools
import itertools
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch._inductor.utils import fresh_cache
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from bench.hand_strategies import matched_module
from rematpass import torch_compat
from rematpass.check.measure import measure_peak
from rematpass.demo.train import PROFILER_PREFIX
from rematpass.plan_types import Plan
from rematpass.report.progress import drop_stderr_lines
from rematpass.torch_compat.flaws import flaws_mended

RATIOS = (0.8, 0.5, 0.3, 0.2, 0.1, 0.05)
EAGER, COMPILE, CHECKPOINT = "eager", "torch.compile", "eager, checkpoint per block"
FASTEST, HALF, SMALLEST = "fastest", "half", "smallest"
OURS = "rematpass"

# What a selective policy saves: products, convolutions, attention; the rest is cheap to compute again.
_SAVED = (
    *("mm", "addmm", "bmm", "baddbmm", "convolution"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    "_scaled_dot_product_attention_math",
)


@dataclass(frozen=True)
class Variant:
    """One way to run the step.

    Attributes:
        name: what tables call it.
        is_compiled: under torch.compile.
        checkpoint: "" or "block" or "selective": torch.utils.checkpoint around each block.
        ratio: the incumbent's `activation_memory_budget`, None where it stays as it is.
        memory_budget: ours; None where rematpass has no part.
        cost_model: what prices our plan.
    """

    name: str
    is_compiled: bool = False
    checkpoint: str = ""
    ratio: float | None = None
    memory_budget: str | int | None = None
    cost_model: str = "roofline"

    @property
    def is_ours(self) -> bool:
        """Planned by rematpass."""
        return self.memory_budget is not None


PEERS = (
    Variant(EAGER),
    Variant(CHECKPOINT, checkpoint="block"),
    Variant("eager, selective policy", checkpoint="selective"),
    Variant(COMPILE, is_compiled=True),
    Variant("torch.compile, checkpoint per block", is_compiled=True, checkpoint="block"),
    *(Variant(f"torch.compile, budget {ratio}", is_compiled=True, ratio=ratio) for ratio in RATIOS),
)


def our_variant(label: str, memory_budget: str | int) -> Variant:
    """Ours at a budget: "none" or bytes."""
    return Variant(f"{OURS}, {label}", is_compiled=True, memory_budget=memory_budget)


@dataclass
class Runner:
    """A variant that is ready to run, and what was measured of it. `plan` is None where rematpass has no part."""

    variant: Variant
    call: Callable[..., Tensor]
    model: nn.Module
    inputs: tuple[Tensor, ...]
    device: torch.device
    first_step_seconds: list[float] = field(default_factory=list)
    times_ms: list[float] = field(default_factory=list)
    above_bytes: int = 0
    gradient_error: float = 0.0
    plan: Plan | None = None

    def timed_step(self) -> float:
        """Seconds of forward, loss and backward, with no gradient there before."""
        self.clear_gradients()
        self._synchronize()
        start = time.perf_counter()
        self._step()
        self._synchronize()
        return time.perf_counter() - start

    def measure_peak(self) -> int:
        """Bytes allocated at the peak of one step, gradients included, above what was live before."""
        self.clear_gradients()
        with drop_stderr_lines(PROFILER_PREFIX):
            above_bytes = measure_peak(self._step, device=self.device)
        self.clear_gradients()
        return above_bytes

    def gradients(self) -> list[Tensor | None]:
        """Gradients of one step, in host memory, where they are in nobody's way."""
        self.clear_gradients()
        self._step()
        found = [None if p.grad is None else p.grad.cpu() for p in self.model.parameters()]
        self.clear_gradients()
        return found

    def clear_gradients(self) -> None:
        """Set all gradients to None. The parameters are shared by all variants, and so are their gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def _step(self) -> None:
        torch.autograd.backward(self.call(*self.inputs))

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


_NUMBERS = itertools.count()


def make_runner(
    variant: Variant, model: nn.Module, inputs: tuple[Tensor, ...], blocks: Sequence[str], device: torch.device
) -> Runner:
    """A runner that has not made a step yet; `model` itself is not changed."""
    own = share_parameters(model)
    if variant.checkpoint:
        checkpoint_blocks(own, blocks, is_selective=variant.checkpoint == "selective")
    return Runner(variant, _compiled(own, variant), own, inputs, device)


def first_step(runner: Runner) -> None:
    """Make the first step, which compiles, with nothing in torch's caches; notes its seconds.

    All variants compile with Inductor's flaws mended: a U-Net at torch's ratio 0.05 else writes where it must not, and
    what runs beside it fails.
    """
    ratio = runner.variant.ratio
    patch = {} if ratio is None else {"activation_memory_budget": ratio}
    with cold_caches(), flaws_mended(), functorch_config.patch(patch):
        runner.first_step_seconds.append(runner.timed_step())


@contextmanager
def cold_caches() -> Iterator[None]:
    """Inside, nothing compiled before is used again: no cached graph, no cached kernel."""
    with fresh_cache(), torch_compat.compile_uncached():
        yield


def _compiled(model: nn.Module, variant: Variant) -> Callable[..., Tensor]:
    """The step's callable, with a code object of its own.

    Dynamo keeps what it compiled per code object, and would take one variant's step for another's, or give up.
    """

    def call(*inputs: Tensor) -> Tensor:
        loss: Tensor = model(*inputs)
        return loss

    own: Any = call
    own.__code__ = own.__code__.replace(co_name=f"step_{next(_NUMBERS)}")
    assert isinstance(own, types.FunctionType)
    if variant.is_ours:
        options = {"memory_budget": variant.memory_budget, "cost_model": variant.cost_model, "verify": False}
        return torch.compile(own, backend="rematpass", options=options)
    return torch.compile(own) if variant.is_compiled else own


def share_parameters(model: nn.Module) -> nn.Module:
    """A copy of the module tree that has the same parameters and buffers, not copies of them."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


class Checkpointed(nn.Module):
    """A block under `torch.utils.checkpoint`; with `is_selective`, products, convolutions and attention are saved."""

    def __init__(self, block: nn.Module, *, is_selective: bool) -> None:
        super().__init__()
        self.block = block
        self.is_selective = is_selective

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the block returns."""
        if self.is_selective:
            return checkpoint(self.block, *args, use_reentrant=False, context_fn=_selective_contexts, **kwargs)
        return checkpoint(self.block, *args, use_reentrant=False, **kwargs)


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(_saved_ops())


@functools.cache
def _saved_ops() -> list[Any]:
    aten = torch.ops.aten
    return [getattr(aten, name).default for name in _SAVED if hasattr(aten, name)]


def checkpoint_blocks(model: nn.Module, globs: Sequence[str], *, is_selective: bool) -> int:
    """Put every module that a glob names under `torch.utils.checkpoint`; returns how many.

    Raises:
        ValueError: no module is named so.
    """
    names = [name for name, _ in model.named_modules() if _is_named(name, globs)]
    for name in names:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, Checkpointed(model.get_submodule(name), is_selective=is_selective))
    if not names:
        raise ValueError(f"no module is called {' or '.join(globs)}")
    return len(names)


def _is_named(path: str, globs: Sequence[str]) -> bool:
    match = matched_module(path, globs)
    return match is not None and match[1] == path


def relative_error(found: Sequence[Tensor | None], reference: Sequence[Tensor | None]) -> float:
    """Norm of the difference of all gradients over the norm of the reference; infinite where one is missing."""
    difference = size = 0.0
    for a, b in zip(found, reference, strict=True):
        if (a is None) != (b is None):
            return float("inf")
        if a is not None and b is not None:
            difference += float((a.double() - b.double()).square().sum())
            size += float(b.double().square().sum())
    return (difference / size) ** 0.5 if size else float("inf")


def plan_key(plan: Plan) -> tuple[Any, ...]:
    """Equal for plans that become the same code; the budget itself is left out."""
    return (plan.peak_bytes, plan.recompute_seconds, plan.timeline, plan.values)


@dataclass(frozen=True)
class Ask:
    """A budget of ours and for whom: `FASTEST`, `HALF`, `SMALLEST` or the peer whose measured peak it is."""

    label: str
    memory_budget: str | int


@dataclass(frozen=True)
class Group:
    """Asks that one plan answers; its variant has the tightest of their budgets."""

    variant: Variant
    labels: tuple[str, ...]


def group_asks(asks: Sequence[tuple[Ask, Any]]) -> list[Group]:
    """Asks with equal keys together, in order of their first; the keys say which become the same code."""
    groups: dict[Any, list[Ask]] = {}
    for ask, key in asks:
        groups.setdefault(key, []).append(ask)
    return [_merge(members) for members in groups.values()]


def _merge(members: Sequence[Ask]) -> Group:
    sizes = [ask.memory_budget for ask in members if isinstance(ask.memory_budget, int)]
    first = members[0]
    label = first.label if first.label in (FASTEST, HALF, SMALLEST) else f"at {first.label}"
    budget = first.memory_budget if first.label == FASTEST or not sizes else min(sizes)
    return Group(our_variant(label, budget), tuple(ask.label for ask in members))
