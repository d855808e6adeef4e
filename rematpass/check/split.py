"""Do the two halves compose? Checked where the split is made.

In: forward and backward graphs. Out: nothing, or `SplitError`. Never shares code with what wrote them.
"""

from __future__ import annotations

import torch
from torch import fx

from ..errors import SplitError
from ..torch_compat import leaves


def check_split(forward: fx.GraphModule, backward: fx.GraphModule, num_fwd_outputs: int) -> None:
    """What the backward takes is what the forward saves, then tangents.

    Raises:
        SplitError: a saved value nobody takes, an input nobody saves, or a saved list of tensors.
    """
    output = next(n for n in forward.graph.nodes if n.op == "output")
    nodes = [n for n in leaves(output.args)[num_fwd_outputs:] if isinstance(n, fx.Node)]
    saved: list[str] = [str(n.name) for n in nodes]
    tensors = [n.name for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    several = next((n.name for n in nodes if isinstance(n.meta.get("val"), list | tuple)), None)
    if several is not None:
        raise SplitError(f"the forward saves {several}, which is several tensors; each is saved by itself")
    taken = [str(n.target) for n in backward.graph.nodes if n.op == "placeholder"]
    if len(taken) < len(saved):
        raise SplitError(f"the forward saves {len(saved)} values, the backward takes only {len(taken)}")
    if sorted(taken[: len(saved)]) != sorted(saved):
        strange = sorted(set(saved) ^ set(taken[: len(saved)]))
        raise SplitError(f"forward and backward disagree on what is saved: {', '.join(strange[:5])}")
    order = [name for name in taken if name in set(tensors)]
    if order != tensors:
        odd = next(a for a, b in zip(order, tensors, strict=True) if a != b)
        raise SplitError(f"the backward takes {odd} where the forward saves another value: the order differs")
    strangers = [name for name in taken[len(saved) :] if not _is_runtime_input(name)]
    if strangers:
        raise SplitError(f"the backward takes {strangers[0]}, which nobody saves")


def _is_runtime_input(name: str) -> bool:
    return any(mark in name for mark in ("tangents", "bwd_seed", "bwd_base_offset", "bwd_rng_state"))
