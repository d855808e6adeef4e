"""The device that is here: its prices, its memory, and the budget that follows.

In: options and a device type. Out: `Settings`. Never plans; the only place that asks the
hardware.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch

from . import torch_compat
from .check.measure import device_memory
from .cost.cpu_probe import cpu_model, processor_name
from .cost.device_model import DECLARED, DeviceModel, find_device
from .cost.memory import host_memory
from .cost.op_prices import OpPrices, PriceBook, file_book, read_prices, write_prices
from .declared import declared_ops
from .errors import OptionError
from .files import write_first
from .op_times import collect_prices
from .optimizers import StateToCome, state_to_come
from .options import MemoryBudget, Options, cache_dir, resolve_budget
from .pipeline import Settings
from .plan_file import load_plan
from .ranks import share_book, share_budget, share_device
from .report.sizes import format_bytes
from .solve._core import SOURCES

logger = logging.getLogger(__name__)

TIMES_VERSION = 1
"""Part of the name of the folder with operator times: raise it when what is timed, or how, changes."""

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
CUDNN_FIRST = frozenset({"h100-sxm", "h200-sxm", "b200"})
"""Where torch asks cuDNN for attention before it asks flash: devices of compute capability 9 and 10."""
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
    return find_device(known_name(torch.cuda.get_device_name()) or _STAND_IN)


def known_name(label: str) -> str | None:
    """The declared device that CUDA reports under `label`, None where nobody declared it."""
    return next((model for mark, model in _NAMES if mark in label and model in DECLARED), None)


def device_label(device_type: str) -> str:
    """What operators are timed on: the GPU's name, or the processor's with the threads that kernels use.

    A precision of float32 products that is not torch's usual one stands in it: it changes their times several times.
    """
    precision = torch_compat.matmul_precision()
    rounded = "" if precision == "highest" else f", float32 products in {precision} precision"
    if device_type == "cuda":
        return torch.cuda.get_device_name() + rounded
    return f"{processor_name()}, {torch_compat.num_threads()} threads{rounded}"


def open_book(cost_model: str, device_type: str, device: str | None = None) -> PriceBook | None:
    """Where measured times come from, as `cost_model` says; None where prices are the roofline's alone.

    A file from another device is not used, and a warning says so.

    Args:
        cost_model: "roofline", "measured" or a file.
        device_type: "cpu" or "cuda".
        device: a declared device that is planned for, when it is not the one that is here.

    Raises:
        OptionError: a file that cannot be used, or "measured" for a device that is not here.
    """
    if cost_model == "roofline":
        return None
    is_here = device is None and (device_type != "cuda" or torch.cuda.is_available())
    if cost_model == "measured":
        if is_here:
            return share_book(device_type, _folder_book(device_label(device_type)))
        raise OptionError(
            f"cost_model='measured' times operators on the device that is planned for, and {device or device_type!r} "
            "is not here. Try: cost_model='roofline', or a file that rematpass.save_prices wrote there"
        )
    prices = read_prices(cost_model)
    wanted = device_label(device_type) if is_here else device or device_type
    if wanted not in (prices.device, known_name(prices.device)):
        warnings.warn(
            f"rematpass: the operator times in {cost_model} are from {prices.device}, the step is planned for "
            f"{wanted}; the roofline is used instead. Try: cost_model='measured'",
            stacklevel=2,
        )
        return None
    if prices.torch_version != torch_compat.torch_version():
        logger.warning("rematpass: the operator times in %s are from torch %s", cost_model, prices.torch_version)
    return share_book(device_type, file_book(cost_model, prices))


def save_prices(path: str | Path, device_type: str | None = None) -> Path:
    """Write all operator times measured so far on this device into one file, for `cost_model="the/file.json"`.

    They are measured while something is planned with `cost_model="measured"`. The file can be kept, edited and used on
    any machine with the same device; returns its path.

    Args:
        path: a name that ends in .json.
        device_type: "cpu" or "cuda"; None for CUDA when there is one, else CPU.

    Raises:
        OptionError: another ending, nothing was measured yet, or the system refuses.
    """
    target = Path(path).expanduser()
    if target.suffix != ".json":
        raise OptionError(
            f"path={str(path)!r} does not end in .json, by which cost_model knows files. Try: prices.json"
        )
    book = _folder_book(device_label(device_type or ("cuda" if torch.cuda.is_available() else "cpu")))
    prices = collect_prices(book)
    if not prices.nanoseconds:
        raise OptionError(
            f"no operator was timed on {prices.device} yet. "
            "Try: rematpass.plan(model, args, cost_model='measured') first"
        )
    try:
        write_prices(prices, target)
    except OSError as error:
        raise OptionError(f"path={str(path)!r} cannot be written: {error}. Try: another folder") from error
    return target


def _folder_book(label: str) -> PriceBook:
    """The times kept on this machine. The folder gets a name of its own once, and a new one when it is removed."""
    version = torch_compat.torch_version()
    key = hashlib.sha256(f"{label}|{version}|{TIMES_VERSION}".encode()).hexdigest()[:16]
    folder = cache_dir() / f"times-{key}"
    about = folder / "about.json"
    identity = secrets.token_hex(16)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not about.exists():
            record = {"device": label, "torch_version": version, "identity": identity}
            write_first(about, json.dumps(record, indent=1) + "\n")
        identity = str(json.loads(about.read_text(encoding="utf-8"))["identity"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("rematpass: operator times cannot be kept in %s (%s); they are measured again", folder, error)
    return PriceBook(OpPrices(label, version, ()), str(folder), is_open=True, identity=identity)


def make_settings(
    options: Options,
    device_type: str,
    topic: str,
    *,
    is_fusing: bool = True,
    device: str | None = None,
    inputs: Iterable[object] = (),
) -> Settings:
    """Resolve options for the device that is here, or for the declared `device`.

    Args:
        options: as asked.
        device_type: "cpu" or "cuda".
        topic: what is planned. Ranks of a job that plan the same share prices and the "auto" budget.
        is_fusing: the halves go to a compiler that fuses.
        device: plan for this one: "cpu" (this host's processor, whatever it runs now) or a declared GPU. Its memory
            counts as free.
        inputs: of the graph. From "auto" goes what the optimizers of the parameters among them have yet to take.
    """
    to_come = StateToCome()
    if device is not None:
        model, device_type = find_target(device)
        total = free = _target_bytes(model, device_type)
    else:
        model = share_device(device_type, present_device(device_type))
        memory = device_memory(torch.device(device_type))
        to_come = state_to_come(inputs) if options.memory_budget.kind == "auto" else to_come
        total, free = memory.total_bytes, max(0, memory.free_bytes - to_come.bytes)
    budget = resolve_budget(options.memory_budget, total_bytes=total, free_bytes=free, reserve=options.reserve)
    is_above = options.memory_budget.kind == "auto" and device is None
    if is_above and budget is not None:
        budget = share_budget(topic, budget, free)
    declared, book = declared_ops(), open_book(options.cost_model, device_type, device)
    replay = None if options.plan is None else load_plan(options.plan)
    parts = (
        "" if book is None else book.identity,
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
        book=book,
        replay=replay,
        device_type=device_type if device is not None else None,
        notes=_budget_notes(to_come) if device is None else (STAND_IN_NOTE.format(device=model.name),),
    )


def _budget_notes(to_come: StateToCome) -> tuple[str, ...]:
    notes = []
    if to_come.bytes:
        names, size = " and ".join(to_come.names), format_bytes(to_come.bytes)
        notes.append(f"from memory_budget='auto' went {size} for the state that {names} has yet to take")
    notes += [
        f"memory_budget='auto' leaves no room for the state of {name}, which has taken none yet and whose size is not "
        "known. Try: reserve=..."
        for name in to_come.unknown
    ]
    return tuple(notes)


@cache
def _code_fingerprint() -> str:
    """Hash of our sources and of torch's version: a change in either makes old compiled steps stale."""
    digest = hashlib.sha256(f"{torch_compat.torch_version()} {SOURCES}".encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
