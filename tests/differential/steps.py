"""One training step under several executors, and whether two of them did the same.

A `make` function builds a fresh module (or function) and its arguments. A step compiles it, runs it, sums its outputs
with fixed weights and differentiates; afterwards everything a user could see is noted. Executors: eager; both halves of
our split run op by op, where recomputed values must be equal bit by bit; and the backend itself, where fusion may round
differently.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch
from functorch.compile import nop
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils import _pytree

import rematpass
from rematpass.check.measure import storage_bytes
from rematpass.errors import BudgetTooSmall
from rematpass.noted import plans_of

Same = Callable[[Tensor, Tensor], bool]
Make = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
Wrap = Callable[[Any], Any]
# (model, arguments, wrap) -> whatever the step returned. It says what is compiled, and how the result is used.
Step = Callable[[Any, tuple[Any, ...], Wrap], object]

SEED = 7


class Squared(nn.Sequential):
    """A loss of what the layers return."""

    def forward(self, x):
        return super().forward(x).square().mean()


# Kernels without vector instructions compile twice as fast; what they compute is the same.
SCALAR = {"cpp.simdlen": 1}


@dataclass
class Outcome:
    """What one step left behind, by name: "output 0", "gradient of 0.weight", "buffer running_mean", "generator"."""

    tensors: dict[str, Tensor | None] = field(default_factory=dict)

    def differences(self, other: Outcome, is_same: Same) -> list[str]:
        """Names of what differs, with both shapes or the largest difference."""
        found = [f"{name} is missing on one side" for name in self.tensors.keys() ^ other.tensors.keys()]
        for name in self.tensors.keys() & other.tensors.keys():
            found += _difference(name, self.tensors[name], other.tensors[name], is_same)
        return sorted(found)


def _difference(name: str, x: Tensor | None, y: Tensor | None, is_same: Same) -> list[str]:
    if x is None or y is None:
        return [] if x is y else [f"{name} is None on one side"]
    if (x.shape, x.dtype) != (y.shape, y.dtype):
        return [f"{name}: {x.dtype} {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}"]
    if is_same(x, y):
        return []
    return [f"{name} differs by up to {(x.to(torch.complex128) - y.to(torch.complex128)).abs().max().item():.3g}"]


def equal(x: Tensor, y: Tensor) -> bool:
    """Bit by bit, a NaN equal to a NaN."""
    return bool(torch.equal(x, y) or torch.allclose(x, y, rtol=0, atol=0, equal_nan=True))


def close(relative: float, absolute: float | None = None, *, floor: float = 0.0) -> Same:
    """Integers equal; others within tolerances, the absolute one scaled by the largest element.

    Differences below `floor` are rounding: of gradients that are zero in exact arithmetic.
    """

    def is_close(x: Tensor, y: Tensor) -> bool:
        if not (x.is_floating_point() or x.is_complex()):
            return torch.equal(x, y)
        largest = float(y.abs().nan_to_num().max()) if y.numel() else 0.0
        bound = max(relative * largest, floor) if absolute is None else absolute
        return torch.allclose(x, y, rtol=relative, atol=bound, equal_nan=True)

    return is_close


WITHIN_1E_4 = close(1e-4)


def tensors_in(tree: object) -> list[Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def weighted_sum(outputs: object) -> Tensor:
    """Every element of every output that has a gradient counts, each with a weight of its own."""
    total = torch.zeros((), dtype=torch.float64)
    for output in tensors_in(outputs):
        if output.requires_grad:
            real = torch.view_as_real(output).sum(-1) if output.is_complex() else output
            weights = torch.linspace(0.5, 1.5, real.numel(), dtype=torch.float64).reshape(real.shape)
            total = total + (real.double() * weights).sum()
    return total


def forward_backward(model: Any, arguments: tuple[Any, ...], wrap: Wrap) -> object:
    """The plainest step: the whole model compiled, one forward, one backward through all outputs."""
    outputs = wrap(model)(*arguments)
    weighted_sum(outputs).backward()
    return outputs


def as_it_is(model: Any) -> Any:
    """Eager."""
    return model


def plain(model: Any) -> Any:
    """torch.compile without us, an op at a time."""
    torch._dynamo.reset()
    return torch.compile(model, backend="aot_eager")


def plain_inductor(model: Any) -> Any:
    """torch.compile without us; draws the random numbers that Inductor draws."""
    torch._dynamo.reset()
    return torch.compile(model, options=SCALAR)


def words_of_refusal(make: Make, backend: str) -> str | None:
    """What torch.compile says to a step that it cannot run, whoever is the backend; None if it can."""
    torch._dynamo.reset()
    try:
        run_step(make, lambda model: torch.compile(model, backend=backend))
    except RuntimeError as error:
        return str(error).replace(backend, "")
    return None


def run_step(make: Make, wrap: Wrap = as_it_is, step: Step = forward_backward) -> Outcome:
    """Build, run the step from fixed seeds, and note what is left."""
    torch.manual_seed(0)
    model, arguments = make()
    torch.manual_seed(SEED)
    outputs = step(model, arguments, wrap)
    return observe(model, arguments, outputs)


def observe(model: object, arguments: object, outputs: object) -> Outcome:
    """All that a user could read after a step, copied."""
    seen: dict[str, Tensor | None] = {"generator": torch.get_rng_state()}
    seen.update((f"output {i}", t.detach()) for i, t in enumerate(tensors_in(outputs)))
    seen.update(_arguments_seen(tensors_in(arguments)))
    if isinstance(model, nn.Module):
        seen.update((f"gradient of {name}", p.grad) for name, p in model.named_parameters())
        seen.update((f"parameter {name}", p.detach()) for name, p in model.named_parameters())
        seen.update((f"buffer {name}", b.detach()) for name, b in model.named_buffers())
    return Outcome({name: None if t is None else t.clone() for name, t in seen.items()})


def _arguments_seen(arguments: list[Tensor]) -> Iterator[tuple[str, Tensor | None]]:
    for i, argument in enumerate(arguments):
        yield f"argument {i}", argument.detach()
        if argument.is_leaf or argument.retains_grad:
            yield f"gradient of argument {i}", argument.grad


class OpByOp:
    """Wraps models so that both halves of our split run one op at a time. `plans` lists the plans made."""

    def __init__(
        self, memory_budget: object, *, compile_options: Mapping[str, Any] = MappingProxyType({}), **options: object
    ) -> None:
        self._compile_options = compile_options
        self._split = rematpass.partition_fn(memory_budget=memory_budget, **options)

    @property
    def plans(self) -> list[rematpass.Plan]:
        return self._split.plans

    def __call__(self, model: Callable[..., Any]) -> Callable[..., Any]:
        torch._dynamo.reset()
        backend = aot_autograd(
            fw_compiler=nop, bw_compiler=nop, partition_fn=self._split, keep_inference_input_mutations=True
        )
        return torch.compile(model, backend=backend, **self._compile_options)


class Backend:
    """Wraps models in `torch.compile(backend="rematpass")`. `plans` lists the plans made so far."""

    def __init__(
        self, memory_budget: object, *, compile_options: Mapping[str, Any] = MappingProxyType({}), **options: object
    ) -> None:
        self._compile_options = compile_options
        self._options = {"memory_budget": memory_budget, **SCALAR, **options}
        self._compiled: list[Callable[..., Any]] = []

    @property
    def plans(self) -> list[rematpass.Plan]:
        return [plan for compiled in self._compiled for plan in plans_of(compiled)]

    def __call__(self, model: Callable[..., Any]) -> Callable[..., Any]:
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="rematpass", options=self._options, **self._compile_options)
        self._compiled.append(compiled)
        return compiled


def quick_and_thorough(quick: Iterable[str], every: Iterable[str]) -> list[Any]:
    """(case, number of budgets): some cases at two budgets in the suite, all of them at five by command."""
    thorough = (pytest.param(name, 5, id=f"{name}-thorough", marks=pytest.mark.fuzz) for name in every)
    return [*(pytest.param(name, 2, id=name) for name in quick), *thorough]


def budgets_between(plans: list[rematpass.Plan], count: int) -> list[int]:
    """`count` budgets from where every graph gets its fastest plan down to the smallest that no graph refuses."""
    top = max(plan.fastest_peak_bytes for plan in plans)
    bottom = max(plan.smallest_peak_bytes for plan in plans)
    return sorted({bottom + (top - bottom) * k // (count - 1) for k in range(count)}, reverse=True)


def check_budgets(
    make: Make,
    executor: type[OpByOp | Backend] = OpByOp,
    *,
    step: Step = forward_backward,
    count: int = 5,
    eager: Same | None = WITHIN_1E_4,
    same: Same = equal,
    reference: Wrap = as_it_is,
    **options: object,
) -> list[rematpass.Plan]:
    """The step at `count` budgets leaves what it leaves with no limit, and what eager leaves.

    Returns the plans made, budgets falling; at each budget one for each graph.

    Args:
        make: builds the model and its arguments.
        executor: `OpByOp` or `Backend`.
        step: what is done with them.
        count: budgets, evenly from the fastest plan's peak to the smallest.
        eager: what counts as equal to eager; None where the executor draws other random numbers than eager.
        same: what counts as equal to the step without recomputation.
        reference: stands for eager where torch.compile itself differs from it: `plain` or `plain_inductor`.
        **options: further options of ours.
    """
    unlimited = executor("none", **options)
    expected = run_step(make, unlimited, step)
    if eager is not None:
        assert expected.differences(run_step(make, reference, step), eager) == []
    plans = list(unlimited.plans)
    for budget in budgets_between(unlimited.plans, count)[1:]:  # the first is that of the plans without a limit
        limited = executor(budget, **options)
        found = run_step(make, limited, step)
        assert found.differences(expected, same) == [], f"at a budget of {budget} bytes"
        assert all(plan.peak_bytes <= budget for plan in limited.plans)
        plans += limited.plans
    return plans


def check_backend(
    make: Make,
    *,
    step: Step = forward_backward,
    count: int = 3,
    relative: float = 1e-4,
    floor: float = 0.0,
    is_as_eager: bool = True,
    reference: Wrap = as_it_is,
    **options: object,
) -> list[rematpass.Plan]:
    """`check_budgets` through Inductor, where fusion may change rounding: equal within `relative` or `floor`.

    `is_as_eager`: False where Inductor draws other random numbers than eager. `reference`: see `check_budgets`.
    """
    within = close(relative, floor=floor)
    compared = {"eager": within if is_as_eager else None, "same": within, "reference": reference}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Online softmax is disabled")
        return check_budgets(make, Backend, step=step, count=count, **compared, **options)


def measure_at_smallest(
    model: nn.Module, x: Tensor, loss_of: Callable[[Any], Tensor] = lambda outputs: outputs
) -> tuple[int, int]:
    """The measured peak of a step at the smallest budget that there is for it, and that budget, in bytes.

    What the model returns is held until the step is over; `loss_of` picks the loss from it.
    """
    with pytest.raises(BudgetTooSmall) as refusal:
        rematpass.plan(model, args=(x,), memory_budget=1)
    budget = refusal.value.minimum_bytes
    torch._dynamo.reset()
    options = {"memory_budget": budget, "verify": False, **SCALAR}
    compiled = torch.compile(model, backend="rematpass", options=options)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        outputs = compiled(x)
        loss_of(outputs).backward()

    step()
    model.zero_grad(set_to_none=True)
    return rematpass.measure_peak(step, device="cpu") + storage_bytes([*model.parameters(), x]), budget
