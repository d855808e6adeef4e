"""Scratch of products on a CPU: copies of their factors, and in half precision about what oneDNN takes.

In: one FX node with fake tensors. Out: bytes beyond what it returns. Never asks the processor.

torch copies a factor without a dimension whose elements follow each other, of a batch one matrix at a time
(`addmm_impl_cpu_` and `bmm_out_or_baddbmm_` in `LinearAlgebra.cpp`, 2.13): gradients of experts that were multiplied by
`einsum` have batch innermost.

In half precision oneDNN (3.12, `brg_matmul`) multiplies blocks of copies, in float32: few columns of the second factor,
and rows of the first where they do not lie in memory as they are read, as in gradients of weights. What it chooses
follows its own estimate of speed; these figures are fitted to 230 products of bfloat16 (2026-11, torch 2.13, AVX-512,
two threads): where the first factor lies in rows at most 64 KiB too low, else in one of seventeen more than 100 KiB too
low. What is larger takes no more, so models of training size do not notice. There torch copies of a batch whatever is
neither in rows, matrix after matrix, nor exactly that turned (`mkldnn_matmul` in `mkldnn/Matmul.cpp`, 2.13). What is
copied lies in rows then.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from ..torch_compat import is_onednn, num_threads
from .op_traits import base_name, tensor_at
from .sizes import bytes_of, concrete, is_row_major

# First factor of each product, by its name.
FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
# Columns of the second factor, and the length of what is summed, that a thread copies at once; bytes of its results,
# and at most in all.
COLUMNS = 64
LENGTH = 1024
RESULT_BYTES = 64 * 1024
MOST_BYTES = 192 * 1024
# Rows of the first factor that a thread copies. It copies those of other threads, too, where there are so many columns.
ROWS = 400
MANY_COLUMNS = 768
PRIMITIVE_BYTES = 1664
MATRIX_RANK = 2


def copied_factor_bytes(node: fx.Node) -> int:
    """Of a product that torch does not leave to oneDNN, copies of its factors; 0 for anything else."""
    place = FACTORS.get(base_name(node.target))
    factors = [] if place is None or half_factor(node) is not None else [tensor_at(node, place + i) for i in range(2)]
    return sum(_matrix_bytes(factor) for factor in factors if factor is not None and not _has_dense_dimension(factor))


def half_factor(node: fx.Node) -> torch.Tensor | None:
    """The first factor of a product in half precision that torch leaves to oneDNN; None for anything else."""
    place = FACTORS.get(base_name(node.target))
    first = None if place is None else tensor_at(node, place)
    is_half = first is not None and first.dtype is not torch.float32 and is_onednn(first.dtype)
    return first if is_half else None


def half_product_bytes(node: fx.Node) -> int:
    """Of a product in half precision that torch leaves to oneDNN; 0 for anything else."""
    first = half_factor(node)
    second = None if first is None else tensor_at(node, FACTORS[base_name(node.target)] + 1)
    if first is None or second is None:
        return 0
    *batch, rows, length = map(concrete, first.shape)
    columns, threads = concrete(second.shape[-1]), num_threads()
    item = first.element_size()
    copied = sum(bytes_of(factor) for factor in (first, second) if not _is_taken(factor))
    read = min(length, LENGTH) * item
    own = min(MOST_BYTES, read * min(columns, COLUMNS) + RESULT_BYTES)
    if concrete(first.stride(-1)) != 1 and _is_taken(first):
        is_whole = bool(batch) or columns >= MANY_COLUMNS
        own += read * min(rows if is_whole else -(-rows // threads), ROWS)
    return threads * own + copied + PRIMITIVE_BYTES


def _is_taken(factor: torch.Tensor) -> bool:
    """Whether a factor is read where it lies, not copied first."""
    if factor.ndim > MATRIX_RANK:
        return is_row_major(factor) or is_row_major(factor.transpose(-1, -2))
    return _has_dense_dimension(factor)


def _has_dense_dimension(factor: torch.Tensor) -> bool:
    rows, columns = map(concrete, factor.shape[-MATRIX_RANK:])
    outer, inner = map(concrete, factor.stride()[-MATRIX_RANK:])
    return (inner == 1 and outer >= columns) or (outer == 1 and inner >= rows)


def _matrix_bytes(factor: torch.Tensor) -> int:
    return math.prod(map(concrete, factor.shape[-MATRIX_RANK:])) * factor.element_size()
