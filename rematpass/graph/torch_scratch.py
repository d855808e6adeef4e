"""Scratch of operators that torch computes with temporary tensors, or hands to LAPACK.

In: a node, the name of its operator. Out: bytes beyond what it returns; 0 where none are known. Never prices.

Read off torch 2.13, or measured (2026-11) where that is said; what takes less than a few percent of what it reads and
returns is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import fx

from .op_traits import HALVES, base_name, tensor_at
from .sizes import bytes_of, concrete, elements_of, is_row_major
from .words import words

# Copies that linear algebra makes of what it reads first: of all of it, and of one matrix of a batch (measured on 32 to
# 512 rows; LAPACK's own scratch for small matrices in the latter). Others took less than 6 %.
MATRIX_COPIES = {
    "linalg_inv_ex": (1, 0),
    "linalg_qr": (0, 1),
    "linalg_householder_product": (0, 1),
    "linalg_eig": (3, 5),
    "linalg_pinv": (3, 0),
    "_linalg_eigh": (0, 2),
    "_linalg_svd": (1, 1),
    "cholesky_solve": (1, 1),
}
# Which operand that is, where it is not the first.
MATRIX_OPERAND = {"cholesky_solve": 1}
# `linalg_matrix_exp` in `LinearAlgebra.cpp`: what is close to zero takes 8, a batch 10.
EXPONENTIAL_COPIES = 12
# Copies for the gradient of bags: of the list of what is summed, or of the gradient where the largest was taken
# (measured).
LIST_COPIES, LARGEST_COPIES = 4, 3
LARGEST = 2  # as a mode of `embedding_bag`
BAG_MODE = 8  # the argument of its gradient that says which

# Operators that compute a complex result, then copy its real part (`unary_op_impl_with_complex_to_float_out` in
# `UnaryOps.cpp`), and those before which a CPU makes operands complex that are not (`TensorIterator.cpp`).
_TO_REAL = words("abs angle")
_ARITHMETIC = words("add div mul pow rsub sub")

INDEX_BYTES = 8
# Windows of fewer elements Inductor compares element by element in one kernel (`unroll_reductions_threshold`).
WRITTEN_OUT_BELOW = 25
TRAINING = 2  # the argument of `native_dropout` that says whether any is dropped
UNROLLED = 7  # the argument of `_trilinear` that says along which dimension it goes place by place


def scratch_everywhere(node: fx.Node, name: str) -> int:
    """On every device: what is made of torch's own operators."""
    first = tensor_at(node, 0)
    if name == "linalg_matrix_exp":
        return EXPONENTIAL_COPIES * bytes_of(first)
    if name in _TO_REAL and first is not None and first.dtype.is_complex:
        return bytes_of(first)
    return _trilinear(node) if name == "_trilinear" else 0


def scratch_on_cpu(node: fx.Node, name: str) -> int:
    """On a CPU."""
    if name in MATRIX_COPIES:
        return _matrix(node, name)
    if name in _ARITHMETIC:
        return _made_complex(node)
    return _KNOWN[name](node) if name in _KNOWN else 0


