"""What the guard lets Inductor fuse stays within the room, counted kernel by kernel after the fusion."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor.ir import ConcatKernel
from torch._inductor.utils import run_and_get_code

import rematpass
from rematpass import pipeline
from rematpass.torch_compat import calls, compile_uncached, fusion, scheduled
from rematpass.torch_compat.fusion import _FusionGuard
from rematpass.torch_compat.places import parts_in_place
from tests.scheduled import OUTPUT, Fused, Kernel, has_cycle, make_kernels, simulate


@contextmanager
def guard_of(kernels: list[Kernel], room: int, held: int = 0) -> Iterator[_FusionGuard]:
    """A guard that is told what these kernels write and return where it asks torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusion, "buffer_bytes", lambda _: {k.written: k.size for k in kernels})
        patch.setattr(fusion, "output_names", lambda: [k.written for k in kernels if k.users == [OUTPUT]])
        patch.setattr(fusion, "held_bytes", lambda: held)
        yield _FusionGuard(room)


def allows(room: int, one: Kernel, other: Kernel, held: int = 0) -> bool:
    """The guard's first answer."""
    with guard_of(one.scheduler.nodes, room, held) as guard:
        return guard.allows(one.scheduler, one, other)


def test_what_a_fusion_draws_along_is_counted():
    """Kernel 4 runs where 1 stands, so 3 runs before: what 1, 3 and 4 write is alive at once."""
    kernels = make_kernels([([], 2), ([0], 4), ([1], 1), ([], 3), ([0, 3], 4), ([4], 1)])
    unfused = simulate(kernels)
    fused = simulate(kernels, [kernels[1], kernels[4]])
    assert fused > unfused
    assert not allows(unfused, kernels[1], kernels[4])
    assert allows(fused + 1, kernels[1], kernels[4])  # counts what 0 wrote until 4 would have read it


def test_distance_alone_refuses_nothing():
    """What the last of 100 kernels makes of the first could as well have been there from the start."""
    kernels = make_kernels([([], 1), *[([], 1)] * 98, ([0], 1)])
    assert allows(simulate(kernels), kernels[0], kernels[-1])


def test_what_vanishes_passes_its_place_on():
    """Kernel 1 writes over what 0 wrote, 2 over that, also as one kernel."""
    kernels = make_kernels([([], 4), ([0], 4), ([1], 4), ([2], 1)])
    assert simulate(kernels) == simulate(kernels, [kernels[1], kernels[2]]) == 5
    assert allows(0, kernels[1], kernels[2])  # adds nothing to what there is


def on_gpu(kernels, sizes):
    """Elements of each kernel's result, and how many are reduced to each of them."""
    for kernel, elements in zip(kernels, sizes, strict=True):
        kernel.get_device = lambda: torch.device("cuda")
        kernel.is_reduction = lambda is_one=elements[1] > 1: is_one
        kernel.group = (torch.device("cuda"), elements)


def test_a_row_of_its_own_has_no_place_to_pass_on():
    """The same where 2 sums: what 1 writes for it is a buffer of a row, and what 0 wrote stays where it is."""
    kernels = make_kernels([([], 4), ([0], 4), ([1], 4), ([2], 1)])
    kernels[2].is_reduction = lambda: True
    kernels[2].get_device = lambda: torch.device("cpu")
    assert not allows(7, kernels[1], kernels[2])
    assert allows(8, kernels[1], kernels[2])


def test_loops_of_another_depth_share_no_rows():
    """Kernel 2 reads what 1 wrote: one buffer for a row between them, unless 0 goes through sums only."""
    kernels = make_kernels([([], 1), ([], 4), ([0, 1], 4), ([2], 1)])
    for kernel, sizes in zip(kernels, ([8], [8, 16], [8, 16], [8, 16]), strict=True):
        kernel.group = (torch.device("cpu"), (sizes, []))
        kernel.get_device = lambda: torch.device("cpu")
    assert scheduled.made_inside(*kernels[1:3]) == {"buf1"}
    assert scheduled.made_inside(*kernels[:3]) == set()


