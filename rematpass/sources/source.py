"""A model to plan for, as text on the command line names it.

In: such a text and sizes. Out: `Source`: a model without weights, its arguments, its loss. Never loads a weight, never
asks the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError

FORMS = "my_module:build_model, path/to/file.py:build_model, hf:path/to/config.json, hf:llama"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the batch: sequences or samples in it, tokens in each. None where the source knows better."""

    batch: int | None = None
    sequence: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "sequence"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name}={value} is not taken: it must be at least 1")


@dataclass(frozen=True)
class Source:
    """What is trained in one step.

    Attributes:
        model: a module, or a function of modules.
        args, kwargs: its arguments.
        loss: what is differentiated of its outputs; None: the outputs themselves.
        words: what it is, for people.
        longest: tokens in a sequence that it takes at most, where it says so.
    """

    model: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    loss: Callable[[Any], Any] | None
    words: str
    longest: int | None = None


def load_source(text: str, sizes: Sizes, settings: Mapping[str, str], *, is_real: bool = False) -> Source:
    """The model that `text` names.

    Args:
        text: `module:callable`, `file.py:callable`, or `hf:` and a config.json or a model type of transformers.
        sizes: of the batch.
        settings: key=value pairs: overrides of a configuration, or keyword arguments of the callable.
        is_real: let the callable make real tensors instead of ones on the meta device.

    Raises:
        OptionError: no such form, module, callable, file or model type; a callable that returns something else.
    """
    from .huggingface import load_config
    from .python_object import load_object

    kind, _, rest = text.partition(":")
    if not rest or not kind:
        raise OptionError(f"model {text!r} is not taken. Try: {FORMS}")
    if kind == "hf":
        return load_config(rest, sizes, settings)
    return load_object(text, sizes, settings, is_real=is_real)
