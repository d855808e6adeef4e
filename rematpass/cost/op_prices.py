"""Measured times of operators, as a file that can be kept and handed on.

In: figures, or the JSON of a file. Out: a frozen `OpPrices`, or an `OptionError` that says which figure is wrong.
Never measures, never imports torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rematpass.errors import OptionError
from rematpass.files import write_whole

SCHEMA = 1
_KEYS = ("schema", "device", "torch_version", "nanoseconds")


@dataclass(frozen=True, slots=True)
class OpPrices:
    """How long operators take on one device.

    Attributes:
        device: what was measured, as the system names it, with the threads of a processor.
        torch_version: whose kernels these are.
        nanoseconds: sorted pairs (what is run, its time); a time of None says that it could not be measured.
    """

    device: str
    torch_version: str
    nanoseconds: tuple[tuple[str, int | None], ...]

    def to_json(self) -> str:
        """The file's text; `from_json` reads it back to an equal object."""
        record = {"schema": SCHEMA, "device": self.device, "torch_version": self.torch_version}
        return json.dumps(record | {"nanoseconds": dict(self.nanoseconds)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> OpPrices:
        """Read what `to_json` wrote.

        Raises:
            OptionError: not JSON, a key that is missing or unknown, or a time that is no positive number.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise OptionError(f"operator times: not JSON ({error}). Try: measure them again") from error
        _require_shape(data)
        for op, time_ns in data["nanoseconds"].items():
            require_time(op, time_ns)
        return cls(data["device"], data["torch_version"], tuple(sorted(data["nanoseconds"].items())))


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Where the measured times of a plan come from. Hashable and picklable: it is part of the settings.

    Attributes:
        known: times from a file; none for a folder.
        source: that file, or the folder where times are kept, one file an operator.
        is_open: what is not there yet is measured and added.
        identity: equal for equal times. A folder's times never change once they are there, so that its own name does.
    """

    known: OpPrices
    source: str
    is_open: bool
    identity: str


def read_prices(path: str | Path) -> OpPrices:
    """The operator times in a file.

    Raises:
        OptionError: there is no such file, or it cannot be used; the message says what is wrong with it.
    """
    try:
        return OpPrices.from_json(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, OptionError) as error:
        raise OptionError(
            f"cost_model={str(path)!r} cannot be used: {error}. Try: cost_model='measured', or a file that "
            "rematpass.save_prices wrote"
        ) from error


def write_prices(prices: OpPrices, path: str | Path) -> None:
    """Write a file that `read_prices` reads back.

    Raises:
        OSError: what the system refuses; an existing file is as it was.
    """
    write_whole(Path(path).expanduser(), prices.to_json() + "\n")


def file_book(path: str, prices: OpPrices) -> PriceBook:
    """The book that a file is: nothing is added to it."""
    return PriceBook(prices, path, is_open=False, identity=hashlib.sha256(prices.to_json().encode()).hexdigest())


def require_time(op: str, time_ns: Any) -> None:
    """Refuse anything but a whole number of nanoseconds above 0, or None where nothing could be measured."""
    is_number = isinstance(time_ns, int) and not isinstance(time_ns, bool)
    if time_ns is not None and not (is_number and time_ns > 0):
        raise OptionError(f"operator times: {op} takes {time_ns!r} ns; it must be a whole number above 0, or null")


def _require_shape(data: Any) -> None:
    if not isinstance(data, dict) or set(data) != set(_KEYS):
        found = sorted(data) if isinstance(data, dict) else type(data).__name__
        raise OptionError(f"operator times: found {found}; the file must be an object with {', '.join(_KEYS)}")
    if data["schema"] != SCHEMA:
        raise OptionError(f"operator times: schema is {data['schema']!r}; this version reads {SCHEMA}")
    for key in ("device", "torch_version"):
        if not isinstance(data[key], str) or not data[key]:
            raise OptionError(f"operator times: {key} is {data[key]!r}; it must be a non-empty string")
    if not isinstance(data["nanoseconds"], dict):
        raise OptionError(f"operator times: nanoseconds is {data['nanoseconds']!r}; it must map operators to numbers")
