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


class SizedArguments:
    """Arguments whose batch or sequence can be chosen.

    Args:
        args: positional arguments at one size, or a function from a size to them.
        kwargs: keyword arguments at that size.
        vary: "batch" or "sequence".

    Raises:
        OptionError: another word, no tensor with such a dimension, or a size that several dimensions share by accident.
    """

    def __init__(self, args: Sequence[Any] | Callable[[int], Sequence[Any]], kwargs: Mapping[str, Any], vary: str):
        if vary not in VARIED:
            raise OptionError(f"vary={vary!r} is not taken. Try: {' or '.join(map(repr, VARIED))}")
        self._args, self._kwargs, self._is_batch = args, kwargs, vary == "batch"
        if callable(args):
            self.size = 1
            return
        tensors = [t for t in torch_compat.leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        shapes = [tuple(map(int, t.shape)) for t in tensors]
        self.size = self._find(shapes)
        self._check(shapes)

    def at(self, size: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Positional and keyword arguments at `size`, on the meta device where they had to be made."""
        if callable(self._args):
            return self._args(size), self._kwargs
        resized: tuple[Sequence[Any], Mapping[str, Any]] = torch_compat.map_leaves(
            lambda leaf: self._resize(leaf, size), (tuple(self._args), dict(self._kwargs))
        )
        return resized

    def _find(self, shapes: Sequence[tuple[int, ...]]) -> int:
        dimension = 0 if self._is_batch else 1
        found = next((shape[dimension] for shape in shapes if len(shape) > dimension), None)
        if found:
            return found
        raise OptionError(
            f"no argument has a {'batch' if self._is_batch else 'sequence'} dimension: their shapes are {shapes}. Try: "
            "args=lambda size: (...), which makes them at any size"
        )

    def _check(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Sizes that contradict each other, or that are equal by accident, are not guessed at."""
        if not self._is_batch and any(shape[0] == self.size for shape in shapes if shape) and self.size > 1:
            raise OptionError(
                f"batch and sequence are both {self.size}: which dimensions to vary cannot be told. Try: another batch"
            )
        if self._is_batch and not all(shape[0] in (1, self.size) for shape in shapes if shape):
            raise OptionError(
                f"the first dimensions of the arguments contradict each other: their shapes are {list(shapes)}. Try: "
                "args=lambda size: (...), which makes them at any size"
            )

    def _resize(self, leaf: Any, size: int) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            return leaf
        shape = [int(s) for s in leaf.shape]
        varied = (0,) if self._is_batch else range(1, len(shape))
        wanted = [size if i in varied and s == self.size else s for i, s in enumerate(shape)]
        if wanted == shape:
            return leaf
        return torch.empty(wanted, dtype=leaf.dtype, device="meta", requires_grad=leaf.requires_grad)
