"""How a generated kernel addresses what it reads: two loads of one storage are one only where they do so alike.

In: the nodes of a joint graph, in order. Out: per input of a node a number, and what the numbers stand for
(`solve.program.Way`). Never counts bytes.

Inductor (2.11 to 2.15) counts loads by their index expressions (`Pointwise.inner_fn_opcount`, `ReadWrites.reads`), and
writes over what it read only where both are indexed alike (`SchedulerNode.can_inplace`).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Hashable, Sequence

import torch
from torch import fx

from ..solve.program import CLOSED_UP, STRAIGHT, TURN_KINDS, Kind, Way, through
from .op_traits import base_name, is_scattered, kind_of, part_of, tensor_at
from .sizes import concrete
from .words import words

# Views that show the same elements in the same order.
_REGROUPING = words("alias detach expand lift_fresh reshape squeeze unsqueeze view _unsafe_view view_as_real")
# What reads its first operand in another order than it writes.
_MOVING = words(
    "avg_pool2d_backward avg_pool3d_backward embedding flip gather glu index index_select inductor_force_stride_order",
    "pixel_shuffle reflection_pad2d repeat replication_pad2d rev roll select_backward slice_backward",
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _unsafe_index _unsafe_masked_index",
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d",
)
# What puts its second operand into a part of the first.
_PLACING = words("select_scatter slice_scatter")
# What has elements of another shape than its operand.
PICKING = _MOVING | _PLACING
_SPLITTING = words("split split_with_sizes")
_SLICING = words("slice slice_scatter")


class Addressing:
    """Numbers for ways of reading, node by node.

    Args:
        images: nodes whose results are laid out channels last.
    """

    def __init__(self, images: Collection[fx.Node] = ()) -> None:
        self._images = images
        self._turns: dict[fx.Node, tuple[int, ...]] = {}
        self._repeats: dict[fx.Node, int] = {}  # of views that show elements more than once
        self._apart: dict[fx.Node, frozenset[int]] = {}  # how many slices lie apart in what is made of such, or in one
        self._known: dict[Hashable, tuple[int | None, ...]] = {}
        self._names: dict[str, int] = {}
        self._cuts: list[int] = []
        self._places: dict[Way, int] = {STRAIGHT: 0}

    @property
    def ways(self) -> tuple[Way, ...]:
        """What the numbers given so far stand for, in order."""
        return tuple(self._places)

    @property
    def cuts(self) -> tuple[int, ...]:
        """Per way of picking, how many elements of the part lie together (`Program.cuts`)."""
        return tuple(self._cuts)

    def note(
        self, node: fx.Node, kind: Kind, operands: Sequence[fx.Node], key: Hashable | None = None
    ) -> tuple[int, ...]:
        """How `node` addresses each of its operands, all of which were noted before.

        `key` is equal for nodes that are alike (`alike.Alike`), None for one that is like no other.
        """
        is_view = kind is Kind.VIEW and bool(operands)
        self._turns[node] = self._shown(node, operands[0]) if is_view else ()
        self._repeats[node] = self._repeated(node, operands[0]) if is_view else 1
        self._apart[node] = self._still_apart(node, kind, operands)
        if kind is not Kind.POINTWISE:  # who reads from memory, or writes nothing, is not asked
            return (0,) * len(operands)
        times = self._known.get(key) if key is not None else None
        if times is None:
            times = self._known[key or node] = _times_read(node, operands)
        ways = [self._way(node, *pair) for pair in zip(operands, times, strict=True)]
        in_rows = [*map(self._lies_in_rows, operands)] if self._images else []
        if any(in_rows):  # so does the result, then: what lies as an image is read askew
            is_turned = [u in self._images and not of_rows for u, of_rows in zip(operands, in_rows, strict=True)]
            ways = [self._in_rows(way) if turned else way for way, turned in zip(ways, is_turned, strict=True)]
        return tuple([self._places.setdefault(way, len(self._places)) for way in ways])

    def _lies_in_rows(self, node: fx.Node) -> bool:
        """Whether this is an image, but a view of sums that were scattered into rows: gradients of a pooling are."""
        base = node.args[0] if kind_of(node) is Kind.VIEW and node in self._images else None
        return isinstance(base, fx.Node) and base not in self._images and is_scattered(base)

    def _in_rows(self, way: Way) -> Way:
        return (*way[0], self._number("an image in rows")), way[1]

    def _shown(self, view: fx.Node, base: fx.Node) -> tuple[int, ...]:
        """What a view picks of its storage, and in which order; views of equal arguments do so equally."""
        turns = self._turns[base]
        if base_name(view.target) not in _REGROUPING or (base in self._images and not _leaves_channels(base, view)):
            return (*turns, self._picked(view))
        # A reader finds where it is in slices that follow each other by division. So it does if its shape has them
        # apart again: that they are then put back as they were picked nobody knows.
        if self._apart[base].issubset(_outer_sizes(view)):
            return turns
        closed_up = self._number(f"{_shape(base)} as {_shape(view)}", CLOSED_UP)
        return through((turns, 1), ((closed_up,), 1))[0] if turns else (closed_up,)

    def _still_apart(self, node: fx.Node, kind: Kind, operands: Sequence[fx.Node]) -> frozenset[int]:
        """Outside of which dimensions slices lie, each size of those once: of the outermost, 1."""
        is_slice = base_name(node.target) == "slice"
        if kind is Kind.VIEW:
            made_of = operands if is_slice or base_name(node.target) in _REGROUPING else ()
        else:
            made_of = [u for u in operands if kind is Kind.POINTWISE and _shape(u) == _shape(node)]
        own = {math.prod(_shape(node)[: part_of(node)[0]])} if is_slice and _is_static(node) else ()
        return frozenset(own).union(*(self._apart[u] for u in made_of)).intersection(_outer_sizes(node))

    def _repeated(self, view: fx.Node, base: fx.Node) -> int:
        own = _times_repeated(_shape(base), _shape(view), 0) if base_name(view.target) == "expand" else 1
        return self._repeats[base] * (1 if own is None else own)

    def _way(self, node: fx.Node, operand: fx.Node, times: int | None) -> Way:
        turns = self._turns[operand]
        if times is None and base_name(node.target) in _PLACING:
            return through((turns, 1), ((~self._picked(node),), 1))
        if times is None:
            return (*turns, self._number(node.name)), 1
        return turns, times * self._repeats[operand]

    def _picked(self, node: fx.Node) -> int:
        """The number of what a view shows of its base, or of what would show what is put into a part."""
        name, is_dense = _shown_by(node)
        cut = _cut_of(node)
        return self._number(f"{name} of {cut}", 0 if is_dense else 1, cut)

    def _number(self, name: str, turn_kind: int = 1, cut: int = -1) -> int:
        if name not in self._names:
            self._names[name] = TURN_KINDS * len(self._names) + turn_kind
            self._cuts.append(cut)
        return self._names[name]


def _shown_by(node: fx.Node) -> tuple[str, bool]:
    """What a view shows, or what would show what is put into a part; and whether that is a slice without holes."""
    name = base_name(node.target)
    if name in _SLICING and _is_static(node):
        part = part_of(node)
        return f"slice{part}", part[-1] == 1
    behind = 2 if name in _PLACING else 1
    own = ", ".join(str(argument) for argument in (*node.args[behind:], *node.kwargs.items()))
    return f"{name.removesuffix('_scatter')}({own})", False


def _cut_of(node: fx.Node) -> int:
    """How many elements of the part that `_shown_by` names lie together in the whole; -1: they lie otherwise."""
    name = base_name(node.target)
    if name in _SPLITTING:
        return 0  # all of them, its views are the parts
    whole = node.all_input_nodes[0]
    if base_name(whole.target) in _SPLITTING:
        whole = whole.all_input_nodes[0]
    elif name not in _SLICING or not _is_static(node) or part_of(node)[-1] != 1:
        return -1
    shape = _shape(node.all_input_nodes[1] if name in _PLACING else node)
    sizes = _shape(whole)
    cut = [axis for axis, size in enumerate(shape) if len(shape) == len(sizes) and size != sizes[axis]]
    if len(cut) != 1:
        return -1
    return math.prod(shape[cut[0] :]) if math.prod(shape[: cut[0]]) > 1 else 0


def _outer_sizes(node: fx.Node) -> frozenset[int]:
    """How many places there are in the outer dimensions: in none, the first, the first two, and so on."""
    return frozenset(itertools.accumulate(_shape(node), operator.mul, initial=1))


def _is_static(node: fx.Node) -> bool:
    """Whether no size of what is read or written, and none of what picks of it, is symbolic."""
    shapes = [n.meta["val"].shape for n in node.all_input_nodes if isinstance(n.meta["val"], torch.Tensor)]
    return len(shapes) == len(node.all_input_nodes) and all(isinstance(n, int) for shape in shapes for n in shape)


def _leaves_channels(image: fx.Node, view: fx.Node) -> bool:
    """Whether what is next to each other in an image is so in a view: its batch stays, channels are at most split."""
    shape, into = _shape(image), _shape(view)
    if [size for size in shape if size > 1] == [size for size in into if size > 1]:
        return True
    split = itertools.accumulate(into[1:], operator.mul)
    return into[:1] == shape[:1] and (shape[1] == 1 or shape[1] in split)


def _shape(node: fx.Node) -> list[int]:
    tensor = node.meta.get("val")
    return [concrete(size) for size in tensor.shape] if isinstance(tensor, torch.Tensor) else []


def _times_read(node: fx.Node, operands: Sequence[fx.Node]) -> tuple[int | None, ...]:
    """Per operand, how often `node` goes through all of it; None where it does not follow its elements."""
    name, into = base_name(node.target), _shape(node)
    moved = node.args[:1] if name in _MOVING else node.args[1:2] if name in _PLACING else ()
    return tuple(
        None if operand in moved else _times_repeated(_shape(operand), into, _dimensions_behind(node, operand))
        for operand in operands
    )


def _times_repeated(operand: Sequence[int], into: Sequence[int], behind: int) -> int | None:
    """How often a reader of shape `into` goes through all of its operand; None where it does not follow its elements.

    Elements repeated on the spot, as a mean is in its row, do not count: a mean read once per row and again once per
    element of the row is one load. A single element that many read is gone through not at all: 0.
    """
    shape = [*operand, *[1] * behind]
    shape = [1] * (len(into) - len(shape)) + shape
    if len(shape) != len(into) or any(a not in (1, b) for a, b in zip(shape, into, strict=True)):
        return None
    inner = 1
    for a, b in zip(reversed(shape), reversed(into), strict=True):
        if a > 1 and all(shape):  # what is empty is never gone through
            return math.prod(into) // (math.prod(shape) * inner)
        inner *= b
    is_single = all(size == 1 for size in shape)
    return 0 if is_single and any(size != 1 for size in into) else 1


def _dimensions_behind(node: fx.Node, operand: fx.Node) -> int:
    """Dimensions of what is written that lie behind those of an index."""
    name, values = base_name(node.target), tensor_at(node, 0)
    if values is None or operand is node.args[0]:
        return 0
    if name == "embedding":
        return values.ndim - 1
    if name == "index_select":
        return values.ndim - 1 - int(str(node.args[1])) % values.ndim
    if name not in ("index", "_unsafe_index", "_unsafe_masked_index"):
        return 0
    lists = [argument for argument in node.args if isinstance(argument, (list, tuple))]
    used = [i for i, index in enumerate(lists[0]) if index is not None]
    is_together = used[-1] - used[0] < len(used)
    return values.ndim - 1 - used[-1] if is_together else values.ndim - len(used)