@pytest.mark.parametrize("fits", [True, False])
def test_what_is_read_with_a_sum_known_is_stored_where_rows_come_in_pieces(fits, monkeypatch):
    """Kernel 2 sums what 1 wrote, 3 divides it by the sum; what 3 wrote, and 4 read in the same loop, never is."""
    monkeypatch.setattr(scheduled, "_fits_at_once", lambda parts, sums: fits)
    kernels = make_kernels([([], 4), ([0], 4), ([1], 1), ([1, 2], 4), ([3], 4)])
    on_gpu(kernels, [(4, 1), (4, 1), (1, 4), (4, 1), (4, 1)])
    assert scheduled.made_inside(*kernels[1:3]) == set()  # 3 reads it later
    assert scheduled.made_inside(*kernels[1:5]) == ({"buf1", "buf3"} if fits else {"buf3"})
    assert scheduled.made_inside(kernels[3], kernels[4]) == {"buf3"}


@pytest.mark.parametrize("fits", [True, False])
def test_what_is_only_summed_is_never_stored(fits, monkeypatch):
    monkeypatch.setattr(scheduled, "_fits_at_once", lambda parts, sums: fits)
    kernels = make_kernels([([], 4), ([0], 4), ([1], 1)])
    on_gpu(kernels, [(4, 1), (4, 1), (1, 4)])
    assert scheduled.made_inside(*kernels[1:3]) == {"buf1"}


@pytest.mark.parametrize(("sizes", "inside"), [((4, 1), {"buf0"}), ((32, 1), set())])
def test_what_is_reduced_is_in_registers_where_a_kernel_goes_on_with_it_element_for_element(sizes, inside, monkeypatch):
    """As where the largest of 8 lies, which becomes a byte; not for what goes through all 32 elements again."""
    monkeypatch.setattr(scheduled, "_fits_at_once", lambda parts, sums: True)
    kernels = make_kernels([([], 32), ([0], 4), ([1], 4)])
    on_gpu(kernels, [(4, 8), sizes, sizes])
    assert scheduled.made_inside(*kernels[:2]) == inside
    for kernel in kernels:
        kernel.get_device = lambda: torch.device("cpu")
        kernel.group = (torch.device("cpu"), ([4], [8] if kernel.is_reduction() else []))
    assert scheduled.made_inside(*kernels[:2]) == set()


def test_what_was_handed_on_is_stored_where_loops_of_another_depth_join():
    """Kernels 2 and 3 are one and store nothing between them, until 1 joins, which goes through sums only."""
    kernels = make_kernels([([], 4), ([0], 1), ([0], 4), ([1, 2], 1), ([3], 1)])
    for kernel, sizes in zip(kernels, ([8, 16], [8], [8, 16], [8, 16], [8, 16]), strict=True):
        kernel.group = (torch.device("cpu"), (sizes, []))
        kernel.get_device = lambda: torch.device("cpu")
    scheduler, pair = kernels[0].scheduler, Fused(tuple(kernels[2:4]))
    pair.get_outer_nodes = pair.get_nodes
    for room, may in ((8, False), (9, True)):
        scheduler.name_to_fused_node.update({kernel.get_name(): kernel for kernel in kernels})
        with guard_of(kernels, room) as guard:
            assert guard.allows(scheduler, kernels[2], kernels[3])
            scheduler.name_to_fused_node.update(dict.fromkeys(pair.get_operation_names(), pair))
            assert guard.allows(scheduler, kernels[1], pair) == may


