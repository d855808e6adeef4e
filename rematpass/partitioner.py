"""The hook that Inductor splits joint graphs with.

In: a joint graph, settings. Out: forward and backward, and a plan noted for whoever compiles; or what somebody makes of
the joint graph. Never plans itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import uuid4

from torch import fx

from . import torch_compat
from .emit.apart import compute_apart
from .emit.copies import copy_overwritten
from .emit.ordered import order_gradients
from .emit.unread import forget_unread
from .errors import RematError
from .graph.capture import JointProgram, capture_joint, find_backward, find_overwritten
from .graph.gradients import find_turned
from .graph.merge import merge_equal
from .growing import plan_growing
from .noted import noted, numbered
from .pipeline import Settings, needs_plan

T = TypeVar("T")
Halves = tuple[fx.GraphModule, fx.GraphModule]


def take_apart(gm: fx.GraphModule, num_fwd_outputs: int, static: list[int] | None, settings: Settings) -> JointProgram:
    """A joint graph as it is planned; see `capture_joint`."""
    copy_overwritten(gm, find_overwritten(gm))
    if settings.is_fusing:
        forget_unread(gm)
        order_gradients(gm, find_turned(gm, num_fwd_outputs, static, settings.device_type))
        merge_equal(gm)
        compute_apart(gm, find_backward(gm))
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
                planned = plan_growing(joint, self._settings, f"graph {len(noted())}")
            except RematError as error:
                if self._on_error != "fallback":
                    raise
                warnings.warn(f"rematpass: {error}\nFalling back to torch's own partition.", stacklevel=2)
            else:
                plans = noted()
                plans.append(numbered(planned.plan, len(plans)))
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


class Seen(torch_compat.ShortenTraceback):
    """Carries us out of the compiler once the joint graph was looked at."""

    def __init__(self) -> None:
        super().__init__("seen", first_useful_frame=None)


class Look(torch_compat.CustomPartitionerFn):
    """Looks at the joint graph and leaves."""

    def __init__(self, partitioner: Partitioner, use: Callable[[JointProgram, Settings], Any], made: list[Any]) -> None:
        self._partitioner = partitioner
        self._use = use
        self._made = made

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **facts: Any) -> Halves:
        """Note what `use` makes of the graph, stop compiling."""
        del joint_inputs  # shapes are on the graph
        self._made.append(self._partitioner.look(gm, self._use, **facts))
        raise Seen

    def uuid(self) -> str:
        """Never used: looking reads no cache."""
        return "rematpass-look-only"


@contextmanager
def errors_pass() -> Iterator[None]:
    """Let our errors reach the user as they are, not wrapped in the compiler's."""
    try:
        yield
    except RematError as error:
        raise torch_compat.as_compile_error(error) from None
