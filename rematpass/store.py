"""Plans beside the compiler's cache, so that a cached step still knows its plan.

In: plans made for one dynamo graph, and its key. Out: the same plans in a later process. Never leaves half a
file: a reader sees the old one or the new one, and a damaged one counts as absent and is said to be.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .errors import PlanFileError
from .plan_types import Plan

logger = logging.getLogger(__name__)


class PlanStore:
    """A folder of plan files, one per dynamo graph and fingerprint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "plans"

    def load(self, key: str) -> tuple[Plan, ...] | None:
        """The plans stored under `key`, None when there are none that can be read."""
        path = self._folder / f"{key}.json"
        try:
            texts = json.loads(path.read_text(encoding="utf-8"))
            return tuple(Plan.from_json(text) for text in texts)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, PlanFileError) as error:
            logger.warning("rematpass: stored plan %s cannot be read (%s); planning again", path, error)
            return None

    def save(self, key: str, plans: Sequence[Plan]) -> None:
        """Write the plans of one graph; a reader sees the old file or the whole new one."""
        text = json.dumps([plan.to_json() for plan in plans])
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=key[:16], suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(self._folder / f"{key}.json")
        except OSError as error:
            logger.warning(
                "rematpass: plan not stored in %s (%s); plans() will be empty after a cache hit", self._folder, error
            )
