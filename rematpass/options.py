"""Options: what the user asked, read once.

In: the options mapping, the environment, a mode. Out: one frozen `Options` with a fingerprint, and budgets in bytes.
Never imports torch; never accepts silently what this version does not do.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from .errors import OptionError
from .frozen import canonical, freeze, thaw

_ENVIRONMENT_NAMES = (
    *("memory_budget", "reserve", "save", "recompute"),
    *("cost_model", "time_limit", "on_infeasible", "on_error", "verify"),
)
OPTION_NAMES = (*_ENVIRONMENT_NAMES, "mode", "plan")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
SIZE_FORMS = 'bytes as an int or digits, "20GiB" (2^30), "20GB" (10^9), "80%"'
BUDGET_FORMS = f'{SIZE_FORMS}, "auto", "none"'

DEFAULT_RESERVE_FRACTION = Fraction(1, 20)
"""Kept back from "auto" for what the graph cannot see. Promised in the documentation, 2026. Not measured yet: half of
it leaves less for fragmentation and optimizer state, twice of it gives away 10 % of the device."""

AUTO_STEPS = 64
""""auto" is rounded down to this share of the device, so that a few bytes more or less free do not miss the plan cache.
2026: with half as many up to 3.1 % of the device is given away; twice as many miss the cache more often."""

LONGEST_TIME_LIMIT = 86_400.0

_PREFIX = "REMATPASS_"
_CACHE_VARIABLE = "REMATPASS_CACHE_DIR"
_FROM_ENVIRONMENT = {f"{_PREFIX}{name.upper()}": name for name in _ENVIRONMENT_NAMES}
_BINARY = {f"{letter}iB": 2 ** (10 * power) for power, letter in enumerate("KMGT", start=1)}
_DECIMAL = {f"{letter}B": 10 ** (3 * power) for power, letter in enumerate("KMGT", start=1)}
_UNITS = {"": 1, **_BINARY, **_DECIMAL}
_SIZE = re.compile(r"([-+]?[0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*|%)")


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """A budget as asked: `amount` is an int of bytes, or a float of percent; 0 for "auto" and "none"."""

    kind: Literal["bytes", "percent", "auto", "none"]
    amount: int | float = 0


_AUTO = MemoryBudget("auto")


@dataclass(frozen=True, slots=True)
class Options:
    """Everything asked of rematpass. Hashable, comparable, picklable, deep-copyable.

    Attributes:
        memory_budget: the bound on the measured peak.
        reserve: bytes or percent kept back from "auto"; None for 5 % of the device.
        save, recompute: globs that pin values.
        cost_model: "roofline", "measured", or the path of a .json file with measured times.
        time_limit: seconds for the search beyond the first plans, counted in work, not by the clock.
        on_infeasible: raise, or warn and take the smallest peak possible.
        on_error: raise, or warn and fall back to a plain partition.
        inductor: sorted (key, value) pairs for Inductor's config; read them with `inductor_patches`.
        mode: a torch.compile mode, None when not given.
        plan: path of a plan file to replay, None to plan.
        verify: measure one real step and compare, over budget plan again; no part of the fingerprint, for what is asked
            stays the same.
    """

    memory_budget: MemoryBudget = _AUTO
    reserve: MemoryBudget | None = None
    save: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    cost_model: str = "roofline"
    time_limit: float = 5.0
    on_infeasible: Literal["error", "warn"] = "error"
    on_error: Literal["raise", "fallback"] = "raise"
    inductor: tuple[tuple[str, object], ...] = ()
    mode: str | None = None
    plan: str | None = None
    verify: bool = True

    def fingerprint(self) -> str:
        """Sha256 hex of all options but `verify`, the same in any process and under any hash seed.

        Functions count by their qualified name, and objects whose repr holds an address by their `uuid()` (Inductor's
        protocol for custom passes) or the name of their class.
        """
        lines = (
            f"{field.name}={canonical(getattr(self, field.name))}" for field in fields(self) if field.name != "verify"
        )
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def inductor_patches(self) -> dict[str, object]:
        """The Inductor options as a new dict, with lists and dicts as the user gave them."""
        return {key: thaw(value) for key, value in self.inductor}


def parse_memory_budget(value: object, *, name: str = "memory_budget") -> MemoryBudget:
    """Read a memory budget.

    Args:
        value: int bytes, "20GiB", "20GB", "80%", "auto", "none", or digits.
        name: how messages call it.

    Raises:
        OptionError: any other form, and anything not above zero.

    >>> parse_memory_budget("1.5 KiB"), parse_memory_budget("80%")
    (MemoryBudget(kind='bytes', amount=1536), MemoryBudget(kind='percent', amount=80.0))
    """
    if isinstance(value, str) and value in ("auto", "none"):
        return MemoryBudget("auto" if value == "auto" else "none")
    budget = _read_size(value, name, BUDGET_FORMS)
    if budget.amount <= 0:
        raise _refusal(name, value, "a budget must be above zero", BUDGET_FORMS)
    return budget


def parse_options(
    options: Mapping[str, object] | None,
    *,
    mode: str | None = None,
    inductor_keys: Collection[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Options:
    """Read options: those given, then the environment (`REMATPASS_*`; empty means not set), then defaults.

    Args:
        options: rematpass's own names, and Inductor's ("-" is read as "_", as torch does).
        mode: a torch.compile mode; may be inside `options` instead.
        inductor_keys: the names Inductor's config knows; their values are passed on unread.
        environ: read in place of `os.environ`.

    Raises:
        OptionError: an unknown name, a value not taken, or an option this version does not have yet.
    """
    ours, patches = _sort_keys({} if options is None else options, frozenset(inductor_keys))
    given = _read_environment(os.environ if environ is None else environ)
    given.update({name: (name, value) for name, value in ours.items()})
    if mode is not None:
        if given.setdefault("mode", ("mode", mode))[1] not in (None, mode):
            raise _refusal("mode", mode, f"options also has mode={ours['mode']!r}", "one of the two")
        given["mode"] = ("mode", mode)
    settled: dict[str, Any] = {name: _READERS[name](value, label) for name, (label, value) in given.items()}
    if settled.get("plan") is not None and settled.get("memory_budget", _AUTO) != _AUTO:
        raise _refusal("plan", settled["plan"], "memory_budget is given, too; a plan has its own", "one of the two")
    both = sorted(set(settled.get("save", ())) & set(settled.get("recompute", ())))
    if both:
        raise _refusal("save", both, "the same globs are in recompute", "each glob in one of the two")
    return Options(**settled, inductor=patches)


def resolve_budget(
    budget: MemoryBudget, *, total_bytes: int, free_bytes: int, reserve: MemoryBudget | None, own_bytes: int = 0
) -> int | None:
    """The budget in bytes on a device; None for "none", never below 1.

    Args:
        budget: as asked.
        total_bytes: memory of the device.
        free_bytes: of it, free now.
        reserve: kept back from "auto"; None for 5 % of `total_bytes`.
        own_bytes: already allocated and part of the budget (the graph's own inputs).

    >>> resolve_budget(MemoryBudget("auto"), total_bytes=6400, free_bytes=5000, reserve=None, own_bytes=70)
    4700
    """
    if budget.kind == "none":
        return None
    if budget.kind == "bytes":
        return max(1, int(budget.amount))
    if budget.kind == "percent":
        return max(1, _share_bytes(budget, total_bytes))
    kept_back = (
        math.ceil(total_bytes * DEFAULT_RESERVE_FRACTION) if reserve is None else _share_bytes(reserve, total_bytes)
    )
    step_bytes = max(1, total_bytes // AUTO_STEPS)
    return max(1, (free_bytes + own_bytes - kept_back) // step_bytes * step_bytes)


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where plans are cached: REMATPASS_CACHE_DIR, else XDG_CACHE_HOME/rematpass, else ~/.cache/rematpass.

    An XDG_CACHE_HOME that is not absolute is ignored, as the XDG specification asks.
    """
    environ = os.environ if environ is None else environ
    own = environ.get(_CACHE_VARIABLE)
    if own:
        return Path(own).expanduser()
    shared = Path(environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "rematpass"


def _share_bytes(size: MemoryBudget, total_bytes: int) -> int:
    """A size of kind bytes or percent in bytes, rounded down; through the decimal text, so that 33.3 % is exact."""
    assert size.kind in ("bytes", "percent"), size
    return int(size.amount) if size.kind == "bytes" else math.floor(total_bytes * Fraction(str(size.amount)) / 100)


def _refusal(name: str, value: object, why: str, forms: str) -> OptionError:
    return OptionError(f"{name}={value!r} ({type(value).__name__}) is not taken: {why}. Try: {forms}")


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, sorted(known), n=3)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"known are {', '.join(sorted(known)[:40])}"


def _read_size(value: object, name: str, forms: str) -> MemoryBudget:
    if isinstance(value, float):
        why = f"elsewhere a float means three different things; say {float(value):.0%} as a text, or bytes"
        raise _refusal(name, value, why, forms)
    if isinstance(value, int) and not isinstance(value, bool):
        return MemoryBudget("bytes", value)
    if not isinstance(value, str):
        raise _refusal(name, value, "it is neither a number of bytes nor a text", forms)
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise _refusal(name, value, "it cannot be read", forms)
    return _read_unit(value, match, name, forms)


def _read_unit(value: str, match: re.Match[str], name: str, forms: str) -> MemoryBudget:
    number, unit = Fraction(match[1]), match[2]
    if unit == "%":
        if number > 100:
            raise _refusal(name, value, "a device has 100 %", forms)
        return MemoryBudget("percent", float(number))
    if unit not in _UNITS:
        bits = "a lower-case b means bits to some tools" if unit.endswith("b") else f"no unit is called {unit!r}"
        raise _refusal(name, value, bits, forms)
    if not unit and "." in match[1]:
        raise _refusal(name, value, "a number of bytes has no fraction", forms)
    return MemoryBudget("bytes", math.floor(number * _UNITS[unit]))


def _read_reserve(value: object, name: str) -> MemoryBudget | None:
    if value is None:
        return None
    reserve = _read_size(value, name, SIZE_FORMS)
    if reserve.amount < 0:
        raise _refusal(name, value, "a reserve is not below zero", SIZE_FORMS)
    return reserve


def _read_globs(value: object, name: str) -> tuple[str, ...]:
    form = 'a list of globs such as ["*.attn.*"]'
    if not isinstance(value, list | tuple):
        raise _refusal(name, value, "it is not a list or tuple", form)
    for glob in value:
        if not isinstance(glob, str) or not glob:
            raise _refusal(name, value, f"{glob!r} is not a glob", form)
    return tuple(value)


def _read_seconds(value: Any, name: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= LONGEST_TIME_LIMIT:
        why = "it is out of range" if is_number else "it is not a number"
        raise _refusal(name, value, why, f"a number of seconds from 0 to {LONGEST_TIME_LIMIT:.0f}")
    return float(value)


def _read_path(value: object, name: str) -> str | None:
    if value is None or (isinstance(value, str | os.PathLike) and str(value)):
        return None if value is None else str(value)
    raise _refusal(name, value, "it is no path", 'the path of a file that plan.save("plan.json") wrote')


def _one_of(*choices: str, suffix: str = "\0") -> Callable[[object, str], object]:
    """A reader that takes these choices only, and names of files that end so."""

    def read(value: object, name: str) -> object:
        if not isinstance(value, str) or (value not in choices and not value.endswith(suffix)):
            forms = ", ".join(map(repr, choices)) + (f", or a {suffix} file" if suffix != "\0" else "")
            raise _refusal(name, value, "it is not one of the choices", forms)
        return value

    return read


def _read_switch(value: object, name: str) -> bool:
    """True or False, in the environment 1 or 0."""
    if value in ("0", "1"):
        return value == "1"
    if not isinstance(value, bool):
        raise _refusal(name, value, "it is neither on nor off", "True or False (in the environment 1 or 0)")
    return value


_READERS: dict[str, Callable[[Any, str], object]] = {
    "memory_budget": lambda value, name: parse_memory_budget(value, name=name),
    "reserve": _read_reserve,
    "save": _read_globs,
    "recompute": _read_globs,
    "cost_model": _one_of("roofline", "measured", suffix=".json"),
    "time_limit": _read_seconds,
    "on_infeasible": _one_of("error", "warn"),
    "on_error": _one_of("raise", "fallback"),
    "mode": lambda value, name: None if value is None else _one_of(*MODES)(value, name),
    "verify": _read_switch,
    "plan": _read_path,
}


def _sort_keys(
    options: Mapping[str, object], inductor_keys: frozenset[str]
) -> tuple[dict[str, object], tuple[tuple[str, object], ...]]:
    """Our options, and the frozen patches for Inductor. Ours first, so that Inductor cannot take a name of ours."""
    if not isinstance(options, Mapping):
        raise _refusal("options", options, "it is not a mapping of names to values", "a dict")
    ours: dict[str, object] = {}
    patches: dict[str, object] = {}
    for key, value in options.items():
        name = key.replace("-", "_") if isinstance(key, str) else ""
        if name not in OPTION_NAMES and name not in inductor_keys:
            near = _suggestion(str(key), (*OPTION_NAMES, *inductor_keys))
            raise OptionError(f"there is no option {key!r} (given {value!r}) in rematpass or Inductor: {near}")
        if name in ours or name in patches:
            raise _refusal(str(key), value, "it is given twice, with - and with _", "one spelling")
        if name in OPTION_NAMES:
            ours[name] = value
        else:
            patches[name] = freeze(value, name)
    return ours, tuple(sorted(patches.items(), key=lambda pair: pair[0]))


def _read_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, object]]:
    """The options set in the environment: name -> (variable, value)."""
    given: dict[str, tuple[str, object]] = {}
    for variable in sorted(environ):
        if not variable.startswith(_PREFIX) or variable == _CACHE_VARIABLE:
            continue
        if variable not in _FROM_ENVIRONMENT:
            near = _suggestion(variable, (*_FROM_ENVIRONMENT, _CACHE_VARIABLE))
            raise OptionError(f"environment variable {variable}={environ[variable]!r} is not known: {near}")
        if environ[variable]:
            name = _FROM_ENVIRONMENT[variable]
            given[name] = (variable, _decode_variable(variable, name, environ[variable]))
    return given


def _decode_variable(variable: str, name: str, text: str) -> object:
    if name in ("save", "recompute"):
        return tuple(glob.strip() for glob in text.split(","))
    if name != "time_limit":
        return text
    try:
        return float(text)
    except ValueError:
        raise _refusal(variable, text, "it is not a number", "a number of seconds") from None
