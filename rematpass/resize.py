"""Arguments of a model at another batch size or sequence length.

In: arguments at one size, or a function that makes them. Out: arguments at any size, without memory. Never runs the
model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
        resized: Arguments = torch_compat.map_leaves(
            lambda leaf: self._resize(leaf, sizes), (tuple(self._args), dict(self._kwargs))
        )
        return resized

    def _resize(self, leaf: Any, sizes: Sequence[int]) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            return leaf
        old = [int(s) for s in leaf.shape]
        shape = list(old)
        for word, now, size in zip(self._vary, self.sizes, sizes, strict=True):
            for i in (0,) if word == "batch" else range(1, len(old)):
                shape[i] = size if old[i] == now else shape[i]
        if shape == old:
            return leaf
        device = leaf.device if self._is_real else "meta"
        return torch.empty(shape, dtype=leaf.dtype, device=device, requires_grad=leaf.requires_grad)


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
