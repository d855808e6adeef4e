"""How Inductor is to lay out what the plan stores where images are channels last.

In: a half as Inductor lowers it, its tensors' strides known. Out: the same half, other strides noted, gray images shown
as such. Never changes what is computed.

Inductor (2.11 to 2.15) lays out images channels last, but what is stored lies as the strides say that were traced
without that. A layer whose channels are last in the shape was stored in the order of its images' channels, which its
kernel does not read in: it could not take over their place, and the layers after it read it turned.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx

from .. import torch_compat
from ..graph.layouts import convolved, is_of_images, lies_channels_last, regroups_batch
from ..graph.op_traits import base_name, is_pointwise, is_reshape, kind_of
from ..graph.pooling import is_gradient_by_torch, windows_per_element
from ..graph.sizes import concrete
from ..graph.words import words
from ..solve.program import Kind
from ..torch_compat import OpOverload

aten = torch.ops.aten
Changed = dict[fx.Node, Any]
CHANNELS = 1  # a dimension of an image
# What picks elements by indices, and is computed inside its readers.
_PICKING = words("index _unsafe_index _unsafe_masked_index")
# What goes through all it reads in one loop.
_LOOPS = (Kind.POINTWISE, Kind.REDUCTION)
# Views that take an image of one channel to itself. Unlike `as_strided` they name no size, which may be symbolic.
GRAY_AS_CHANNELS_LAST = (
    (aten.squeeze.dim, CHANNELS),
    (aten.unsqueeze.default, -1),
    (aten.permute.default, [0, 3, 1, 2]),
)


def plan_layout(forward: fx.GraphModule, *, is_relaid: bool) -> None:
    """Note whether images are channels last in the plan.

    On a GPU Inductor counts the nodes of the forward that it is handed (`GraphLowering.decide_layout_opt`, 2.11 to
    2.15), which may be few enough for that in one plan of a graph and too many in another: an image copied for the
    backward was 2 % of the smallest peak of an MLP-Mixer (2026-11).
    """
    forward.graph.output_node().meta[torch_compat.IMAGES_LAST] = is_relaid


def lay_out_images(graph: fx.Graph) -> None:
    """Note strides, turn gradients of poolings, then show gray images as such, and copy images of the batch once."""
    _note_strides(graph)
    _turn_gradients(graph)
    _show_gray(graph)
    _copy_once(graph)


def _note_strides(graph: fx.Graph) -> None:
    """Note strides that follow from images which lie channels last, and from what is stored for convolutions as such.

    A gradient that comes out of an operator without channels last, such as that of `grid_sample`, was copied for the
    convolution's gradient: a small network took 18 % more than planned (2026-11, torch 2.13). So was one that lies as
    turned rows for convolutions along a sequence, which read them in rows: attention beside such took 5 % more. What is
    generated for a convolution need not be marked: what a U-Net concatenates was stored in rows where a convolution and
    a gradient read it, then copied for each.
    """
    changed: Changed = {}
    leading = _leading_to_images(graph)
    for node in graph.nodes:
        value = _laid_out(node, changed)
        is_stored_here = bool(node.meta.get(torch_compat.STORE_HERE))
        is_generated = is_stored_here or is_pointwise(node)
        is_image = any(node in _images_read(user) or _wants_image(user, node, changed) for user in node.users)
        is_turned = is_stored_here and node in leading and is_static(node) and _is_free(node, value, changed)
        if (is_generated and is_image) or is_turned:
            value = value.contiguous(memory_format=torch.channels_last)
        elif is_stored_here:
            if any(node in _rows_read(user) for user in node.users):
                value = value.contiguous() if is_static(node) else value
            elif isinstance(value, Tensor) and is_static(node):
                value = _as_read(node, value)
        if value is not node.meta.get("val"):
            changed[node] = value
    for node, value in changed.items():
        if not _is_expanded(value):
            node.meta["val"] = value
        if node.target == torch_compat.order_strides():
            node.update_arg(1, [*value.stride()])


def _leading_to_images(graph: fx.Graph) -> set[fx.Node]:
    """What is computed element by element on the way to what a convolution reads, and summed at most besides."""
    leading: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        is_read = any(node in _images_read(user) for user in node.users)
        is_on_the_way = not leading.isdisjoint(node.users) and all(kind_of(u) in _LOOPS for u in node.users)
        if is_pointwise(node) and (is_read or is_on_the_way):
            leading.add(node)
    return leading


def _is_free(node: fx.Node, value: Any, changed: Changed) -> bool:
    """Whether a result is an image, in rows by its strides, of no other that its kernel has to go through in rows.

    What indices pick has no order, nor has what is smaller. Traced in rows, such an image cannot be written over by
    what it is added to: layers that look at parts of images (`grid_sample`, four corners each) took 2 % more than
    planned, a graph of points whose neighbours are compared with the largest of them 18 % (2026-11, torch 2.13).
    """
    if not isinstance(value, Tensor) or value.ndim != torch_compat.IMAGE_RANK or not value.is_contiguous():
        return False
    todo = [node]
    while todo:
        for source in todo.pop().all_input_nodes:
            read: Any = changed.get(source, source.meta.get("val"))
            if not isinstance(read, Tensor) or read.shape != value.shape or base_name(source.target) in _PICKING:
                continue
            if is_pointwise(source) and not source.meta.get(torch_compat.STORE_HERE):
                todo.append(source)
            elif not lies_channels_last(read):
                return False
    return True


def _turn_gradients(graph: fx.Graph) -> None:
    """Lay out as an image what the gradient of a pooling of one is handed in rows, as behind a linear layer.

    torch's kernel for means copies all that it returns where that lies otherwise than the gradient (`contiguous` in
    `AdaptiveAvgPoolKernel.cpp` and `AvgPoolKernel.cpp`), which is as large as the image that was pooled: behind a
    convolution that took 45 % more than planned (2026-11, torch 2.13).
    """
    for node in [*graph.nodes]:
        gradient = node.args[0] if node.args else None
        if not isinstance(gradient, fx.Node) or not _wants_image(node, gradient, {}):
            continue
        value = gradient.meta["val"].contiguous(memory_format=torch.channels_last)
        if value is not gradient.meta["val"]:
            with graph.inserting_before(node):
                turned = graph.call_function(torch_compat.order_strides(), (gradient, [*value.stride()]))
            turned.meta["val"] = value
            node.update_arg(0, turned)


def _wants_image(node: fx.Node, source: fx.Node, changed: Changed) -> bool:
    """Whether a node is the gradient of a pooling that torch computes, `source` what it is handed, the image one."""
    if not is_gradient_by_torch(node) or source is not node.args[0] or not is_static(node):
        return False
    image = cast("fx.Node", node.args[1])
    value = changed.get(image, image.meta["val"])
    return value.ndim == torch_compat.IMAGE_RANK and lies_channels_last(value)


def _show_gray(graph: fx.Graph) -> None:
    """Show images of one channel with strides by which convolutions know them as channels last.

    Such lie the same way whether the channel is first or last. By the strides that Inductor (2.11-2.15) hands over to
    gradients and to what is computed again, and those of a weight with one channel, torch takes the first: it copies
    the gradient and its own result, and oneDNN pads the channel to a block (`mkldnn_conv_use_channels_last` in
    `ConvUtils.h`). A network for digits took 62 % more than planned, one that looks at parts of a gray image 2.5 times
    as much (2026-11, torch 2.13).
    """
    for node in [*graph.nodes]:
        read = convolved(node) if is_of_images(node) else ()
        if not read or concrete(read[-1].meta["val"].shape[CHANNELS]) != 1:
            continue
        with graph.inserting_before(node):
            shown = read[-1]
            for view, *arguments in GRAY_AS_CHANNELS_LAST:
                value = view(shown.meta["val"], *arguments)
                shown = graph.call_function(view, (shown, *arguments))
                shown.meta["val"] = value
            node.update_arg(len(read) - 1, shown)


def _copy_once(graph: fx.Graph) -> None:
    """Copy an image that lies in rows for all that read it as channels last, a convolution and gradients of some.

    Inductor (2.11-2.15) copies what a convolution is given, and keeps the copy. Where a gradient reads the image, too,
    it makes a second one in rows for that and keeps it instead (`need_fixed_layout` in `GraphLowering.run_node`), which
    torch's gradient copies a third time: a critic whose gradient by its images is part of its loss took 7 % more than
    its smallest plan (2026-11, torch 2.13).
    """
    given = graph.find_nodes(op="placeholder")
    for image in given:
        readers = [user for user in image.users if image in _images_read(user)]
        if len({reader.target for reader in readers}) < 2 or not all(map(is_static, readers)):
            continue
        value = image.meta["val"].contiguous(memory_format=torch.channels_last)
        if value is image.meta["val"]:
            continue
        with graph.inserting_after(given[-1]):
            copy = graph.call_function(torch_compat.order_strides(), (image, [*value.stride()]))
        copy.meta["val"] = value
        for reader in readers:
            reader.replace_input_with(image, copy)


def _laid_out(node: fx.Node, changed: Changed) -> Any:
    """The result of a node with strides as its inputs have them now.

    One number that is read everywhere does not count: in half precision torch's fake tensors let it decide where it
    comes first, other than torch itself (seen in 2.13). The gradient of a mean was stored in rows, out of which an
    image that lay channels last could not be written over (11 % above a smallest plan; 2026-11).
    """
    own: Any = node.meta.get("val")
    images = _images_read(node)
    is_spread = _is_elementwise(node) and any(map(_is_expanded, _values_read(node, changed)))
    if not images and not is_spread and not _is_even(node, changed) and changed.keys().isdisjoint(node.all_input_nodes):
        return own
    if node.target is operator.getitem:
        return changed[cast("fx.Node", node.args[0])][node.args[1]]
    if not isinstance(node.target, OpOverload) or node.target._schema.is_mutable or not is_static(node):
        return own
    if own is not None and _is_even(node, changed):
        return own.new_empty(()).expand(own.shape)

    def value_of(source: fx.Node) -> Any:
        value = changed.get(source, source.meta["val"])
        if is_spread and _is_expanded(value):
            return cast("Tensor", value).new_empty((1,) * value.ndim)
        return _as_image(value) if source in images else value

    value = node.target(*fx.map_arg(node.args, value_of), **fx.map_arg(node.kwargs, value_of))
    if is_spread and value.shape != own.shape:  # what else it reads has not all dimensions either
        return own
    return _as_handed(value, value_of(cast("fx.Node", node.args[0]))) if windows_per_element(node) else value


def _as_image(value: Tensor) -> Tensor:
    """A tensor that lies channels last, with strides that say so, as a convolution will be shown it (`_show_gray`).

    What torch makes of an image of one channel lies as these strides say. Taken for rows, what a parametric ReLU made
    of the convolution of a gray image was stored in such, and could not be written over that: a network of two
    convolutions took 12 % more than its smallest plan (2026-11, torch 2.13).
    """
    image = value.contiguous(memory_format=torch.channels_last)
    if concrete(image.shape[CHANNELS]) == 1:
        for view, *arguments in GRAY_AS_CHANNELS_LAST:
            image = view(image, *arguments)
    return image


def _as_handed(value: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of a mean over windows, laid out as the gradient it is made of.

    By torch it lies as what was pooled, in whose place stands one number (`pooled`). Stored in rows behind a
    convolution, what is made of it could not take over the place of an image: a small network took 30 % more than
    planned where Inductor stores more (torch 2.11; 2026-11).
    """
    is_image = gradient.is_contiguous(memory_format=torch.channels_last)
    return value.contiguous(memory_format=torch.channels_last) if is_image else value


