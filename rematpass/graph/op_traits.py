"""What an operator is like, read from its schema, tags and arguments.

In: one FX node. Out: its `Kind`, its name, its inner graphs.
Never looks at the rest of the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import cache, reduce
from typing import cast

import torch
from torch import fx

from ..declared import BUILTIN_NAMESPACES
from ..solve.program import Addend, Kind
from ..torch_compat import OpOverload, adds_half_bias_in_matmul, unrolled_below
from .pooling import is_mean, windows_per_element
from .sizes import concrete
from .words import words

# Operators that Inductor computes inside their readers though torch does not tag them pointwise (lowering.py, 2.13).
_POINTWISE = words(
    "arange cat clone constant_pad_nd convert_element_type copy embedding eye",
    "fill flip full full_like gather glu index index_select inductor_force_stride_order inductor_lookup_seed",
    "inductor_random inductor_randint iota lift_fresh_copy masked_fill new_full new_ones",
    "new_zeros ones ones_like",
    "repeat rev roll scalar_tensor select_backward select_scatter slice_backward slice_scatter _to_copy tril triu",
    "_unsafe_index _unsafe_masked_index upsample_nearest1d upsample_nearest2d upsample_nearest3d zeros zeros_like",
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d reflection_pad2d replication_pad2d",
    "pixel_shuffle fmod remainder _low_memory_max_pool_offsets_to_indices",
)
# Reductions of torch versions that lack the tag, and scatters: inputs may be fused, the result is stored. As that of
# `bernoulli.p`, which draws into a copy of its input, and as memory that is asked for as it is, which circular padding
# starts from: the smallest plan of a network for super-resolution took 4 % more (lowering.py, 2.11 to 2.15).
_REDUCTION = words(
    "all amax amin any argmax argmin bernoulli cumprod cumsum embedding_dense_backward empty empty_like",
    "empty_permuted empty_strided new_empty new_empty_strided",
    "index_put logcumsumexp max_pool2d_with_indices_backward _low_memory_max_pool_with_offsets",
    "mean min max norm prod scatter scatter_add scatter_reduce std sum var var_mean _unsafe_index_put",
    "_unsafe_masked_index_put_accumulate _softmax _log_softmax _adaptive_avg_pool2d",
)
# Those of them that Inductor writes out where they are few (`Reduction.create`, 2.11 to 2.15).
_UNROLLED = words("all amax amin any argmax argmin max mean min prod sum")
_RESHAPING = words("reshape view _unsafe_view")
HALVES = (torch.float16, torch.bfloat16)
# What Inductor takes for expensive on a CPU (`StorageBox.should_realize_on_reuse`, 2.13).
_HEAVY = words("exp sigmoid tanh log log10 log1p log2")
_DRAWN = words("inductor_random")
_SCATTERED = words(
    "bernoulli embedding_dense_backward index_put scatter scatter_add scatter_reduce",
    "_unsafe_index_put _unsafe_masked_index_put_accumulate",
)
_OFTEN = words(
    "avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d adaptive_avg_pool2d",
    "adaptive_max_pool2d fractional_max_pool2d fractional_max_pool3d _low_memory_max_pool_with_offsets",
    "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices upsample_nearest2d",
    "upsample_nearest2d_backward",
)
# What only fills, copies or looks up: nothing is computed.
_NO_STEPS = words(
    "clone embedding empty empty_like empty_strided fill full full_like index inductor_force_stride_order",
    "lift_fresh_copy new_empty new_empty_strided",
    "new_full new_ones new_zeros ones ones_like repeat scalar_tensor zeros zeros_like _unsafe_index",
)
# What constants begin with that say where an element lies.
_INDEX = "index"
# What asks of every element whether it lies in a part: one or two comparisons of its place, a choice.
_PLACED = words("select_backward select_scatter slice_backward slice_scatter")
# What asks in which window an element lies: 24 and 33 steps, loads and constants counted, in torch 2.13.
_STEPS = dict.fromkeys(_PLACED, 2) | {
    "avg_pool2d_backward": 23,
    "avg_pool3d_backward": 32,
    "slice_backward": 4,
}
_COMPARISONS = words("eq ge gt le lt ne")
# What converts by itself, or answers a question about its operand.
_CASTS = words("copy convert_element_type _to_copy isinf isnan logical_not signbit")
# Numbers among the arguments of these are sizes, axes or exponents that are multiplied out.
_NO_CONSTANTS = words("arange cat constant_pad_nd embedding eye gather index iota pow roll repeat _unsafe_index")


@cache
def base_name(target: object) -> str:
    """`aten.mm.default` -> `mm`; higher-order operators and functions give their own name."""
    if isinstance(target, OpOverload):
        return str(target.overloadpacket.__name__)
    return str(getattr(target, "__name__", target))


@cache
def is_builtin(target: OpOverload) -> bool:
    """Whether schema and tags describe the operator truthfully: torch's own do, a custom one need not."""
    return target.namespace in BUILTIN_NAMESPACES


