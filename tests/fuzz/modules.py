"""A shrinkable Hypothesis strategy for whole modules: blocks over a growing list of values, and what a user adds.

`Program` says everything and builds fresh copies of the same module and arguments; its repr is a reproduction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from rematpass.graph.words import words

from . import blocks, layers
from .blocks import Sizes

FUNCTIONS = {**blocks.DETERMINISTIC, **blocks.RANDOM}
LAYERS = {**layers.STATELESS, **layers.RANDOM, **layers.STATEFUL, **layers.RANDOM_STATEFUL}
RANDOM = {*blocks.RANDOM, *layers.RANDOM, *layers.RANDOM_STATEFUL}
STATEFUL = {*layers.STATEFUL, *layers.RANDOM_STATEFUL}
NOT_RANDOM = [*blocks.DETERMINISTIC, *layers.STATELESS, *layers.STATEFUL]

POLICIES = ("MUST_SAVE", "PREFER_SAVE", "MUST_RECOMPUTE", "PREFER_RECOMPUTE")
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default)


@dataclass(frozen=True)
class Step:
    """One block.

    Attributes:
        kind: a key of FUNCTIONS or LAYERS.
        x, y: which values it reads, counted backwards from the newest.
        region: "" or a checkpoint region: "plain", a policy for everything, or "products/..." for matrix products only.
        is_shared: uses the module that the last step of this kind made.
        is_frozen: its parameters need no gradient.
    """

    kind: str
    x: int = 0
    y: int = 1
    region: str = ""
    is_shared: bool = False
    is_frozen: bool = False


@dataclass(frozen=True)
class Output:
    """What is returned: a value counted backwards from the newest, in a form of `FORMS`."""

    form: str = "itself"
    value: int = 0


FORMS: dict[str, Callable[[Tensor], object]] = {
    "itself": lambda x: x,
    "mean": lambda x: x.square().mean(),
    "view": lambda x: x.transpose(0, 1),
    "part": lambda x: x[:, 0],
    "twice": lambda x: (x, x),
    "with_alias": lambda x: {"whole": x, "flat": x.view(-1) if x.is_contiguous() else x.flatten()},
    "pieces": lambda x: list(x.chunk(2, -1)),
    "detached": lambda x: x.detach(),
    "integer": lambda x: x.argmax(-1),
    "and_none": lambda x: (None, x.sum(-1), 3),
}
ARGUMENTS = ("gradient", "plain", "duplicate", "view", "alias", "not_leaf")
STATES = ("", "added", "replaced_row")


@dataclass(frozen=True)
class Program:
    """A module, its arguments, and the options to compile it with.

    Attributes:
        steps: the blocks, in order.
        outputs: what it returns.
        arguments: how each argument is made, see `make_arguments`; the first is always fresh.
        state: how an argument that needs no gradient is written to, "" for none.
        pins: (option, step): globs on the module path of a step.
        shares: budgets, in percent of the way from the smallest peak to the fastest plan's.
    """

    steps: tuple[Step, ...]
    outputs: tuple[Output, ...] = (Output(),)
    arguments: tuple[str, ...] = ("gradient",)
    sizes: Sizes = field(default_factory=Sizes)
    dtype: torch.dtype = torch.float32
    state: str = ""
    is_training: bool = True
    pins: tuple[tuple[str, int], ...] = ()
    shares: tuple[int, ...] = (0,)

    def __call__(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """A fresh module and its arguments, as `run_step` wants them."""
        module = Composed(self).to(self.dtype).train(self.is_training)
        return module, make_arguments(self)

    @property
    def is_random(self) -> bool:
        return any(step.kind in RANDOM for step in self.steps)

    def pinned(self) -> dict[str, list[str]]:
        """Options `save` and `recompute`: globs on paths of blocks."""
        options: dict[str, list[str]] = {}
        owners = owners_of(self.steps)
        for option, step in self.pins:
            glob = f"blocks.{owners[step % len(self.steps)]}.*"
            if not any(glob in globs for globs in options.values()):
                options.setdefault(option, []).append(glob)
        return options


def owners_of(steps: tuple[Step, ...]) -> list[int]:
    """Per step, which step made the module it uses."""
    latest: dict[str, int] = {}
    owners = []
    for i, step in enumerate(steps):
        if not (step.is_shared and step.kind in latest):
            latest[step.kind] = i
        owners.append(latest[step.kind])
    return owners


class Function(nn.Module):
    """A block without parameters, with a module path of its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.function = FUNCTIONS[kind]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y)


