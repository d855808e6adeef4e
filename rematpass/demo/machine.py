"""Under which conditions a demo ran.

In: settings and a device. Out: hardware, versions, date and settings as JSON-ready data. Never a name or a path of the
machine.
"""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from rematpass.report.doctor import find_version

from .train import DemoSettings, choose_device


def describe_conditions(settings: DemoSettings) -> dict[str, Any]:
    """Everything one needs to judge the figures."""
    device = choose_device(settings.device)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": {
            "rematpass": find_version("rematpass"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "hardware": {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "system": platform.system(),
        },
        "settings": asdict(settings),
    }


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model name where the system tells it, else its architecture."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