def _as_read(node: fx.Node, value: Tensor) -> Tensor:
    """The same with the strides in which it is read, where that saves a copy, or lets its reader write over it.

    What a clone alone reads, it lays out anew: stored as it lay, and what follows as the clone does, scores of an
    enlarged image stood beside their gradient (16 % above a plan under autocast; 2026-11, torch 2.13).
    """
    reader = next(iter(node.users)) if len(node.users) == 1 else None
    if reader is not None and base_name(reader.target) == "clone":
        shown: Tensor = reader.meta["val"]
        return shown
    for image in filter(_is_read_as_image, node.users):
        parts = image.meta["val"].contiguous(memory_format=torch.channels_last)
        whole: Tensor = parts.reshape(value.shape)
        if torch_compat.storage_key(whole) == torch_compat.storage_key(parts):
            return whole
    if not _is_copied(node, value):
        return value
    plain = value.contiguous()
    return value if _is_copied(node, plain) else plain


def _is_read_as_image(node: fx.Node) -> bool:
    """Whether a node shows in another shape what a convolution reads: pixels that were shuffled into channels.

    Stored in rows they were copied for the convolution (12 % above a plan of a network for super-resolution; 2026-11).
    Of a batch shown as channels of one image, strides that a view has are none by which oneDNN knows an image.
    """
    is_reshaped = is_reshape(node) and is_static(node) and not regroups_batch(node)
    return is_reshaped and any(node in _images_read(reader) for reader in node.users)


