"""Which values of a plan a glob names.

In: a glob, and the names of a value. Out: whether it is meant, or the error that names what is near. Never reads
a plan.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable

from .errors import OptionError


def is_named(glob: str, module: str, *names: str) -> bool:
    """Whether `glob` names a value by its module or by one of its own names, the op's among them.

    What lies inside a named module is named, too.

    >>> is_named("layers.*", "layers.3.mlp", "mm"), is_named("layers.3.mlp.mm", "layers.3.mlp", "mm")
    (True, True)
    """
    inside = (module, *(module[: m.start()] for m in re.finditer(r"\.", module)))
    texts = (*inside, *names, *(f"{module}.{name}" for name in names))
    return any(fnmatch.fnmatchcase(text, glob) for text in texts if text) or glob == "*"


def refuse_glob(glob: str, modules: Iterable[str], where: str = "in the plan") -> OptionError:
    """The error where nothing is called `glob`; it names the nearest modules."""
    known = sorted({module for module in modules if module})
    near = difflib.get_close_matches(glob, known, n=3, cutoff=0.3) or known[:3]
    hint = f" Nearest modules: {', '.join(near)}." if near else ""
    return OptionError(f"nothing {where} is called {glob!r}.{hint} Try: a module path, or a glob such as '*.attn*'")
