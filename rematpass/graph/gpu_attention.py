"""Scratch memory of fused attention on a GPU.

In: one FX node with fake tensors, a GPU's attention or the CPU's that stands for it. Out: bytes. Never counts what the
operator returns.
"""

from __future__ import annotations

import torch
from torch import fx

from .op_traits import base_name
from .sizes import concrete

# Rows and columns are padded to these in the scratch of the backward (torch 2.5 to 2.13, `mha_bwd` of
# aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp). Read there, not measured.
ROWS = 128
COLUMNS = 32
_HALF = (torch.float16, torch.bfloat16)


def gpu_attention_bytes(node: fx.Node) -> int:
    """Bytes that the backward of fused attention takes; 0 for its forward and for all other operators.

    Every kernel keeps one float32 a row of the scores (the sums of output times its gradient). In half precision the
    gradient of the query is added up in float32 before it is rounded.
    """
    name = base_name(node.target)
    if not (name.startswith("_scaled_dot_product") and name.endswith("backward")):
        return 0
    argument = node.args[1] if len(node.args) > 1 else None
    query = argument.meta.get("val") if isinstance(argument, fx.Node) else None
    if not isinstance(query, torch.Tensor) or query.dim() != 4:
        return 0
    batch, heads, length, width = map(concrete, query.shape)
    rows = batch * heads * _round_up(length, ROWS)
    sums_bytes = rows * 4
    return sums_bytes + (rows * _round_up(width, COLUMNS) * 4 if query.dtype in _HALF else 0)


def _round_up(size: int, block: int) -> int:
    return -(-size // block) * block
