"""Sizes as people read them.

In: bytes. Out: text in GiB, MiB or KiB. Never rounds a size down to nothing.
"""

from __future__ import annotations

_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def format_bytes(size_bytes: int) -> str:
    """`size_bytes` with one decimal in the largest binary unit that fits.

    >>> format_bytes(3 * 2**30 // 2), format_bytes(512), format_bytes(-2**20)
    ('1.5 GiB', '512 B', '-1.0 MiB')
    """
    for unit, scale in _UNITS:
        if abs(size_bytes) >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} B"


def format_range(least_bytes: int, most_bytes: int) -> str:
    """One size where both read the same, else both.

    >>> format_range(2**20, 2**20 + 1), format_range(2**20, 2**21)
    ('1.0 MiB', '1.0 MiB to 2.0 MiB')
    """
    least, most = format_bytes(least_bytes), format_bytes(most_bytes)
    return least if least == most else f"{least} to {most}"
