"""A model and its arguments, with tensors that take no memory in place of theirs.

In: a model or function, its arguments, a dtype. Out: the same, traceable on this machine, whatever device it was made
for. Never copies a weight, never changes the model for longer than the block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from . import torch_compat
from .errors import OptionError, RematError

Arguments = tuple[Sequence[Any], Mapping[str, Any]]

DTYPES = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
    "fp32": torch.float32,
    "float32": torch.float32,
    "fp64": torch.float64,
    "float64": torch.float64,
}
"""What a dtype may be called; read only."""


def read_dtype(value: object) -> torch.dtype | None:
    """A floating-point dtype from its name or itself; None stays None.

    Raises:
        OptionError: anything else.

    >>> read_dtype("bf16"), read_dtype(None)
    (torch.bfloat16, None)
    """
    if value is None or (isinstance(value, torch.dtype) and value.is_floating_point):
        return value
    known = DTYPES.get(value.removeprefix("torch.")) if isinstance(value, str) else None
    if known is None:
        raise OptionError(f"dtype={value!r} is not taken. Try: {', '.join(DTYPES)}, or a floating-point torch.dtype")
    return known


def find_modules(model: object) -> list[nn.Module]:
    """The modules that a module, a method, a partial or a function uses, by its closure or as globals; outermost ones.

    >>> layer = nn.Linear(1, 1, device="meta")
    >>> find_modules(lambda x: layer(x)) == find_modules(functools.partial(layer.forward)) == [layer]
    True
    """
    found: list[nn.Module] = []
    pending, seen = [model], set[int]()
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, nn.Module):
            found.append(item)
        elif isinstance(item, functools.partial):
            pending += [item.func, *item.args, *item.keywords.values()]
        elif callable(item):
            cells = getattr(item, "__closure__", None) or ()
            pending += [getattr(item, "__self__", None), *(_content(cell) for cell in cells), *_global_modules(item)]
    return found


def _global_modules(function: Any) -> list[nn.Module]:
    """The modules among the global names that a function uses."""
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    found = getattr(function, "__globals__", {})
    return [found[name] for name in names if isinstance(found.get(name), nn.Module)]


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def needs_stand_ins(model: object, arguments: Arguments) -> bool:
    """Whether a tensor of the model or of its arguments holds no numbers, so that nothing could run here."""
    tensors = [*(tensor for _, _, tensor in _tensors(model)), *torch_compat.leaves(arguments)]
    return any(isinstance(t, torch.Tensor) and torch_compat.has_no_memory(t) for t in tensors)


@contextmanager
def stand_ins(model: object, arguments: Arguments, dtype: torch.dtype | None) -> Iterator[Arguments]:
    """Inside, parameters, buffers and plain tensor attributes of the model are stand-ins; yields such arguments.

    Args:
        model: a module, or what uses modules; they are changed in place and restored at the end, whatever happens.
        arguments: positional and keyword arguments; nested containers are looked into.
        dtype: what floating-point tensors shall be; None leaves them as they are.

    Raises:
        RematError: a tensor wraps others (a DTensor, quantized weights), or is sparse.
    """
    made = torch_compat.StandIns(dtype)

    def replaced(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        _check_plain("an argument", leaf)
        return made.of(leaf)

    undo: list[Callable[[], None]] = []
    try:
        for place, name, tensor in list(_tensors(model)):
            _check_plain(name, tensor)
            undo.append(functools.partial(place.__setitem__, name, tensor))
            place[name] = made.of(tensor)
        yield torch_compat.map_leaves(replaced, arguments)
    finally:
        for restore in reversed(undo):
            restore()


def _places(model: object) -> Iterator[MutableMapping[str, Any]]:
    """The dicts in which modules hold tensors."""
    seen: set[int] = set()
    for outer in find_modules(model):
        for module in outer.modules():
            if id(module) not in seen:
                seen.add(id(module))
                yield from torch_compat.tensor_places(module)


def _tensors(model: object) -> Iterator[tuple[MutableMapping[str, Any], str, torch.Tensor]]:
    """(dict, key, tensor) of everything that modules hold."""
    for place in _places(model):
        yield from ((place, name, found) for name, found in place.items() if isinstance(found, torch.Tensor))


def _check_plain(name: str, tensor: torch.Tensor) -> None:
    if torch_compat.is_wrapper(tensor):
        raise RematError(
            f"{name} is a {type(tensor).__name__}, a tensor made of others; without its device it cannot be traced. "
            "Try: plan before sharding or quantizing, or on the training machine without device="
        )
    if tensor.layout is not torch.strided:
        raise RematError(
            f"{name} is sparse ({str(tensor.layout).removeprefix('torch.')}); without its device it cannot be traced. "
            "Try: plan on the training machine without device= and dtype=, or to_dense()"
        )


def count_bytes(model: object, dtype: torch.dtype | None = None) -> tuple[int, int]:
    """Bytes of the distinct parameters and of the distinct buffers of a model, in `dtype` where they are floating.

    >>> count_bytes(nn.Linear(3, 2, device="meta"))
    (32, 0)
    """
    sizes = []
    for kind in ("parameters", "buffers"):
        tensors = {id(t): t for module in find_modules(model) for t in getattr(module, kind)()}
        sizes.append(sum(t.numel() * item_bytes(t, dtype) for t in tensors.values()))
    return sizes[0], sizes[1]


def item_bytes(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> int:
    """Bytes of one element of a tensor, in `dtype` where it is floating."""
    return dtype.itemsize if dtype is not None and tensor.is_floating_point() else tensor.element_size()
