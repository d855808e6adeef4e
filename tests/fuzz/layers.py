"""Blocks with parameters or buffers, for random modules: each takes two values of one shape and returns a third."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from .blocks import Sizes, image, indices_of


class Chain(nn.Module):
    """Modules one after the other on the first value."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.inner(x)


class OnImage(Chain):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.inner(image(x)).flatten(-2)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes, p: float) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(sizes.width, 2, dropout=p, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.attend(x, y, y, need_weights=False)[0] + x


class Transformer(nn.Module):
    """Pre-norm block with dropout, fused or written out by torch itself."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(sizes.width, 2, 2 * sizes.width, 0.1, batch_first=True, norm_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(x)


class Recurrent(nn.Module):
    def __init__(self, sizes: Sizes, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells = kind(sizes.width, sizes.width, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.cells(x)[0]


class Unrolled(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.cell = nn.GRUCell(sizes.width, sizes.width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        state, states = y[:, 0], []
        for position in range(x.shape[1]):
            state = self.cell(x[:, position], state)
            states.append(state)
        return torch.stack(states, 1)


class Tied(nn.Module):
    """An embedding whose table is the output projection, too."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.table = nn.Embedding(6, sizes.width)
        self.project = nn.Linear(sizes.width, 6, bias=False)
        self.project.weight = self.table.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = x + self.table(indices_of(y, 6)[..., 0])
        return x + self.project(h).log_softmax(-1).mean(-1, keepdim=True) * 0.3


class Bags(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(5, sizes.width, mode="sum")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.table(indices_of(y[:, :, 0], 5)).unsqueeze(1) * 0.1


class Average(nn.Module):
    """An exponential average read before it is written, and a counter."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(sizes.width))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        centred = (x - self.mean).tanh()
        self.steps += 1
        self.mean.mul_(0.9).add_(x.detach().mean((0, 1)), alpha=0.1)
        return centred * y


class AverageAfter(nn.Module):
    """The same, read after it is written, scaled by the counter."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(sizes.width))
        self.register_buffer("steps", torch.tensor(1.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.lerp_(y.mean((0, 1)), 0.1)
            self.steps.add_(1)
        return (x - self.mean).sigmoid() / self.steps.sqrt()


class Replaced(nn.Module):
    """A buffer that is replaced, not written to."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(sizes.shape))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = x + 0.5 * self.last
        self.last = (z.detach() * 0.9).clone()
        return z.sin()


class Row(nn.Module):
    """Writes one row of a memory and reads all of it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.register_buffer("memory", torch.ones(3, sizes.width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.memory[1] = y.detach()[0, 0]
        self.memory[:, ::2].mul_(0.5)
        return x @ self.memory.T.softmax(0) @ self.memory + y


class NoisyState(nn.Module):
    """A buffer of noise, drawn anew each step."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.register_buffer("noise", torch.zeros(sizes.width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.noise.normal_()
        return x * self.noise.sigmoid() + y


class Experts(nn.Module):
    """Top two of three experts, weighted by a learned gate."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.width, 3)
        self.experts = nn.ModuleList(nn.Linear(sizes.width, sizes.width) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weights, picked = self.gate(x).softmax(-1).topk(2, dim=-1)
        outputs = torch.stack([expert(y).tanh() for expert in self.experts], -2)
        chosen = outputs.gather(-2, picked.unsqueeze(-1).expand(*picked.shape, x.shape[-1]))
        return (chosen * weights.unsqueeze(-1)).sum(-2)


class Bilinear(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.mix = nn.Bilinear(sizes.width, sizes.width, sizes.width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.mix(x, y) * 0.3


class Unused(nn.Module):
    """A parameter that nothing reads, one that only a detached part reads, and a learned scale."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.ones(3))
        self.shift = nn.Parameter(torch.ones(sizes.width))
        self.scale = nn.Parameter(torch.full((sizes.width,), 0.7))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * self.scale + (y * self.shift).detach()


class LowRank(nn.Module):
    """A frozen layer with an adapter."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.base = nn.Linear(sizes.width, sizes.width).requires_grad_(False)
        self.down = nn.Linear(sizes.width, 2, bias=False)
        self.up = nn.Linear(2, sizes.width, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(functional.dropout(x, 0.05)))


def _bottleneck(sizes: Sizes, *middle: nn.Module) -> Chain:
    return Chain(nn.Linear(sizes.width, 4 * sizes.width), *middle, nn.Linear(4 * sizes.width, sizes.width))


Maker = Callable[[Sizes], nn.Module]

STATELESS: dict[str, Maker] = {
    "linear": lambda s: Chain(nn.Linear(s.width, s.width)),
    "perceptron": lambda s: _bottleneck(s, nn.GELU()),
    "deep_perceptron": lambda s: _bottleneck(s, nn.ReLU(inplace=True), nn.Linear(4 * s.width, 4 * s.width), nn.SiLU()),
    "prelu": lambda s: Chain(nn.Linear(s.width, s.width, bias=False), nn.PReLU()),
    "conv1d": lambda s: Chain(nn.Conv1d(s.length, s.length, 3, padding=1)),
    "conv2d": lambda s: OnImage(nn.Conv2d(s.length, s.length, 3, padding=1), nn.ReLU(inplace=True)),
    "depthwise": lambda s: OnImage(nn.Conv2d(s.length, s.length, 3, padding=1, groups=s.length), nn.Hardswish()),
    "conv_transposed": lambda s: OnImage(nn.ConvTranspose2d(s.length, s.length, 3, padding=1)),
    "down_up": lambda s: OnImage(
        nn.Conv2d(s.length, 2 * s.length, 2, stride=2), nn.Tanh(), nn.ConvTranspose2d(2 * s.length, s.length, 2, 2)
    ),
    "layer_norm": lambda s: Chain(nn.LayerNorm(s.width)),
    "rms_norm": lambda s: Chain(nn.RMSNorm(s.width)),
    "group_norm": lambda s: Chain(nn.GroupNorm(2, s.length)),
    "instance_norm_plain": lambda s: Chain(nn.InstanceNorm1d(s.length, affine=True)),
    "bilinear": Bilinear,
    "tied": Tied,
    "bags": Bags,
    "experts": Experts,
    "unrolled": Unrolled,
    "unused": Unused,
    "attend": lambda s: Attention(s, 0.0),
    "lstm": lambda s: Recurrent(s, nn.LSTM),
    "gru": lambda s: Recurrent(s, nn.GRU),
    "weight_norm": lambda s: Chain(nn.utils.parametrizations.weight_norm(nn.Linear(s.width, s.width))),
}
RANDOM: dict[str, Maker] = {
    "perceptron_dropout": lambda s: _bottleneck(s, nn.Dropout(0.1), nn.Tanh(), nn.Dropout(0.5)),
    "attend_dropout": lambda s: Attention(s, 0.1),
    "transformer": Transformer,
    "low_rank": LowRank,
    "channel_dropout": lambda s: OnImage(nn.Conv2d(s.length, s.length, 1), nn.Dropout2d(0.3)),
}
STATEFUL: dict[str, Maker] = {
    "batch_norm1d": lambda s: Chain(nn.BatchNorm1d(s.length)),
    "batch_norm2d": lambda s: OnImage(nn.BatchNorm2d(s.length)),
    "conv_batch_norm": lambda s: OnImage(
        nn.Conv2d(s.length, s.length, 3, padding=1, bias=False), nn.BatchNorm2d(s.length), nn.ReLU(inplace=True)
    ),
    "instance_norm": lambda s: Chain(nn.InstanceNorm1d(s.length, affine=True, track_running_stats=True)),
    "average": Average,
    "average_after": AverageAfter,
    "replaced": Replaced,
    "row": Row,
    "spectral_norm": lambda s: Chain(nn.utils.parametrizations.spectral_norm(nn.Linear(s.width, s.width))),
}
RANDOM_STATEFUL: dict[str, Maker] = {
    "noisy_state": NoisyState,
    "batch_norm_dropout": lambda s: Chain(nn.BatchNorm1d(s.length), nn.Dropout(0.3), nn.ReLU()),
}
