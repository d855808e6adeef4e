"""Values of any option, made hashable and back.

In: what a user gave for an option of Inductor. Out: the same as a hashable record, a text equal in every process, and
the value again. Never judges a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from .errors import OptionError


@dataclass(frozen=True, slots=True)
class Frozen:
    """A list, tuple, set or dict of an Inductor option, made hashable; `thaw` is the inverse."""

    kind: str
    items: tuple[object, ...]


def freeze(value: object, name: str) -> object:
    """An Inductor value made hashable."""
    if isinstance(value, dict):
        return Frozen("dict", tuple((key, freeze(item, name)) for key, item in value.items()))
    if isinstance(value, set | frozenset):
        return Frozen("set", tuple(sorted(value, key=canonical)))  # members of a set are hashable
    if isinstance(value, list | tuple):
        return Frozen("list" if isinstance(value, list) else "tuple", tuple(freeze(item, name) for item in value))
    try:
        hash(value)
    except TypeError as error:
        raise OptionError(
            f"{name}={value!r} ({type(value).__name__}) is not taken: {error}; options must be hashable. Try: plain "
            "values or importable names"
        ) from error
    return value


def thaw(value: Any) -> object:
    """The value as it was before `freeze`, new."""
    if not isinstance(value, Frozen):
        return value
    items: tuple[Any, ...] = value.items
    if value.kind == "dict":
        return {key: thaw(item) for key, item in items}
    if value.kind == "set":
        return set(items)
    return [thaw(item) for item in items] if value.kind == "list" else tuple(map(thaw, items))


def canonical(value: object) -> str:
    """A text of `value` that is the same in every process."""
    if isinstance(value, Frozen):
        return value.kind + canonical(value.items)
    if isinstance(value, tuple):
        return f"({','.join(map(canonical, value))})"
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    text = repr(value)
    return text if " at 0x" not in text or isinstance(value, str) else _object_name(value)


def _object_name(value: object) -> str:
    identify = None if isinstance(value, type) else getattr(value, "uuid", None)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}{identify() if identify else ''!r}"