def is_random(node: fx.Node) -> bool:
    """Whether the operator may draw from a generator."""
    return isinstance(node.target, OpOverload) and _may_draw(node.target)


@cache
def _may_draw(target: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in target.tags


def is_symbol(node: fx.Node) -> bool:
    """Whether the node's value is a symbolic scalar, which costs no memory."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def is_reshape(node: fx.Node) -> bool:
    """Whether this is what Inductor takes for a reshape: a copy where no view of that shape is there.

    `view` shows bits as another type, too, which is none.
    """
    return base_name(node.target) in _RESHAPING and node.target is not torch.ops.aten.view.dtype


def kind_of(node: fx.Node) -> Kind:
    """How the node executes by itself, see `Kind`."""
    if node.op in ("placeholder", "get_attr"):
        return Kind.SYMBOL if is_symbol(node) else Kind.INPUT
    if is_symbol(node):
        return Kind.SYMBOL
    if node.target is operator.getitem:
        return Kind.PART
    if is_mean(node):
        return Kind.REDUCTION
    windows = windows_per_element(node)
    if windows:  # in several, its function is so long that Inductor stores what comes of it
        return Kind.POINTWISE if windows == 1 else Kind.REDUCTION
    return _kind_of_target(node.target)


@cache
def _kind_of_target(target: object) -> Kind:
    if not isinstance(target, OpOverload):
        return Kind.EXTERN
    name = base_name(target)
    returns_alias = any(r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns)
    if name in _RESHAPING or (returns_alias and len(target._schema.returns) == 1):
        return Kind.VIEW
    if name in _POINTWISE or torch.Tag.pointwise in target.tags or _is_elementwise_primitive(target):
        return Kind.POINTWISE
    if name in _REDUCTION or getattr(torch.Tag, "reduction", None) in target.tags:
        return Kind.REDUCTION
    return Kind.EXTERN


def _is_elementwise_primitive(target: OpOverload) -> bool:
    """Whether it is what decompositions of torch write for a pointwise operator; primitives have no tags."""
    same = getattr(torch.ops.aten, base_name(target), None) if target.namespace == "prims" else None
    return same is not None and any(torch.Tag.pointwise in getattr(same, o).tags for o in same.overloads())


def is_heavy(node: fx.Node) -> bool:
    """A transcendental function: Inductor on CPU stores what has one inside when it has several readers."""
    return base_name(node.target) in _HEAVY


def is_drawn(node: fx.Node) -> bool:
    """Random numbers; Inductor (`inductor_random` in lowering.py, 2.13) stores them, and may fuse them away later."""
    return base_name(node.target) in _DRAWN


def is_scattered(node: fx.Node) -> bool:
    """What Inductor writes into a tensor that is there already (`ir.MutationLayoutSHOULDREMOVE`, 2.11 to 2.15)."""
    return base_name(node.target) in _SCATTERED


def reads_often(node: fx.Node) -> bool:
    """What Inductor stores the input of beforehand, if that is made from several tensors (`realize_hint`, 2.13)."""
    return base_name(node.target) in _OFTEN


def is_pointwise(node: fx.Node) -> bool:
    """Whether the operator computes every element by itself."""
    return node.op == "call_function" and kind_of(node) is Kind.POINTWISE


def is_largest(node: fx.Node) -> bool:
    """Whether the node is the maxima of windows, or where in its window each lies, a byte for each.

    Inductor (`_low_memory_max_pool_with_offsets` in torch/_inductor/lowering.py, 2.11 to 2.15) finds both where they
    are read, out of all that the windows see: the image of a U-Net stood until the gradient, 3 % above its smallest
    plan for the places, 1 % for the maxima.
    """
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, fx.Node) and base_name(source.target) == "_low_memory_max_pool_with_offsets"


def is_unrolled(node: fx.Node) -> bool:
    """Whether so few elements are reduced to each of the result that Inductor may compute it inside its readers.

    `max` and `min` along a dimension return two results, each of which is computed for itself then.
    """
    if is_mean(node):
        return True
    source = node.args[0] if node.target is operator.getitem else node
    if not isinstance(source, fx.Node) or base_name(source.target) not in _UNROLLED or not source.all_input_nodes:
        return False
    before, after = source.all_input_nodes[0].meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    return concrete(before.numel()) < unrolled_below() * concrete(after.numel())


def tensor_at(node: fx.Node, position: int) -> torch.Tensor | None:
    """The tensor that a node reads there; None where it reads no tensor, or nothing."""
    argument = node.args[position] if position < len(node.args) else None
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def addend_of(node: fx.Node, device_type: str) -> Addend:
    """Who adds the bias of a product or convolution.

    On a GPU Inductor adds that of a convolution in a pointwise function of its own (`convolution` in kernel/conv.py,
    2.13), and that of a product if only such functions read it (`unfuse_bias_add_to_pointwise` in
    fx_passes/post_grad.py).
    """
    name = base_name(node.target)
    if device_type == "cpu" or name not in ("convolution", "addmm"):
        return Addend.BY_OP
    bias = tensor_at(node, 2 if name == "convolution" else 0)
    if bias is None or bias.ndim != 1:
        return Addend.BY_OP
    if name == "convolution":
        return Addend.BY_READERS
    return Addend.BY_OP if adds_in_product(bias.dtype, device_type) else Addend.BY_POINTWISE


def adds_in_product(dtype: torch.dtype, device_type: str) -> bool:
    """Whether what a product adds stays with it whoever reads the sum (`unfuse_bias_add_to_pointwise`)."""
    return device_type == "cpu" or (dtype in HALVES and adds_half_bias_in_matmul())


def count_operations(node: fx.Node, joined: int = 0) -> int:
    """Steps of the operator's function for one element as Inductor counts them, reads and constants left out.

    Of each of the parts that are `joined` it asks where it begins and ends, and chooses (`pointwise_cat`, 2.13).
    """
    if joined:
        return 1 + 5 * joined
    name = base_name(node.target)
    if name == "slice_scatter":  # a comparison for each, all of them, a load if so, a choice
        ends = len(_ends_of(node))
        return 2 * ends + 1 if ends else 0
    if name == "constant_pad_nd":
        return _count_sides(node)
    if name == "copy":  # of its second operand, in the type of the first
        return len({operand.meta["val"].dtype for operand in node.all_input_nodes}) - 1
    return 0 if name in _NO_STEPS else _STEPS.get(name, 1) + _count_casts(node)


def _count_sides(node: fx.Node) -> int:
    """Steps of a padding: places, ends and comparisons of each side, all of them, a load if so (lowering.py, 2.13)."""
    widths = [concrete(width) for width in cast("Sequence[int]", node.args[1])]
    lows, highs, sizes = widths[::2], widths[1::2], node.all_input_nodes[0].meta["val"].shape[::-1]
    ends = {0 for low in lows if low} | {concrete(size) for size, high in zip(sizes, highs, strict=False) if high}
    places = sum(low != 0 or high != 0 for low, high in zip(lows, highs, strict=True))
    return places + len(ends) + 2 * sum(width != 0 for width in widths)


def _count_casts(node: fx.Node) -> int:
    """Operands that are converted to the type the operator computes in (`transform_args` in lowering.py, 2.13)."""
    value, name = node.meta.get("val"), base_name(node.target)
    if not isinstance(node.target, OpOverload) or torch.Tag.pointwise not in node.target.tags or name in _CASTS:
        return 0
    operands = [n.meta.get("val") for n in node.all_input_nodes]
    dtypes = {id(n): n.dtype for n in operands[name == "where" :] if isinstance(n, torch.Tensor)}
    if not isinstance(value, torch.Tensor) or any(dtype.is_complex for dtype in dtypes.values()):
        return 0
    computed = reduce(torch.promote_types, dtypes.values()) if name in _COMPARISONS else value.dtype
    return sum(dtype != computed for dtype in dtypes.values()) if computed is not torch.bool else 0


def constants_in(node: fx.Node, device_type: str) -> tuple[str, ...]:
    """Scalars in the operator's function, each with the type in which it is a constant of its own, and indices.

    On a GPU what is divided by a number is multiplied by another one (`div_prim` in lowering.py, 2.13).
    """
    value = node.meta.get("val")
    dtype = value.dtype if isinstance(value, torch.Tensor) else type(value)
    if base_name(node.target) == "slice_scatter":
        ends = _ends_of(node)
        beginning = [f"0 {torch.int64}"] if ends and ends[-1].startswith(_INDEX) else []  # of each step
        return (f"{_INDEX} along {_axis_of(node)}", *ends, *beginning)
    is_inverted = base_name(node.target) == "div" and device_type != "cpu"
    found = [f"{'1 / ' * is_inverted}{number} {dtype}" for number in _numbers(node)]
    if found and base_name(node.target) in _PLACED:
        found[0] = f"{_INDEX} along {_axis_of(node)}"  # the first number is the axis
    if base_name(node.target) in ("select_backward", "slice_backward"):
        found.append(f"0.0 {dtype}")  # elsewhere the gradient is zero
    return tuple(dict.fromkeys(found))


def is_index(constant: str) -> bool:
    """Whether a constant of `constants_in` is where an element lies: another one wherever it is addressed otherwise."""
    return constant.startswith(_INDEX)


def _ends_of(node: fx.Node) -> tuple[str, ...]:
    """What `slice_scatter` compares places with: where the slice begins and ends, unless the tensor does, its step."""
    size = concrete(node.meta["val"].shape[_axis_of(node)])
    _, first, last, step = part_of(node)
    ends = [f"place {end}" for end, is_inside in ((first, first > 0), (last, last < size)) if is_inside]
    return (*ends, *([f"{_INDEX} in steps of {step}"] if step != 1 else ()))


def part_of(node: fx.Node) -> tuple[int, int, int, int]:
    """Axis, first place, end and step of a `slice`, or of where a `slice_scatter` writes."""
    behind = 1 if base_name(node.target) == "slice" else 2
    axis, start, end, step = (_number_at(node, behind + i) for i in range(4))
    shape = node.all_input_nodes[0].meta["val"].shape
    axis = (axis or 0) % len(shape)
    return (axis, *slice(start, end, step).indices(concrete(shape[axis])))


def _axis_of(node: fx.Node) -> int:
    return _number_at(node, 2) or 0


def _number_at(node: fx.Node, place: int) -> int | None:
    """An argument as it is planned; None: not given."""
    argument = node.args[place] if place < len(node.args) else None
    value = argument.meta["val"] if isinstance(argument, fx.Node) else argument
    return concrete(value) if isinstance(value, (int, torch.SymInt)) else None


def _numbers(node: fx.Node) -> tuple[object, ...]:
    name = base_name(node.target)
    if name in _NO_CONSTANTS:
        return ()
    if name.startswith(("zeros", "ones", "new_zeros", "new_ones")):
        return (0.0 if "zeros" in name else 1.0,)
    return tuple(a for a in node.args if isinstance(a, (int, float)))


def inner_nodes(node: fx.Node) -> Iterator[fx.Node]:
    """Nodes of the graphs handed to a higher-order operator (`cond`, `invoke_subgraph`)."""
    if node.op != "call_function" or isinstance(node.target, OpOverload) or node.graph.owning_module is None:
        return
    for argument in node.all_input_nodes:
        if argument.op == "get_attr":
            inner = operator.attrgetter(str(argument.target))(node.graph.owning_module)
            yield from inner.graph.nodes if isinstance(inner, fx.GraphModule) else ()
