"""Hypothesis strategies, all shrinking op by op.

Random torch-free programs (tangled ones, and stacks of equal blocks), and random small torch functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from rematpass.solve.order import must_keep, order_backward
from rematpass.solve.program import DEPTHS, Addend, Decision, Kind, Program

from .programs import EXTERN, INPUT, PART, POINTWISE, REDUCTION, VIEW, Builder

SIZES = st.sampled_from([64, 32, 96, 128])
GRADIENT_SIZES = st.sampled_from([4, 16, 64])
TIMES = st.sampled_from([1, 0, 3, 10, 50])
CUTS = st.sampled_from([-1, 0, 8, 16])


@st.composite
def programs(draw: st.DrawFn, *, most_forward: int = 10, most_backward: int = 8, is_fusing: bool = False) -> Program:
    """Forward DAG, then backward ops that read gradients and forward values, later ones first. No dead code."""
    b = Builder(is_unmerged=draw(st.booleans()), is_broadcast_shared=draw(st.booleans()))
    values = [b.given(draw(SIZES)) for _ in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(min(3, most_forward), most_forward))):
        values.append(_forward_op(draw, b, values))
    made = [v for v in values if b.rows[v]["kind"] is not INPUT]
    outputs = sorted({made[-1], *draw(st.lists(st.sampled_from(values), max_size=1))})
    gradients, helpers = [b.tangent(draw(GRADIENT_SIZES))], []
    for position in range(draw(st.integers(min(3, most_backward), most_backward))):
        gradients.append(_backward_op(draw, b, values, gradients, helpers, position))
    read = {u for row in b.rows for u in row["inputs"]}
    returned = [v for v in gradients if v not in read and b.rows[v]["kind"] is not INPUT]
    if draw(st.integers(0, 4)) == 0:
        returned.append(draw(st.sampled_from([*made, gradients[0]])))
    return _without_dead_code(b, outputs, list(dict.fromkeys(returned)), is_fusing)


_INNER = st.tuples(
    st.sampled_from([POINTWISE, EXTERN, REDUCTION, VIEW, PART]), st.integers(0, 3), SIZES, TIMES, st.integers(0, 9)
)
_OUTER = st.tuples(st.sampled_from([EXTERN, POINTWISE, VIEW]), st.integers(0, 6), GRADIENT_SIZES, st.booleans())


@st.composite
def stacked_programs(draw: st.DrawFn) -> Program:
    """A random block, several times: equal layers with a narrow stream between them, and a backward that mirrors it."""
    forward = draw(st.lists(_INNER, min_size=1, max_size=6))
    backward = draw(st.lists(_OUTER, min_size=1, max_size=5))
    is_residual, is_viewed = draw(st.booleans()), draw(st.booleans())
    b = Builder()
    x = b.given(32)
    weight = b.given(8)
    blocks = []
    for _ in range(draw(st.integers(2, 6))):
        values = [b.view(x) if is_viewed else x]
        for kind, back, size, ns, chance in forward:
            values.append(_block_op(b, kind, values[-1 - back % len(values)], size * 4, ns, chance))
        y = b.add(EXTERN, values[-1], weight, size=32, ns=5)
        x = b.add(POINTWISE, x, y, size=32, ns=1) if is_residual else y
        blocks.append(values)
    gradient = b.tangent(32)
    returned = []
    for values in reversed(blocks):
        for kind, read, size, has_mask in backward:
            u = values[read % len(values)]
            if has_mask and b.rows[u]["size"] > size:
                u = b.add(POINTWISE, u, size=size, is_ahead=True)
            gradient = b.view(gradient) if kind is VIEW else b.add(kind, gradient, u, size=size, ns=3)
        returned.append(b.add(EXTERN, gradient, values[-1], size=8, ns=3))
    return _without_dead_code(b, [x], [*returned, gradient], draw(st.booleans()))


def _block_op(b: Builder, kind: Kind, first: int, size: int, ns: int, chance: int) -> int:
    if kind is VIEW:
        return b.view(first)
    may_recompute = chance > 0
    if kind is PART:
        first = b.add(EXTERN, first, ns=ns, may_keep=False, may_recompute=may_recompute, workspace=size)
        return b.add(PART, first, size=size)
    return b.add(kind, first, size=size, ns=ns, is_heavy=chance > 5, may_recompute=may_recompute)


def _forward_op(draw: st.DrawFn, b: Builder, values: list[int]) -> int:
    kind = draw(st.sampled_from([EXTERN, POINTWISE, EXTERN, POINTWISE, REDUCTION, VIEW, PART]))
    recent = [values[-1], *values[:-4:-1], *values]
    first = draw(st.sampled_from([values[-1]] * 6 + recent))
    if kind is VIEW:
        return b.view(first, draw(st.integers(0, 1)), cut=draw(CUTS))
    flags = {"may_recompute": draw(st.integers(0, 9)) > 0, "workspace": draw(st.sampled_from([0, 0, 0, 32]))}
    inputs = tuple(dict.fromkeys([first, *draw(st.lists(st.sampled_from(recent), max_size=1))]))
    if kind is PART:
        sizes = draw(SIZES), draw(SIZES)
        flags["workspace"] += sum(sizes)
        several = b.add(EXTERN, *inputs, ns=draw(TIMES), may_keep=False, **flags)
        parts = [b.add(PART, several, size=size) for size in sizes]
        values.append(parts[0])
        return parts[1]
    if kind is REDUCTION:
        how = draw(st.integers(0, 7))
        flags |= {"is_scattered": how < 2, "is_joined": how == 2, "reads_often": draw(st.integers(0, 2)) == 0}
    if kind is POINTWISE:
        flags["times"] = draw(st.sampled_from([1, 1, 1, 2, 4, 0]))
        turns = [row["access"] for row in b.rows if row.get("access")]
        flags["puts"] = draw(st.sampled_from([0, *turns[-2:]]))
        flags |= {"is_heavy": draw(st.booleans()), "is_drawn": draw(st.integers(0, 5)) == 0}
        # Two long functions and what they read are too much for one kernel, three that share one are not.
        flags |= {
            "operations": draw(st.sampled_from([1, 1, 15, 24])),
            "constants": draw(st.sampled_from([(), (0,), (-1,)])),
        }
        size = draw(SIZES)
        flags["elements"] = size // draw(st.sampled_from([1, 1, 2]))
        flags["broadcasts"] = draw(st.integers(0, 4)) == 0
        flags["loops"] = draw(st.sampled_from([1, 1, 2, DEPTHS + 1]))
        return b.add(kind, *inputs, size=size, ns=draw(TIMES), **flags)
    if kind is EXTERN:  # what readers add is one step, whatever the op itself is
        flags["addend"] = draw(st.sampled_from([Addend.BY_OP, *Addend]))
        flags |= {
            "operations": draw(st.sampled_from([1, 24])),
            "constants": draw(st.sampled_from([(), (2, 3), (2, -1)])),
        }
    return b.add(kind, *inputs, size=draw(SIZES), ns=draw(TIMES), **flags)


def _backward_op(
    draw: st.DrawFn, b: Builder, values: list[int], gradients: list[int], helpers: list[int], position: int
) -> int:
    """Reads a gradient and up to two forward values, mostly of the mirrored place; sometimes through a helper value."""
    mirror = values[max(0, len(values) - 2 - position)]
    gradient = draw(st.sampled_from([gradients[-1]] * 6 + gradients))
    kind = draw(st.sampled_from([EXTERN, POINTWISE, REDUCTION, EXTERN, VIEW, PART]))
    if kind is VIEW:
        return b.view(gradient, draw(st.integers(0, 1)), cut=draw(CUTS))
    reads = [draw(st.sampled_from([mirror] * len(values) + values)) for _ in range(draw(st.sampled_from([1, 2, 0])))]
    if reads and draw(st.integers(0, 3)) == 0:  # such as 1 - tanh(x)^2: only the backward wants it, or another such
        helped = draw(st.sampled_from([reads[0], *helpers, *values]))
        helpers.append(b.add(POINTWISE, *dict.fromkeys([reads[0], helped]), size=draw(SIZES), ns=draw(TIMES)))
        if draw(st.integers(0, 3)) == 0:
            helpers.append(b.view(helpers[-1]))
        reads.append(helpers[-1])
    inputs = tuple(dict.fromkeys([gradient, *reads]))
    is_fixed = draw(st.integers(0, 9)) == 0
    if kind is PART:
        sizes = draw(GRADIENT_SIZES), draw(GRADIENT_SIZES)
        several = b.add(EXTERN, *inputs, ns=draw(TIMES), workspace=sum(sizes), is_fixed=is_fixed)
        parts = [b.add(PART, several, size=size) for size in sizes]
        gradients.append(parts[0])
        return parts[1]
    return b.add(kind, *inputs, size=draw(GRADIENT_SIZES), ns=draw(TIMES), is_fixed=is_fixed)


def _without_dead_code(b: Builder, outputs: list[int], returned: list[int], is_fusing: bool) -> Program:
    alive = b._ancestors([*outputs, *returned])
    alive |= {v for v, row in enumerate(b.rows) if row["kind"] is INPUT}
    number = {v: i for i, v in enumerate(sorted(alive))}
    clean = replace(b, rows=[])
    for v in sorted(alive):
        clean.rows.append({**b.rows[v], "inputs": tuple(number[u] for u in b.rows[v]["inputs"])})
    return clean.finish([number[v] for v in outputs], [number[v] for v in returned], is_fusing=is_fusing)


def decisions(program: Program) -> st.SearchStrategy[Decision]:
    """Plans that keep any values besides those that must be."""
    everything = range(len(program))
    candidates = [v for v in everything if program.in_forward[v] and program.may_keep[v]]
    kept = st.sets(st.sampled_from(candidates)) if candidates else st.just(set[int]())
    return kept.map(lambda chosen: order_backward(program, {*chosen, *must_keep(program, everything)}))


def trampled(x: Tensor) -> Tensor:
    """In place on a copy: functionalization turns it into plain ops."""
    x = x.clone()
    x.add_(1)
    x[0].mul_(0.5)
    return x


def joined(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x[:2], y[2:]])


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda x: (x * 0.1).exp(),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "square": lambda x: x * x * 0.1,
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (N,)),
    "row_mean": lambda x: x - x.mean(-1, keepdim=True),
    "total": lambda x: x * x.sum() * 0.01,
    "highest": lambda x: x + x.max(-1, keepdim=True).values,
    "transpose": lambda x: x.t(),
    "reshape": lambda x: x.reshape(-1)[: N * N].view(N, N),
    "halves": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "expand": lambda x: x[:1].expand(N, N),
    "in_place": trampled,
    "frozen": lambda x: x.detach() * x,
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": lambda x, y: x @ y * 0.3,
    "add": torch.add,
    "mul": torch.mul,
    "where": lambda x, y: torch.where(x > y, x, y * 0.5),
    "joined": joined,
}
N = 6


@dataclass(frozen=True)
class TorchProgram:
    """Ops (name, first operand, second operand) over a growing list of N x N values; `outputs` index that list.

    Operands count backwards from the newest value. Values 0..2 are the arguments; all need gradients.
    """

    ops: tuple[tuple[str, int, int], ...]
    outputs: tuple[int, ...]

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        values = list(arguments)
        for name, first, second in self.ops:
            x, y = values[-1 - first % len(values)], values[-1 - second % len(values)]
            values.append(UNARY[name](x) if name in UNARY else BINARY[name](x, y))
        return tuple(values[-1 - o] for o in self.outputs if o < len(self.ops))

    def arguments(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(N, N, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]


_OPS = st.tuples(st.sampled_from([*BINARY, *UNARY]), st.integers(0, 5), st.integers(0, 5))


def torch_programs() -> st.SearchStrategy[TorchProgram]:
    """Small functions of three matrices: shared inputs, several outputs, unused values."""
    ops = st.lists(_OPS, min_size=1, max_size=9).map(tuple)
    outputs = st.lists(st.integers(0, 8), max_size=2).map(lambda more: (0, *more))
    return st.builds(TorchProgram, ops, outputs)
