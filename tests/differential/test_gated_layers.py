"""The smallest peak is kept where several kernels read one result that is not stored: the gates of a Llama's layers."""

import pytest
import torch
from torch import nn

from bench.transformers import Llama
from rematpass.check.measure import storage_bytes
from tests.differential.steps import measure_at_smallest

VOCABULARY, LENGTH = 64, 512


class Predicting(nn.Module):
    """Predicts what it is given."""

    def __init__(self):
        super().__init__()
        self.model = Llama(VOCABULARY, 4, 256, LENGTH, is_fused=True)

    def forward(self, ids):
        return self.model(ids, ids)


@pytest.mark.usefixtures("zeros_are_computed")
def test_the_smallest_peak_is_what_is_planned():
    torch.manual_seed(0)
    model = Predicting()
    measured, budget = measure_at_smallest(model, torch.randint(VOCABULARY, (2, LENGTH)))
    measured += storage_bytes([*model.buffers()])
    assert budget * 0.97 <= measured <= budget * 1.001
