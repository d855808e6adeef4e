"""Which results a fusing executor stores: sums worked out by hand."""

from dataclasses import replace

import pytest

from rematpass.check.timeline import recount
from rematpass.solve.liveness import simulate
from rematpass.solve.program import Addend, Schedule
from tests.programs import EXTERN, POINTWISE, REDUCTION, Builder, forward_bytes


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


def repeated(*, is_broadcast_shared=False, reads=1, **how):
    """One pointwise value of 64 bytes whose one reader may go through its elements several times."""
    b = Builder(static_bytes=100, is_broadcast_shared=is_broadcast_shared)
    given = [b.add(EXTERN, b.given(), size=64) for _ in range(reads)]
    p = b.add(POINTWISE, *given, size=64, **how)
    r = b.add(POINTWISE, p, size=128, broadcasts=True)
    live = forward_bytes(b, [*given, b.add(EXTERN, r, size=4)])
    return live[reads + 1] - 100 - 64 * reads


def test_what_is_broadcast_is_read_several_times():
    assert repeated() == 128
    assert repeated(is_heavy=True) == 192
    assert repeated(operations=80) == 192  # one reader, one load: up to 100 otherwise
    assert repeated(reads=5) == 128
    assert repeated(reads=5, is_broadcast_shared=True) == 192


@pytest.mark.parametrize("how", [{}, {"is_joined": True}, {"is_scattered": True}])
def test_what_was_written_part_by_part_is_not_written_over(how):
    b = Builder(static_bytes=100)
    joined = b.add(REDUCTION, b.add(EXTERN, b.given(), size=8), size=64, **how)
    product = b.add(EXTERN, joined, size=32)
    result = b.add(POINTWISE, joined, product, size=64)
    live = forward_bytes(b, [b.add(EXTERN, result, size=16)])
    assert live[3] == 196 + (64 if how else 0)


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


def test_one_tensor_read_in_several_ways_counts_as_several():
    """Five loads and two uses: the sum is stored, though it is made from one tensor; two loads are not."""

    def peak(loads):
        b = Builder()
        x = b.add(EXTERN, b.given(), size=64)
        part = b.add(POINTWISE, *(b.view(x, 1) for _ in range(loads)), size=32)
        sides = [b.add(REDUCTION, part, size=4), b.add(EXTERN, b.add(REDUCTION, part, size=4), size=4)]
        program = b.finish(sides, [], is_fusing=True)
        return simulate(program, Schedule(program.forward_ops, ())).peak_bytes

    assert peak(2) == 64 + 4 + 4
    assert peak(5) == 64 + 32


def test_what_is_read_often_is_stored_if_made_from_several_tensors():
    b = Builder()
    x, y = (b.add(EXTERN, b.given(), size=16) for _ in range(2))
    one = b.add(POINTWISE, x, size=40)
    two = b.add(POINTWISE, x, y, size=40)
    pooled = [b.add(REDUCTION, u, size=1, reads_often=True) for u in (one, two)]
    summed = b.add(REDUCTION, two, size=1)
    build = b.finish([*pooled, summed], [], is_fusing=True)
    schedule = Schedule(build.forward_ops, ())
    assert simulate(build, schedule).forward_bytes == (16, 32, 32, 72, 57, 42, 43)
    rarely = replace(build, reads_often=())
    assert max(simulate(rarely, schedule).forward_bytes) < 40