def _is_copied(node: fx.Node, value: Any) -> bool:
    """Whether a reader would have to copy what lies as `value` does to see it in its shape.

    Heads of an attention over images are parts of their channels: stored in the order of the images, their product
    needs both factors copied (5 % above the smallest plan of a small network; 2026-11, torch 2.13).
    """
    todo = [(node, value)]
    while todo:
        source, shown = todo.pop()
        for reader in source.users:
            view = _view_of(shown, source, reader)
            if view is None or (regroups_batch(reader) and _is_read_anew(reader)):
                continue
            if torch_compat.storage_key(view) != torch_compat.storage_key(shown):
                return True
            todo.append((reader, view))
    return False


def _is_read_anew(node: fx.Node) -> bool:
    """Whether a convolution has this laid out for itself, however it lay: a batch shown as channels of one image."""
    return any(node in _images_read(reader) for reader in node.users)


def _view_of(shown: Tensor, source: fx.Node, reader: fx.Node) -> Tensor | None:
    """What `reader` shows of `source` if that lies as `shown`; None where it is no view, or several."""
    if kind_of(reader) is not Kind.VIEW or not isinstance(reader.target, OpOverload) or not is_static(reader):
        return None

    def value_of(node: fx.Node) -> Any:
        return shown if node is source else node.meta["val"]

    target = aten.reshape.default if is_reshape(reader) else reader.target
    view = target(*fx.map_arg(reader.args, value_of), **fx.map_arg(reader.kwargs, value_of))
    return view if isinstance(view, Tensor) else None