def _matrix(node: fx.Node, name: str) -> int:
    tensor = tensor_at(node, MATRIX_OPERAND.get(name, 0))
    matrices = math.prod(concrete(size) for size in tensor.shape[:-2]) if tensor is not None else 1
    of_all, of_one = MATRIX_COPIES[name]
    return of_all * bytes_of(tensor) + of_one * (bytes_of(tensor) // max(matrices, 1))


def _made_complex(node: fx.Node) -> int:
    """Operands of a complex result that are not."""
    result = node.meta.get("val")
    if not isinstance(result, torch.Tensor) or not result.dtype.is_complex:
        return 0
    operands = (tensor_at(node, i) for i in range(2))
    return sum(elements_of(t) * result.element_size() for t in operands if t is not None and t.dtype != result.dtype)


def _mask(node: fx.Node) -> int:
    """The mask in the type of what it drops from, which it is multiplied by (`native_dropout_cpu` in `Dropout.cpp`)."""
    is_training = len(node.args) < TRAINING + 1 or node.args[TRAINING] is not False
    return bytes_of(tensor_at(node, 0)) * is_training


def scattered_bytes(node: fx.Node) -> int:
    """What `scatter_add` and `scatter_reduce` sum half precision in, unless rows go to rows (`create_acc_buffer`).

    A mean counts, too: ones like what is scattered, the counts, and where none fell.
    """
    into, places, source = (tensor_at(node, i) for i in (0, 2, 3))
    if into is None or places is None:
        return 0
    is_half = into.dtype in HALVES
    are_rows = places.ndim > 1 and node.args[1] == 0 and not any(places.stride()[1:])
    sums = 4 * elements_of(into) if is_half and not are_rows else 0
    if base_name(node.target) == "scatter_reduce" and node.args[4] == "mean":
        return bytes_of(source) + bytes_of(into) + (sums or elements_of(into))
    return sums


def _fourier(node: fx.Node) -> int:
    """Copies of the input: measured, none where the innermost dimension alone is transformed.

    Back to real numbers over several dimensions takes two, between complex ones over outer dimensions one.
    """
    tensor, dimensions = tensor_at(node, 0), node.args[1]
    if tensor is None or not isinstance(dimensions, (list, tuple)):
        return 0
    is_inner = tensor.ndim - 1 in dimensions or -1 in dimensions
    result = cast("torch.Tensor", node.meta["val"])
    copies = 1 - is_inner if result.dtype.is_complex else 2 * (len(dimensions) > 1)
    return copies * bytes_of(tensor)


def _trilinear(node: fx.Node) -> int:
    """The product of the first two factors and with the third, for one place of a dimension at a time.

    `_trilinear` in `Linear.cpp`; a dimension that the third factor lacks is summed in the first product.
    """
    factors = [tensor_at(node, i) for i in range(3)]
    absent = [cast("Sequence[int]", expand) for expand in node.args[3:6]]
    summed, one_by_one = cast("Sequence[int]", node.args[6]), node.args[UNROLLED] if len(node.args) > UNROLLED else 1
    if any(factor is None for factor in factors):
        return 0
    spread = [_spread(cast("torch.Tensor", f), missing) for f, missing in zip(factors, absent, strict=True)]
    first = last = 1
    for dimension, sizes in enumerate(zip(*spread, strict=True)):
        if dimension == one_by_one:
            continue
        is_summed = dimension in summed
        first *= 1 if is_summed and dimension in absent[2] else max(sizes[:2])
        last *= 1 if is_summed else max(sizes)
    return (first + last) * cast("torch.Tensor", node.meta["val"]).element_size()


def _spread(factor: torch.Tensor, absent: Sequence[int]) -> list[int]:
    """Its sizes, 1 where it lacks a dimension."""
    own = iter(factor.shape)
    return [1 if d in absent else concrete(next(own)) for d in range(factor.ndim + len(absent))]


def _kth(node: fx.Node) -> int:
    """A copy, and its indices (`kthvalue` in `Sorting.cpp`)."""
    return bytes_of(tensor_at(node, 0)) + INDEX_BYTES * elements_of(tensor_at(node, 0))


def _found(node: fx.Node) -> int:
    """Places of all elements, should all be chosen (`nonzero_static_out_cpu` in `TensorAdvancedIndexing.cpp`)."""
    tensor = tensor_at(node, 0)
    return 0 if tensor is None else INDEX_BYTES * tensor.ndim * elements_of(tensor)


def _selected(node: fx.Node) -> int:
    """The elements chosen, padded, and places of a mask that chooses all (`masked_scatter_backward`)."""
    gradient = tensor_at(node, 0)
    each = 2 * gradient.element_size() if gradient is not None else 0
    return elements_of(tensor_at(node, 1)) * (INDEX_BYTES + each)


def _bag_gradient(node: fx.Node) -> int:
    """A gradient that does not lie in rows is copied: that of bags which were stacked, to be multiplied together."""
    gradient, indices, sizes = (tensor_at(node, i) for i in (0, 1, 4))
    copied = 0 if gradient is None or is_row_major(gradient) else bytes_of(gradient)
    if node.args[BAG_MODE] == LARGEST:
        return LARGEST_COPIES * bytes_of(gradient) + bytes_of(sizes) + copied
    return LIST_COPIES * bytes_of(indices) + copied


def _shrunk_rows(node: fx.Node) -> int:
    """Rows are shrunk before columns (`separable_upsample_generic_Nd_kernel_impl` in `UpSampleKernel.cpp`)."""
    image, result = tensor_at(node, 0), node.meta.get("val")
    if image is None or not isinstance(result, torch.Tensor):
        return 0
    return bytes_of(image) // concrete(image.shape[-1]) * concrete(result.shape[-1])


def _places_in_windows(node: fx.Node) -> int:
    """Where in a window of 25 each maximum lies, as numbers of 8 bytes, out of which another kernel makes bytes.

    In smaller windows both are written out at once; of larger ones torch finds the maxima, and returns such numbers
    (`_low_memory_max_pool_with_offsets` in torch/_inductor/lowering.py, 2.11 to 2.15).
    """
    if math.prod(map(concrete, cast("list[int]", node.args[1]))) < WRITTEN_OUT_BELOW:
        return 0
    places: torch.Tensor = node.meta["val"][1]
    return INDEX_BYTES * elements_of(places) - bytes_of(places)  # the bytes count as a result


_KNOWN: dict[str, Callable[[fx.Node], int]] = {
    "_embedding_bag": lambda node: bytes_of(tensor_at(node, 1)),
    "_embedding_bag_backward": _bag_gradient,
    "_fft_c2c": _fourier,
    "_fft_c2r": _fourier,
    "_low_memory_max_pool_with_offsets": _places_in_windows,
    "_upsample_bicubic2d_aa": _shrunk_rows,
    "_upsample_bilinear2d_aa": _shrunk_rows,
    "kthvalue": _kth,
    "masked_scatter_backward": _selected,
    "native_dropout": _mask,
    "native_dropout_backward": lambda node: bytes_of(tensor_at(node, 0)),
    "multinomial": lambda node: bytes_of(tensor_at(node, 0)),
    "nonzero_static": _found,
}
