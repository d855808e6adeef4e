"""Plans beside the compiler's cache, so that a cached step still knows its plan.

In: plans made for one dynamo graph, and its key. Out: the same plans in a later process. Never fails: what cannot be
read counts as absent, what cannot be written is left out, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from .errors import PlanFileError
from .files import write_whole
from .plan_file import format_plans, parse_plans
from .plan_types import Plan

logger = logging.getLogger(__name__)


class PlanStore:
    """A folder of plan files, one per dynamo graph and fingerprint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "plans"

    def load(self, key: str) -> tuple[Plan, ...] | None:
        """The plans stored under `key`, None when there are none that can be read."""
        path = self._path(key)
        try:
            return parse_plans(path.read_bytes().decode(), key)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError, PlanFileError) as error:
            logger.warning("rematpass: the stored plan %s is not used: %s; planning again", path, error)
            return None

    def save(self, key: str, plans: Sequence[Plan]) -> None:
        """Write the plans of one graph; a reader sees the old file or the whole new one."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(key), format_plans(plans, key))
        except OSError as error:
            logger.warning(
                "rematpass: plan not stored in %s (%s); plans() will be empty after a cache hit", self._folder, error
            )

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
