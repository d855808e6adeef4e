"""What a stage takes as given: what other stages made, seen through their views."""

import pytest

from rematpass.solve.closure import sweep_closures
from rematpass.solve.frontier import closure_problem
from rematpass.solve.search import Frontier
from rematpass.solve.stages import find_stages
from tests.programs import EXTERN, PART, POINTWISE, Builder


def test_a_view_whose_base_is_a_view_of_an_earlier_stage_is_made_again_not_kept():
    """`chunk` of a transposed tensor, the cut between both: the list it returns cannot cross to the backward."""
    b = Builder()
    x = b.given(8)
    wide = b.add(EXTERN, x, size=100, ns=5)
    chunks = b.view(b.view(wide))
    left = b.view(chunks)
    y = b.add(EXTERN, left, size=8, ns=1)
    dy = b.add(EXTERN, b.tangent(8), left, size=100, ns=1)
    program = b.finish([y], [dy])
    problem, _ = closure_problem(program, [chunks, left, y], [left], [wide])
    assert (problem.may_keep | problem.may_recompute).all(), "each value can be had somehow"


@pytest.mark.parametrize("layers", [8, 20])
def test_a_random_value_that_all_layers_share_may_be_read_last_of_all(layers):
    """Dropout on relative positions, made in the second layer, seen through a view, its last reader at the very end."""
    b = Builder()
    x, shared, made = b.given(100), -1, []
    for layer in range(layers):
        wide = b.add(EXTERN, x, size=1000, ns=20)
        if layer == 1:
            dropout = b.add(EXTERN, wide, ns=20, may_recompute=False, may_keep=False)
            shared = b.view(b.add(PART, dropout, size=50))
        x = b.add(EXTERN, *((wide, shared) if layer else (wide,)), size=100, ns=10)
        made.append(wide)
    gradient, of_weights = b.tangent(100), []
    for wide in reversed(made):
        of_weights.append(gradient)
        gradient = b.add(EXTERN, gradient, wide, size=100, ns=5)
    late = b.add(EXTERN, of_weights[0], shared, size=10, ns=5)
    program = b.finish([x], [gradient, late])
    stages = find_stages(program)
    assert stages.backward_stage_of[late] < stages.stage_of[shared], "else this tests nothing"
    frontier = Frontier(program)
    assert frontier.smallest.peak_bytes < frontier.fastest.peak_bytes


def test_a_value_for_the_backward_alone_may_read_another_stages():
    """It cannot be kept, so it is computed; the choice it reads beside the other stage's value is kept."""
    b = Builder()
    x = b.given(8)
    elsewhere = b.add(POINTWISE, x, size=100, ns=1)  # only the backward wants it
    wide = b.add(EXTERN, x, size=8, ns=5)
    choice = b.add(EXTERN, wide, size=100, ns=5, may_recompute=False)
    y = b.add(EXTERN, wide, size=8, ns=1)
    helper = b.add(POINTWISE, elsewhere, choice, size=100, ns=1)
    dy = b.add(EXTERN, b.tangent(8), helper, size=100, ns=1)
    program = b.finish([y], [dy])
    problem, values = closure_problem(program, [choice, y, helper], [helper], [wide])
    assert (problem.may_keep | problem.may_recompute).all(), "each value can be had somehow"
    kept = [{values[i] for i in closure.kept.nonzero()[0].tolist()} for closure in sweep_closures(problem)]
    assert all(choice in found for found in kept)
