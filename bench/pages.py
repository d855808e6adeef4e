"""Let the C library hold on to memory that was freed, as torch's allocator for CUDA does.

glibc hands large tensors back to the system as they are freed, and the next step takes every page anew: time that
depends on thresholds of the C library, not on what is computed. In: nothing. Out: whether it could be told.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # parameters of mallopt(3)
NEVER_TRIM = 2**31 - 1  # bytes, the largest threshold that fits the parameter


def can_hold_pages() -> bool:
    """Whether the C library of this process has `mallopt`."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")


def hold_pages() -> None:
    """From now on, for the whole process: no mappings of their own for large tensors, and nothing handed back.

    Raises:
        OSError: this C library does not take such settings.
    """
    if not can_hold_pages():
        raise OSError("the C library has no mallopt(3); only glibc can be told to hold on to pages")
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, NEVER_TRIM)):
        if not mallopt(parameter, value):
            raise OSError(f"mallopt({parameter}, {value}) was refused by the C library")