def _is_even(node: fx.Node, changed: Changed) -> bool:
    """Whether a result is one number everywhere: its readers go through it in the order of what else they read."""
    inputs = _values_read(node, changed)
    is_alike = isinstance(node.meta.get("val"), Tensor) and is_pointwise(node)
    return is_alike and bool(inputs) and all(map(_is_expanded, inputs))


def _is_elementwise(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags


def _values_read(node: fx.Node, changed: Changed) -> list[Any]:
    return [changed.get(source, source.meta.get("val")) for source in node.all_input_nodes]


def _is_expanded(value: Any) -> bool:
    """Whether a tensor shows one number everywhere. Symbolic strides are not asked: the answer would fix them."""
    return isinstance(value, Tensor) and all(isinstance(step, int) and step == 0 for step in value.stride())


def is_static(node: fx.Node) -> bool:
    """Whether no size around a node is symbolic: with one, looking at strides could fix it for good."""
    values = (n.meta.get("val") for n in (node, *node.all_input_nodes))
    tensors = (value for value in values if isinstance(value, Tensor))
    return all(isinstance(size, int) for t in tensors for size in (*t.shape, *t.stride()))


def _images_read(node: fx.Node) -> Sequence[fx.Node]:
    """What a convolution of images reads as such: its input; of its gradient what it is handed and that input."""
    return convolved(node) if is_of_images(node) else ()


def _rows_read(node: fx.Node) -> Sequence[fx.Node]:
    """The same of a convolution of anything else."""
    return () if is_of_images(node) else convolved(node)
