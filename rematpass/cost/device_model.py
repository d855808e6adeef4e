"""What a device can do: the four figures a price needs.

In: declared figures, or JSON. Out: a frozen `DeviceModel`, or an `OptionError` that says which figure is wrong.
Never measures, never imports torch.
"""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rematpass.errors import OptionError

GPU_LAUNCH_NS = 2_000
"""Fixed cost of one GPU kernel in a stream that never runs dry: the gap to the next one plus its ramp-up and drain.

Origin: about 1 us between overlapped launches (NVIDIA, "Getting Started with CUDA Graphs", 2019: 3.8 us a launch of a
2.9 us kernel) and as much for ramp-up and drain; set 2026-11. At half, recomputing many tiny ops looks cheaper than it
is; at twice, plans avoid tiny recomputations that fusion makes free.
"""

_POSITIVE = ("bandwidth_bytes_per_second", "link_bytes_per_second", "memory_bytes")


def _require_number(what: str, value: object, *, may_be_zero: bool = False) -> None:
    """Refuse anything but a finite number above zero (or at zero, where allowed)."""
    is_bool = isinstance(value, bool)  # True counts as 1 otherwise
    if (
        isinstance(value, int | float)
        and not is_bool
        and math.isfinite(value)
        and value >= 0
        and (value or may_be_zero)
    ):
        return
    bound = "at least 0" if may_be_zero else "above 0"
    raise OptionError(f"device model: {what} is {value!r}; it must be a finite number {bound}.")


