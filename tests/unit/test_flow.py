import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.errors import SolverError
from rematpass.solve._core import MAX_CAPACITY, certify_cut, minimum_cut

NODES = 7
ARCS = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1), st.integers(0, 9)).filter(lambda a: a[0] != a[1]),
    max_size=24,
)


def cut(arcs, nodes=NODES):
    tails, heads, capacities = (np.array([a[i] for a in arcs], dtype=np.int64) for i in range(3))
    return minimum_cut(nodes, tails, heads, capacities, 0, nodes - 1)


def across(arcs, side):
    return sum(c for t, h, c in arcs if side[t] and not side[h])


@settings(deadline=None, max_examples=80, derandomize=True)
@given(ARCS)
def test_same_value_as_networkx_and_fewest_nodes(arcs):
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(NODES))
    for t, h, c in arcs:  # parallel arcs add up
        graph.add_edge(t, h, capacity=c + graph.get_edge_data(t, h, {"capacity": 0})["capacity"])
    side = cut(arcs)
    assert side[0]
    assert not side[-1]
    assert across(arcs, side) == networkx.maximum_flow_value(graph, 0, NODES - 1)
    sides = [[True, *(bool(bits >> i & 1) for i in range(NODES - 2)), False] for bits in range(2 ** (NODES - 2))]
    minimal = [s for s in sides if across(arcs, s) == across(arcs, side)]
    assert all(s[v] for s in minimal for v in np.flatnonzero(side))


@pytest.mark.parametrize("capacity", [MAX_CAPACITY + 1, -1])
def test_capacity_that_does_not_fit_is_refused(capacity):
    with pytest.raises(SolverError, match="does not fit"):
        cut([(0, 1, capacity)], 2)


def test_largest_capacity_is_exact():
    arcs = [(0, 1, MAX_CAPACITY), (1, 2, MAX_CAPACITY - 1)]
    assert cut(arcs, 3).tolist() == [True, True, False]


def test_parallel_uncuttable_arcs_do_not_wrap():
    """Two arcs of the largest capacity add up beyond 62 bits: refused or right, never silently wrong."""
    arcs = [(0, 1, MAX_CAPACITY), (0, 1, MAX_CAPACITY), (0, 1, MAX_CAPACITY), (1, 2, 5)]
    try:
        side = cut(arcs, 3)
    except SolverError:
        return
    assert across(arcs, side) == 5


@pytest.mark.parametrize(("side", "flow"), [([True, False, False], 2), ([True, True, False], 3), ([True] * 3, 0)])
def test_flow_that_is_no_cut_is_refused(side, flow):
    """The certificate is checked: a solver that stops early, or cuts elsewhere, is caught."""
    tails, heads, capacities = (np.array(column, dtype=np.int64) for column in ([0, 1], [1, 2], [3, 4]))
    certify_cut(tails, heads, capacities, np.array([True, False, False]), 2, 3)
    with pytest.raises(SolverError, match="differ"):
        certify_cut(tails, heads, capacities, np.array(side), 2, flow)
