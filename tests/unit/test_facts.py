"""Bytes, storages, module paths, source lines."""

import pytest
import torch
from torch import fx, nn

from rematpass.graph.facts import collect_facts
from rematpass.graph.operators import storage_bytes
from rematpass.graph.origin import module_path
from rematpass.solve.program import STRAIGHT, TURN_KINDS, Kind, through
from tests.tracing import dynamo_joint_of, joint_of


@pytest.mark.parametrize(
    ("tensor", "size_bytes"),
    [
        (torch.empty(4, 6), 96),
        (torch.empty(4, 6, dtype=torch.float64), 192),
        (torch.empty(4, 6).t(), 96),
        (torch.empty(1, 6).expand(4, 6), 24),
        (torch.empty(4, 6)[:, :2], 4 * (3 * 6 + 1 + 1)),
        (torch.empty(4, 6)[::2], 4 * (12 + 6)),
        (torch.empty(0, 6), 0),
        (torch.empty(()), 4),
        (torch.empty(3, dtype=torch.bool), 3),
    ],
)
def test_storage_bytes_is_the_span(tensor, size_bytes):
    assert storage_bytes(tensor) == size_bytes


def facts_of(function, *arguments, joint=joint_of):
    facts = collect_facts(joint(function, list(arguments)))
    return facts, {value.name: value for value in facts.values}


def matrix(*shape):
    return torch.ones(*shape, requires_grad=True)


def test_complex_numbers_are_computed_by_torch():
    joint = joint_of(lambda x: torch.view_as_real(torch.polar(x, x).exp() * 2).sin(), [matrix(4, 6)])
    for is_fusing, kind in ((True, Kind.EXTERN), (False, Kind.POINTWISE)):
        kinds = {value.op: value.kind for value in collect_facts(joint, is_fusing=is_fusing).values}
        assert kinds["exp"] is kind
        assert kinds["view_as_real"] is Kind.VIEW
        assert kinds["sin"] is Kind.POINTWISE


def test_views_cost_nothing_and_live_in_their_base():
    facts, by_name = facts_of(lambda x: x.exp().t().reshape(2, 12).sin(), matrix(4, 6))
    base = by_name["exp"]
    for value in facts.values:
        if value.kind is Kind.VIEW and value.name in ("t", "view"):
            assert value.size_bytes == 0
    assert base.size_bytes == 96
    assert facts.values[by_name["t"].root] is base
    assert by_name["t"].view_bytes == 96


def test_what_is_shown_by_strides_is_stored_under_fusion():
    def function(x):
        return (x.exp().reshape(4, 4).as_strided((4, 4), (4, 1)).sin() * x).cos()

    joint = joint_of(function, [matrix(4, 4)])
    for is_fusing, kind in ((True, Kind.REDUCTION), (False, Kind.POINTWISE)):
        kinds = {value.name: value.kind for value in collect_facts(joint, is_fusing=is_fusing).values}
        assert kinds["exp"] is kind
        assert kinds["sin"] is Kind.POINTWISE


def test_views_are_told_apart_by_the_elements_they_show():
    def function(x):
        y = x.exp()
        even, odd = y[::2], y[1::2]
        grouped, turned = y.view(2, 2, 6)[:, 0], y.view(2, 12).t()
        flat = even.unsqueeze(0).expand(3, 2, 6)
        return sum(v.sin().sum() for v in (even, odd, grouped, turned, flat, y.sigmoid()[::2], y.view(24)))

    facts, _ = facts_of(function, matrix(4, 6))
    even, odd, grouped, turned, flat, other, same = (facts.ways[v.access[0]] for v in facts.values if v.op == "sin")
    assert even == other
    assert flat == (even[0], 3)  # all of it again and again
    assert same == STRAIGHT
    assert len({STRAIGHT, even, odd, grouped, turned}) == 5


