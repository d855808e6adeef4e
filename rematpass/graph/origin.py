"""Where the user wrote it: module and source line of a node.

In: one FX node. Out: texts, "" where nothing is known. Never reads a file.
"""

from __future__ import annotations

import re
from functools import lru_cache

from torch import fx

# Paths and stack traces that many nodes share, remembered. Graphs of 15,000 nodes have some 3,000 (2026-11).
CACHED_TEXTS = 8192

_INDEX = re.compile(r"\['?([^\]']+)'?\]")
# How dynamo comes to the module that runs: by a local (`L`) or a global (`G`) of the traced frame, then by what a
# method, a partial or a closure holds. What says nothing to a reader is left out, what is held second keeps its place.
_PLANNED = re.compile(r"^L\['(?:self|fn|model)'\]")
_FRAME_NAME = re.compile(r"^(?:L|G)\['(\w+)'\]")
_IMPORTED = re.compile(r"^G\['__import_\w+'\]\.?")
_FIRST_HELD = re.compile(r"^(?:\.__self__|\.args\[0\]|\.__closure__\[0\]\.cell_contents|\.func(?=\.__))+")
_CLOSURE = re.compile(r"\.?__closure__\[(\d+)\]\.cell_contents")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')


def module_path(node: fx.Node) -> str:
    """Path of the innermost module that ran the op, as in `model.named_modules()`; "" for the root or none.

    Of a function that uses several: before it the name of the global, `args.1` of a partial, `closure.1` of a closure.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    return _without_locals(str(next(reversed(stack.values()))[0]))


@lru_cache(maxsize=CACHED_TEXTS)
def _without_locals(path: str) -> str:
    held = _PLANNED.sub("", path)
    path = _FIRST_HELD.sub("", held) if held != path else _FRAME_NAME.sub(r"\1", _IMPORTED.sub("", path))
    path = _CLOSURE.sub(r".closure.\1", path)
    path = _INDEX.sub(r".\1", path).replace("._modules.", ".").replace("._modules", "")
    return path.strip(".")


def source_line(node: fx.Node) -> str:
    """`file.py:12 x = f(x)` of the innermost frame of the user's code, "" when unknown."""
    trace = node.meta.get("stack_trace")
    return _innermost_line(trace) if trace else ""


@lru_cache(maxsize=CACHED_TEXTS)
def _innermost_line(trace: str) -> str:
    frames = _FRAME.findall(trace)
    if not frames:
        return ""
    file, line, _, code = frames[-1]
    return f"{file.rsplit('/', 1)[-1]}:{line} {code.strip()}"
