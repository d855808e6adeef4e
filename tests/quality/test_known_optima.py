"""What is known to be good must be found: selective recomputation, square-root growth, never worse than by hand."""

import math

import pytest
import torch
from torch import nn

import rematpass
from rematpass.look import Step, look_at_step
from rematpass.options import parse_options
from rematpass.pipeline import collect_inputs
from rematpass.solve.liveness import simulate
from rematpass.solve.order import order_backward
from rematpass.solve.search import Frontier
from tests.programs import Layer, layered


class MegatronLayer(nn.Module):
    """A layer with written-out attention: s b h (34 + 5 a s / h) bytes of activations (Korthikanti et al. 2022)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        shares = (q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)).softmax(-1)
        x = x + self.out((shares @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def test_selective_recomputation_is_found():
    """a s / h = 32, so attention's core is two thirds of what is kept; s / h = 1 / 8, so it is 2 % of the operations.

    Of what the fastest plan keeps, 35 % are left: the core is computed again, and little else that costs.
    """
    model = nn.Sequential(*(MegatronLayer(512, 256) for _ in range(12)))
    x = torch.randn(16, 64, 512, requires_grad=True)
    inputs = look_at_step(Step(model, (x,)), parse_options({"memory_budget": "none"}), collect_inputs)
    program, facts = inputs.program, inputs.facts
    frontier = Frontier(program)

    def kept_bytes(point):
        return sum(program.size_bytes[v] for v in point.decision.kept)

    most = kept_bytes(frontier.fastest) * 35 // 100
    point = next(p for p in frontier.curve(20) if kept_bytes(p) <= most)
    again = [v for v in point.decision.schedule.backward if not program.is_backward[v] and program.in_forward[v]]
    extra = sum(facts.values[v].flops for v in again)
    assert extra <= 0.03 * sum(value.flops for value in facts.values)
    scores = [v for v in again if facts.values[v].shape[-2:] == (64, 64)]
    assert len(scores) >= 12, "the scores of every layer are computed again"


class Recurrent(nn.Module):
    """An LSTM, its steps written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.given, self.hidden = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = cell = torch.zeros_like(x[0])
        found = []
        for step in x:
            write, forget, new, read = (self.given(step) + self.hidden(hidden)).chunk(4, -1)
            cell = forget.sigmoid() * cell + write.sigmoid() * new.tanh()
            hidden = read.sigmoid() * cell.tanh()
            found.append(hidden)
        return torch.stack(found).square().sum()


def convolved_twice(channels: int, to: int) -> nn.Sequential:
    sizes = ((channels, to), (to, to))
    layers = [(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU()) for a, b in sizes]
    return nn.Sequential(*(layer for group in layers for layer in group))


class SmallUNet(nn.Module):
    """Each level half as large and twice as wide as the one above; skips over all that is below."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(convolved_twice(a, b) for a, b in zip([width, *widths], widths, strict=False))
        self.up = nn.ModuleList(convolved_twice(3 * w, w) for w in reversed(widths[:-1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x if not skips else nn.functional.avg_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for block in self.up:
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2), skips.pop()], 1))
        return x.square().sum()


@pytest.mark.parametrize(
    ("model", "shape", "share", "reachable"),
    [
        pytest.param(Recurrent(64), (12, 32, 64), 48 / 64, 0.051, id="recurrent"),
        pytest.param(SmallUNet(16, 3), (2, 16, 64, 64), 2 / 64, 0.1224, id="unet"),
    ],
)
def test_what_a_patient_search_finds_is_found(model, shape, share, reachable):
    """`share` of the way from the smallest peak up; extra time as a share of the step, found by many more rounds."""
    step = Step(model, (torch.ones(shape),), device="h100-sxm")
    program = look_at_step(step, parse_options({"memory_budget": "none"}), collect_inputs).program
    frontier = Frontier(program)
    low, high = frontier.smallest.peak_bytes, frontier.fastest.peak_bytes
    point = frontier.choose(low + int((high - low) * share))
    step_ns = sum(ns for ns, given in zip(program.duration_ns, program.in_forward, strict=True) if given)
    step_ns += sum(ns for ns, given in zip(program.duration_ns, program.is_backward, strict=True) if given)
    assert point.extra_ns <= 1.15 * reachable * step_ns


@pytest.mark.parametrize("is_residual", [False, True])
def test_the_peak_grows_like_the_square_root_of_the_depth(is_residual):
    """Least memory for boundaries at one extra forward (Chen et al. 2016), and lower still at two (Griewank 2000).

    Activations only: inputs and gradients of weights are left out by making them one byte.
    """
    once, twice = {}, {}
    for depth in (25, 100):
        program = layered([Layer()] * depth, is_residual=is_residual, gradient=1)
        forward = sum(t for t, b in zip(program.duration_ns, program.is_backward, strict=True) if not b)
        frontier = Frontier(program)
        low = frontier.smallest.peak_bytes
        points = [frontier.choose(low + low * i // 60) for i in range(61)]
        for limit, found in ((1, once), (2, twice)):
            found[depth] = min(p.peak_bytes - program.static_bytes for p in points if p.extra_ns <= limit * forward)
    assert once[100] <= 2.2 * once[25], "four times the depth, about twice the memory"
    assert twice[100] < once[100]


@pytest.mark.parametrize("every", [1, 2, 3, 4])
@pytest.mark.parametrize("is_fusing", [False, True])
def test_never_worse_than_checkpoints_every_k_layers(every, is_fusing):
    """At the peak of keeping only every k-th layer's input, our extra time is no higher."""
    program = layered([Layer(), Layer(wide=700, wide_ns=33)] * 6, is_residual=True, is_fusing=is_fusing)
    outputs = [v for v, size in enumerate(program.size_bytes) if size == 100 and not program.is_backward[v]]
    streams = [v for v in outputs if program.inputs[v] and program.duration_ns[v] == 1]
    by_hand = order_backward(program, streams[every - 1 :: every])
    peak = simulate(program, by_hand.schedule).peak_bytes
    point = Frontier(program).choose(peak)
    assert point is not None
    assert point.extra_ns <= by_hand.recompute_ns


def test_the_curve_of_a_model_is_monotone_and_bounded():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)))
    curve = rematpass.frontier(model, (torch.randn(256, 64),), count=12)
    assert len(curve.points) > 3
    for fast, small in zip(curve.points, curve.points[1:], strict=False):
        assert fast.peak_bytes > small.peak_bytes
        assert fast.recompute_seconds <= small.recompute_seconds
        assert fast.bound_seconds <= small.bound_seconds
    for point in curve.points:
        assert point.bound_seconds <= point.recompute_seconds
        assert point.peak_bytes >= curve.bound_peak_bytes
        again = rematpass.plan(model, (torch.randn(256, 64),), memory_budget=point.peak_bytes)
        assert (again.peak_bytes, again.recompute_seconds) == (point.peak_bytes, point.recompute_seconds)
    assert "no plan needs less than" in str(curve)
    assert '"points":[{' in curve.to_json()
