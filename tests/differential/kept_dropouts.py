"""Small models with dropout of which Inductor by itself takes more memory than planned, for different reasons."""

import torch
from torch import nn
from torch.nn import functional


class DroppedScores(nn.Module):
    """BERT's attention written out: scores after dropout are written over the products, whatever else is read first."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 96) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            query, key, value = layer(x).chunk(3, -1)
            scores = functional.dropout(torch.softmax(query @ key.transpose(1, 2), -1), 0.1)
            x = x + scores @ value
        return x.square().mean()


class Dropped(nn.Module):
    """Batch norm, GELU and dropout between products: what only the next kernel reads is one kernel with it."""

    def __init__(self):
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(32, 128), nn.BatchNorm1d(128), nn.GELU(), nn.Dropout(0.1)) for _ in range(3)]
        self.blocks, self.last = nn.ModuleList(blocks), nn.ModuleList(nn.Linear(128, 32) for _ in range(3))

    def forward(self, x):
        for block, last in zip(self.blocks, self.last, strict=True):
            x = x + last(block(x))
        return x.square().mean()


class AlphaDropped(nn.Module):
    """Self-normalizing layers: their dropout draws into a tensor that nothing else is written over."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = functional.alpha_dropout(functional.selu(layer(x)), 0.1, training=True)
        return x.square().mean()


class ScaledDropped(nn.Module):
    """A kernel makes a result of more tensors than one function may read, and drops some of it.

    It writes what is left over the first of these, in whose place that result lies, not over the numbers it draws.
    """

    def __init__(self):
        super().__init__()
        self.widen, self.narrow = (
            nn.ModuleList(nn.Linear(*sizes) for _ in range(3)) for sizes in ((16, 256), (256, 16))
        )
        for i in range(13):
            self.register_buffer(f"scale{i}", torch.ones(256))

    def forward(self, x):
        for widen, narrow in zip(self.widen, self.narrow, strict=True):
            h = widen(x)
            for scale in self.buffers():
                h = h * scale
            x = x + narrow(functional.dropout(h, 0.1))
        return x.square().mean()
