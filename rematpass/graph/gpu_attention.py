"""Scratch memory of fused attention on a GPU.

In: one FX node with fake tensors, a GPU's attention or the CPU's that stands for it. Out: bytes, with what is
rounded in them. Never counts what the operator returns.
"""

from __future__ import annotations

import torch
from torch import fx

from ..formula.pieces import Part, round_up
from .op_traits import HALVES, base_name
from .sizes import concrete

# Rows and columns are padded to these in the scratch of the backward (torch 2.5 to 2.13, `mha_bwd` of
# aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp). Read there, not measured. cuDNN's is taken to be
# alike: it runs a kernel for the sums, too, and one that rounds the gradient of the query.
ROWS = 128
COLUMNS = 32


def gpu_attention_parts(node: fx.Node) -> tuple[Part, ...]:
    """What the backward of fused attention takes; nothing for its forward and for all other operators.

    Every kernel keeps one float32 a row of the scores (the sums of output times its gradient). In half precision the
    gradient of the query is added up in float32 before it is rounded.
    """
    name = base_name(node.target)
    if not (name.startswith("_scaled_dot_product") and name.endswith("backward")):
        return ()
    argument = node.args[1] if len(node.args) > 1 else None
    query = argument.meta.get("val") if isinstance(argument, fx.Node) else None
    if not isinstance(query, torch.Tensor) or query.dim() != 4:
        return ()
    batch, heads, length, width = map(concrete, query.shape)
    floats = 1 + (round_up(1, width, COLUMNS) if query.dtype in HALVES else 0)
    return (Part("round_up", (batch * heads * floats * 4, length, ROWS)),)