class Composed(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        owners = owners_of(program.steps)
        made = {i: _make_block(program.steps[i], program.sizes) for i in owners}
        self.blocks = nn.ModuleDict({str(i): block for i, block in made.items()})
        self.wiring = [(str(owner), s.x, s.y, s.region) for owner, s in zip(owners, program.steps, strict=True)]
        self.forms = [(FORMS[output.form], output.value) for output in program.outputs]
        self.state = program.state

    def forward(self, values: list[Tensor], state: Tensor | None = None) -> object:
        values = list(values)
        if state is not None:
            values[0] = values[0] * state.clone()
            write_state(self.state, state, values[-1])
        unread = set(range(len(values)))
        for block, first, second, region in self.wiring:
            a, b = (len(values) - 1 - back % len(values) for back in (first, second))
            unread = (unread - {a, b}) | {len(values)}
            values.append(in_region(region, self.blocks[block], values[a], values[b]))
        for i in sorted(unread)[:-1]:  # torch leaves dead draws out, eager does not
            values[-1] = values[-1] + 0.1 * values[i]
        outputs = [form(values[-1 - value % len(values)]) for form, value in self.forms]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _make_block(step: Step, sizes: Sizes) -> nn.Module:
    block = Function(step.kind) if step.kind in FUNCTIONS else LAYERS[step.kind](sizes)
    return block.requires_grad_(False) if step.is_frozen else block


def write_state(how: str, state: Tensor, value: Tensor) -> None:
    if how == "added":
        state.mul_(0.9).add_(value.detach().mean())
    else:
        state[0] = value.detach()[0, 0]


def in_region(region: str, block: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    if not region:
        return block(x, y)
    if region == "plain":
        return checkpoint(block, x, y, use_reentrant=False)
    return checkpoint(block, x, y, use_reentrant=False, context_fn=CONTEXTS[region])


def _contexts(policy: str, only_products: bool) -> Callable[[], Any]:
    chosen = CheckpointPolicy[policy]

    def decide(context, op, *args, **kwargs):
        if only_products and op not in PRODUCTS:
            return CheckpointPolicy.PREFER_RECOMPUTE
        return chosen

    def make() -> Any:
        return create_selective_checkpoint_contexts(decide)

    return make


CONTEXTS = {policy: _contexts(policy, False) for policy in POLICIES}
CONTEXTS |= {f"products/{policy}": _contexts(policy, True) for policy in POLICIES}
REGIONS = ("", "plain", *CONTEXTS)
# Eager refuses to save what is written to later; these do that, most of them inside torch.
WRITING = words(
    "in_place_relu in_place_silu in_place_leaky slices_written views_written one_hot points_put padded_circular",
    "dropout dropout_light dropout_in_place dropout1d dropout2d alpha_dropout feature_alpha_dropout attention_dropout",
    "fused_attention_dropout bernoulli_in_place gumbel gumbel_hard uniform normal several_draws deep_perceptron conv2d",
    "rms_norm unrolled gru perceptron_dropout attend_dropout transformer low_rank channel_dropout",
)
# Eager runs a region twice, statistics and all; torch traces rrelu in a region so that its noise is never drawn.
NO_REGION = {*STATEFUL, "rrelu"}


def make_arguments(program: Program) -> tuple[Any, ...]:
    """One list of values, and the state when there is one.

    "gradient" and "plain" are fresh tensors with and without gradient; "duplicate" is the argument before it, "view" a
    view of that, "alias" the same memory without gradient; "not_leaf" was computed.
    """
    values: list[Tensor] = []
    for how in program.arguments:
        values.append(_make_argument(how, values, program))
    if not program.state:
        return (values,)
    return values, torch.full(program.sizes.shape[1:], 0.8, dtype=program.dtype)


def _make_argument(how: str, before: list[Tensor], program: Program) -> Tensor:
    fresh = torch.randn(program.sizes.shape, dtype=program.dtype)
    if how == "plain":
        return fresh
    if how == "duplicate" and before:
        return before[-1]
    if how == "view" and before:
        return before[-1].view(-1).view(fresh.shape)
    if how == "alias" and before:
        return before[-1].detach()
    fresh.requires_grad_()
    if how != "not_leaf":
        return fresh
    computed = fresh * 1
    computed.retain_grad()
    return computed


# What is sampled more often stands more often; the first is what examples shrink to.
_SIZES = st.builds(Sizes, st.sampled_from([2, 8, 1, 16]), st.sampled_from([4, 8]), st.sampled_from([8, 4, 16]))
_DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float32, torch.bfloat16])
_OPERANDS = st.sampled_from([0, 1, 0, 2, 0, 3, 5])
_OUTPUTS = st.builds(Output, st.sampled_from([*FORMS]), st.sampled_from([0, 1, 2, 4]))
_PINS = st.tuples(st.sampled_from(["save", "recompute"]), st.integers(0, 7))
_SHARES = st.one_of(st.sampled_from([0, 100]), st.integers(1, 99))


