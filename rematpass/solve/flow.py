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
    graph = _with_reverse_arcs(num_nodes, tails, heads, capacities)
    result = maximum_flow(graph, source, sink)
    # The solver keeps the structure of a graph whose arcs all have a reverse: residual capacities line up with arcs.
    is_left = graph.data > result.flow.data
    side = _reachable(num_nodes, graph, is_left, source)
    cut = int(capacities[side[tails] & ~side[heads]].sum())
    if side[sink] or cut != int(result.flow_value):
        raise SolverError(f"flow {int(result.flow_value)} and cut {cut} differ")
    return side


def _with_reverse_arcs(num_nodes: int, tails: IntArray, heads: IntArray, capacities: IntArray) -> csr_array:
    """The graph with a reverse of capacity 0 for every arc, parallel arcs added up, rows and columns sorted."""
    keys = np.concatenate([tails * num_nodes + heads, heads * num_nodes + tails])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else keys
    sizes = np.concatenate([capacities, np.zeros_like(capacities)])[order]
    merged = np.add.reduceat(sizes, starts) if len(keys) else sizes
    rows, columns = keys[starts] // num_nodes, keys[starts] % num_nodes
    starts_of_rows = np.searchsorted(rows, np.arange(num_nodes + 1))
    parts = (merged.astype(np.int32), columns.astype(np.int32), starts_of_rows.astype(np.int32))
    return csr_array(parts, shape=(num_nodes, num_nodes))


def _reachable(num_nodes: int, graph: csr_array, is_left: BoolArray, source: int) -> BoolArray:
    """Nodes reached from the source over arcs with capacity left."""
    counts = np.concatenate([[0], np.cumsum(is_left)])
    starts = counts[graph.indptr].astype(np.int32)
    residual = csr_array((np.ones(int(counts[-1])), graph.indices[is_left], starts), shape=graph.shape)
    side = np.zeros(num_nodes, dtype=bool)
    side[breadth_first_order(residual, source, return_predecessors=False)] = True
    return side
