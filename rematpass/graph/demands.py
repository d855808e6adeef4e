"""What readers ask to find in memory though Inductor could compute it inside them.

In: the nodes of a joint graph. Out: some of them. Never decides about memory, never changes the graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from ..solve.program import Kind
from ..torch_compat import has_bfloat16_atomics, num_threads
from .op_traits import base_name, kind_of, tensor_at
from .sizes import concrete, elements_of
from .words import words

_SCATTERS = words("index_put scatter_add scatter_reduce _unsafe_masked_index_put_accumulate")
# Those that Inductor's C++ has no loops for (`Scan.create` in ir.py, 2.11 to 2.15).
_SCANS = words("cumprod cumsum logcumsumexp")
_ATTENTION = "_scaled_dot_product_"  # how names of fused attention and its gradients begin
# On a GPU attention reads any view whose rows begin at multiples of so many elements (`sdpa_constraint`, 2.13).
_ALIGNED = 8


def find_asked_for(nodes: Sequence[fx.Node], device_type: str) -> frozenset[fx.Node]:
    """What a reader takes from memory.

    That is one that shows it by strides (`as_strided` in torch/_inductor/lowering.py, 2.11 to 2.15), and a scatter or a
    running sum that Inductor leaves to torch; what such a reader takes a view of is in memory, too.

    Args:
        nodes: of a graph, in order.
        device_type: of the device that will run it.
    """
    found: set[fx.Node] = set()
    for reader in reversed(nodes):
        name = base_name(reader.target)
        is_scan = name in _SCANS and device_type == "cpu"
        if name == "as_strided" or is_scan or (reader in found and kind_of(reader) is Kind.VIEW):
            found.update(reader.all_input_nodes)
        elif name in _SCATTERS and is_left_to_torch(reader, device_type):
            # What it adds to is copied anyhow.
            found.update(node for node in reader.all_input_nodes if node is not reader.args[0])
    return frozenset(found)


def is_left_to_torch(scatter: fx.Node, device_type: str) -> bool:
    """Inductor's rules: `use_scatter_fallback` in utils.py, `index_put_impl_` in lowering.py (2.13)."""
    if torch.are_deterministic_algorithms_enabled():
        return True
    name = base_name(scatter.target)
    if name == "scatter_reduce" and scatter.args[4] != "sum":
        return True
    is_put = name not in ("scatter_add", "scatter_reduce")
    if name == "index_put" and not any(scatter.args[3:4]):
        return False  # does not add
    if not is_put and device_type == "cpu":
        return num_threads() > 1
    source = tensor_at(scatter, 2 if name == "index_put" else 3)
    dtype = None if source is None else source.dtype
    return dtype in (torch.int64, torch.bool) or (dtype is torch.bfloat16 and not has_bfloat16_atomics())


def find_copied_views(nodes: Sequence[fx.Node], device_type: str) -> frozenset[fx.Node]:
    """Views that Inductor copies, element by element, since fused attention reads them.

    It wants rows whose elements follow each other, in heads and sequences in this order (`sdpa_constraint` in
    lowering.py, 2.11 to 2.15). A key that several heads read, or a mask expanded to all of them, is not so: a copy is
    made in each half, once for all its readers. Where all heads read one key, steps of a small model took 12 % more
    than planned, where a mask was expanded to four heads 26 % (2026-11).

    Args:
        nodes: of a graph.
        device_type: of the device that will run it.
    """
    read = dict.fromkeys(u for n in nodes if base_name(n.target).startswith(_ATTENTION) for u in n.all_input_nodes)
    return frozenset(node for node in read if kind_of(node) is Kind.VIEW and _is_laid_out_anew(node, device_type))


def _is_laid_out_anew(view: fx.Node, device_type: str) -> bool:
    tensor = view.meta.get("val")
    if not isinstance(tensor, torch.Tensor) or elements_of(tensor) <= 1:
        return False
    strides = [concrete(stride) for stride in tensor.stride()]
    if device_type != "cpu" and strides[-1] == 1 and not any(stride % _ALIGNED for stride in strides[:-1]):
        return False
    if min(strides[:-1], default=strides[-1] + 1) > strides[-1]:
        return False  # its order, whatever it is, will do
    lasting = [stride for size, stride in zip(tensor.shape, strides, strict=True) if concrete(size) != 1]
    return lasting != sorted(lasting, reverse=True)
