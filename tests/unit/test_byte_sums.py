"""Sums of bytes as functions of sizes: exact where they are fitted, and no maximum is lost."""

import itertools
import random
from fractions import Fraction

import pytest
import sympy

from rematpass.formula.largest import find_largest
from rematpass.formula.pieces import Piece, cpu_attention, cpu_half_attention, polynomial_to_sympy
from rematpass.formula.polynomial import Grid, Polynomial
from rematpass.formula.sums import ByteSum, may_be_equal

BATCH, SEQUENCE = sympy.symbols("batch sequence", positive=True, integer=True)


def polynomial(**terms):
    """Coefficients by names such as b1s2."""
    return Polynomial.of({(int(k[1]), int(k[3])): Fraction(c) for k, c in terms.items()})


def test_polynomials_go_through_what_they_are_given():
    wanted = polynomial(b1s2=3, b0s2=Fraction(1, 2), b0s1=Fraction(-1, 2), b0s0=7)
    grid = Grid([(2, 5), (3, 8, 21)])
    assert grid.fit([int(wanted.at(p)) for p in grid.points]) == wanted
    assert str(polynomial_to_sympy(wanted, (BATCH, SEQUENCE))) == str(
        3 * BATCH * SEQUENCE**2 + SEQUENCE**2 / 2 - SEQUENCE / 2 + 7
    )


def test_rounding_is_left_out_only_where_nothing_is_rounded():
    one, block, size = polynomial(b0s0=1), polynomial(b0s0=512), polynomial(b1s1=4)
    piece = Piece("round_up", (one, size, block))
    assert ByteSum.of([piece], [range(1, 9), range(128, 1025, 128)]) == ByteSum(size)
    rounded = ByteSum.of([piece], [range(1, 9), range(128, 1025, 64)])
    assert rounded.at((3, 192)) == 5 * 512 == rounded.to_sympy((BATCH, SEQUENCE)).subs({BATCH: 3, SEQUENCE: 192})


@pytest.mark.parametrize("function", [cpu_attention, cpu_half_attention])
def test_scratch_of_the_cpus_attention_is_the_same_as_an_expression(function):
    arguments = tuple(polynomial(**k) for k in ({"b0s1": 1}, {"b0s1": 1}, {"b0s0": 32}, {"b0s0": 2}))
    for is_backward, length in itertools.product((0, 1), (7, 20, 31, 32, 191, 192, 511, 767, 768, 5000)):
        piece = Piece(function.__name__, (*arguments, polynomial(b0s0=is_backward)))
        bytes_there = function(length, length, 32, 2, is_backward)
        assert piece.at((1, length)) == bytes_there == piece.to_sympy((BATCH, SEQUENCE)).subs({SEQUENCE: length})


@pytest.mark.parametrize("seed", range(12))
def test_nothing_that_can_be_the_largest_is_left_out(seed):
    draw = random.Random(seed)
    ranges = [range(2, 6), range(4, 40, draw.choice([1, 4]))]
    one, block = polynomial(b0s0=1), polynomial(b0s0=512)
    sums = []
    for _ in range(20):
        terms = {f"b{i}s{j}": draw.randint(-3, 9) for i in (0, 1) for j in (0, 1, 2) if draw.random() < 0.4}
        size = polynomial(b0s0=1000, b1s1=draw.randint(1, 40))
        own = ByteSum.of([Piece("round_up", (one, size, block))], ranges) + ByteSum(polynomial(**terms))
        shared = ((ByteSum(polynomial(b0s0=400)), (ByteSum(polynomial(b1s1=10)),)),) if draw.random() < 0.3 else ()
        sums.append(ByteSum(own.polynomial, own.pieces, shared))
    largest = find_largest(sums, ranges)
    for point in itertools.product(*ranges):
        assert max(own.at(point) for own in sums) == max(sums[i].at(point) for i in largest)


def test_what_is_shared_by_accident_is_counted_where_sizes_are_equal():
    own, other = ByteSum(polynomial(b1s1=8)), ByteSum(polynomial(b1s0=320))
    ranges = [range(1, 9), range(8, 65)]
    assert may_be_equal(own, other, ranges)
    assert not may_be_equal(own, other, [range(1, 9), range(41, 65)])
    total_bytes = ByteSum(polynomial(b1s1=24), shared=((own, (other,)),))
    for point, expected in (((2, 39), 24 * 78), ((2, 40), 16 * 80), ((2, 41), 24 * 82)):
        assert total_bytes.at(point) == expected
        assert (
            total_bytes.to_sympy((BATCH, SEQUENCE)).subs(dict(zip((BATCH, SEQUENCE), point, strict=True))) == expected
        )
