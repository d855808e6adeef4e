"""Caches of a core of this processor.

In: nothing. Out: bytes. Never measures.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

# Where Linux says how large the caches of a core are; what is usual on servers, where it does not.
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL_BYTES = {1: 48 * 1024, 2: 2**21}


@cache
def cache_bytes(level: int) -> int:
    """Of a core, for data."""
    for index in sorted(CACHES.glob("index*")):
        found = [(index / name).read_text().strip() for name in ("level", "type", "size")]
        if found[0] == str(level) and found[1] != "Instruction" and found[2].endswith("K"):
            return int(found[2][:-1]) * 1024
    return USUAL_BYTES[level]
