"""Low-rank adapters beside a frozen model, for counting what training them takes.

In: a model on any device, a rank. Out: the same model, its linear layers wrapped. Never made for training: weights of
adapters start as they are allocated.
"""

from __future__ import annotations

import torch
from torch import nn

from ..errors import OptionError


class LoraLinear(nn.Module):
    """`base(x) + up(down(x))`; only `down` and `up` learn (Hu et al., "LoRA", 2021)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        place = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, **place)
        self.up = nn.Linear(rank, base.out_features, bias=False, **place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features)."""
        result: torch.Tensor = self.base(x) + self.up(self.down(x))
        return result


def add_lora(model: nn.Module, rank: int, skip: tuple[str, ...] = ("lm_head",)) -> int:
    """Freeze `model` and wrap its linear layers in place.

    Args:
        model: changed in place.
        rank: of the adapters.
        skip: last parts of the names of layers that get none.

    Returns:
        How many layers were wrapped.

    Raises:
        OptionError: a rank below 1, or nothing to wrap.

    >>> model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU())
    >>> add_lora(model, 2), [tuple(p.shape) for p in model.parameters() if p.requires_grad]
    (1, [(2, 4), (4, 2)])
    """
    if rank < 1:
        raise OptionError(f"a LoRA rank of {rank} is not taken: it must be at least 1")
    model.requires_grad_(requires_grad=False)
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear) and name not in skip
    ]
    if not found:
        raise OptionError(f"{type(model).__name__} has no linear layers for LoRA. Try: without --lora-rank")
    for parent, name, child in found:
        setattr(parent, name, LoraLinear(child, rank))
    return len(found)
