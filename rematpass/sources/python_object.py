"""A model that a Python callable builds.

In: `module:callable` or `file.py:callable`, sizes, keyword arguments. Out: `Source`. Never trains, never keeps what
the callable made besides.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from ..errors import OptionError
from .source import Sizes, Source
from .values import read_value

_RETURNS = "(model, args), (model, args, kwargs) or (model, args, kwargs, loss)"


def load_object(text: str, sizes: Sizes, settings: Mapping[str, str], *, is_real: bool) -> Source:
    """Call the callable, by default under `torch.device("meta")`, so that weights take no memory.

    `batch` and `sequence` are handed over where they are asked for and the callable takes them.

    Raises:
        OptionError: no such module, file or callable, arguments that it does not take, or another result than a model
            with its arguments.
    """
    place, _, name = text.rpartition(":")
    build = _find(place, name)
    given = _arguments(build, text, sizes, settings)
    inside = nullcontext() if is_real else torch.device("meta")
    try:
        with inside:
            made = build(**given)
    except Exception as error:  # the user's own function, whatever it raises
        hint = "" if is_real else " Try: --real, if it needs tensors with numbers"
        raise OptionError(f"{text} failed: {type(error).__name__}: {error}.{hint}") from error
    return _read(made, text)


def _find(place: str, name: str) -> Callable[..., Any]:
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return found  # type: ignore[no-any-return]  # whatever the user's module holds
    near = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
    raise OptionError(f"{place} has no callable {name!r}. It has: {', '.join(near) or 'no functions'}")


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise OptionError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    with _importable(path.parent), _explained(str(path)):
        sys.modules[path.stem] = module  # dataclasses and pickles look it up there
        spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> Any:
    with _importable(Path.cwd()), _explained(name):
        return importlib.import_module(name)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """As `python -m` does: modules of the folder can be imported."""
    path = str(folder.resolve())
    sys.path.insert(0, path)
    try:
        yield
    finally:
        sys.path.remove(path)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the user's own module, whatever its import raises
        raise OptionError(
            f"{what} cannot be imported: {type(error).__name__}: {error}. Try: the folder that holds it"
        ) from error


def _arguments(build: Callable[..., Any], text: str, sizes: Sizes, settings: Mapping[str, str]) -> dict[str, Any]:
    given = {key: read_value(value) for key, value in settings.items()}
    given |= {key: value for key, value in (("batch", sizes.batch), ("sequence", sizes.sequence)) if value is not None}
    try:
        signature = inspect.signature(build)
        signature.bind(**given)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"{text} does not take {', '.join(given) or 'no arguments'}: {error}. Try: a callable with these parameters"
        ) from error
    return given


def _read(made: Any, text: str) -> Source:
    parts = made if isinstance(made, tuple) else (made,)
    if not 2 <= len(parts) <= 4 or not callable(parts[0]):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise OptionError(f"{text} returned ({kinds}). Try: return {_RETURNS}")
    model, args = parts[:2]
    kwargs, loss = (*parts[2:], None, None)[:2]
    args = args if isinstance(args, tuple | list) else (args,)
    if not isinstance(kwargs, Mapping | None) or not (loss is None or callable(loss)):
        raise OptionError(f"{text} returned kwargs or a loss of another type. Try: return {_RETURNS}")
    return Source(model, tuple(args), dict(kwargs or {}), loss, f"{type(model).__name__} of {text}")
