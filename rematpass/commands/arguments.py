"""Arguments that all commands share that plan a model.

In: an argument parser, then what was typed. Out: `Work`: a model, where it runs, what is held beside the step. Never
plans, never prints.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..options import parse_memory_budget
from ..sources.source import FORMS, Sizes, Source
from ..sources.training_state import OPTIMIZERS, PRECISIONS, Optimizer

if TYPE_CHECKING:
    import torch

EXIT_CODES = "exit code: 0 when it fits, 1 when it does not, 2 when it could not be run.\n"
AUTOCASTS = ("bf16", "fp16")


@dataclass(frozen=True)
class Work:
    """What shall be planned.

    Attributes:
        source: model, arguments, loss.
        device, dtype: where it runs, and in what; None: here, as it is.
        budget: of the whole device, as typed.
        optimizer_bytes: live from step to step beside the graph: states and master weights.
        accumulated_bytes: gradients of earlier backwards, as the last of several backwards finds them.
        parameter_bytes, buffer_bytes: of the model.
        options: for the planner.
    """

    source: Source
    device: str | None
    dtype: str | None
    budget: str
    optimizer_bytes: int
    accumulated_bytes: int
    parameter_bytes: int
    buffer_bytes: int
    options: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `rematpass.plan` and `rematpass.frontier`, the budget left out."""
        source = self.source
        return {
            "model": source.model,
            "args": source.args,
            "kwargs": source.kwargs,
            "loss": source.loss,
            "device": self.device,
            "dtype": self.dtype,
            **self.options,
        }

    @property
    def beside_bytes(self) -> int:
        """What is live beside the compiled step throughout."""
        return self.optimizer_bytes + self.accumulated_bytes

    def graph_budget(self) -> int | str:
        """What is left of the budget for the compiled step, at least one byte."""
        from ..device import budget_on

        if not self.beside_bytes:
            return self.budget
        total = budget_on(self.device or "cpu", parse_memory_budget(self.budget))
        if total is None:
            return "none"
        return max(1, total - self.beside_bytes)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, its sizes, where it runs and what trains it."""
    model = parser.add_argument_group("the model")
    model.add_argument("model", metavar="MODEL", help=f"one of: {FORMS}")
    model.add_argument("--batch", type=int, metavar="N", help="sequences or samples in a batch")
    model.add_argument("--sequence", type=int, metavar="N", help="tokens in a sequence")
    model.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a field of the hf: configuration, or a keyword argument of the callable; may be repeated",
    )
    model.add_argument("--real", action="store_true", help="let the callable make real tensors")
    model.add_argument("--lora-rank", type=int, metavar="R", help="freeze the model, train adapters of this rank")
    place = parser.add_argument_group("where and how it is trained")
    place.add_argument(
        "--device", metavar="NAME", help="a declared device, see `rematpass devices` (default: this CPU)"
    )
    place.add_argument("--dtype", metavar="NAME", help="of parameters and floating-point inputs, e.g. bf16")
    place.add_argument("--autocast", choices=AUTOCASTS, help="run the forward under torch.autocast")
    place.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="none", help="whose state counts (default: %(default)s)"
    )
    place.add_argument(
        "--optimizer-precision", choices=PRECISIONS, default="fp32", help="of its states (default: %(default)s)"
    )
    place.add_argument("--accumulate", action="store_true", help="count gradients of earlier backwards beside the step")
    place.add_argument("--master-weights", action="store_true", help="count a float32 copy of what learns, too")
    place.add_argument("--time-limit", type=float, metavar="S", help="seconds for the search, counted in work")


def add_budget_argument(parser: argparse.ArgumentParser) -> None:
    """--budget, of the whole device, also under the name of the option."""
    parser.add_argument(
        "--budget",
        "--memory-budget",
        default="auto",
        metavar="SIZE",
        help='what the device may hold, optimizer included: 20GiB, 80%%, "auto", "none" (default: %(default)s)',
    )


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON, and only that, on stdout")


def read_work(arguments: argparse.Namespace, sizes: Sizes | None = None) -> Work:
    """What was typed, with the model built.

    Args:
        arguments: of a parser that `add_model_arguments` has seen.
        sizes: in place of --batch and --sequence.

    Raises:
        OptionError: whatever cannot be read or built.
    """
    from ..sources.source import load_source
    from ..sources.values import split_pairs
    from ..stand_in import count_bytes, item_bytes, read_dtype

    dtype = read_dtype(arguments.dtype)
    budget = getattr(arguments, "budget", "none")
    parse_memory_budget(budget)  # refused now, not after a long trace
    sizes = sizes or Sizes(arguments.batch, arguments.sequence)
    source = load_source(arguments.model, sizes, split_pairs(arguments.set), is_real=arguments.real)
    source = _adapted(source, arguments.lora_rank)
    optimizer = Optimizer(arguments.optimizer, arguments.optimizer_precision, arguments.master_weights)
    parameters, buffers = count_bytes(source.model, dtype)
    learning = _learning(source)
    return Work(
        source=_autocast(source, arguments.autocast),
        device=arguments.device,
        dtype=arguments.dtype,
        budget=budget,
        optimizer_bytes=optimizer.state_bytes([tuple(parameter.shape) for parameter in learning]),
        accumulated_bytes=sum(item_bytes(p, dtype) * p.numel() for p in learning) if arguments.accumulate else 0,
        parameter_bytes=parameters,
        buffer_bytes=buffers,
        options={} if arguments.time_limit is None else {"time_limit": arguments.time_limit},
    )


def _adapted(source: Source, rank: int | None) -> Source:
    if rank is None:
        return source
    from ..sources.lora import add_lora
    from ..stand_in import find_modules

    count = sum(add_lora(module, rank) for module in find_modules(source.model))
    return replace(source, words=f"{source.words}, LoRA of rank {rank} on {count} layers")


def _learning(source: Source) -> list[torch.nn.Parameter]:
    from ..stand_in import find_modules

    found = {id(p): p for module in find_modules(source.model) for p in module.parameters() if p.requires_grad}
    return list(found.values())


def _autocast(source: Source, name: str | None) -> Source:
    if name is None:
        return source
    run = functools.partial(_run_autocast, source.model, name)
    return replace(source, model=run, words=f"{source.words}, autocast to {name}")


def _run_autocast(model: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
    import torch

    from ..stand_in import DTYPES

    with torch.autocast("cpu", DTYPES[name]):
        return model(*args, **kwargs)
