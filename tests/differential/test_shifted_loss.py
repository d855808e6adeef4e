"""The smallest peak is kept where a slice is folded before the loss: every position but the last predicts the next."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from tests.differential.steps import measure_at_smallest

VOCABULARY, WIDTH = 400, 32


def folded(scores, ids):
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def copied(scores, ids):
    return F.cross_entropy(scores[:, :-1].contiguous().view(-1, VOCABULARY), ids[:, 1:].reshape(-1))


def turned(scores, ids):
    return F.cross_entropy(scores[:, :-1].transpose(1, 2), ids[:, 1:])


def by_position(scores, ids):
    turned_scores = scores.transpose(0, 1)
    return F.cross_entropy(turned_scores[:-1].flatten(0, 1), ids.T[1:].flatten())


class Language(nn.Module):
    """Two layers and tied scores, most of whose memory is the scores."""

    def __init__(self, loss):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)) for _ in "ab")
        self.loss = loss

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(F.layer_norm(x, (WIDTH,)))
        return self.loss(x @ self.embedding.weight.T, ids)


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize("loss", [folded, copied, turned, by_position])
def test_the_smallest_peak_is_what_is_planned(loss):
    torch.manual_seed(0)
    measured, budget = measure_at_smallest(Language(loss), torch.randint(VOCABULARY, (4, 64)))
    assert budget * 0.99 <= measured <= budget * 1.001
