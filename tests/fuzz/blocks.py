"""What random modules are made of: blocks that take two values of one shape and return a third of that shape.

A value is (batch, length, width); as an image it is (batch, length, high, wide) with high * wide = width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Block = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    """Shape of every value: length is 4 or 8, width 8, 4 or 16."""

    batch: int = 2
    length: int = 4
    width: int = 8

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.batch, self.length, self.width


def image(x: Tensor) -> Tensor:
    high = 4 if x.shape[-1] == 16 else 2
    return x.unflatten(-1, (high, x.shape[-1] // high))


def wide(x: Tensor) -> Tensor:
    """What kernels without a half-width version take."""
    return x if x.dtype is torch.float64 else x.float()


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y.tanh(), None


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 1)


class _NoisyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise, x)
        return x * noise

    @staticmethod
    def backward(ctx, gradient):
        noise, x = ctx.saved_tensors
        return gradient * noise + 0.1 * x.tanh()


def attention(x: Tensor, y: Tensor, p: float, *, is_causal: bool) -> Tensor:
    """Written out, one head."""
    scores = x @ y.transpose(1, 2) * x.shape[-1] ** -0.5
    if is_causal:
        mask = torch.ones(scores.shape[1:], dtype=torch.bool, device=x.device).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
    return functional.dropout(scores.softmax(-1), p) @ y


def fused_attention(x: Tensor, y: Tensor, p: float, *, is_causal: bool) -> Tensor:
    q, k = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (x, y))
    return (
        functional.scaled_dot_product_attention(q, k, k.tanh(), dropout_p=p, is_causal=is_causal)
        .transpose(1, 2)
        .flatten(2)
    )


def slices_written(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[:, 0] = y[:, 1]
    z[..., ::2] *= y[..., ::2].sigmoid()
    z[0] = 0.5
    return z


def views_written(x: Tensor, y: Tensor) -> Tensor:
    z = x * 1
    z.view(-1).mul_(0.9)
    z.transpose(1, 2)[:, :, 1:].add_(y.transpose(1, 2)[:, :, 1:])
    half = z.shape[-1] // 2
    z.narrow(-1, 0, half).copy_(-z.narrow(-1, half, half))
    return z.relu_()


def base_written_after_view(x: Tensor, y: Tensor) -> Tensor:
    z = (x * 1.5).clamp(max=3.0)
    view = z[:, ::2]
    total = view + y[:, ::2]
    z.add_(1)
    return torch.cat([total, view], 1)


def top_kept(x: Tensor, y: Tensor) -> Tensor:
    values, indices = x.topk(2, dim=-1)
    return y.scatter(-1, indices, values.exp().clamp(max=5))


def routed(x: Tensor, y: Tensor) -> Tensor:
    """Each position goes to one of three treatments, picked hard."""
    expert = x[..., :3].argmax(-1)
    z = torch.zeros_like(x)
    for e, treat in enumerate((torch.tanh, torch.sin, torch.sigmoid)):
        picked = (expert == e).unsqueeze(-1)
        z = z + torch.where(picked, treat(y) * x[..., e : e + 1].sigmoid(), 0)
    return z


def indices_of(x: Tensor, most: int) -> Tensor:
    return (x.detach() * 3).long().abs() % most


def gathered(x: Tensor, y: Tensor) -> Tensor:
    return y.gather(-1, indices_of(x, x.shape[-1])) + x


def scattered(x: Tensor, y: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter_add_(1, indices_of(y, x.shape[1]), x)


def points_put(x: Tensor, y: Tensor) -> Tensor:
    rows = indices_of(y[0, :, 0], x.shape[1])
    return x.clone().index_put_((torch.zeros_like(rows), rows), y[0], accumulate=True)


def rows_added(x: Tensor, y: Tensor) -> Tensor:
    return x.index_add(1, indices_of(y[0, :, 0], x.shape[1]), y.sin())


def rotated(x: Tensor, y: Tensor) -> Tensor:
    """Rotary positions: complex numbers."""
    pairs = torch.view_as_complex(wide(x).unflatten(-1, (-1, 2)).contiguous())
    angle = wide(y).unflatten(-1, (-1, 2))[..., 0]
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x.dtype)


def spectral(x: Tensor, y: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(wide(x)) * torch.fft.rfft(wide(y)).abs(), n=x.shape[-1]).to(x.dtype)


def magnitudes(x: Tensor, y: Tensor) -> Tensor:
    return torch.complex(wide(x), wide(y) + 0.5).abs().to(x.dtype)


def recurrence(x: Tensor, y: Tensor) -> Tensor:
    state, states = y[:, 0], []
    for position in range(x.shape[1]):
        state = torch.tanh(x[:, position] + 0.5 * state)
        states.append(state)
    return torch.stack(states, 1)


def autocast(x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        z = x @ y.transpose(1, 2) * 0.2
    return z.to(x.dtype) @ x


def without_gradient(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        scale = 1 / (1 + y.abs().amax(-1, keepdim=True))
    return x * scale + y.detach()


def padded(x: Tensor, y: Tensor, mode: str) -> Tensor:
    return functional.pad(x, (1, 1), mode=mode)[..., :-2] * y.sigmoid()


def resized(x: Tensor, y: Tensor, mode: str) -> Tensor:
    doubled = functional.interpolate(image(x), scale_factor=2, mode=mode)
    return functional.avg_pool2d(doubled, 2).flatten(-2) + y


def max_pooled(x: Tensor, y: Tensor) -> Tensor:
    return functional.max_pool2d(image(x), 3, 1, 1).flatten(-2) * y.tanh()


def folded(x: Tensor, y: Tensor) -> Tensor:
    columns = functional.unfold(image(x), 3, padding=1)
    return functional.fold(columns.sin(), image(x).shape[-2:], 3, padding=1).flatten(-2) * 0.2 + y


DETERMINISTIC: dict[str, Block] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y * 0.5,
    "tanh": lambda x, y: x.tanh(),
    "gate": lambda x, y: x * y.sigmoid(),
    "matmul": lambda x, y: x @ (y.transpose(1, 2) @ x) * 0.2,
    "relu": lambda x, y: x.relu(),
    "in_place_relu": lambda x, y: functional.relu((x * 1.5), inplace=True),
    "in_place_silu": lambda x, y: functional.silu(x + y, inplace=True),
    "in_place_leaky": lambda x, y: functional.leaky_relu_(x - y, 0.2),
    "gelu": lambda x, y: functional.gelu(x, approximate="tanh"),
    "elu": lambda x, y: functional.elu(x, 0.7),
    "mish": lambda x, y: functional.mish(x) + functional.softplus(y),
    "hardswish": lambda x, y: functional.hardswish(x) + functional.hardtanh(y),
    "glu": lambda x, y: functional.glu(torch.cat([x, y], -1)),
    "softmax": lambda x, y: x.softmax(-1) * 3,
    "log_softmax": lambda x, y: functional.log_softmax(x, 1) * 0.3,
    "logsumexp": lambda x, y: x - torch.logsumexp(y, -1, keepdim=True),
    "normalize": lambda x, y: functional.normalize(x, dim=-1) + y.std(-1, keepdim=True),
    "pow": lambda x, y: (x.abs() + 0.5) ** 1.5 * 0.3,
    "div": lambda x, y: x / (y.square() + 1),
    "where": lambda x, y: torch.where(x > y, x, y * 0.5),
    "clamp": lambda x, y: x.clamp(-1, 1) + y.clamp_min(0),
    "chain": lambda x, y: (x.exp().clamp(max=9) + y.cos()).log1p().sin().square(),
    "einsum": lambda x, y: torch.einsum("bld,bmd,bme->ble", x, y, y) * 0.1,
    "outer": lambda x, y: (x.unsqueeze(2) * y.unsqueeze(1)).tanh().mean(2),
    "cumsum": lambda x, y: x.cumsum(1) * 0.3,
    "cumprod": lambda x, y: (x.sigmoid() + 0.5).cumprod(-1).clamp(max=9),
    "cummax": lambda x, y: x.cummax(1).values + y,
    "transpose": lambda x, y: x.transpose(1, 2).reshape(x.shape),
    "expand": lambda x, y: x[:, :1].expand_as(x) * y,
    "halves": lambda x, y: torch.cat(x.chunk(2, -1)[::-1], -1),
    "flip_roll": lambda x, y: x.flip(1).roll(1, -1) + y.tril(),
    "strided": lambda x, y: (
        torch.as_strided(x.contiguous(), x.shape, x.stride()).diagonal_scatter(y[:, :, 0], 0, 1, 1)
        if x.shape[0] == x.shape[2]
        else x.as_strided_scatter(y[0, 0], (x.shape[-1],), (1,))
    ),
    "slices_written": slices_written,
    "views_written": views_written,
    "base_written_after_view": base_written_after_view,
    "detached": lambda x, y: x.detach() * y + x,
    "without_gradient": without_gradient,
    "attention": lambda x, y: attention(x, y, 0.0, is_causal=False),
    "causal_attention": lambda x, y: attention(x, y, 0.0, is_causal=True),
    "fused_attention": lambda x, y: fused_attention(x, y, 0.0, is_causal=False),
    "causal_fused_attention": lambda x, y: fused_attention(x, y, 0.0, is_causal=True),
    "top_kept": top_kept,
    "sorted": lambda x, y: x.sort(-1).values * y.argsort(-1).to(x.dtype) * 0.1,
    "median": lambda x, y: x - x.median(-1, keepdim=True).values + y.kthvalue(2, 1, keepdim=True).values,
    "one_hot": lambda x, y: functional.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype) * y,
    "routed": routed,
    "rounded": lambda x, y: x + ((y * 4).round() / 4 - y).detach(),
    "bucketized": lambda x, y: x + torch.bucketize(y.detach(), torch.linspace(-2, 2, 5, dtype=y.dtype)).to(x.dtype),
    "gathered": gathered,
    "scattered": scattered,
    "points_put": points_put,
    "rows_added": rows_added,
    "selected": lambda x, y: x.index_select(1, indices_of(y[0, :, 0], x.shape[1])),
    "masked": lambda x, y: x.masked_fill(y > 0.5, 0.1),
    "rotated": rotated,
    "spectral": spectral,
    "magnitudes": magnitudes,
    "padded": lambda x, y: padded(x, y, "constant"),
    "padded_reflect": lambda x, y: padded(x, y, "reflect"),
    "padded_replicate": lambda x, y: padded(x, y, "replicate"),
    "padded_circular": lambda x, y: padded(x, y, "circular"),
    "resized": lambda x, y: resized(x, y, "nearest"),
    "resized_bilinear": lambda x, y: resized(x, y, "bilinear"),
    "max_pooled": max_pooled,
    "folded": folded,
    "shuffled": lambda x, y: functional.pixel_unshuffle(functional.pixel_shuffle(image(x), 2).sin(), 2).flatten(-2),
    "recurrence": recurrence,
    "autocast": autocast,
    "double_inside": lambda x, y: (x.double() @ y.double().transpose(1, 2)).tanh().to(x.dtype) @ x,
    "half_inside": lambda x, y: x + (y.bfloat16() * 1.5).exp().clamp(max=3).to(x.dtype),
    "scaled_gradient": lambda x, y: _ScaledGradient.apply(x, y * 1),  # of one tensor twice, dynamo makes two graphs
    "straight_through": lambda x, y: _StraightThrough.apply(x) + y,
}


def picked_at_random(x: Tensor, y: Tensor) -> Tensor:
    weights = wide(x.detach()).softmax(-1).flatten(0, 1)
    picked = torch.multinomial(weights, 2).view(*x.shape[:-1], 2)
    return y + x.gather(-1, picked).sum(-1, keepdim=True)


def several_draws(x: Tensor, y: Tensor) -> Tensor:
    z = functional.dropout(x, 0.3) + torch.rand_like(x)
    z = z * (torch.rand_like(x) < 0.8) + functional.dropout(y, 0.3)
    return z + torch.randn_like(x) * torch.randn_like(y)


RANDOM: dict[str, Block] = {
    "dropout": lambda x, y: functional.dropout(x, 0.5),
    "dropout_light": lambda x, y: functional.dropout(x, 0.1) + y,
    "dropout_in_place": lambda x, y: functional.dropout(x * 2, 0.3, inplace=True),
    "dropout1d": lambda x, y: functional.dropout1d(x, 0.4) + y,
    "dropout2d": lambda x, y: functional.dropout2d(image(x), 0.4).flatten(-2) * y,
    "alpha_dropout": lambda x, y: functional.alpha_dropout(x, 0.3, training=True),
    "feature_alpha_dropout": lambda x, y: functional.feature_alpha_dropout(x, 0.3, training=True),
    "attention_dropout": lambda x, y: attention(x, y, 0.2, is_causal=True),
    "fused_attention_dropout": lambda x, y: fused_attention(x, y, 0.2, is_causal=False),
    "rand_like": lambda x, y: x * torch.rand_like(x),
    "rand": lambda x, y: x * torch.rand(x.shape, dtype=x.dtype),
    "randn_like": lambda x, y: x * (1 + 0.1 * torch.randn_like(y)),
    "randn": lambda x, y: y + x * torch.randn(x.shape, dtype=x.dtype),
    "randint": lambda x, y: x[:, torch.randint(0, x.shape[1], (x.shape[1],))] + y,
    "randint_like": lambda x, y: x * torch.randint_like(x, 5),
    "randperm": lambda x, y: x[:, torch.randperm(x.shape[1])] + y,
    "bernoulli": lambda x, y: x * torch.bernoulli(y.detach().sigmoid()),
    "bernoulli_of_value": lambda x, y: x * torch.bernoulli(y.sigmoid()),
    "bernoulli_in_place": lambda x, y: x * torch.empty_like(x).bernoulli_(0.7),
    "multinomial": picked_at_random,
    "gumbel": lambda x, y: functional.gumbel_softmax(x) * y,
    "gumbel_hard": lambda x, y: functional.gumbel_softmax(x, hard=True) * y,
    "rrelu": lambda x, y: functional.rrelu(x, training=True),
    "exponential": lambda x, y: x + torch.empty_like(x).exponential_(),
    "uniform": lambda x, y: x * torch.empty_like(x).uniform_(-1, 2),
    "normal": lambda x, y: x * torch.zeros_like(x).normal_(1, 0.2),
    "normal_around": lambda x, y: x * torch.normal(wide(y.detach()), 1.0).to(x.dtype),
    "geometric": lambda x, y: x + torch.empty_like(x).geometric_(0.4),
    "log_normal": lambda x, y: x + torch.empty_like(x).log_normal_(),
    "cauchy": lambda x, y: x + torch.empty_like(x).cauchy_().clamp(-2, 2),
    "poisson": lambda x, y: x + torch.poisson(wide(y.detach()).abs()).to(x.dtype),
    "fractional_pool": lambda x, y: (
        x + functional.fractional_max_pool2d(image(wide(y)), 2, (1, 1)).flatten(-2).to(x.dtype)
    ),
    "several_draws": several_draws,
    "noisy_function": lambda x, y: _NoisyFunction.apply(x) + y,
}
