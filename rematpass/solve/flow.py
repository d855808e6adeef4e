"""Minimum cut, with its certificate checked.

In: arcs with integer capacities. Out: the side of the source. Never rounds: scaling to the solver's 32 bits is the
caller's business, and a capacity that does not fit is an error here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from ..errors import SolverError

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# scipy takes 32-bit capacities and silently wraps larger ones; half the range leaves room for residuals.
MAX_CAPACITY = 2**30


def minimum_cut(
    num_nodes: int, tails: IntArray, heads: IntArray, capacities: IntArray, source: int, sink: int
) -> BoolArray:
    """Nodes on the source side of the minimum cut with the fewest nodes there.

    Args:
        num_nodes: nodes are 0..num_nodes-1.
        tails: node each arc leaves.
        heads: node it enters.
        capacities: of each arc; parallel arcs add up.
        source: node number.
        sink: node number.

    Raises:
        SolverError: a capacity outside 0..2**30, or flow and cut differ.
    """
    if capacities.size and (capacities.min() < 0 or capacities.max() > MAX_CAPACITY):
        raise SolverError(f"capacity {int(capacities.max())} does not fit the flow solver's 32 bits; scale it first")
    shape = (num_nodes, num_nodes)
    graph = csr_array((capacities.astype(np.int32), (tails.astype(np.int32), heads.astype(np.int32))), shape=shape)
    graph.sum_duplicates()
    result = maximum_flow(graph, source, sink)
    residual = csr_array(graph - result.flow)
    residual.data = (residual.data > 0).astype(np.int8)
    residual.eliminate_zeros()
    reached = breadth_first_order(residual, source, return_predecessors=False)
    side = np.zeros(num_nodes, dtype=bool)
    side[reached] = True
    cut = int(capacities[side[tails] & ~side[heads]].sum())
    if side[sink] or cut != int(result.flow_value):
        raise SolverError(f"flow {int(result.flow_value)} and cut {cut} differ")
    return side
