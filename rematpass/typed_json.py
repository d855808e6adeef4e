"""JSON back into frozen records, every field looked at.

In: what `json` read, and the dataclass it shall become. Out: the record, or `FieldError` naming the field. Never
repairs, never converts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

# Integers of more bits are no sizes.
MAX_BITS = 64
_WORDS: dict[Any, str] = {int: "an integer", float: "a number", str: "a text", NoneType: "null"}


class FieldError(ValueError):
    """A field that is missing, unknown, of another type, or impossible. The message names it and its value."""


def wrong(where: str, found: object, wanted: str) -> FieldError:
    """The error for a field that holds something else."""
    return FieldError(f"{where} is {_short(found)}; it must be {wanted}")


def read_json(text: str) -> Any:
    """What `json.loads` reads, without what it lets pass.

    Raises:
        ValueError: not JSON, a key that stands twice, NaN or an infinity, too deep or too long to be read.
    """
    try:
        return json.loads(text, object_pairs_hook=_read_pairs, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def read_record(kind: type[T], found: object, where: str) -> T:
    """`found` as a `kind`, a dataclass.

    Args:
        kind: its fields may be texts, numbers, choices, other records, tuples of these, or one of several. Fields that
            are not compared are no part of the record and keep their default.
        found: a dict from JSON; lists stand for tuples.
        where: how messages call it.

    Raises:
        FieldError: with the path of the field. Sizes (`bytes`, `*_bytes`) and times (`*_seconds`) are at least zero.
    """
    if not isinstance(found, Mapping):
        raise wrong(where, found, "an object")
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind) if field.compare}  # type: ignore[arg-type]  # T is a dataclass
    for name in sorted(names - set(found)):
        raise FieldError(f"{where}.{name} is missing")
    for name in sorted(set(found) - names):
        raise FieldError(f"{where}.{name} is no field of a {kind.__name__}; it holds {_short(found[name])}")
    return kind(**{name: _read_named(hints[name], found[name], f"{where}.{name}", name) for name in found})


def _read_named(kind: Any, found: object, where: str, name: str) -> Any:
    """A field whose name may say what is impossible."""
    value = _read(kind, found, where)
    is_amount = name == "bytes" or name.endswith(("_bytes", "_seconds"))
    if is_amount and value is not None and value < 0:
        raise wrong(where, found, "at least zero")
    return value


def _read(kind: Any, found: object, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _read_any(arguments, found, where)
    if origin is tuple:
        if not isinstance(found, list):
            raise wrong(where, found, "a list")
        return tuple(_read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(found))
    if kind in _WORDS:
        return _read_plain(kind, found, where)
    if origin is Literal or issubclass(kind, StrEnum):
        choices = {str(choice): choice for choice in arguments or kind}
        if not isinstance(found, str) or found not in choices:
            raise wrong(where, found, f"one of {', '.join(choices)}")
        return choices[found]
    return read_record(kind, found, where)


def _read_any(kinds: tuple[Any, ...], found: object, where: str) -> Any:
    """Null, or the one kind of another type that may stand there."""
    plain = [kind for kind in kinds if kind in _WORDS]
    if any(_is_plain(kind, found) for kind in plain):
        return found
    others = [kind for kind in kinds if kind not in plain]
    if not others:
        raise wrong(where, found, " or ".join(_WORDS[kind] for kind in plain))
    return _read(others[0], found, where)


def _read_plain(kind: Any, found: object, where: str) -> Any:
    if not _is_plain(kind, found):
        raise wrong(where, found, _WORDS[kind])
    return found


def _is_plain(kind: Any, found: object) -> bool:
    if isinstance(found, bool):
        return False  # True is an int to Python
    if isinstance(found, int):
        return kind in (int, float) and found.bit_length() < MAX_BITS
    return isinstance(found, kind) and (kind is not float or math.isfinite(found))


def _short(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