@st.composite
def _steps(draw: st.DrawFn, kinds: list[str]) -> Step:
    kind = draw(st.sampled_from(kinds))
    is_plain = kind in NO_REGION or draw(st.integers(0, 3)) < 3
    regions = [r for r in REGIONS[1:] if not (kind in WRITING and r.endswith("_SAVE"))]
    return Step(
        kind,
        x=draw(_OPERANDS),
        y=draw(_OPERANDS),
        region="" if is_plain else draw(st.sampled_from(regions)),
        is_shared=draw(st.integers(0, 3)) == 3,
        is_frozen=kind in LAYERS and draw(st.integers(0, 5)) == 5,
    )


def programs(*, most: int = 7, is_random: bool | None = None) -> st.SearchStrategy[Program]:
    """Modules of up to `most` blocks; random ones only, none of them, or both."""
    kinds = NOT_RANDOM if is_random is False else [*NOT_RANDOM, *sorted(RANDOM) * 2]
    return st.builds(
        Program,
        steps=st.lists(_steps(kinds), min_size=1, max_size=most).map(tuple),
        outputs=st.lists(_OUTPUTS, max_size=2).map(lambda more: (Output(), *more)),
        arguments=st.lists(st.sampled_from(ARGUMENTS), max_size=2).map(lambda more: ("gradient", *more)),
        sizes=_SIZES,
        dtype=_DTYPES,
        state=st.sampled_from(["", "", *STATES]),
        is_training=st.sampled_from([True, True, True, False]),
        pins=st.lists(_PINS, max_size=2).map(lambda pins: tuple(pins) if len(pins) == 2 else ()),
        shares=st.lists(_SHARES, min_size=1, max_size=3, unique=True).map(lambda s: tuple(sorted(s, reverse=True))),
    )


def deep_programs(*, least: int = 4, most: int = 7) -> st.SearchStrategy[Program]:
    """Modules whose activations are most of the peak, each block reading the newest value: budgets mean something."""
    steps = st.lists(_steps([*NOT_RANDOM, *sorted(RANDOM)]), min_size=least, max_size=most)
    return st.builds(
        Program,
        steps=steps.map(lambda found: tuple(replace(step, x=0, region="", is_frozen=False) for step in found)),
        outputs=st.just((Output("mean"),)),
        sizes=st.builds(Sizes, st.sampled_from([32, 64]), st.just(8), st.sampled_from([8, 16])),
        dtype=_DTYPES,
        shares=st.just((50, 0)),
    )
