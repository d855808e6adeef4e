"""The device that is here: its prices, its memory, and the budget that follows.

In: options and a device type. Out: `Settings`. Never plans; the only place that asks the
hardware.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import torch

from . import torch_compat
from .check.measure import device_memory
from .cost.cpu_probe import cpu_model
from .cost.device_model import DECLARED, DeviceModel, find_device
from .cost.memory import host_memory
from .declared import declared_ops
from .options import MemoryBudget, Options, cache_dir, resolve_budget
from .pipeline import Settings
from .plan_file import load_plan
from .ranks import share_budget, share_device

# Marketing names as CUDA reports them, in the order they are looked for.
_NAMES = (
    ("H200", "h200-sxm"),
    ("H100", "h100-sxm"),
    ("A100", "a100-sxm"),
    ("B200", "b200"),
    ("L4", "l4"),
    ("4090", "rtx-4090"),
    ("5090", "rtx-5090"),
    ("MI300X", "mi300x"),
)
# A device nobody declared is priced as this one: plans stay right, only the ranking of prices may be off.
_STAND_IN = "a100-sxm"


STAND_IN_NOTE = "planned for {device}; traced on tensors without memory, nothing was run and nothing was measured there"


def find_target(name: str) -> tuple[DeviceModel, str]:
    """A device to plan for, and its type: "cpu", or "cuda" for every declared one.

    Raises:
        OptionError: no such device; the message lists the nearest names and all of them.
    """
    if name.strip().lower() == "cpu":
        return present_device("cpu"), "cpu"
    return find_device(name), "cuda"


def budget_on(device: str, budget: MemoryBudget, reserve: MemoryBudget | None = None) -> int | None:
    """A budget in bytes on a device to plan for, all of whose memory counts as free; None for no limit."""
    total = _target_bytes(*find_target(device))
    return resolve_budget(budget, total_bytes=total, free_bytes=total, reserve=reserve)


def _target_bytes(model: DeviceModel, device_type: str) -> int:
    return model.memory_bytes if device_type != "cpu" else host_memory().total_bytes


@cache
def present_device(device_type: str) -> DeviceModel:
    """The model of the device of this type in this machine; the CPU is measured once and remembered."""
    if device_type != "cuda" or not torch.cuda.is_available():
        return cpu_model(cache_dir())
    name = torch.cuda.get_device_name()
    known = next((model for mark, model in _NAMES if mark in name and model in DECLARED), _STAND_IN)
    return find_device(known)


def make_settings(
    options: Options, device_type: str, topic: str, *, is_fusing: bool = True, device: str | None = None
) -> Settings:
    """Resolve options for the device that is here, or for the declared `device`.

    Args:
        options: as asked.
        device_type: "cpu" or "cuda".
        topic: what is planned. Ranks of a job that plan the same share prices and the "auto" budget.
        is_fusing: the halves go to a compiler that fuses.
        device: plan for this one: "cpu" (this host's processor, whatever it runs now) or a declared GPU. Its memory
            counts as free.
    """
    if device is not None:
        model, device_type = find_target(device)
        total = free = _target_bytes(model, device_type)
    else:
        model = share_device(device_type, present_device(device_type))
        memory = device_memory(torch.device(device_type))
        total, free = memory.total_bytes, memory.free_bytes
    budget = resolve_budget(options.memory_budget, total_bytes=total, free_bytes=free, reserve=options.reserve)
    is_above = options.memory_budget.kind == "auto" and device is None
    if is_above and budget is not None:
        budget = share_budget(topic, budget, free)
    declared = declared_ops()
    replay = None if options.plan is None else load_plan(options.plan)
    parts = (
        *(options.fingerprint(), str(budget), str(is_above), model.to_json(), str(is_fusing), _code_fingerprint()),
        *(op.fingerprint for op in declared),
        *((device_type,) if device is not None else ()),
        *((replay.to_json(),) if replay is not None else ()),
    )
    return Settings(
        budget_bytes=budget,
        is_budget_above_inputs=is_above,
        device=model,
        is_fusing=is_fusing,
        on_infeasible=options.on_infeasible,
        time_limit=options.time_limit,
        save=options.save,
        recompute=options.recompute,
        fingerprint=hashlib.sha256("\n".join(parts).encode()).hexdigest(),
        declared=declared,
        replay=replay,
        device_type=device_type if device is not None else None,
        notes=() if device is None else (STAND_IN_NOTE.format(device=model.name),),
    )


@cache
def _code_fingerprint() -> str:
    """Hash of our sources and of torch's version: a change in either makes old compiled steps stale."""
    digest = hashlib.sha256(torch_compat.torch_version().encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
