"""Pins by glob, and what safety says first."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from rematpass.errors import OptionError
from rematpass.graph.constraints import collect_constraints
from rematpass.graph.facts import collect_facts
from tests.tracing import dynamo_joint_of, joint_of


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        return self.second(self.first(x).sigmoid()).sum()


@pytest.fixture(scope="module")
def traced():
    joint = dynamo_joint_of(Model(), [torch.ones(2, 4)])
    return joint, collect_facts(joint)


def reasons(traced, **globs):
    """(name -> no_recompute, name -> no_keep), where there is a reason."""
    joint, facts = traced
    found = collect_constraints(joint, facts, **globs)
    columns = (found.no_recompute, found.no_keep)
    return tuple({facts.values[i].name: r for i, r in enumerate(column) if r} for column in columns)


def test_nothing_is_pinned_by_itself(traced):
    no_recompute, no_keep = reasons(traced)
    assert no_recompute == {}
    assert set(no_keep.values()) <= {"a view; its base is kept or recomputed"}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_number_on_another_device_is_not_handed_over(device):
    joint = joint_of(
        lambda x: torch.where(x > 0, x, torch.full((), -1.0)).exp().sum(), [torch.ones(3, requires_grad=True)]
    )
    fill = next(node for node in joint.nodes if node.op == "call_function" and not node.all_input_nodes)
    fill.meta["val"] = torch.empty((), device=device)
    _, no_keep = reasons((joint, collect_facts(joint)))
    assert ("on another device" in no_keep.get(fill.name, "")) == (device == "meta")


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("tanh", {"tanh"}),
        ("second.*", {"addmm_1", "tanh"}),
        ("*.tanh", {"tanh"}),
        ("first", {"addmm"}),
        ("addmm*", {"addmm", "addmm_1"}),
        ("[!a-s]anh", {"tanh"}),
    ],
)
def test_save_and_recompute(traced, glob, names):
    no_recompute, _ = reasons(traced, save=(glob,))
    assert no_recompute == dict.fromkeys(names, f"save={glob!r}")
    _, no_keep = reasons(traced, recompute=(glob,))
    assert {n for n, r in no_keep.items() if r == f"recompute={glob!r}"} == names


def test_save_wins_where_both_match(traced):
    no_recompute, no_keep = reasons(traced, save=("tanh",), recompute=("second.*",))
    assert "tanh" in no_recompute
    assert "tanh" not in no_keep
    assert "addmm_1" in no_keep


def test_a_glob_that_matches_nothing(traced):
    with pytest.raises(OptionError, match=r"'secnd\.\*' matches no module path.*Nearest: .*second"):
        reasons(traced, save=("secnd.*",))


def test_asking_to_recompute_a_random_op_is_refused():
    joint = joint_of(lambda x: (functional.dropout(x.exp(), 0.5) * 2).sum(), [torch.ones(4, 4, requires_grad=True)])
    with pytest.raises(OptionError, match=r"random and would draw again.*narrower glob"):
        reasons((joint, collect_facts(joint)), recompute=("*",))


def test_values_read_from_an_input_that_the_step_writes_to():
    def step(x, state):
        y = (x * state.exp()).tanh()
        state.add_(1)
        return y.sum()

    arguments = [torch.ones(4, requires_grad=True), torch.ones(4)]
    joint = dynamo_joint_of(step, arguments)
    no_recompute, _ = reasons((joint, collect_facts(joint)))
    assert no_recompute["exp"] == "reads an input that the step writes to"
    assert "tanh" not in no_recompute


def keep_products(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.MUST_RECOMPUTE


def contexts():
    return create_selective_checkpoint_contexts(keep_products)


def test_users_checkpoint_policies_are_obeyed():
    def block(x):
        return (x @ x).tanh() @ x

    def step(x):
        return checkpoint(block, x, use_reentrant=False, context_fn=contexts).sum()

    joint = dynamo_joint_of(step, [torch.ones(4, 4, requires_grad=True)])
    no_recompute, no_keep = reasons((joint, collect_facts(joint)))
    assert no_recompute["mm"] == "your checkpoint policy says MUST_SAVE"
    assert no_keep["tanh"] == "your checkpoint policy says MUST_RECOMPUTE"
