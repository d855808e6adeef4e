"""Under which conditions a bench ran: date, versions, hardware. Never a name or a path of the machine."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any

import torch

from rematpass.demo.machine import cpu_name
from rematpass.report.doctor import find_version

PACKAGES = ("rematpass", "torch", "triton", "numpy", "scipy", "networkx", "transformers")


def describe_machine(device: torch.device | None = None) -> dict[str, Any]:
    """Everything about the machine that one needs to judge figures, ready for JSON.

    With `device`, where steps really ran, also the GPU's name and the threads of the processor.
    """
    versions: dict[str, str | None] = {name: find_version(name) for name in PACKAGES}
    hardware = {"cpu": cpu_name(), "cores": os.cpu_count(), "system": platform.system()}
    if device is not None:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        hardware |= {"device": name, "threads": torch.get_num_threads()}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": {**versions, "python": platform.python_version()},
        "hardware": hardware,
    }
