"""The simulator against an independent one, and against sums worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.timeline import recount
from rematpass.solve.liveness import find_lives, find_put_off, list_alive, local_peak, simulate
from rematpass.solve.order import forward_sequence, order_backward
from rematpass.solve.program import Addend, Kind, Schedule
from tests.naive_simulator import Half, naive_timeline
from tests.programs import EXTERN, PART, POINTWISE, REDUCTION, Builder
from tests.strategies import programs, stacked_programs

QUICK = settings(deadline=None, max_examples=150, derandomize=True)


@st.composite
def scheduled(draw, *, is_fusing=False):
    """A program, and a backward that computes some values again, here and there, once or several times."""
    program = replace(draw(st.one_of(programs(), stacked_programs())), is_fusing=is_fusing)
    may = [
        v
        for v, kind in enumerate(program.kind)
        if not program.is_backward[v] and program.may_recompute[v] and kind not in (Kind.INPUT, Kind.SYMBOL)
    ]
    backward = []
    for v, is_backward in enumerate(program.is_backward):
        if is_backward and program.kind[v] is not Kind.INPUT:
            needed = {u for u in program.inputs[v] if not program.in_forward[u] and u in may} - set(backward)
            chosen = draw(st.sets(st.sampled_from(may), max_size=3)) if may else set()
            backward += sorted(chosen | needed)
            backward.append(v)
    return program, Schedule(forward_sequence(program), tuple(backward))


@QUICK
@given(scheduled())
def test_same_bytes_as_the_naive_simulator(case):
    program, schedule = case
    timeline = simulate(program, schedule)
    assert (list(timeline.forward_bytes), list(timeline.backward_bytes)) == naive_timeline(program, schedule)


@QUICK
@given(scheduled(), st.data())
def test_local_peak_is_that_of_the_naive_simulator(case, data):
    program, schedule = case
    sequence = schedule.backward
    returned = set(data.draw(st.sets(st.sampled_from(sequence)))) if sequence else set()
    outside = set(data.draw(st.sets(st.sampled_from(program.root))))
    reads = [(m, u) for m, v in enumerate(sequence) for u in program.inputs[v]]
    given_values = {u for m, u in reads if u not in sequence[:m]}
    half = Half(program, sequence, given_values - {v for v in given_values if program.root[v] in outside})
    naive = max(half.live_bytes(half.final(returned)), default=0)
    assert local_peak(program, sequence, returned, outside) == naive


@QUICK
@given(scheduled())
def test_alive_at_the_peak_adds_up(case):
    program, schedule = case
    timeline = simulate(program, schedule)
    live = [*timeline.forward_bytes, *timeline.backward_bytes]
    if not live:
        return
    assert timeline.peak_bytes == max(live) == live[timeline.peak_position]
    ops = [v for v in (*schedule.forward, *schedule.backward) if program.kind[v] not in (Kind.INPUT, Kind.SYMBOL)]
    scratch = program.workspace_bytes[ops[timeline.peak_position]]
    assert (
        sum(size for _, size in list_alive(program, schedule, timeline.peak_position)) + scratch + program.static_bytes
        == timeline.peak_bytes
    )


@QUICK
@given(scheduled(is_fusing=True))
def test_fusion_never_needs_more_than_the_storing_executor_plus_what_it_delays(case):
    """Every position of the fusing model stays below everything being stored and held to the end."""
    program, schedule = case
    timeline = simulate(program, schedule)
    ceiling = program.static_bytes + sum(
        program.size_bytes[v] + program.workspace_bytes[v]
        for v in (*schedule.forward, *schedule.backward, *range(len(program)))
    )
    assert program.static_bytes <= timeline.peak_bytes <= ceiling
    live = [*timeline.forward_bytes, *timeline.backward_bytes]
    assert all(program.static_bytes <= b for b in live)


def forward_bytes(b, outputs, *, is_fusing=True):
    """Live bytes along the forward of a program whose backward reads nothing of it."""
    g = b.add(POINTWISE, b.tangent(4), size=4)
    program = b.finish(outputs, [g], is_fusing=is_fusing)
    return list(simulate(program, order_backward(program, ()).schedule).forward_bytes)


def test_a_pointwise_result_between_kernels_is_stored_and_takes_over_its_dying_input():
    b = Builder(static_bytes=100)
    x = b.given()
    a = b.add(EXTERN, x, size=64)
    p = b.add(POINTWISE, a, size=64)
    m = b.add(EXTERN, p, size=16)
    assert forward_bytes(b, [m]) == [164, 164, 180]


def test_an_executor_that_does_not_fuse_takes_over_nothing():
    b = Builder(static_bytes=100)
    x = b.given()
    a = b.add(EXTERN, x, size=64)
    p = b.add(POINTWISE, a, size=64)
    m = b.add(EXTERN, p, size=16)
    assert forward_bytes(b, [m], is_fusing=False) == [164, 228, 180]


def test_a_pointwise_result_is_computed_inside_a_reduction():
    b = Builder(static_bytes=100)
    a = b.add(EXTERN, b.given(), size=64)
    p = b.add(POINTWISE, a, size=64)
    q = b.add(POINTWISE, p, size=64)
    r = b.add(REDUCTION, q, size=4)
    assert forward_bytes(b, [r]) == [164, 164, 164, 168]  # p and q never exist; a lives until r has read it


def test_no_taking_over_of_another_size():
    b = Builder(static_bytes=100)
    a = b.add(EXTERN, b.given(), size=64)
    p = b.add(POINTWISE, a, size=32)  # narrower dtype
    m = b.add(EXTERN, p, size=16)
    assert forward_bytes(b, [m]) == [164, 196, 148]


def shared(*, is_heavy):
    """One pointwise value, two reductions that read it, at different times."""
    b = Builder(static_bytes=100)
    a = b.add(EXTERN, b.given(), size=64)
    p = b.add(POINTWISE, a, size=64, is_heavy=is_heavy)
    r1 = b.add(REDUCTION, p, size=4)
    r2 = b.add(REDUCTION, p, size=4)
    return forward_bytes(b, [r1, r2])


def test_a_cheap_value_with_two_readers_is_computed_twice():
    assert shared(is_heavy=False) == [164, 164, 168, 172]  # a stays for both


def test_an_expensive_value_with_two_readers_is_stored():
    assert shared(is_heavy=True) == [164, 164, 168, 172]  # p took over a


def many_reads(count, readers):
    b = Builder(static_bytes=100)
    x = b.given()
    sources = [b.add(EXTERN, x, size=10) for _ in range(count)]
    p = b.add(POINTWISE, *sources, size=64)
    found = [b.add(REDUCTION, p, size=4) for _ in range(readers)]
    return forward_bytes(b, found)[count:]


def test_a_value_of_many_inputs_is_stored():
    assert many_reads(8, 1) == [180, 184]  # computed inside its reader: its 8 inputs wait for it
    assert many_reads(9, 1) == [100 + 90 + 64, 100 + 64 + 4]
    assert many_reads(4, 2) == [140, 144, 148]
    assert many_reads(5, 2) == [100 + 50 + 64, 100 + 64 + 4, 100 + 64 + 8]


@pytest.mark.parametrize(
    ("addend", "also", "is_stored"),
    [
        (Addend.BY_OP, None, False),
        (Addend.BY_READERS, None, True),  # 5 results and 5 biases are more than 8 tensors
        (Addend.BY_POINTWISE, None, True),
        (Addend.BY_READERS, REDUCTION, True),
        (Addend.BY_POINTWISE, REDUCTION, False),  # complete for all its readers
        (Addend.BY_READERS, EXTERN, False),  # what is read from memory is complete
    ],
)
def test_readers_load_the_bias_that_they_add(addend, also, is_stored):
    b = Builder(static_bytes=100)
    x = b.given()
    sources = [b.add(EXTERN, x, size=10, addend=addend) for _ in range(5)]
    p = b.add(POINTWISE, *sources, size=64)
    found = [b.add(REDUCTION, p, size=4)]
    if also is not None:
        found += [b.add(also, u, size=0) for u in sources[:3]]  # complete, they leave seven loads
    live = forward_bytes(b, found)
    assert live[5] == 150 + (64 if is_stored else 0)


@pytest.mark.parametrize(("operations", "is_stored"), [(47, False), (48, True)])
def test_adding_a_bias_is_one_step_whatever_its_op_is(operations, is_stored):
    b = Builder()
    x = b.add(EXTERN, b.given(), size=10, addend=Addend.BY_READERS, operations=24, constants=(2, 3))
    p = b.add(POINTWISE, x, size=64, operations=operations)
    program = b.finish([b.add(REDUCTION, p, size=4)], [], is_fusing=True)
    schedule = Schedule(tuple(range(len(program))), ())
    live = simulate(program, schedule).forward_bytes
    assert live == ((10, 74, 68) if is_stored else (10, 10, 14))  # 50 at most, the two loads and the sum counted
    assert recount(program, schedule) == list(live)


def long_functions(operations, readers, *, reads=2, constants=((), ())):
    """Two long functions, the second of the first and of the same sources."""
    b = Builder(static_bytes=100)
    x = b.given()
    sources = [b.add(EXTERN, x, size=10) for _ in range(reads)]
    p = b.add(POINTWISE, *sources, size=64, operations=operations[0], constants=constants[0])
    q = b.add(POINTWISE, p, *sources, size=32, operations=operations[1], constants=constants[1])
    found = [b.add(REDUCTION, q, size=4) for _ in range(readers)]
    return forward_bytes(b, found)[reads:]


def test_a_value_of_a_long_function_is_stored():
    assert long_functions((24, 24), 1) == [120, 120, 124]  # with the two reads 50: computed inside the reader
    stored = [120, 152, 136]
    assert long_functions((24, 25), 1) == stored
    assert long_functions((24, 24), 1, constants=((7,), (7,))) == stored
    assert long_functions((23, 24), 1, constants=((7,), (7,))) == [120, 120, 124]  # one constant, though in both
    assert long_functions((25, 24), 2) == [*stored, 140]


@pytest.mark.parametrize(("access", "expected"), [(0, [120, 120, 120, 124]), (1, [120, 120, 152, 136])])
def test_where_an_element_lies_is_another_number_where_it_is_addressed_otherwise(access, expected):
    """Two scatters along one axis, one read through the other: 24 and 23 steps, two loads, one index or two."""
    b = Builder(static_bytes=100)
    x = b.given()
    sources = [b.add(EXTERN, x, size=10) for _ in range(2)]
    p = b.add(POINTWISE, sources[0], size=64, operations=24, constants=(-7,))
    q = b.add(POINTWISE, b.view(p, access), sources[1], size=32, operations=23, constants=(-7,))
    assert forward_bytes(b, [b.add(REDUCTION, q, size=4)])[2:] == expected


def test_a_long_function_of_one_tensor_is_stored_later():
    assert long_functions((49, 50), 1, reads=1) == [110, 110, 114]
    assert long_functions((50, 50), 1, reads=1) == [110, 142, 136]
    assert long_functions((25, 25), 2, reads=1) == [110, 142, 136, 140]


def test_results_of_an_op_that_returns_several_exist_as_soon_as_it_ran():
    """The front end gives the op its results as workspace; each part counts from where it is taken out."""
    b = Builder(static_bytes=100)
    a = b.add(EXTERN, b.given(), size=64)
    several = b.add(EXTERN, a, may_keep=False, workspace=80)
    p, q = b.add(PART, several, size=50), b.add(PART, several, size=30)
    s = b.add(REDUCTION, p, q, size=4)
    assert forward_bytes(b, [s], is_fusing=False) == [164, 244, 150, 180, 184]


def put_off(program, sequence, stored):
    """Positions of pointwise results that an extern op reads, and of reductions a scatter does, one op at a time.

    And of those `stored` ones that are an input of one view and of nothing else.
    """
    computed_at, made_at, found = {}, {}, set()
    inputs_of: dict[int, list[int]] = {}
    for position, v in enumerate(sequence):
        wanted = {(Kind.EXTERN, False): POINTWISE, (REDUCTION, True): REDUCTION}
        wanted_kind = wanted.get((program.kind[v], program.is_scattered[v]))
        read = {computed_at[u] for u in program.inputs[v] if u in computed_at}
        found.update(position for position in read if program.kind[sequence[position]] is wanted_kind)
        for u in program.inputs[v]:
            inputs_of.setdefault(made_at.get(u, -1), []).append(v)
        made_at[v] = position
        if program.root[v] == v:
            computed_at[v] = position
        else:
            [base] = {u for u in program.inputs[v] if program.root[u] == program.root[v]}
            computed_at.pop(v, None)
            if base in computed_at:
                computed_at[v] = computed_at[base]
    one_view = {p for p, readers in inputs_of.items() if [program.kind[v] for v in readers] == [Kind.VIEW]}
    return found | {p for p in one_view & stored if program.kind[sequence[p]] is POINTWISE}


@QUICK
@given(scheduled(is_fusing=True))
def test_what_may_be_put_off_is_what_extern_ops_and_single_views_read(case):
    """And of two that lie in one place both."""
    program, schedule = case
    forward, backward = find_put_off(program, schedule)
    positions = [{i for i, v in enumerate(schedule.forward) if v in forward}, set(backward)]
    halves = zip(find_lives(program, schedule), (schedule.forward, schedule.backward), positions, strict=True)
    for half, sequence, found in halves:
        paid = [i for i, v in enumerate(sequence) if program.kind[v] not in (Kind.INPUT, Kind.SYMBOL)]
        at = dict(zip(range(half.given, len(half.ops)), paid, strict=True))
        expected = put_off(program, sequence, {at[i] for i in at if half.is_stored[i]})
        heirs = {i for i in at if half.taken[i]}
        last = {(half.taken[h], moment) for h in heirs for moment in (h, half.runs_at[h])}
        donors = {i for i in at if (half.size[i], half.end[i]) in last}
        assert expected | {at[i] for i in heirs} <= found
        assert found <= expected | {at[i] for i in heirs | donors}


def test_what_only_a_view_reads_is_made_where_the_view_is_unless_it_is_told():
    """The sum is in memory as two read it, but the executor sees their number at the view, after the other op."""
    b = Builder()
    parts = [b.add(EXTERN, b.given(), size=64) for _ in range(5)]
    total, other = (b.add(POINTWISE, *parts, size=32) for _ in range(2))
    seen = b.view(total)
    sums = [b.add(REDUCTION, v, size=4) for v in (seen, seen, other, other)]
    program = b.finish([b.add(EXTERN, v, size=4) for v in sums], [], is_fusing=True)
    forward, _ = find_put_off(program, Schedule(forward_sequence(program), ()))
    assert total in forward
    assert other not in forward


def test_one_tensor_read_in_several_ways_counts_as_several():
    """Five loads and two uses: the sum is stored, though it is made from one tensor; two loads are not."""

    def peak(loads):
        b = Builder()
        x = b.add(EXTERN, b.given(), size=64)
        part = b.add(POINTWISE, *(b.view(x, 1) for _ in range(loads)), size=32)
        sides = [b.add(REDUCTION, part, size=4), b.add(EXTERN, b.add(REDUCTION, part, size=4), size=4)]
        program = b.finish(sides, [], is_fusing=True)
        return simulate(program, Schedule(forward_sequence(program), ())).peak_bytes

    assert peak(2) == 64 + 4 + 4
    assert peak(5) == 64 + 32


def test_a_result_takes_over_only_what_it_reads_element_for_element():
    def peak(base_of):
        b = Builder()
        x = b.add(EXTERN, b.given(), size=64)
        program = b.finish([b.add(EXTERN, b.add(POINTWISE, base_of(b, x), size=64), size=4)], [], is_fusing=True)
        return simulate(program, Schedule(forward_sequence(program), ())).peak_bytes

    assert peak(lambda b, x: x) == 64 + 4
    assert peak(lambda b, x: b.view(x, 0)) == 64 + 4
    assert peak(lambda b, x: b.view(x, 1)) == 128


def test_without_fusion_nothing_needs_a_mark():
    build = Builder()
    program = build.finish([build.add(EXTERN, build.add(POINTWISE, build.given(), size=8), size=8)], [])
    schedule = Schedule(forward_sequence(program), ())
    assert find_put_off(program, schedule) == (frozenset(), frozenset())
    assert find_put_off(replace(program, is_fusing=True), schedule) == ({1}, frozenset())


def test_what_is_read_often_is_stored_if_made_from_several_tensors():
    b = Builder()
    x, y = (b.add(EXTERN, b.given(), size=16) for _ in range(2))
    one = b.add(POINTWISE, x, size=40)
    two = b.add(POINTWISE, x, y, size=40)
    pooled = [b.add(REDUCTION, u, size=1, reads_often=True) for u in (one, two)]
    summed = b.add(REDUCTION, two, size=1)
    build = b.finish([*pooled, summed], [], is_fusing=True)
    schedule = Schedule(forward_sequence(build), ())
    assert simulate(build, schedule).forward_bytes == (16, 32, 32, 72, 57, 42, 43)
    rarely = replace(build, reads_often=())
    assert max(simulate(rarely, schedule).forward_bytes) < 40


class TestNeighbours:
    """A result that several read, of an expensive function, so that it is stored, and its readers."""

    def live(self, *, is_between=False, is_elsewhere=False, result_size=160):
        b = Builder()
        x = b.add(EXTERN, b.given(160), size=160)
        shared = b.add(POINTWISE, x, size=160, is_heavy=True)
        if is_between:
            b.add(EXTERN, x, size=8)
        y = b.add(POINTWISE, shared, b.add(POINTWISE, shared, size=160), size=result_size)
        z = b.add(EXTERN, y, shared if is_elsewhere else y, size=8)
        program = b.finish([z], [], is_fusing=True)
        moments = simulate(program, Schedule(tuple(range(len(program))), ())).forward_bytes
        return [live - program.static_bytes for live in moments]

    def test_what_the_next_kernel_alone_reads_is_one_with_it(self):
        assert self.live() == [160, 160, 160, 160, 168]

    def test_what_others_read_as_well_is_stored(self):
        assert self.live(is_elsewhere=True)[-1] == 328
        assert self.live(is_between=True)[2] == 328

    def test_a_kernel_of_another_length_is_another(self):
        assert self.live(result_size=80)[3:] == [240, 88]


class TestRandomNumbers:
    """40 numbers of 4 bytes; `mask` has a byte for each."""

    def live(self, *, is_read_twice=False, is_between=False, mask_size=40):
        b = Builder()
        x = b.add(EXTERN, b.given(160), size=160)
        drawn = b.add(POINTWISE, b.given(8), size=160, is_drawn=True)
        if is_between:
            b.add(EXTERN, x, size=8)
        mask = b.add(POINTWISE, drawn, x, size=mask_size)
        y = b.add(EXTERN, mask, size=8)
        z = b.add(POINTWISE, drawn, size=160) if is_read_twice else y
        program = b.finish([y, z], [], is_fusing=True)
        moments = simulate(program, Schedule(tuple(range(len(program))), ())).forward_bytes
        return [live - program.static_bytes for live in moments]

    def test_the_next_kernel_draws_what_it_alone_reads(self):
        assert self.live() == [160, 160, 200, 48]

    def test_what_is_made_of_them_takes_the_place_of_what_dies(self):
        assert self.live(mask_size=160) == [160, 160, 160, 168]

    def test_others_read_them_from_memory(self):
        assert self.live(is_read_twice=True)[1:3] == [320, 360]
        assert self.live(is_between=True)[1:4] == [320, 328, 360]

    def test_a_kernel_of_another_length_does_not_draw_them(self):
        assert self.live(mask_size=20)[1:3] == [320, 340]