def _require_rates(rates: object) -> None:
    """Refuse anything but a non-empty tuple of (dtype name, operations per second) with distinct names."""
    if not isinstance(rates, tuple) or not rates:
        raise OptionError(
            f"device model: flops_per_second is {rates!r}; it must be a tuple of pairs such as "
            "(('float32', 67e12), ('bfloat16', 989e12)), at least one."
        )
    for entry in rates:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)):
            raise OptionError(f"device model: flops_per_second holds {entry!r}; each entry is (dtype name, number).")
        _require_number(f"flops_per_second[{entry[0]!r}]", entry[1])
    names = [name for name, _ in rates]
    if len(set(names)) != len(names):
        raise OptionError(f"device model: flops_per_second names a dtype twice: {names}.")


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """The figures of one device.

    Attributes:
        name: what users type, e.g. "h100-sxm".
        flops_per_second: (dtype name, dense peak in operations per second), names as torch spells them without
            "torch.": "float32", "bfloat16", ...
        bandwidth_bytes_per_second: of the device's main memory, reads and writes together.
        launch_ns: fixed cost of one kernel, in nanoseconds.
        link_bytes_per_second: host link, one direction.
        memory_bytes: of the device.
        source: where the figures come from.

    Raises:
        OptionError: a figure is missing, negative, zero where it must not be, NaN or infinite; the message says which.

    >>> DeviceModel("toy", (("float32", 1e12),), -1.0, 0, 1e9, 2**30, "invented")
    Traceback (most recent call last):
    rematpass.errors.OptionError: device model: bandwidth_bytes_per_second is -1.0; it must be a finite number above 0.
    """

    name: str
    flops_per_second: tuple[tuple[str, float], ...]
    bandwidth_bytes_per_second: float
    launch_ns: int
    link_bytes_per_second: float
    memory_bytes: int
    source: str

    def __post_init__(self) -> None:
        for what in ("name", "source"):
            value = getattr(self, what)
            if not isinstance(value, str) or not value:
                raise OptionError(f"device model: {what} is {value!r}; it must be a non-empty string.")
        _require_rates(self.flops_per_second)
        for what in _POSITIVE:
            _require_number(what, getattr(self, what))
        _require_number("launch_ns", self.launch_ns, may_be_zero=True)
        for what in ("launch_ns", "memory_bytes"):
            if not isinstance(getattr(self, what), int):
                raise OptionError(f"device model: {what} is {getattr(self, what)!r}; it must be a whole number.")

    def peak_flops(self, dtype: str) -> float:
        """Dense peak of `dtype` in operations per second; of float32, else the largest declared, when unknown.

        >>> find_device("h100-sxm").peak_flops("bfloat16"), find_device("h100-sxm").peak_flops("complex64")
        (989400000000000.0, 67000000000000.0)
        """
        rates = dict(self.flops_per_second)
        return rates.get(dtype) or rates.get("float32") or max(rates.values())

    def to_json(self) -> str:
        """The model as JSON text; `from_json` reads it back to an equal model."""
        return json.dumps(asdict(self) | {"flops_per_second": dict(self.flops_per_second)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> DeviceModel:
        """Read what `to_json` wrote, or a file written by hand.

        Args:
            text: a JSON object with exactly the attributes of `DeviceModel`; `flops_per_second` maps dtype names to
                numbers.

        Raises:
            OptionError: not JSON, not an object, a missing or unknown key, or a figure `DeviceModel` refuses.

        >>> DeviceModel.from_json(find_device("l4").to_json()) == find_device("l4")
        True
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise OptionError(f"device model: not JSON ({error}).") from error
        _require_keys(data)
        rates = data["flops_per_second"]
        if not isinstance(rates, dict):
            raise OptionError(f"device model: flops_per_second is {rates!r}; it must map dtype names to numbers.")
        return cls(**(data | {"flops_per_second": tuple(rates.items())}))


def _require_keys(data: object) -> None:
    """Refuse anything but an object with exactly the fields of a `DeviceModel`."""
    if not isinstance(data, dict):
        raise OptionError(f"device model: the JSON holds a {type(data).__name__}; it must be an object.")
    known = {field.name for field in fields(DeviceModel)}
    missing, unknown = sorted(known - set(data)), sorted(set(data) - known)
    if missing or unknown:
        raise OptionError(f"device model: missing keys {missing}, unknown keys {unknown}; known: {sorted(known)}.")


# Declared figures. All are dense (without 2:4 sparsity) at boost clock. "float32" is with TF32 off, as torch is by
# default; the TF32 rate stands in a comment. "float64" is the tensor-core rate where there is one. float16 and bfloat16
# accumulate in float32, as torch's matrix products do. Memory is what the datasheet prints, in 10^9 bytes, which is
# never more than what the driver shows. The link is PCI Express to the host, one direction.
_PCIE4_BYTES_PER_SECOND = 32e9  # x16, datasheets print 64 GB/s for both directions
_PCIE5_BYTES_PER_SECOND = 64e9  # x16, datasheets print 128 GB/s for both directions

_HOPPER_RATES = (("float64", 67e12), ("float32", 67e12), ("float16", 989.4e12), ("bfloat16", 989.4e12))  # TF32 494.7e12

_MODELS = (
    DeviceModel(
        name="a100-sxm",
        flops_per_second=(("float64", 19.5e12), ("float32", 19.5e12), ("float16", 312e12), ("bfloat16", 312e12)),
        bandwidth_bytes_per_second=2.039e12,  # TF32 156e12
        launch_ns=GPU_LAUNCH_NS,
        link_bytes_per_second=_PCIE4_BYTES_PER_SECOND,
        memory_bytes=80 * 10**9,
        source="NVIDIA A100 Tensor Core GPU datasheet, A100 80GB SXM",
    ),
    DeviceModel(
        name="h100-sxm",
        flops_per_second=_HOPPER_RATES,
        bandwidth_bytes_per_second=3.35e12,
        launch_ns=GPU_LAUNCH_NS,
        link_bytes_per_second=_PCIE5_BYTES_PER_SECOND,
        memory_bytes=80 * 10**9,
        source="NVIDIA H100 Tensor Core GPU datasheet and Hopper architecture whitepaper, H100 SXM5",
    ),
    DeviceModel(
        name="h200-sxm",
        flops_per_second=_HOPPER_RATES,
        bandwidth_bytes_per_second=4.8e12,
        launch_ns=GPU_LAUNCH_NS,
        link_bytes_per_second=_PCIE5_BYTES_PER_SECOND,
        memory_bytes=141 * 10**9,
        source="NVIDIA H200 Tensor Core GPU datasheet, H200 SXM",
    ),
    DeviceModel(
        name="b200",
        flops_per_second=(("float64", 40e12), ("float32", 80e12), ("float16", 2250e12), ("bfloat16", 2250e12)),
        bandwidth_bytes_per_second=8e12,  # TF32 1125e12
        launch_ns=GPU_LAUNCH_NS,
        link_bytes_per_second=_PCIE5_BYTES_PER_SECOND,
        memory_bytes=180 * 10**9,  # of 192 on the package; DGX B200 prints 1440 GB for eight
        source="NVIDIA Blackwell Architecture Technical Brief, HGX B200; DGX B200 datasheet for memory and link",
    ),
    DeviceModel(
        name="l4",
        flops_per_second=(("float64", 0.47e12), ("float32", 30.3e12), ("float16", 121e12), ("bfloat16", 121e12)),
        bandwidth_bytes_per_second=300e9,  # TF32 60e12; float64 is 1/64 of float32 on Ada
        launch_ns=GPU_LAUNCH_NS,
        link_bytes_per_second=_PCIE4_BYTES_PER_SECOND,
        memory_bytes=24 * 10**9,
        source="NVIDIA L4 Tensor Core GPU datasheet; Ada GPU architecture whitepaper for float64",
    ),
    DeviceModel(
        name="rtx-4090",
        flops_per_second=(("float64", 1.29e12), ("float32", 82.6e12), ("float16", 165.2e12), ("bfloat16", 165.2e12)),
        bandwidth_bytes_per_second=1.008e12,  # TF32 82.6e12
        launch_ns=GPU_LAUNCH_NS,
        link_bytes_per_second=_PCIE4_BYTES_PER_SECOND,
        memory_bytes=24 * 10**9,
        source="NVIDIA Ada GPU Architecture whitepaper, GeForce RTX 4090, FP32 accumulate",
    ),
    DeviceModel(
        name="rtx-5090",
        flops_per_second=(("float64", 1.64e12), ("float32", 104.8e12), ("float16", 209.5e12), ("bfloat16", 209.5e12)),
        bandwidth_bytes_per_second=1.792e12,  # TF32 104.8e12
        launch_ns=GPU_LAUNCH_NS,
        link_bytes_per_second=_PCIE5_BYTES_PER_SECOND,
        memory_bytes=32 * 10**9,
        source="NVIDIA RTX Blackwell GPU Architecture whitepaper, GeForce RTX 5090, FP32 accumulate",
    ),
    DeviceModel(
        name="mi300x",
        flops_per_second=(
            ("float64", 163.4e12),
            ("float32", 163.4e12),
            ("float16", 1307.4e12),
            ("bfloat16", 1307.4e12),
        ),
        bandwidth_bytes_per_second=5.3e12,  # TF32 653.7e12
        launch_ns=GPU_LAUNCH_NS,
        link_bytes_per_second=_PCIE5_BYTES_PER_SECOND,
        memory_bytes=192 * 10**9,
        source="AMD Instinct MI300X Accelerator data sheet, matrix rates",
    ),
)

DECLARED: dict[str, DeviceModel] = {model.name: model for model in _MODELS}
"""The declared devices by name; read only."""


def find_device(name: str) -> DeviceModel:
    """The declared device called `name`, in any case, or the one that a .json file describes.

    Raises:
        OptionError: no such device (the message lists the nearest names and all of them), or a file that cannot be
            used (the message says which figure is wrong).

    >>> find_device("H100-SXM").memory_bytes
    80000000000
    """
    if name.strip().endswith(".json"):
        return _read_file(name.strip())
    key = name.strip().lower()
    if key in DECLARED:
        return DECLARED[key]
    near = difflib.get_close_matches(key, DECLARED, n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise OptionError(f"unknown device {name!r}.{hint} Known: {', '.join(sorted(DECLARED))}, or a .json file.")


def _read_file(path: str) -> DeviceModel:
    try:
        return DeviceModel.from_json(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, OptionError) as error:
        raise OptionError(f"device {path!r} cannot be used: {error} Try: a file like DeviceModel.to_json()") from error
