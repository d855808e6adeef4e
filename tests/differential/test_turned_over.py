"""The smallest peak is kept where what is no image is read as one, or the other way round: in another layout."""

import pytest
import torch
from torch import nn

from tests.differential.compiled import check_fastest
from tests.differential.steps import Squared, measure_at_smallest

WIDTH, SIDE = 16, 16


def convolutions():
    return nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)


def decoded():
    shown = nn.Unflatten(1, (WIDTH, SIDE, SIDE))
    return Squared(nn.Linear(32, WIDTH * SIDE * SIDE), shown, *convolutions())


def flattened():
    return Squared(*convolutions(), nn.Flatten(1), nn.Linear(WIDTH * SIDE * SIDE, 4))


def in_rows():
    return Squared(*convolutions(), nn.Flatten(2), nn.Linear(SIDE * SIDE, 8))


def along_one_dimension_first():
    shown = nn.Unflatten(2, (SIDE, SIDE))
    return Squared(nn.Conv1d(WIDTH // 2, WIDTH, 3, padding=1), shown, *convolutions())


def frames():
    return Squared(nn.Flatten(0, 1), *convolutions())


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (decoded, (8, 32)),
        (flattened, (8, WIDTH, SIDE, SIDE)),
        (in_rows, (8, WIDTH, SIDE, SIDE)),
        (along_one_dimension_first, (8, WIDTH // 2, SIDE * SIDE)),
        (frames, (2, 4, WIDTH, SIDE, SIDE)),
    ],
)
def test_copies_in_another_layout_are_planned(make, shape):
    torch.manual_seed(0)
    measured, budget = measure_at_smallest(make(), torch.randn(shape))
    assert budget * 0.94 <= measured <= budget * 1.002


def test_convolutions_of_one_dimension_leave_those_of_images_channels_last():
    torch.manual_seed(0)
    check_fastest(along_one_dimension_first(), torch.randn(8, WIDTH // 2, SIDE * SIDE))
