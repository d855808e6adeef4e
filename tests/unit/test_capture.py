"""Which side of the joint graph an op is on."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import rematpass
from rematpass.graph.capture import capture_joint
from rematpass.graph.op_traits import base_name
from rematpass.torch_compat import user_label, user_policy
from tests.tracing import dynamo_joint_of, joint_of


def matrix():
    return torch.ones(4, 4, requires_grad=True)


def names(joint, flags):
    return {n.name for n, flag in zip(joint.nodes, flags, strict=True) if flag}


def test_sides():
    joint = joint_of(lambda x: x.tanh().sum(), [matrix()])
    assert {"tanh", "sum_1"} <= names(joint, joint.in_forward)
    assert "tangents_1" in names(joint, joint.is_backward)
    assert not names(joint, joint.in_forward) & names(joint, joint.is_backward)
    assert joint.num_fwd_outputs == 1
    assert [joint.nodes[o].name for o in joint.forward_outputs] == ["sum_1"]


def test_inputs_without_gradient_return_nothing():
    joint = joint_of(lambda x, y: (x * y).sum(), [matrix(), torch.ones(4, 4)])
    assert len(joint.backward_outputs) == 2
    assert joint.backward_outputs[1] is None
    assert joint.is_backward[joint.backward_outputs[0]]


def test_common_subexpressions_are_merged_and_dead_code_is_gone():
    def step(x):
        x.cos()
        return (x.exp() * x.exp()).sum()

    targets = [str(n.target) for n in joint_of(step, [matrix()]).nodes]
    assert targets.count("aten.exp.default") == 1
    assert "aten.cos.default" not in targets


def test_parameters_and_buffers_are_static():
    model = nn.BatchNorm1d(4)
    joint = dynamo_joint_of(model, [matrix()])
    static = {joint.nodes[i].meta["val"].shape for i in joint.static_inputs}
    assert torch.Size([4]) in static
    assert torch.Size([4, 4]) not in static
    assert len(joint.static_inputs) == 5


def test_parts_run_right_behind_what_returns_them():
    gm = joint_of(lambda x: x.topk(2).values.exp().sum(), [matrix()]).gm
    exp, indices = (next(n for n in gm.graph.nodes if n.name == name) for name in ("exp", "getitem_1"))
    exp.append(indices)  # as a pass of somebody else may leave it
    order = [n.name for n in capture_joint(gm, 1, None).nodes]
    assert order[order.index("topk") :][:3] == ["topk", "getitem", "getitem_1"]


def test_mutated_inputs():
    joint = dynamo_joint_of(nn.BatchNorm1d(4), [matrix()])
    assert len(joint.mutated_inputs) == 3  # running mean, running variance, counter
    assert set(joint.mutated_inputs) <= set(joint.static_inputs)
    assert joint_of(lambda x: x.exp().sum(), [matrix()]).mutated_inputs == ()


def two_draws(draw):
    return lambda x: (draw(x) - draw(x)) * x


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (torch.randn_like, "randn_like"),
        (torch.rand_like, "rand_like"),
        (lambda x: torch.randint_like(x, 9), "randint_like"),
        (lambda x: torch.empty_like(x).uniform_(), "uniform"),
        (lambda x: torch.empty_like(x).exponential_(), "exponential"),
        (lambda x: torch.empty_like(x).geometric_(0.5), "geometric"),
        (lambda x: torch.empty_like(x).log_normal_(), "log_normal"),
        (lambda x: torch.empty_like(x).cauchy_(), "cauchy"),
        (lambda x: torch.normal(x.detach(), 1.0), "normal_functional"),
    ],
)
def test_two_draws_stay_two(draw, name):
    joint = joint_of(two_draws(draw), [torch.ones(4, requires_grad=True)])
    drawn = [n for n in joint.nodes if torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())]
    assert len(drawn) == 2, name


def test_equal_numbers_of_another_kind_are_not_merged():
    def function(x):
        zeros = torch.full((4,), 0.0), torch.full((4,), -0.0)
        return (x / zeros[0] + x / zeros[1] + x * torch.full((4,), 1) + x * torch.full((4,), True)).sum()

    joint = joint_of(function, [torch.ones(4, requires_grad=True)])
    assert sum(base_name(n.target) == "full" for n in joint.nodes) == 4


@pytest.mark.parametrize(
    ("shown", "read"),
    [
        (lambda x: x.exp().view(16).view(4, 4), "exp"),
        (lambda x: x.exp().view(4, 4), "exp"),
        (lambda x: x.exp().view(2, 8).view(16).view(4, 4), "exp"),
        (lambda x: x.exp().t().reshape(16).view(4, 4), "clone"),  # columns, laid out as rows
        (lambda x: x.exp().view(16).view(2, 8), "view"),
    ],
)
def test_what_is_shown_in_another_shape_and_back_is_read_as_it_is(shown, read):
    joint = joint_of(lambda x: shown(x).sin().sum(), [matrix()])
    assert [base_name(n.args[0].target) for n in joint.nodes if base_name(n.target) == "sin"] == [read]


def test_bits_shown_as_numbers_of_another_type_stay_so():
    joint = joint_of(lambda x: (x * x.exp().detach().view(torch.int32).sin()).sum(), [matrix()])
    assert [n.meta["val"].dtype for n in joint.nodes if base_name(n.target) == "view"] == [torch.int32]


def test_a_view_that_a_user_has_named_stays():
    def named(x):
        flat = rematpass.name(x.exp().view(16), "flat")
        return flat.view(4, 4).sin().sum()

    assert "flat" in {user_label(n) for n in dynamo_joint_of(named, [matrix()]).nodes}


def save_flat(_context, target, *arguments, **_keywords):
    is_flat = target == torch.ops.aten.view.default and list(arguments[1]) == [16]
    return CheckpointPolicy.MUST_SAVE if is_flat else CheckpointPolicy.PREFER_RECOMPUTE


def saving_flat():
    return create_selective_checkpoint_contexts(save_flat)


def test_a_view_that_a_policy_wants_saved_stays():
    def shown(x):
        return x.exp().view(16).view(4, 4).sin().sum()

    joint = dynamo_joint_of(lambda x: checkpoint(shown, x, use_reentrant=False, context_fn=saving_flat), [matrix()])
    assert "MUST_SAVE" in [user_policy(n) for n in joint.nodes if base_name(n.target) == "view"]
