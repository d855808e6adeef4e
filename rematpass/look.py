"""Trace one step as torch.compile would, and look at its joint graph.

In: a model, its arguments, where it is to run. Out: what somebody makes of the joint graph. Never runs a kernel, never
compiles, never decides.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import fx

from . import torch_compat
from .backend import compile_patches, device_type, plan_topic
from .device import CUDNN_FIRST, find_target, make_settings
from .errors import OptionError, RematError
from .garbage import uncollected
from .graph.capture import JointProgram
from .options import Options
from .partitioner import Look, Partitioner, Seen, errors_pass
from .pipeline import Settings
from .stand_in import needs_stand_ins, read_dtype, stand_ins

T = TypeVar("T")
# The device that a model without numbers is planned for where nobody says which.
HERE = "cpu"
# What to try where a model does not trace into one graph, or not at all.
ONE_GRAPH = (
    "remove the graph break (for nn.LSTM, nn.GRU, nn.RNN: torch._dynamo.config.allow_rnn = True)",
    "compile the model and read rematpass.plans(compiled) after a step",
)
# What a plan says where calls of loggers were left out.
LOGGED = (
    "planned without the calls of loggers (the first: {}). torch.compile ends a graph at each and plans the parts with "
    "one budget; for the one graph that is planned here, name the method in "
    "torch._dynamo.config.ignore_logging_functions"
)
TRACED = ("run one step of it", "check the arguments", "make new tensors on the device of others (device=x.device)")


@dataclass(frozen=True)
class Step:
    """One training step to look at.

    Attributes:
        model: a module or function.
        args, kwargs: its arguments; shapes and dtypes count, values do not.
        loss: what is differentiated of its outputs; None: the outputs themselves.
        device: where it will run, by name; None: here.
        dtype: of floating-point parameters, buffers and arguments there; None: as they are.
    """

    model: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    loss: Callable[[Any], Any] | None = None
    device: str | None = None
    dtype: object = None

    def __post_init__(self) -> None:
        """Refuse what is no sequence and no mapping of arguments.

        Raises:
            OptionError: a tensor or a dict in the place of `args`, a tensor in the place of `kwargs`.
        """
        args: object = self.args
        kwargs: object = self.kwargs
        if isinstance(args, Mapping):
            raise OptionError(f"args is a {type(args).__name__}; it must be a tuple or list. Try: kwargs=batch")
        if not isinstance(args, Sequence):
            raise OptionError(f"args is a {type(args).__name__}; it must be a tuple or list. Try: args=(x,)")
        if kwargs is not None and not isinstance(kwargs, Mapping):
            kind = type(kwargs).__name__
            raise OptionError(f"kwargs is a {kind}; it must be a dict of keyword arguments. Try: args=(x, y)")


def look_at_step(step: Step, options: Options, use: Callable[[JointProgram, Settings], T]) -> T:
    """Trace and differentiate one step as torch.compile would, and hand the joint graph to `use`.

    Planned for elsewhere, or with tensors that hold no numbers, the step is traced on fake CPU tensors, which take no
    memory and on which nothing can be run.

    Raises:
        OptionError: an unknown device or dtype.
        RematError: nothing needs a gradient, or the model does not trace into one graph.
    """
    if not callable(step.model):
        raise OptionError(f"model is a {type(step.model).__name__}; it must be a module or a function")
    arguments = (tuple(step.args), dict(step.kwargs or {}))
    dtype, target = read_dtype(step.dtype), step.device
    if target is not None:
        find_target(target)  # refused now, not after a long trace
    is_elsewhere = target is not None or dtype is not None or needs_stand_ins(step.model, arguments)
    if is_elsewhere and target is None:
        target = HERE
    inside = stand_ins(step.model, arguments, dtype) if is_elsewhere else nullcontext(arguments)
    with uncollected(), inside as (args, kwargs):
        return _trace(_Traced(step, target), args, kwargs, options, use)


@dataclass(frozen=True)
class _Traced:
    """What dynamo is given: the step, and where it is planned for (None: here)."""

    step: Step
    target: str | None
    notes: tuple[str, ...] = ()  # for the reader of the plan


def _trace(
    traced: _Traced,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    use: Callable[[JointProgram, Settings], T],
) -> T:
    """As `_trace_whole`; where only a line for a log stands between two graphs, without it, and the plan says so."""
    try:
        return _trace_whole(traced, args, kwargs, options, use)
    except torch_compat.Unsupported as error:
        if traced.notes or not torch_compat.is_at_logger(error):
            raise _refusal(error, "the model does not trace into one graph", ONE_GRAPH) from error
        note = LOGGED.format(torch_compat.refused_line(error))
    warnings.warn(f"rematpass: {note}", stacklevel=2)
    with torch_compat.loggers_ignored():
        return _trace(dataclasses.replace(traced, notes=(note,)), args, kwargs, options, use)


def _trace_whole(
    traced: _Traced,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    use: Callable[[JointProgram, Settings], T],
) -> T:
    made: list[T] = []
    model, loss, target = traced.step.model, traced.step.loss, traced.target

    def stop_at_joint_graph(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with errors_pass():
            topic = plan_topic(gm, inputs, options)
            settings = make_settings(options, device_type(inputs), topic, device=target, inputs=inputs)
            settings = dataclasses.replace(settings, notes=(*settings.notes, *traced.notes))
        if target is not None:
            torch_compat.use_modes_of(inputs)
        is_here, is_cudnn_first = settings.device_type in (None, "cpu"), settings.device.name in CUDNN_FIRST
        with nullcontext() if is_here else torch_compat.as_on_gpu(gm, is_cudnn_first=is_cudnn_first):
            torch_compat.compile_fx(gm, inputs, compile_patches(options, Look(Partitioner(settings), use, made)))
        raise torch_compat.as_compile_error(
            RematError("nothing to plan: no output of the model needs a gradient. Try: model.train(), requires_grad")
        )

    def call(*a: object, **k: object) -> object:
        return model(*a, **k) if loss is None else loss(model(*a, **k))

    try:
        with torch_compat.compile_uncached(), torch.enable_grad(), _casting(target):
            torch.compile(call, backend=stop_at_joint_graph, fullgraph=True, dynamic=False)(*args, **kwargs)
    except Seen:
        return made[-1]
    except (RematError, torch_compat.Unsupported):
        raise
    except torch_compat.TorchDynamoException as error:
        raise _refusal(error, "the model cannot be traced", TRACED) from error
    raise RematError("nothing was traced: the model ran no tensor operation. Try: check the arguments")


def _casting(target: str | None) -> AbstractContextManager[None]:
    """Autocast as where the step is planned for."""
    is_gpu = target is not None and find_target(target)[1] != "cpu"
    return torch_compat.autocast_as_on_gpu() if is_gpu else nullcontext()


def _refusal(error: torch_compat.TorchDynamoException, what: str, advice: Sequence[str]) -> RematError:
    """The user's line, dynamo's reason, and what to try; all that dynamo says is the error's cause."""
    line = torch_compat.refused_line(error)
    where = f"\n  at {line}" if line else ""
    hints = "; ".join([*torch_compat.refusal_hints(error), *advice])
    return RematError(f"{what}: {torch_compat.refusal_reason(error)}{where}\nTry: {hints}")
