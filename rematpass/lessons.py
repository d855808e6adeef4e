"""What measured steps have taught: how far above its prediction a graph was.

In: a graph's key, bytes. Out: the same bytes in a later process, and settings that leave room for them. Never measures,
never fails: what cannot be read counts as nothing learned, and the log says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from pathlib import Path

from .files import write_whole
from .pipeline import Settings
from .ranks import is_alone
from .report.sizes import format_bytes

logger = logging.getLogger(__name__)

SCHEMA = 1


def may_learn(settings: Settings) -> bool:
    """Whether a measured step may change the plan: not one from a file, nor one that other ranks follow, too."""
    return settings.budget_bytes is not None and settings.replay is None and is_alone()


def corrected(settings: Settings, excess_bytes: int) -> Settings:
    """Settings for a plan that leaves room for what a step was measured to take above its prediction."""
    if not excess_bytes:
        return settings
    digest = hashlib.sha256(f"{settings.fingerprint} {excess_bytes}".encode()).hexdigest()
    note = (
        f"a measured step took {format_bytes(excess_bytes)} more than predicted; the plan leaves room for that where "
        "it can"
    )
    return dataclasses.replace(
        settings, correction_bytes=excess_bytes, fingerprint=digest, notes=(*settings.notes, note)
    )


class Lessons:
    """What is known of one graph, compiled with one set of options: a file in the cache folder."""

    def __init__(self, folder: Path, key: str) -> None:
        self._path = folder / "lessons" / f"{key}.json"

    def recall(self) -> int:
        """Bytes by which the measured peak exceeded the predicted one; 0 where nothing was learned."""
        try:
            record = json.loads(self._path.read_bytes())
            found = record["excess_bytes"] if record["schema"] == SCHEMA else 0
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("rematpass: what was learned of this graph cannot be read from %s: %s", self._path, error)
            return 0
        return found if isinstance(found, int) and found > 0 else 0

    def note(self, excess_bytes: int) -> None:
        """Remember for the next compilation, in this process or another; what was known and is larger stays.

        Else a plan that is the smallest there is, and little above its prediction, would undo what made it.
        """
        excess_bytes = max(excess_bytes, self.recall())
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps({"schema": SCHEMA, "excess_bytes": excess_bytes}) + "\n")
        except OSError as error:
            logger.warning("rematpass: what was learned of this graph is not kept in %s (%s)", self._path, error)
