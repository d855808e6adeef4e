"""The job that this process may be a rank of.

In: torch, 2.11 to 2.15. Out: small functions with stable names and meanings. Never decides anything, never holds state.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def default_store() -> Any:
    """The key-value store that the ranks of the job share (2.11-2.15); None where the backend has none (MPI)."""
    return dist.distributed_c10d._get_default_store()
