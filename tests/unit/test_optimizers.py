"""State that optimizers have yet to take, against the state that they take."""

import gc

import pytest
import torch
from torch import nn, optim

import rematpass
from rematpass.optimizers import StateToCome, state_to_come

MAKERS = [
    *(optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adadelta, optim.Rprop, optim.ASGD),
    *(optim.SGD, optim.RMSprop, optim.Adafactor),
    lambda p: optim.AdamW(p, amsgrad=True),
    lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
]
COUNTERS = 64  # bytes a parameter may take for step numbers and the like


@pytest.fixture(autouse=True)
def no_others():
    gc.collect()


def taken_bytes(optimizer):
    states = [value for state in optimizer.state.values() for value in state.values()]
    return sum(v.numel() * v.itemsize for v in states if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_foreseen_is_taken(make):
    model = nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 32))
    optimizer = make(model.parameters())
    foreseen = state_to_come(model.parameters())
    before = taken_bytes(optimizer)
    model(torch.randn(2, 64)).sum().backward()
    optimizer.step()
    taken = taken_bytes(optimizer) - before
    assert 0 <= taken - foreseen.bytes <= COUNTERS * len(list(model.parameters()))
    assert foreseen.names == (type(optimizer).__name__,)
    assert foreseen.unknown == ()
    assert state_to_come(model.parameters()).bytes == (foreseen.bytes if not optimizer.state[model[0].bias] else 0)


def test_only_optimizers_of_these_parameters_count_and_of_theirs_all_that_learns():
    ours, frozen, others = nn.Linear(64, 64), nn.Linear(64, 64).requires_grad_(False), nn.Linear(8, 8)
    optimizer = optim.AdamW([*ours.parameters(), *frozen.parameters()])
    another = optim.AdamW(others.parameters())
    assert state_to_come([ours.weight, torch.randn(3), 7]) == StateToCome(2 * 4 * (64 * 64 + 64), ("AdamW",))
    assert state_to_come([torch.randn(3)]) == StateToCome()
    del optimizer, another


def test_an_optimizer_of_ones_own_is_named_unless_it_inherits_from_one_that_is_known():
    class Own(optim.Optimizer):
        def step(self, closure=None):
            pass

    class Tuned(optim.AdamW):
        pass

    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    own, tuned = Own(model.parameters(), {}), Tuned(other.parameters())
    assert state_to_come(model.parameters()) == StateToCome(0, ("Own",), ("Own",))
    assert state_to_come(other.parameters()) == StateToCome(2 * 4 * 20, ("Tuned",))
    del own, tuned


def test_auto_leaves_room_for_it_and_says_so():
    model, x = nn.Linear(1024, 1024), torch.randn(4, 1024)
    plain = rematpass.plan(model, (x,), memory_budget="auto", reserve="0%")
    optimizer = optim.AdamW(model.parameters())
    plan = rematpass.plan(model, (x,), memory_budget="auto", reserve="0%")
    assert any("8.0 MiB for the state that AdamW has yet to take" in note for note in plan.notes)
    assert not any("yet to take" in note for note in plain.notes)
    del optimizer
