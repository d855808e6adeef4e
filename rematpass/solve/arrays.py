"""What arrays of the solver hold.

In: nothing. Out: types. Never floating-point numbers: bytes and nanoseconds are whole.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
