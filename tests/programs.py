"""Torch-free programs written by hand: a builder, and the shapes that tests use again and again."""

from __future__ import annotations

from dataclasses import dataclass, field

from rematpass.solve.liveness import simulate
from rematpass.solve.order import order_backward
from rematpass.solve.program import STRAIGHT, TURN_KINDS, Addend, Kind, Program, Way, through

INPUT, SYMBOL, VIEW, PART = Kind.INPUT, Kind.SYMBOL, Kind.VIEW, Kind.PART
POINTWISE, REDUCTION, EXTERN = Kind.POINTWISE, Kind.REDUCTION, Kind.EXTERN


@dataclass
class Builder:
    """Appends ops; `finish` works out sides and roots as the front end does."""

    static_bytes: int = 0
    is_broadcast_shared: bool = False
    is_unmerged: bool = False  # loops before fusion
    rows: list[dict] = field(default_factory=list)
    cuts: dict[int, int] = field(default_factory=dict)

    def add(self, kind: Kind, *inputs: int, size: int = 0, ns: int = 0, **flags) -> int:
        self.rows.append({"kind": kind, "inputs": inputs, "size": size, "ns": ns, **flags})
        return len(self.rows) - 1

    def given(self, size: int = 0) -> int:
        self.static_bytes += size
        return self.add(INPUT)

    def tangent(self, size: int) -> int:
        return self.add(INPUT, size=size, is_backward=True)

    def view(self, base: int, access: int = 0, cut: int = -1) -> int:
        """As the front end counts: a view that regroups addresses as its base does, another in a way of its own."""
        access = len(self.rows) + access if access else self.rows[base].get("access", 0)
        self.cuts.setdefault(access // TURN_KINDS, cut)
        return self.add(VIEW, base, may_keep=False, access=access)

    def finish(self, forward_outputs: list[int], backward_outputs: list[int], *, is_fusing: bool = False) -> Program:
        rows = self.rows
        root: list[int] = []
        backward: list[bool] = []
        for v, row in enumerate(rows):
            root.append(root[row["inputs"][0]] if row["kind"] is VIEW else v)
            backward.append(row.get("is_backward", False) or any(backward[u] for u in row["inputs"]))
        pinned = [v for v, row in enumerate(rows) if not row.get("may_recompute", True) and not backward[v]]
        ahead = [v for v, row in enumerate(rows) if row.get("is_ahead")]
        in_forward = self._ancestors([*forward_outputs, *pinned, *ahead])
        for v, row in enumerate(rows):  # an op of the forward makes all its parts there
            if row["kind"] is PART and row["inputs"][0] in in_forward:
                in_forward.add(v)
        places = {STRAIGHT: 0}
        return Program(
            kind=tuple(row["kind"] for row in rows),
            inputs=tuple(row["inputs"] for row in rows),
            root=tuple(root),
            size_bytes=tuple(row["size"] for row in rows),
            duration_ns=tuple(row["ns"] for row in rows),
            workspace_bytes=tuple(row.get("workspace", 0) for row in rows),
            is_backward=tuple(backward),
            in_forward=tuple(v in in_forward for v in range(len(rows))),
            may_recompute=tuple(row.get("may_recompute", True) for row in rows),
            may_keep=tuple(row.get("may_keep", True) for row in rows),
            is_fixed=tuple(row.get("is_fixed", False) for row in rows),
            is_heavy=tuple(row.get("is_heavy", False) for row in rows),
            is_drawn=tuple(row.get("is_drawn", False) for row in rows),
            is_scattered=tuple(row.get("is_scattered", False) for row in rows),
            is_joined=tuple(row.get("is_joined", False) for row in rows),
            reads_often=tuple(row.get("reads_often", False) for row in rows),
            forward_outputs=tuple(forward_outputs),
            backward_outputs=tuple(backward_outputs),
            static_bytes=self.static_bytes,
            is_fusing=is_fusing,
            access=tuple(tuple(places.setdefault(way, len(places)) for way in row) for row in self._ways()),
            cuts=tuple(self.cuts.get(place, -1) for place in range(len(rows))),
            broadcasts=tuple((row.get("broadcasts", False),) * len(row["inputs"]) for row in rows),
            is_broadcast_shared=self.is_broadcast_shared,
            ways=tuple(places),
            elements=tuple(row.get("elements", row["size"]) for row in rows),
            loops=tuple(row.get("loops", 0) for row in rows) if self.is_unmerged else (),
            operations=tuple(row.get("operations", 1) for row in rows),
            constants=tuple(row.get("constants", ()) for row in rows),
            addend=tuple(row.get("addend", Addend.BY_OP) for row in rows),
            is_ahead=tuple(v in ahead for v in range(len(rows))) if ahead else (),
        )

    def _ways(self) -> list[list[Way]]:
        """How each op addresses its inputs: as they show their storage, all of them `times` over.

        One that `puts` a turn back writes what it reads into a part.
        """
        return [[self._way(u, row) for u in row["inputs"]] for row in self.rows]

    def _way(self, u: int, row: dict) -> Way:
        shown, back = self.rows[u].get("access"), row.get("puts")
        return through(((shown,) if shown else (), 1), ((~back,) if back else (), row.get("times", 1)))

    def _ancestors(self, values: list[int]) -> set[int]:
        found: set[int] = set()
        stack = list(values)
        while stack:
            v = stack.pop()
            if v not in found:
                found.add(v)
                stack += self.rows[v]["inputs"]
        return found


@dataclass(frozen=True)
class Layer:
    """Narrow stream `narrow` bytes, `wide` bytes inside, and what computing both takes."""

    narrow: int = 100
    wide: int = 1000
    narrow_ns: int = 10
    wide_ns: int = 20


def forward_bytes(b: Builder, outputs: list[int], *, is_fusing: bool = True) -> list[int]:
    """Live bytes along the forward of a program whose backward reads nothing of it."""
    g = b.add(POINTWISE, b.tangent(4), size=4)
    program = b.finish(outputs, [g], is_fusing=is_fusing)
    return list(simulate(program, order_backward(program, ()).schedule).forward_bytes)


def layered(layers: list[Layer], *, is_residual: bool = False, is_fusing: bool = False, gradient: int = 8) -> Program:
    """Layers x -> wide -> heavy pointwise -> x', each with a weight; the backward mirrors them one op each."""
    b = Builder()
    x = b.given(100)
    weights = [(b.given(gradient), b.given(gradient)) for _ in layers]
    made = []
    for layer, (w, u) in zip(layers, weights, strict=True):
        h = b.add(EXTERN, x, w, size=layer.wide, ns=layer.wide_ns)
        p = b.add(POINTWISE, h, size=layer.wide, ns=layer.narrow_ns, is_heavy=True)
        y = b.add(EXTERN, p, u, size=layer.narrow, ns=layer.narrow_ns)
        if is_residual:
            y = b.add(POINTWISE, x, y, size=layer.narrow, ns=1)
        made.append((x, h, p, w, u))
        x = y
    loss = b.add(REDUCTION, x, size=8, ns=1)
    g = b.add(POINTWISE, b.tangent(8), x, size=layers[-1].narrow, ns=1)
    gradients = []
    for layer, (x_in, h, p, w, u) in reversed(list(zip(layers, made, strict=True))):
        gradients.append(b.add(EXTERN, g, p, size=gradient, ns=5))
        gp = b.add(EXTERN, g, u, size=layer.wide, ns=5)
        gh = b.add(POINTWISE, gp, h, p, size=layer.wide, ns=5)
        gradients.append(b.add(EXTERN, gh, x_in, size=gradient, ns=5))
        down = b.add(EXTERN, gh, w, size=layer.narrow, ns=5)
        g = b.add(POINTWISE, g, down, size=layer.narrow, ns=1) if is_residual else down
    return b.finish([loss], [*gradients, g], is_fusing=is_fusing)


def densely_joined(blocks: int, layers: int, size: int = 1000) -> Program:
    """As a DenseNet: within a block each layer reads what all before it made, joined and normed; nothing is narrow."""
    b = Builder()
    x = b.add(EXTERN, b.given(8), size=size, ns=50)
    made = []  # what a layer reads, the two wide values inside it, what it makes; a block ends without wide values
    for _ in range(blocks):
        read = [x]
        for _ in range(layers):
            joined = b.add(EXTERN, *read, size=size * len(read), ns=5 * len(read))
            normed = b.add(EXTERN, joined, size=size * len(read), ns=5 * len(read))
            x = b.add(EXTERN, normed, size=size, ns=40)
            made.append((tuple(read), (joined, normed), x))
            read.append(x)
        x = b.add(EXTERN, *read, size=size, ns=20)
        made.append((tuple(read), (), x))
    loss = b.add(EXTERN, x, size=8, ns=1)
    of = {x: b.add(EXTERN, b.tangent(8), x, size=size)}  # gradients so far
    weights = []
    for read_by, wide, y in reversed(made):
        g = of.pop(y)
        weights += [b.add(EXTERN, g, v, size=8) for v in wide[1:]]
        g = b.add(EXTERN, g, *wide[:1], size=size * len(read_by))
        for v in read_by:
            of[v] = b.add(EXTERN, g, *([of[v]] if v in of else []), size=size)
    return b.finish([loss], weights)
