"""Where the forward is cut. Boundaries come from sizes and lifetimes alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.solve.program import Kind
from rematpass.solve.stages import find_stages
from tests.programs import EXTERN, POINTWISE, REDUCTION, Builder, Layer, layered
from tests.strategies import programs, stacked_programs


def boundary_sizes(program):
    stages = find_stages(program)
    return [sum(program.size_bytes[v] for v in b) for b in stages.boundary]


def check_stages(program):
    """Every op in one stage, in order; what a stage reads from earlier ones is in its boundary."""
    stages = find_stages(program)
    forward = [
        v for v, kind in enumerate(program.kind) if not program.is_backward[v] and kind not in (Kind.INPUT, Kind.SYMBOL)
    ]
    assert sorted(v for ops in stages.forward for v in ops) == forward
    run = [v for ops in reversed(stages.backward) for v in ops if program.kind[v] is not Kind.INPUT]
    assert run == [
        v for v, is_backward in enumerate(program.is_backward) if is_backward and program.kind[v] is not Kind.INPUT
    ]
    for s in range(len(stages)):
        boundary = set(stages.boundary[s])
        for v in (*stages.forward[s], *stages.backward[s]):
            for u in program.inputs[v]:
                r = program.root[u]
                is_earlier = 0 <= stages.stage_of[r] < s and not program.is_backward[r]
                if is_earlier and program.in_forward[r] and not program.from_inputs[r]:
                    assert r in boundary, f"stage {s}: op {v} reads {u} of stage {stages.stage_of[r]}"
        assert all(program.root[v] == v and stages.stage_of[v] < s for v in boundary)
        for v in stages.forward[s]:
            assert all(stages.stage_of[u] <= s for u in program.inputs[v])
        for v in stages.backward[s]:  # what is made of inputs alone can be had at any place
            read = (u for u in program.inputs[v] if not program.is_backward[u] and not program.from_inputs[u])
            assert all(stages.stage_of[u] <= s for u in read)
    return stages


@pytest.mark.parametrize("is_residual", [False, True])
@pytest.mark.parametrize("layers", [2, 6])
def test_a_chain_is_cut_at_its_narrow_stream(layers, is_residual):
    program = layered([Layer()] * layers, is_residual=is_residual)
    stages = check_stages(program)
    assert layers <= len(stages) <= layers + 1
    assert set(boundary_sizes(program)[1:layers]) == {100}


def test_backward_ops_belong_to_the_stage_they_mirror():
    program = layered([Layer()] * 4)
    stages = check_stages(program)
    per_stage = [sum(program.kind[v] is not Kind.INPUT for v in ops) for ops in stages.backward]
    assert sum(per_stage) == sum(program.is_backward) - 1
    assert all(4 <= n <= 7 for n in per_stage[:4])


def u_net(depth=3, ops=12):
    """Encoder, bottom, decoder: wide inside, a skip from each encoder level to the decoder level across."""
    b = Builder()
    x = b.given(64)
    skips = []
    made = []

    def level(x):
        for _ in range(ops):
            h = b.add(EXTERN, x, size=4000, ns=10)
            p = b.add(POINTWISE, h, size=4000, ns=1)
            x = b.add(EXTERN, p, size=100, ns=10)
            made.extend([h, p, x])
        return x

    for _ in range(depth):
        x = level(x)
        skips.append(x)
    x = level(x)
    for skip in reversed(skips):
        x = level(b.add(EXTERN, x, skip, size=100, ns=10))
    loss = b.add(REDUCTION, x, size=4, ns=1)
    g = b.tangent(4)
    for v in reversed(made):
        g = b.add(EXTERN, g, v, size=100, ns=5)
    return b.finish([loss], [g]), skips


def test_skip_connections_are_part_of_every_boundary_they_cross():
    program, skips = u_net()
    stages = check_stages(program)
    assert len(stages) > 7
    for skip in skips:
        reader = max(v for v in range(len(program)) if not program.is_backward[v] and skip in program.inputs[v])
        crossed = range(stages.stage_of[skip] + 1, stages.stage_of[reader] + 1)
        assert len(crossed) > 1
        assert all(skip in stages.boundary[s] for s in crossed)


def test_no_narrow_place_gives_one_stage():
    b = Builder()
    x = b.given(1000)
    values = []
    for _ in range(6):
        x = b.add(EXTERN, x, size=1000, ns=1)
        values.append(x)
    everything = b.add(EXTERN, *values, size=1000, ns=1)
    g = b.tangent(1000)
    for v in reversed(values):
        g = b.add(EXTERN, g, v, size=1000, ns=1)
    assert len(check_stages(b.finish([everything], [g]))) == 1


def test_masks_belong_to_the_stage_they_are_made_in():
    """They stand behind the loss in the given order, but the forward runs them where they are made."""
    layers = 8
    b = Builder()
    x, values = b.given(100), []
    for _ in range(layers):
        wide = b.add(EXTERN, x, size=1000, ns=20)
        values.append(b.add(POINTWISE, wide, size=1000, ns=1))
        x = b.add(EXTERN, values[-1], size=100, ns=20)
    loss = b.add(REDUCTION, x, size=4, ns=1)
    g, masks = b.tangent(4), []
    for value in reversed(values):
        masks.append(b.add(POINTWISE, value, size=250, is_ahead=True))
        g = b.add(EXTERN, b.add(POINTWISE, g, masks[-1], size=1000), value, size=100)
    program = b.finish([loss], [g], is_fusing=True)
    stages = check_stages(program)
    assert layers <= len(stages) <= layers + 1
    for mask in masks:
        assert stages.stage_of[mask] == stages.stage_of[program.inputs[mask][0]]
    assert all(boundary <= 100 for boundary in boundary_sizes(program))
    assert sum(len(ops) > 0 for ops in stages.backward) >= layers


@pytest.mark.parametrize("most", [1, 2, 5])
def test_at_most_so_many_stages(most):
    assert len(find_stages(layered([Layer()] * 12), max_stages=most)) <= most


def test_an_empty_forward():
    b = Builder()
    x = b.given(8)
    g = b.add(POINTWISE, b.tangent(8), x, size=8)
    stages = check_stages(b.finish([x], [g]))
    assert len(stages) == 1


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.one_of(programs(most_forward=16, most_backward=10), stacked_programs()))
def test_boundaries_hold_what_later_stages_read(program):
    check_stages(program)


@pytest.mark.parametrize("is_residual", [False, True])
def test_layers_of_different_width(is_residual):
    check_stages(layered([Layer(wide=700 + 100 * i, narrow=80 + 10 * i) for i in range(6)], is_residual=is_residual))