def test_what_an_earlier_fusion_has_drawn_along_counts():
    """Kernel 6 runs before 1 once that is one with 7: its 3 bytes are there while 5, run with 2, writes beside 3."""
    kernels = make_kernels([([], 1), ([0], 1), ([0], 1), ([], 2), ([3], 0), ([0], 2), ([], 3), ([0, 6], 1), ([6], 0)])
    first, second = (kernels[1], kernels[7]), (kernels[2], kernels[5])
    assert (simulate(kernels, first), simulate(kernels, first, second)) == (9, 10)
    for room, may in ((9, False), (11, True)):  # at 10, what 0 wrote counts until 7 would have read it
        scheduler = kernels[0].scheduler
        scheduler.name_to_fused_node.update({kernel.get_name(): kernel for kernel in kernels})
        with guard_of(kernels, room) as guard:
            assert guard.allows(scheduler, *first)
            scheduler.name_to_fused_node.update(dict.fromkeys(("op1", "op7"), Fused(first)))
            assert guard.allows(scheduler, *second) == may


def test_a_result_takes_no_place_that_the_other_still_reads():
    """Kernels 1 and 2 both read 0, 2 writes over it; as one they cannot."""
    kernels = make_kernels([([], 4), ([0], 4), ([0], 4), ([1, 2], 1)])
    assert simulate(kernels) == 9
    assert simulate(kernels, [kernels[1], kernels[2]]) == 12
    assert not allows(9, kernels[1], kernels[2])
    assert allows(12, kernels[1], kernels[2])


def test_a_place_is_not_passed_on_to_one_of_two_readers():
    """Kernel 1 writes over what 0 wrote, 3 over that; as one with 2, which reads it, too, 3 cannot."""
    kernels = make_kernels([([], 4), ([0], 4), ([1], 4), ([1], 4), ([2, 3], 1)])
    assert simulate(kernels) == 9
    assert simulate(kernels, kernels[1:4]) == 12
    scheduler, first = kernels[0].scheduler, tuple(kernels[1:3])
    scheduler.name_to_fused_node.update(dict.fromkeys(("op1", "op2"), Fused(first)))
    for room, may in ((11, False), (12, True)):
        with guard_of(kernels, room) as guard:
            assert guard.allows(scheduler, Fused(first), kernels[3]) == may


def test_a_result_takes_no_place_that_is_read_between():
    """Kernel 4 would write over what 2 wrote; run with 2, it comes before 3, which reads that."""
    kernels = make_kernels([([], 2), ([], 1), ([0], 1), ([2], 1), ([2], 1), ([], 1)])
    assert simulate(kernels) == 4
    assert simulate(kernels, [kernels[2], kernels[4]]) == 5
    assert not allows(4, kernels[2], kernels[4])
    assert allows(5, kernels[2], kernels[4])


def test_what_is_made_in_the_kernel_gives_no_place_and_takes_none():
    """Kernel 4 reads what 2 wrote, which as one with it is not stored, and writes over what 0 wrote all the same."""
    kernels = make_kernels([([], 4), ([], 10), ([1], 4), ([], 1), ([0, 2], 4), ([3, 4], 1)])
    assert simulate(kernels, [kernels[2], kernels[4]]) == 14
    assert not allows(13, kernels[2], kernels[4])
    assert allows(14, kernels[2], kernels[4])


def test_what_an_operator_returns_is_there_from_the_first_of_its_results_on():
    """Kernel 0 makes what 1 and 5 hand out: while 2 and 4 run as one, both are alive."""
    kernels = make_kernels([([], 0), ([0], 4), ([1], 3), ([], 1), ([2], 2), ([0], 4), ([3, 4, 5], 1)])
    assert allows(9, kernels[2], kernels[4])
    for place in (1, 5):
        kernels[place].result_of = kernels[0].written
    assert not allows(9, kernels[2], kernels[4])
    assert allows(10, kernels[2], kernels[4])


def test_what_an_operator_takes_while_it_runs_is_counted():
    """Kernel 3 run with 1 writes before 2, which needs 5 bytes more for a moment."""
    kernels = make_kernels([([], 1), ([0], 2), ([], 1), ([0], 2), ([1, 2, 3], 1)])
    kernels[2].scratch = 5
    assert (simulate(kernels), simulate(kernels, [kernels[1], kernels[3]])) == (9, 10)
    assert not allows(9, kernels[1], kernels[3])
    assert allows(11, kernels[1], kernels[3])  # counts what 0 wrote until 3 would have read it


