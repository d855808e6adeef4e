"""Under which conditions a bench ran: date, versions, hardware. Never a name or a path of the machine."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any

import torch

from rematpass.demo.machine import cpu_name
from rematpass.report.doctor import find_version

PACKAGES = ("rematpass", "torch", "numpy", "scipy", "networkx", "transformers")


def describe_machine() -> dict[str, Any]:
    """Everything about the machine that one needs to judge figures, ready for JSON."""
    versions: dict[str, str | None] = {name: find_version(name) for name in PACKAGES}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": {**versions, "python": platform.python_version()},
        "hardware": {"cpu": cpu_name(), "cores": os.cpu_count(), "system": platform.system()},
    }


def describe_device(device: torch.device) -> dict[str, Any]:
    """What the steps ran on: the GPU's name or "cpu", and the threads of the processor."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"device": name, "threads": torch.get_num_threads()}
