"""Minimum cut, with its certificate checked.

In: arcs with integer capacities. Out: the side of the source. Never rounds: a capacity that does not fit is an error.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import _core

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

MAX_CAPACITY = _core.MAX_CAPACITY


def minimum_cut(
    num_nodes: int, tails: IntArray, heads: IntArray, capacities: IntArray, source: int, sink: int
) -> BoolArray:
    """Nodes on the source side of the minimum cut with the fewest nodes there (Dinic 1970, compiled: core/flow.cpp).

    Args:
        num_nodes: nodes are 0..num_nodes-1.
        tails: node each arc leaves.
        heads: node it enters.
        capacities: of each arc; parallel arcs add up.
        source: node number.
        sink: node number.

    Raises:
        SolverError: a capacity outside 0..2**60, or flow and cut differ.
    """
    return _core.minimum_cut(num_nodes, tails, heads, capacities, source, sink)