def test_what_an_operator_takes_that_comes_first_is_counted_beside_what_waits_for_it():
    """Kernel 3 run with 1 needs what 2 makes: that runs before 1 does, so what 0 wrote is still there."""
    kernels = make_kernels([([], 2), ([0], 1), ([], 1), ([1, 2], 1)])
    kernels[2].scratch = 3
    assert (simulate(kernels), simulate(kernels, [kernels[1], kernels[3]])) == (5, 6)
    assert not allows(5, kernels[1], kernels[3])
    assert allows(6, kernels[1], kernels[3])


def test_what_the_caller_holds_leaves_less_room():
    kernels = make_kernels([([], 2), ([0], 2), ([0], 2), ([1, 2], 1)])
    fused = simulate(kernels, [kernels[1], kernels[2]])
    assert fused > simulate(kernels)
    assert allows(fused, kernels[1], kernels[2])
    assert not allows(fused, kernels[1], kernels[2], held=1)
    assert allows(fused + 1, kernels[1], kernels[2], held=1)


def test_inductor_is_told_what_operators_take(monkeypatch):
    """What the plan counts for convolutions and their gradients stands on Inductor's own nodes."""
    planned, told = set(), set()
    split, scratch = pipeline.split_program, fusion.scratch_bytes

    def note_planned(joint, program, *others, **kwargs):
        named = zip(joint.nodes, program.workspace_bytes, strict=True)
        planned.update((node.target, size) for node, size in named if "convolution" in str(node.target))
        return split(joint, program, *others, **kwargs)

    def note_told(node):
        if node.is_extern() and "convolution" in str(node.node.op_overload):
            told.add((node.node.op_overload, scratch(node)))
        return scratch(node)

    monkeypatch.setattr(pipeline, "split_program", note_planned)
    monkeypatch.setattr(fusion, "scratch_bytes", note_told)
    layers = [(torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Tanh()) for _ in range(3)]
    model = torch.nn.Sequential(*itertools.chain(*layers))
    images = torch.randn(2, 8, 32, 32)
    largest = rematpass.plan(model, args=(images,), memory_budget="none").peak_bytes
    torch._dynamo.reset()
    options = {"memory_budget": largest - 1}
    with compile_uncached():
        torch.compile(model, backend="rematpass", options=options)(images).sum().backward()
    assert any(size for _, size in planned)
    assert told == planned


def test_inductor_is_told_what_the_caller_holds(monkeypatch):
    """What the forward returns, of which the backward is handed one, as it is part of what it needs."""
    told = set()
    fusions = fusion.held_bytes

    def note_told():
        told.add((fusions(), len(scheduled._held_names())))
        return fusions()

    monkeypatch.setattr(fusion, "held_bytes", note_told)
    monkeypatch.setattr(calls, "held_bytes", note_told)
    layer = torch.nn.Linear(64, 64)

    def step(x):
        score = torch.tanh(layer(x))
        return score.square().sum(), score, 2 * score

    x = torch.randn(8, 64)
    largest = rematpass.plan(step, args=(x,), memory_budget="none").peak_bytes
    torch._dynamo.reset()
    with compile_uncached():
        torch.compile(step, backend="rematpass", options={"memory_budget": largest})(x)[0].backward()
    assert told == {(0, 0), (4 + 2 * 4 * 8 * 64, 1)}  # forward, backward


@st.composite
def layouts(draw) -> list[tuple[list[int], int]]:
    count = draw(st.integers(3, 9))
    return [
        (draw(st.lists(st.integers(0, i - 1), max_size=2)) if i else [], draw(st.integers(1, 4))) for i in range(count)
    ]


