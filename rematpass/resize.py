"""Arguments of a model at another batch size or sequence length.

In: arguments at one size, or a function that makes them. Out: arguments at any size, without memory. Never runs the
model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from . import torch_compat
from .errors import OptionError

VARIED = ("batch", "sequence")


Arguments = tuple[Sequence[Any], Mapping[str, Any]]


class SizedArguments:
    """Arguments whose batch, sequence or both can be chosen.

    Args:
        args: positional arguments at one size, or a function from sizes to them.
        kwargs: keyword arguments at that size.
        vary: "batch", "sequence", or both in this order.
        is_real: tensors that had to be made are on the devices of those they stand for, not on the meta device.

    Attributes:
        sizes: those of `args`, in the order of `vary`; all 1 where it is a function.

    Raises:
        OptionError: another word, no tensor with such a dimension, or a size that several dimensions share by accident.
    """

    def __init__(
        self,
        args: Sequence[Any] | Callable[..., Sequence[Any]],
        kwargs: Mapping[str, Any],
        vary: str | Sequence[str],
        *,
        is_real: bool = False,
    ) -> None:
        self._vary = (vary,) if isinstance(vary, str) else tuple(vary)
        for word in self._vary:
            if word not in VARIED:
                raise OptionError(f"vary={word!r} is not taken. Try: {' or '.join(map(repr, VARIED))}")
        self._args, self._kwargs, self._is_real = args, kwargs, is_real
        if callable(args):
            self.sizes: tuple[int, ...] = (1,) * len(self._vary)
            return
        tensors = [t for t in torch_compat.leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        shapes = [tuple(map(int, t.shape)) for t in tensors]
        self.sizes = tuple(_find(word, shapes) for word in self._vary)
        for word, size in zip(self._vary, self.sizes, strict=True):
            _check(word, size, shapes)

    def at(self, *sizes: int) -> Arguments:
        """Positional and keyword arguments at `sizes`, on the meta device where they had to be made."""
        if callable(self._args):
            return self._args(*sizes), self._kwargs
        leaves = torch_compat.leaves((tuple(self._args), dict(self._kwargs)))
        resized = self._resized([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)], sizes)
        made: Arguments = torch_compat.map_leaves(
            lambda leaf: resized.get(id(leaf), leaf), (tuple(self._args), dict(self._kwargs))
        )
        return made

    def _resized(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> dict[int, torch.Tensor]:
        """By the tensor's id, what is another one at `sizes`; tensors that share memory share it there as well."""
        groups: dict[object, dict[int, torch.Tensor]] = {}
        for tensor in tensors:
            groups.setdefault((torch_compat.storage_key(tensor), tensor.dtype), {})[id(tensor)] = tensor
        made: dict[int, torch.Tensor] = {}
        for group in groups.values():
            shapes = [self._shape(tensor, sizes) for tensor in group.values()]
            if any(shape != [*tensor.shape] for shape, tensor in zip(shapes, group.values(), strict=True)):
                made |= zip(group, self._made(list(group.values()), shapes), strict=True)
        return made

    def _shape(self, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int]:
        old = [int(s) for s in tensor.shape]
        shape = list(old)
        for word, now, size in zip(self._vary, self.sizes, sizes, strict=True):
            for i in (0,) if word == "batch" else range(1, len(old)):
                shape[i] = size if len(old) > i and old[i] == now else shape[i]
        return shape

    def _made(self, tensors: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]]) -> Iterator[torch.Tensor]:
        """Tensors of these shapes in one storage, where the others lie in one."""
        if tensors[0].layout is not torch.strided:
            raise OptionError(
                f"an argument is {tensors[0].layout}, which cannot be made at another size. Try: args=lambda size: "
                "(...), which makes them at any size"
            )
        laid = [_lay_out(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)]
        were = [_end(tensor.shape, tensor.stride(), int(tensor.storage_offset())) for tensor in tensors]
        ends = [_end(shape, *own) for shape, own in zip(shapes, laid, strict=True)]
        beyond = tensors[0].untyped_storage().nbytes() // tensors[0].element_size() - max(were)
        device = tensors[0].device if self._is_real else "meta"
        memory = torch.empty(max(ends) + beyond, dtype=tensors[0].dtype, device=device)
        for tensor, shape, (strides, offset) in zip(tensors, shapes, laid, strict=True):
            yield memory.as_strided(shape, strides, offset).detach().requires_grad_(tensor.requires_grad)


def _lay_out(tensor: torch.Tensor, shape: Sequence[int]) -> tuple[list[int], int]:
    """Strides and offset for another shape: gaps between rows stay, and what starts beside the first element does."""
    old = [int(stride) for stride in tensor.stride()]
    strides = list(old)
    was_there = there = 1
    for i in sorted(range(len(old)), key=lambda i: (old[i], int(tensor.shape[i]))):
        if old[i] >= was_there:  # else it repeats elements or overlaps, and goes on to
            strides[i] = there + old[i] - was_there
            was_there, there = old[i] * int(tensor.shape[i]), strides[i] * shape[i]
    rest, offset = int(tensor.storage_offset()), 0
    for i in sorted((i for i in range(len(old)) if old[i]), key=lambda i: -old[i]):
        steps, rest = divmod(rest, old[i])
        offset += steps * strides[i]
    return strides, offset + rest


def _end(shape: Sequence[int], strides: Sequence[int], offset: int) -> int:
    """One beyond the last element in its storage."""
    steps = (stride * (int(size) - 1) for size, stride in zip(shape, strides, strict=True))
    return offset + 1 + sum(map(int, steps)) if all(shape) else offset


def _find(word: str, shapes: Sequence[tuple[int, ...]]) -> int:
    dimension = 0 if word == "batch" else 1
    found = next((shape[dimension] for shape in shapes if len(shape) > dimension), None)
    if found:
        return found
    raise OptionError(
        f"no argument has a {word} dimension: their shapes are {list(shapes)}. Try: args=lambda size: (...), which "
        "makes them at any size"
    )


def _check(word: str, size: int, shapes: Sequence[tuple[int, ...]]) -> None:
    """Sizes that contradict each other, or that are equal by accident, are not guessed at."""
    if word == "sequence" and any(shape[0] == size for shape in shapes if shape) and size > 1:
        raise OptionError(
            f"batch and sequence are both {size}: which dimensions to vary cannot be told. Try: another batch"
        )
    if word == "batch" and not all(shape[0] in (1, size) for shape in shapes if shape):
        raise OptionError(
            f"the first dimensions of the arguments contradict each other: their shapes are {list(shapes)}. Try: "
            "args=lambda size: (...), which makes them at any size"
        )
