"""Which partial sums of gradients are stored: those that take up one cast product after another."""

import pytest
import torch

from rematpass.graph.facts import collect_facts
from rematpass.graph.op_traits import base_name
from rematpass.graph.sums import find_partial_sums
from tests.tracing import joint_of


def repeated(times, *, is_mixed=True):
    """A weight that is used several times."""

    def step(x, weight):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
            for _ in range(times):
                x = torch.tanh(x @ weight)
        return x.float().sum()

    return joint_of(step, [torch.ones(4, 8), torch.ones(8, 8, requires_grad=True)])


@pytest.mark.parametrize(("times", "expected"), [(1, 0), (2, 0), (3, 1), (6, 4)])
def test_all_sums_but_the_last_are_partial(times, expected):
    found = find_partial_sums(repeated(times))
    assert len(found) == expected
    assert all(base_name(reader.target) == "add" for node in found for reader in node.users)


def test_without_a_cast_products_are_added_where_they_are_computed():
    assert not find_partial_sums(repeated(6, is_mixed=False))


def test_branches_of_an_activation_are_added_in_one():
    def step(x, *weights):
        with torch.autocast("cpu", torch.bfloat16):
            y = x.tanh()
            return sum(torch.sin(y @ w) for w in weights).float().sum()

    weights = [torch.ones(8, 8, requires_grad=True) for _ in range(5)]
    assert not find_partial_sums(joint_of(step, [torch.ones(4, 8, requires_grad=True), *weights]))


def test_only_where_loops_are_fused():
    joint = repeated(6)
    assert sum(v.is_summed for v in collect_facts(joint, is_fusing=True).values) == 4
    assert not any(v.is_summed for v in collect_facts(joint).values)