@given(layout=layouts(), spare=st.integers(0, 2), data=st.data())
def test_what_is_allowed_stays_within_the_room(layout, spare, data):
    kernels = make_kernels(layout)
    for kernel in kernels:
        kernel.scratch = data.draw(st.sampled_from([0, 0, 3]))
    i, j = sorted(data.draw(st.lists(st.integers(0, len(kernels) - 1), min_size=2, max_size=2, unique=True)))
    one, other = kernels[i], kernels[j]
    one.scratch = other.scratch = 0  # what runs an operator's own kernel is fused with nothing
    between = {k.get_name() for k in kernels if one.get_name() in k.ancestors}
    if other.ancestors & between:
        return  # a cycle, which Inductor refuses
    room = simulate(kernels) + spare
    if allows(room, one, other):
        assert simulate(kernels, [one, other]) <= room


@settings(max_examples=300)
@given(layout=layouts(), spare=st.integers(0, 3), data=st.data())
def test_all_that_is_fused_stays_within_the_room(layout, spare, data):
    """Whatever has been fused before counts, and what is allowed and not done does not."""
    kernels = make_kernels(layout)
    for kernel in kernels:
        kernel.scratch = data.draw(st.sampled_from([0, 0, 0, 3]))
    scheduler = kernels[0].scheduler
    known = scheduler.name_to_fused_node
    room = simulate(kernels) + spare
    with guard_of(kernels, room) as guard:
        for pair in data.draw(st.lists(st.tuples(*[st.integers(0, len(kernels) - 1)] * 2), max_size=8)):
            one, other = sorted((known[f"op{i}"] for i in pair), key=lambda group: group.min_order)
            fused = Fused(tuple(sorted((*one.get_nodes(), *other.get_nodes()), key=lambda kernel: kernel.order)))
            if one is other or has_cycle(fused) or any(kernel.scratch for kernel in fused.parts):
                continue
            if guard.allows(scheduler, one, other) and data.draw(st.booleans()):
                known.update(dict.fromkeys(fused.get_operation_names(), fused))
                groups = {group.get_name(): group.get_nodes() for group in known.values()}
                assert simulate(kernels, *groups.values()) <= room


def test_what_is_in_memory_before_it_is_concatenated_stays_there():
    """By itself Inductor allocates the whole first, and writes every part into it."""

    def join(x, w):
        state = torch.tanh(x) + x.sin()  # expensive, and read twice
        return torch.cat([state @ w + state, state, x.cos()], 1)

    def run():
        torch._dynamo.reset()
        with compile_uncached():
            result, (code,) = run_and_get_code(torch.compile(join), *arguments)
        return result, [line.split(" = ")[1] for line in code.splitlines() if " = empty_strided_cpu((" in line]

    arguments = torch.randn(64, 32), torch.randn(32, 32)
    before = dict(vars(ConcatKernel))
    expected, alone = run()
    with parts_in_place():
        joined, ours = run()
    assert dict(vars(ConcatKernel)) == before
    assert torch.equal(joined, expected)
    whole, part = (f"empty_strided_cpu((64, {n}), ({n}, 1), torch.float32)" for n in (96, 32))
    assert alone == [whole]
    assert ours == [part, whole, part]


def test_a_part_that_is_computed_again_elsewhere_does_not_hold_the_whole():
    """By itself Inductor reads it back out of the whole, which lives until then."""

    def join(x, y, narrow, widen):
        part = x * y
        product = torch.cat([part, x + y], 1) @ narrow
        return torch.tanh(product @ widen) * part

    def run():
        torch._dynamo.reset()
        with compile_uncached():
            result, (code,) = run_and_get_code(torch.compile(join), *arguments)
        body = code[code.index("def call(") :]
        whole = next(line.split(" = ")[0].strip() for line in body.splitlines() if "((64, 64), (64, 1)" in line)
        second = body.index("extern_kernels.mm(", body.index("extern_kernels.mm(") + 1)
        return result, f"del {whole}\n" in body[:second]

    arguments = [torch.randn(*shape) for shape in ((64, 32), (64, 32), (64, 16), (16, 32))]
    expected, is_freed_alone = run()
    with parts_in_place():
        result, is_freed = run()
    assert torch.equal(result, expected)
    assert (is_freed_alone, is_freed) == (False, True)
