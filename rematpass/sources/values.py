"""Values from the command line.

In: texts such as `layers=4`. Out: keys and Python values. Never runs what it reads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from ..errors import OptionError


def split_pairs(texts: Iterable[str]) -> dict[str, str]:
    """`key=value` texts as a dict.

    Raises:
        OptionError: a text of another form, or a key twice.

    >>> split_pairs(["layers=4", "act=gelu"])
    {'layers': '4', 'act': 'gelu'}
    """
    found: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise OptionError(f"{text!r} is not taken. Try: key=value, such as num_hidden_layers=4")
        if key in found:
            raise OptionError(f"{key} is given twice: {found[key]!r} and {value!r}")
        found[key] = value
    return found


def read_value(text: str) -> Any:
    """A number, truth value, None, list or dict as Python or JSON write it; else the text itself.

    >>> read_value("4"), read_value("true"), read_value("gelu"), read_value("[1, 2]")
    (4, True, 'gelu', [1, 2])
    """
    words: dict[str, Any] = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
