"""The smallest peak is kept where the forward itself takes the gradient of a convolutional network."""

import pytest
import torch
from torch import nn

from rematpass.check.measure import storage_bytes
from tests.differential.steps import check_backend, measure_at_smallest


class Critic(nn.Module):
    """Of a GAN whose gradients by images are to be of length 1: the same image is convolved and differentiated by."""

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 3, 2, 1), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 64, 1))

    def forward(self, x):
        gradient = torch.func.grad(lambda image: self.layers(image).sum())(x)
        return self.layers(x).mean() + 10 * ((gradient.flatten(1).norm(dim=1) - 1) ** 2).mean()


@pytest.mark.usefixtures("zeros_are_computed")
def test_the_smallest_peak_is_what_is_planned():
    torch.manual_seed(0)
    image = torch.randn(8, 3, 32, 32)
    measured, budget = measure_at_smallest(Critic(), image)
    # The one copy of the image is planned for from the first reader to the last, and is not there all that time.
    assert budget - storage_bytes([image]) <= measured <= budget * 1.001


def test_gradients_are_eagers_at_every_budget():
    check_backend(lambda: (Critic().double(), (torch.randn(8, 3, 32, 32).double(),)), count=2, relative=1e-9)
