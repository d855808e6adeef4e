"""Under which conditions a bench ran: date, versions, hardware. Never a name or a path of the machine."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any

from rematpass.demo.machine import cpu_name
from rematpass.report.doctor import find_version

PACKAGES = ("rematpass", "torch", "numpy", "scipy", "networkx")


def describe_machine() -> dict[str, Any]:
    """Everything about the machine that one needs to judge figures, ready for JSON."""
    versions: dict[str, str | None] = {name: find_version(name) for name in PACKAGES}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": {**versions, "python": platform.python_version()},
        "hardware": {"cpu": cpu_name(), "cores": os.cpu_count(), "system": platform.system()},
    }
