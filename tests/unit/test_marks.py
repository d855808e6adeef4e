"""Which results Inductor is told to store where they are computed."""

import pytest
import torch

from rematpass.pipeline import plan_and_split
from rematpass.torch_compat import STORE_HERE
from tests.tracing import joint_of, toy_settings


def few_rows(x):
    total = x.sin().sum(0)  # of four: to Inductor no reduction
    return (total.exp() * total).sum()


@pytest.mark.parametrize("is_fusing", [True, False])
def test_sums_of_few_elements_are_stored_whatever_the_budget(is_fusing):
    joint = joint_of(few_rows, [torch.ones(4, 64, requires_grad=True)])
    planned = plan_and_split(joint, toy_settings(None, is_fusing=is_fusing), "graph 0")
    marked = [node.name for node in planned.forward.graph.nodes if node.meta.get(STORE_HERE)]
    assert marked == (["sum_1"] if is_fusing else [])
