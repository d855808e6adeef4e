"""Names that users give to values, for pins and reports.

In: a tensor and a name, inside the model. Out: the same values. Never changes what is computed.
"""

from __future__ import annotations

import torch

from . import torch_compat
from .errors import OptionError


def name(x: torch.Tensor, label: str) -> torch.Tensor:
    """Call a tensor `label`, so that `save=["label"]` and `recompute=["label"]` find it and the plan shows it.

    Args:
        x: any tensor inside the model.
        label: the name; globs match it as a whole. The same name may stand in many layers.

    Returns:
        A view of `x`: same shape, same memory, same gradient. Compiled, it costs nothing.

    Raises:
        OptionError: the name is empty or no text, or `x` is no tensor.

    Example:
        >>> import torch, rematpass
        >>> scores = rematpass.name(torch.ones(2, 2).softmax(-1), "scores")
    """
    if not isinstance(label, str) or not label:
        raise OptionError(f"name(..., {label!r}): a name is a text of at least one letter")
    if not isinstance(x, torch.Tensor):
        raise OptionError(f"name({type(x).__name__}, {label!r}): only tensors have names. Try: name the tensors in it")
    return torch_compat.name_traced(x, label)
