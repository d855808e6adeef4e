"""The order in which the forward runs."""

from rematpass.solve.program import Kind, Program


def test_what_is_ahead_comes_right_behind_what_it_is_made_of():
    """Op 0 returns parts 1 and 2; 5 is made of 1 and 6 of 5, both for the backward alone, which 7 is."""
    kind = (Kind.EXTERN, Kind.PART, Kind.PART, Kind.EXTERN, Kind.EXTERN, Kind.POINTWISE, Kind.POINTWISE, Kind.EXTERN)
    inputs = ((), (0,), (0,), (2,), (3,), (1,), (5,), (6,))
    count = len(kind)
    program = Program(
        kind=kind,
        inputs=inputs,
        root=tuple(range(count)),
        size_bytes=(8,) * count,
        duration_ns=(1,) * count,
        workspace_bytes=(0,) * count,
        is_backward=(*[False] * 7, True),
        in_forward=(*[True] * 7, False),
        may_recompute=(True,) * count,
        may_keep=(True,) * count,
        is_fixed=(False,) * count,
        is_heavy=(False,) * count,
        is_drawn=(False,) * count,
        forward_outputs=(4,),
        backward_outputs=(7,),
        static_bytes=0,
        is_fusing=True,
        is_ahead=(*[False] * 5, True, True, False),
    )
    assert program.forward_ops == (0, 1, 2, 5, 6, 3, 4)
    assert program.in_place({6, 3, 5}) == [5, 6, 3]