def test_parts_tell_how_much_of_them_lies_together():
    def function(x):
        y = x.exp()
        first, second = y.chunk(2, 2)
        views = (first, second, y[:, 1:], y[1:], y[..., ::2], y[:, 1:, 1:], y[:, 1:].flatten(1), y.select(1, 0))
        return sum(v.sin().sum() for v in views)

    facts, _ = facts_of(function, matrix(4, 3, 8))
    cuts = [
        [facts.cuts[turn // TURN_KINDS] for turn in facts.ways[v.access[0]][0]] for v in facts.values if v.op == "sin"
    ]
    assert cuts == [[0, 4], [0, 4], [16], [0], [-1], [16, 7], [16], [-1]]


def test_what_is_empty_is_read_as_any_other():
    facts, by_name = facts_of(lambda x: (x.exp() * 2).sin().sum(), matrix(0, 6))
    assert [facts.ways[w] for w in by_name["mul"].access] == [STRAIGHT]


def test_rows_and_columns_of_a_table_are_two_loads_of_one_vector():
    facts, by_name = facts_of(lambda x: (x.exp().unsqueeze(1) * x.exp()).sin().sum(), matrix(6))
    down, along = (facts.ways[w] for w in by_name["mul"].access)
    assert down == STRAIGHT  # each element again and again, on the spot
    assert along == ((), 6)


def test_what_goes_through_elements_several_times_broadcasts_them():
    def function(x):
        y, gate = x.exp(), x.mean(1, keepdim=True).sigmoid()
        shown = y.unsqueeze(0).expand(3, 4, 6).transpose(0, 1)
        return (y * gate).sin().sum() + shown.cos().sum() + y[:, :3].tan().sum()

    _, by_name = facts_of(function, matrix(4, 6))
    assert by_name["mul"].broadcasts == (False, True)
    assert by_name["cos"].broadcasts == (True,)
    assert by_name["sin"].broadcasts == by_name["tan"].broadcasts == (False,)


@pytest.mark.parametrize(
    ("move", "is_straight"),
    [
        (lambda x, i: x.flip(0), False),
        (lambda x, i: x.roll(1, 0), False),
        (lambda x, i: x[i], False),
        (lambda x, i: x.gather(0, i.unsqueeze(1).expand(4, 6)), False),
        (lambda x, i: x.tril(), True),
        (lambda x, i: torch.where(x > 0, x, 0.1), True),
    ],
)
def test_what_moves_elements_does_not_read_them_where_it_writes(move, is_straight):
    facts, _ = facts_of(lambda x, i: move(x * 2, i).sin().sum(), matrix(4, 6), torch.tensor([1, 0, 3, 2]))
    (moved,) = (i for i, v in enumerate(facts.values) if v.name == "mul")
    ways = {facts.ways[way] for v in facts.values for u, way in zip(v.inputs, v.access, strict=True) if u == moved}
    assert (ways == {STRAIGHT}) == is_straight


@pytest.mark.parametrize(
    ("write", "is_straight"),
    [
        (lambda y: torch.slice_scatter(y, y[:, 2:].exp(), 1, 2), True),
        (lambda y: torch.slice_scatter(y, y[:, -4:].exp(), -1, 2, 99), True),
        (lambda y: torch.slice_scatter(y, y[:, :4].exp(), 1, 2), False),
        (lambda y: torch.slice_scatter(y, y[:, ::2].exp(), 1, 0, step=2), False),  # Inductor does not cancel the steps
        (lambda y: torch.select_scatter(y, y[:, 2].exp(), 1, 2), False),
    ],
)
def test_what_is_picked_and_put_back_is_read_where_it_is_written(write, is_straight):
    facts, by_name = facts_of(lambda x: write(x * 2).sin().sum(), matrix(4, 6))
    scattered = next(value for value in by_name.values() if value.op.endswith("_scatter"))
    picked, put = (facts.ways[way] for way in (by_name["exp"].access[0], scattered.access[1]))
    assert (through(picked, put) == STRAIGHT) == is_straight


@pytest.mark.parametrize("step", [1, 2])
def test_what_is_put_and_picked_again_was_never_moved(step):
    def function(x):
        wide = torch.slice_scatter(torch.zeros(4, 12), x.exp(), 1, 0, 6 * step, step)
        return wide[:, : 6 * step : step].sin().sum()

    facts, by_name = facts_of(function, matrix(4, 6))
    put, picked = (facts.ways[by_name[name].access[-1]] for name in ("slice_scatter", "sin"))
    assert put != STRAIGHT
    assert through(put, picked) == STRAIGHT


@pytest.mark.parametrize(("dimensions", "is_straight"), [((0, 1), False), ((1, 2), True)])
def test_slices_that_follow_each_other_are_not_known_to_be_put_back_where_they_were(dimensions, is_straight):
    def function(x):
        y = x * 2
        folded = y[:, :3].exp().flatten(*dimensions).sin()
        return torch.slice_scatter(y, folded.view(4, 3, 5), 1, 0, 3).cos().sum()

    facts, by_name = facts_of(function, torch.randn(4, 6, 5, requires_grad=True))
    picked, folded, put = (
        facts.ways[by_name[name].access[i]] for name, i in (("exp", 0), ("sin", 0), ("slice_scatter", 1))
    )
    assert through(STRAIGHT, folded) == STRAIGHT  # what is stored lies as any other
    assert (through(through(picked, folded), put) == STRAIGHT) == is_straight


def test_one_element_is_the_same_wherever_many_are_picked():
    facts, by_name = facts_of(lambda x: (x * x.exp().sum())[:, 1].sin().sum(), matrix(4, 6))
    one, picked = facts.ways[by_name["mul"].access[1]], facts.ways[by_name["sin"].access[0]]
    assert through(one, picked) == one
    assert through(STRAIGHT, picked) == picked != STRAIGHT


def test_static_bytes_are_the_inputs_of_the_forward():
    facts, _ = facts_of(lambda x, w: (x @ w).sum(), torch.ones(4, 6), matrix(6, 5))
    assert facts.static_bytes == 4 * (24 + 30)
    assert facts.device_type == "cpu"


def test_an_argument_given_twice_counts_once():
    x = matrix(4, 6)
    facts, _ = facts_of(lambda x, y: (x * y).sum(), x, x)
    assert facts.static_bytes == 96


def test_ops_that_return_several():
    _, by_name = facts_of(lambda x: x.exp().max(0).values, matrix(4, 6))
    assert (by_name["max_1"].size_bytes, by_name["max_1"].shape) == (0, ())
    assert by_name["max_1"].workspace_bytes == 4 * 6 + 8 * 6
    parts = {name: value.size_bytes for name, value in by_name.items() if value.kind is Kind.PART}
    assert parts["getitem"] == 4 * 6
    assert parts["getitem_1"] == 8 * 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x):
        x = self.up(x).tanh()
        for block in self.blocks:
            x = block(x).exp()  # the line to be found
        return x.sum()


def test_module_path_and_source_line():
    facts, _ = facts_of(Block(), torch.ones(2, 4), joint=dynamo_joint_of)
    linear = [v for v in facts.values if v.op in ("addmm", "mm") and not v.name.startswith("mm")]
    assert [v.module for v in linear] == ["up", "blocks.0", "blocks.1"]
    exp = [v for v in facts.values if v.op == "exp"]
    assert [v.module for v in exp] == ["", ""]
    assert all(v.source.startswith("test_facts.py:") for v in exp)
    assert all(v.source.endswith("x = block(x).exp()  # the line to be found") for v in exp)


def test_module_path_of_a_function_that_calls_a_module():
    """A training step written as a function: paths as in `model.named_modules()`, no internals of dynamo."""
    model = Block()

    def step(x):
        return model(x)

    facts, _ = facts_of(step, torch.ones(2, 4), joint=dynamo_joint_of)
    linear = [v.module for v in facts.values if v.op == "addmm"]
    assert [m.removeprefix("model").strip(".") for m in linear] == ["up", "blocks.0", "blocks.1"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['model']", ""),
        ("L['self']._modules['blocks']._modules['0']", "blocks.0"),
        ("L['model'].blocks.0", "blocks.0"),
        ("L['net'].blocks.0", "net.blocks.0"),
        ("G['net'].up", "net.up"),
        ("G['__import___main__'].net.up", "net.up"),
        ("L['model'].__self__.net.up", "net.up"),
        ("L['model'].args[0].up", "up"),
        ("L['model'].args[1].up", "args.1.up"),
        ("L['model'].args.0.up", "args.0.up"),  # a ModuleList of this name
        ("L['model'].func.up", "func.up"),
        ("L['model'].func.__self__.up", "up"),
        ("L['model'].__closure__[0].cell_contents.up", "up"),
        ("L['model'].__closure__[1].cell_contents.up", "closure.1.up"),
        ("L['model'].args[0].__closure__[0].cell_contents.up", "up"),
    ],
)
def test_module_path_names_no_way_to_the_module(source, name):
    node = fx.Graph().placeholder("x")
    node.meta["nn_module_stack"] = {"key": (source, nn.Module)}
    assert module_path(node) == name


def test_facts_hold_no_torch_object():
    facts, _ = facts_of(lambda x: x.exp().sum(), matrix(4, 6))
    plain = (str, int, bool, tuple)
    assert all(isinstance(getattr(v, name), plain) for v in facts.values for name in v.__slots__)


def test_readers_of_what_is_stored_whole_have_no_steps_of_it():
    """Counted with theirs, the steps of concatenations made long functions of a scan too long to be fused."""
    joint = joint_of(lambda x: (torch.cat([x.sin(), x * 2]) * x.repeat(2, 1)).cumsum(0), [matrix(4, 6)])
    values = collect_facts(joint, is_fusing=True).values
    stored = [v for v in values if v.op in ("cat", "mul") and v.kind is Kind.REDUCTION]
    assert [v.op for v in stored] == ["cat", "mul"]  # the second is what the running sum asks for
    assert [(v.operations, v.constants) for v in stored] == [(0, ())] * 2
