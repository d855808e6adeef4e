"""The simulator against an independent one, and against sums worked out by hand."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rematpass.check.timeline import recount
from rematpass.solve.liveness import find_lives, find_put_off, list_alive, simulate
from rematpass.solve.program import DEPTHS, TURN_KINDS, Kind, Schedule
from tests.naive_simulator import Half, naive_timeline
from tests.programs import EXTERN, PART, POINTWISE, REDUCTION, Builder, forward_bytes
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
    return program, Schedule(program.forward_ops, tuple(backward))


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
    assert program.core.local_peak(sequence, sorted(returned), sorted(outside)) == naive


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
    forward, _ = find_put_off(program, Schedule(program.forward_ops, ()))
    assert total in forward
    assert other not in forward


def test_a_result_takes_over_only_what_it_reads_element_for_element():
    def peak(base_of):
        b = Builder()
        x = b.add(EXTERN, b.given(), size=64)
        program = b.finish([b.add(EXTERN, b.add(POINTWISE, base_of(b, x), size=64), size=4)], [], is_fusing=True)
        return simulate(program, Schedule(program.forward_ops, ())).peak_bytes

    assert peak(lambda b, x: x) == 64 + 4
    assert peak(lambda b, x: b.view(x, 0)) == 64 + 4
    assert peak(lambda b, x: b.view(x, 1)) == 128


def test_what_the_caller_hands_to_the_backward_is_not_written_over():
    def peak(is_made_here):
        b = Builder()
        x = b.add(EXTERN, b.given(), size=4)
        g = b.tangent(64)
        source = b.add(EXTERN, g, size=64) if is_made_here else g
        returned = b.add(EXTERN, b.add(POINTWISE, source, size=64), size=4)
        program = b.finish([x], [returned], is_fusing=True)
        backward = tuple(v for v, is_backward in enumerate(program.is_backward) if is_backward and v != g)
        schedule = Schedule(program.forward_ops, backward)
        timeline = simulate(program, schedule)
        assert recount(program, schedule) == [*timeline.forward_bytes, *timeline.backward_bytes]
        return max(timeline.backward_bytes[is_made_here:])

    held = 4  # x, which is returned
    assert peak(is_made_here=True) == held + 64 + 4
    assert peak(is_made_here=False) == held + 64 + 64


def test_without_fusion_nothing_needs_a_mark():
    build = Builder()
    program = build.finish([build.add(EXTERN, build.add(POINTWISE, build.given(), size=8), size=8)], [])
    schedule = Schedule(program.forward_ops, ())
    assert find_put_off(program, schedule) == (frozenset(), frozenset())
    assert find_put_off(replace(program, is_fusing=True), schedule) == ({1}, frozenset())


class TestNeighbours:
    """A result that several read, of an expensive function, so that it is stored, and its readers."""

    def live(
        self, *, is_between=False, is_elsewhere=False, is_late=False, result_size=160, elements=None, loops=(0, 0)
    ):
        b = Builder(is_unmerged=any(loops))
        long, short = ({"elements": n} if elements else {} for n in (40, elements))
        long["loops"], short["loops"] = loops
        x = b.add(EXTERN, b.given(160), size=160, **long)
        shared = b.add(POINTWISE, x, size=160, is_heavy=True, **long)
        if is_between:
            b.add(EXTERN, x, size=8)
        y = b.add(POINTWISE, shared, b.add(POINTWISE, shared, size=160, **long), size=result_size, **short)
        others = [shared] * is_elsewhere + [x] * is_late
        z = b.add(EXTERN, y, *others, size=8)
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

    def test_a_result_of_narrower_elements_is_one_with_it_but_takes_no_place(self):
        """A gradient in float32, long or read by two, that the next kernel alone reads and rounds."""
        live = self.live(result_size=80, elements=40)
        assert live == [160, 160, 160, 240, 88]
        assert self.live(result_size=80, elements=40, is_elsewhere=True)[-1] == 248

    def test_loops_as_deep_through_other_sizes_do_not_become_one(self):
        narrow = {"result_size": 80, "elements": 40, "is_late": True}
        assert self.live(**narrow)[1:4] == [160, 160, 240]
        assert self.live(**narrow, loops=(4, DEPTHS + 4))[1:4] == [320, 320, 400]
        assert self.live(**narrow, loops=(4, DEPTHS + 3)) == self.live(**narrow)


class TestParts:
    """Two parts of a gradient, from two parts of what was computed, by one expensive function; each 160 bytes."""

    def live(self, *, cuts=(8, 8), is_copied=False, is_turned=False, is_unmerged=False):
        b = Builder(is_unmerged=is_unmerged)
        x = b.add(EXTERN, b.given(320), size=320)
        ways = [b.view(x, access=TURN_KINDS * k - len(b.rows), cut=cut) for k, cut in enumerate(cuts, 1)]
        shared = b.add(POINTWISE, ways[0], size=160, is_heavy=True)
        parts = [b.add(POINTWISE, shared, way, size=160) for way in ways]
        if is_turned:
            parts[1] = b.view(parts[1], access=1)
        joined = b.add(REDUCTION, shared if is_copied else parts[0], parts[1], size=320, is_joined=True)
        z = b.add(EXTERN, joined, x, size=8)
        program = b.finish([z], [], is_fusing=True)
        schedule = Schedule(tuple(range(len(program))), ())
        counted = recount(program, schedule)
        assert list(simulate(program, schedule).forward_bytes) == counted
        return counted[-2] - program.static_bytes

    def test_what_the_kernels_of_all_parts_read_is_one_with_them(self):
        assert self.live() == 640
        assert self.live(cuts=(0, 0)) == 640

    def test_parts_whose_loops_differ_read_it_from_memory(self):
        assert self.live(cuts=(8, 4)) == 800
        assert self.live(cuts=(-1, -1)) == self.live(cuts=(-1, -1), is_unmerged=True) == 800

    def test_where_loops_are_not_merged_one_of_them_may_read_in_another_order(self):
        assert self.live(cuts=(8, 4), is_unmerged=True) == 640
        assert self.live(cuts=(8, -1), is_unmerged=True) == 640
        assert self.live(cuts=(8, -1)) == 800

    def test_what_is_a_part_itself_or_turned_in_one_is_stored(self):
        assert self.live(is_copied=True) == 800
        assert self.live(is_turned=True) == 800


class TestRandomNumbers:
    """40 numbers of 4 bytes; `mask` has a byte for each."""

    def live(self, *, is_read_twice=False, is_between=False, mask_size=40, elements=40):
        b = Builder()
        x = b.add(EXTERN, b.given(160), size=160)
        drawn = b.add(POINTWISE, b.given(8), size=160, elements=40, is_drawn=True)
        if is_between:
            b.add(EXTERN, x, size=8)
        mask = b.add(POINTWISE, drawn, x, size=mask_size, elements=elements)
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
        assert self.live(mask_size=20, elements=20)[1:3] == [320, 340]
