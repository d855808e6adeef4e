"""Why dynamo does not trace a model, in few words: the user's line, and the reason; and tracing past loggers.

In: an exception of dynamo's, 2.11 to 2.15. Out: text. Never loses the exception: who raises another one chains it.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch._dynamo.exc import TorchDynamoException  # 2.11-2.15
from torch._dynamo.variables.base import VariableTracker  # 2.11-2.15
from torch._dynamo.variables.constant import ConstantVariable  # 2.11-2.15
from torch._dynamo.variables.misc import LoggingLoggerVariable  # 2.11-2.15

# What dynamo appends to its reason: the stack of the user's code, addresses, switches of its own.
_APPENDED = re.compile(
    r"\n*(from user code:|User Stack|For more |For extended logs|If you suspect|For C\+\+|Set TORCHDYNAMO)"
)
_EXPLANATION = re.compile(r"\n\s*Explanation: (?P<text>.*?)(?=\n\s*Hint:|\n\s*\n|$)", re.DOTALL)
_HINT = re.compile(r"\n\s*Hint: (?P<text>.*?)(?=\n\s*Hint:|\n\s*\n|$)", re.DOTALL)
_CONTEXT = re.compile(r"Developer debug context: *(?P<text>\S.*?)(?=\n\s*\n|$)", re.DOTALL)
# Hints that say nothing of this model, or what is said anyway.
_EMPTY_HINTS = (
    *("Your code may result in an error", "It may be possible to write Dynamo", "This graph break may have"),
    *("Report an issue", "Please file an issue", "Set torch._dynamo.config.allow_rnn"),
)
# What it says of an `if`, or of a size, that hangs on a number that only running the model gives.
_ON_NUMBERS = ("data-dependent", "Data-dependent", "_local_scalar_dense")
_NUMBERS_WORDS = (
    "an if, a loop or a size hangs on a number that only running the model gives",
    "torch.where, or sizes that do not depend on data",
)

_LOGGER = "logging.Logger method not supported"  # how it names a log call, 2.11-2.15


def refusal_reason(error: TorchDynamoException) -> str:
    """What dynamo could not do, on one line."""
    text = _own_words(error)
    if any(word in text for word in _ON_NUMBERS):
        return _NUMBERS_WORDS[0]
    headline = _first_line(_EXPLANATION.split(text)[0])
    more = [_flat(found["text"]) for found in (part.search(text) for part in (_EXPLANATION, _CONTEXT)) if found]
    return ": ".join([headline, *more])


def refusal_hints(error: TorchDynamoException) -> list[str]:
    """What dynamo itself says to try; without what it says of any model."""
    text = _own_words(error)
    if any(word in text for word in _ON_NUMBERS):
        return [_NUMBERS_WORDS[1]]
    hints = [_flat(found["text"]) for found in _HINT.finditer(text)]
    return [hint for hint in hints if not hint.startswith(_EMPTY_HINTS)]


def refused_line(error: TorchDynamoException) -> str:
    """`model.py:29 in forward: y = x.tolist()`, the innermost line of the user's own; "" where dynamo names none."""
    stack: Iterable[traceback.FrameSummary] = getattr(error, "real_stack", None) or ()
    homes = [Path(torch.__file__).parent, Path(__file__).parents[1]]
    own = [frame for frame in stack if not any(home in Path(frame.filename).parents for home in homes)]
    if not own:
        return ""
    frame = own[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()}"


def is_at_logger(error: TorchDynamoException) -> bool:
    """Whether a call of a `logging.Logger` is what it does not trace."""
    return _LOGGER in _own_words(error)


@contextmanager
def loggers_ignored() -> Iterator[None]:
    """Trace as if no method of a logger did anything, as `torch.export` does; also those that libraries have added.

    Not by `torch._dynamo.config.ignore_logging_functions`: torch 2.11 writes its configuration to a log of its own as
    JSON, and fails at the functions in there.
    """

    def nothing(*_: object) -> VariableTracker:
        return ConstantVariable.create(None)

    with patch.object(LoggingLoggerVariable, "call_method", nothing):
        yield


def _own_words(error: TorchDynamoException) -> str:
    """Of what failed behind dynamo, its own; dynamo's first line would name a function of ours."""
    behind = getattr(error, "inner_exception", None)
    words = getattr(error, "msg", error) if behind is None else f"{type(behind).__name__}: {behind}"
    return _APPENDED.split(str(words))[0].rstrip()


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0].rstrip(".")


def _flat(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
