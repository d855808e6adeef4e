"""The solver's view of real joint graphs."""

import pytest
import torch
from torch.nn import functional

from rematpass.pipeline import collect_inputs
from rematpass.solve.program import DEPTHS, Kind
from rematpass.solve.search import Frontier
from tests.tracing import joint_of, toy_settings


def inputs_of(function, *shape, **changes):
    joint = joint_of(function, [torch.ones(*shape, requires_grad=True)])
    return collect_inputs(joint, toy_settings(is_fusing=False, **changes))


def attention(x):
    return functional.scaled_dot_product_attention(x.tanh(), x, x).square().sum()


def topk(x):
    return x.tanh().topk(2).values.square().sum()


def dropout(x):
    return functional.dropout(x.tanh(), 0.5).square().sum()


SEVERAL = [
    pytest.param(attention, (1, 2, 8, 4), id="attention"),
    pytest.param(topk, (4, 4), id="topk"),
    pytest.param(dropout, (4, 4), id="dropout"),
]


@pytest.mark.parametrize(("function", "shape"), SEVERAL)
def test_what_an_op_of_the_forward_returns_may_be_kept_also_when_only_the_backward_reads_it(function, shape):
    """Masks, indices, log-sum-exps: made in the forward, read in the backward alone."""
    program = inputs_of(function, *shape).program
    parts = [v for v, kind in enumerate(program.kind) if kind is Kind.PART and not program.is_backward[v]]
    assert len(parts) > 1
    assert all(program.in_forward[v] and program.may_keep[v] for v in parts)


@pytest.mark.parametrize(("function", "shape"), SEVERAL)
def test_the_fastest_plan_runs_such_an_op_once(function, shape):
    inputs = inputs_of(function, *shape)
    fastest = Frontier(inputs.program).fastest.decision
    again = [inputs.facts.values[v].op for v in fastest.schedule.backward if not inputs.program.is_backward[v]]
    assert not {"topk", "native_dropout"} & set(again)
    assert not [op for op in again if "attention" in op]


def test_sizes_belong_to_storages():
    program = inputs_of(lambda x: x.exp().t().exp().sum(), 4, 6).program
    for v, kind in enumerate(program.kind):
        is_unsized = kind is Kind.VIEW or (kind is Kind.INPUT and not program.is_backward[v])
        assert (program.size_bytes[v] == 0) == is_unsized
    assert program.static_bytes == 96


def test_prices_are_those_of_the_device():
    """4 x 8 times 8 x 4 (toy device: an operation or a byte a nanosecond, 10 ns a kernel) costs 256 + 10 ns."""
    inputs = inputs_of(lambda x: (x @ x.t()).relu().sum(), 4, 8)
    times = {value.op: inputs.program.duration_ns[i] for i, value in reversed(list(enumerate(inputs.facts.values)))}
    assert times["mm"] == 2 * 4 * 4 * 8 + 10
    assert times["relu"] == 64 + 64 + 10
    assert times["t"] == 0


def grouped(x):
    return x.view(2, 2, 3, 4).sin().view(2, 6, 4).cos().sum()


def test_on_a_gpu_loops_through_as_many_dimensions_of_other_sizes_stay_apart():
    """Groups of channels and channels alike are one loop on a CPU."""
    assert inputs_of(grouped, 2, 6, 4).program.loops == ()
    joint = joint_of(grouped, [torch.ones(2, 6, 4, requires_grad=True)])
    inputs = collect_inputs(joint, toy_settings(device_type="cuda"))
    loops = {value.op: inputs.program.loops[i] for i, value in reversed(list(enumerate(inputs.facts.values)))}
    assert loops["sin"] % DEPTHS == 4
    assert loops["cos"] % DEPTHS == 3
