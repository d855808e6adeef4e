"""Programs of any size without torch: blocks like a transformer's, with a backward written by differentiation.

In: how many blocks, and whether they are equal. Out: `Program`. Never measures.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rematpass.solve.program import Kind, Program

KIB = 1024
FLOPS_PER_NS = 50  # a matmul of size s takes s / FLOPS_PER_NS, anything else s / BYTES_PER_NS
BYTES_PER_NS = 10


@dataclass
class _Tape:
    """Ops in order; `gradient` of an op is what flows back into it."""

    kind: list[Kind] = field(default_factory=list)
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)
    is_backward: list[bool] = field(default_factory=list)

    def add(self, kind: Kind, *inputs: int, size: int = 0, duration: int = 0, is_backward: bool = False) -> int:
        """Append an op, return its number."""
        self.kind.append(kind)
        self.inputs.append(inputs)
        self.size.append(size)
        self.duration.append(duration)
        self.is_backward.append(is_backward)
        return len(self.kind) - 1

    def matmul(self, x: int, weight: int, size: int) -> int:
        """A product with a weight."""
        return self.add(Kind.EXTERN, x, weight, size=size, duration=size * 12 // FLOPS_PER_NS)

    def pointwise(self, *inputs: int, size: int) -> int:
        """An elementwise op."""
        return self.add(Kind.POINTWISE, *inputs, size=size, duration=size // BYTES_PER_NS)

    def statistic(self, x: int, size: int) -> int:
        """A reduction to a small tensor."""
        return self.add(Kind.REDUCTION, x, size=size // 256, duration=size // BYTES_PER_NS)


def stack_blocks(blocks: int, *, is_equal: bool = True) -> Program:
    """`blocks` attention and gated feed-forward blocks on a residual stream; unequal ones all differ in width."""
    tape = _Tape()
    weights = [[tape.add(Kind.INPUT) for _ in range(7)] for _ in range(blocks)]
    x = tape.add(Kind.INPUT)
    for i, own in enumerate(weights):
        width = 64 * KIB + (0 if is_equal else 256 * i)
        x = _block(tape, x, own, width)
    loss = tape.statistic(x, 64 * KIB)
    gradients = _differentiate(tape, loss, {w for own in weights for w in own})
    return _finish(tape, loss, gradients)


def _block(tape: _Tape, x: int, weights: list[int], width: int) -> int:
    q, k, v, o, gate, up, down = weights
    normed = tape.pointwise(x, tape.statistic(x, width), size=width)
    heads = [tape.add(Kind.VIEW, tape.matmul(normed, w, width)) for w in (q, k, v)]
    scores = tape.add(Kind.EXTERN, heads[0], heads[1], size=4 * width, duration=width)
    top = tape.add(Kind.REDUCTION, scores, size=width // 64, duration=width // 4)
    shares = tape.pointwise(scores, top, size=4 * width)
    mixed = tape.add(Kind.EXTERN, shares, heads[2], size=width, duration=width)
    x = tape.pointwise(x, tape.matmul(mixed, o, width), size=width)
    normed = tape.pointwise(x, tape.statistic(x, width), size=width)
    a, b = tape.matmul(normed, gate, 3 * width), tape.matmul(normed, up, 3 * width)
    hidden = tape.pointwise(tape.pointwise(a, size=3 * width), b, size=3 * width)
    return tape.pointwise(x, tape.matmul(hidden, down, width), size=width)


def _differentiate(tape: _Tape, loss: int, weights: set[int]) -> list[int]:
    """Write the backward: per op and input one op that reads the gradient and the other inputs; sums are pointwise."""
    flowing: dict[int, int] = {loss: tape.add(Kind.INPUT, size=4, is_backward=True)}
    found: list[int] = []
    for v in range(loss, -1, -1):
        gradient = flowing.pop(v, None)
        if gradient is None or tape.kind[v] is Kind.INPUT:
            continue
        for u in tape.inputs[v]:
            made = _pull_back(tape, v, u, gradient, is_weight=u in weights)
            if u in weights:
                found.append(made)
            elif u in flowing:
                size = tape.size[made]
                flowing[u] = tape.add(Kind.POINTWISE, flowing[u], made, size=size, duration=1, is_backward=True)
            else:
                flowing[u] = made
    return found


def _pull_back(tape: _Tape, v: int, u: int, gradient: int, *, is_weight: bool) -> int:
    """The gradient of input `u` of op `v`."""
    others = [w for w in tape.inputs[v] if w != u]
    if tape.kind[v] is Kind.EXTERN:
        size = 48 * KIB if is_weight else max(tape.size[u], tape.size[v] // 4)
        return tape.add(Kind.EXTERN, gradient, *others, size=size, duration=tape.duration[v], is_backward=True)
    if tape.kind[v] is Kind.VIEW:
        return tape.add(Kind.VIEW, gradient, is_backward=True)
    return tape.add(Kind.POINTWISE, gradient, v, *others, size=tape.size[u], duration=1, is_backward=True)


def _finish(tape: _Tape, loss: int, gradients: list[int]) -> Program:
    count = len(tape.kind)
    root: list[int] = []
    for v, kind in enumerate(tape.kind):
        root.append(root[tape.inputs[v][0]] if kind is Kind.VIEW else v)
    is_heavy = [kind is Kind.POINTWISE and tape.size[v] >= 3 * 64 * KIB for v, kind in enumerate(tape.kind)]
    return Program(
        kind=tuple(tape.kind),
        is_fixed=(False,) * count,
        inputs=tuple(tuple(dict.fromkeys(reads)) for reads in tape.inputs),
        root=tuple(root),
        size_bytes=tuple(tape.size),
        duration_ns=tuple(tape.duration),
        workspace_bytes=(0,) * count,
        is_backward=tuple(tape.is_backward),
        in_forward=tuple(not b for b in tape.is_backward),
        may_recompute=(True,) * count,
        may_keep=tuple(kind is not Kind.VIEW for kind in tape.kind),
        is_heavy=tuple(is_heavy),
        is_drawn=(False,) * count,
        forward_outputs=(loss,),
        backward_outputs=tuple(gradients),
        static_bytes=48 * KIB * sum(kind is Kind.INPUT for kind in tape.kind),
        is_fusing=True,
    )
