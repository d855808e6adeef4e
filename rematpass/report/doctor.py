"""What this machine lacks to run rematpass, and how to mend it.

In: the machine. Out: checks, as lines or as data. Never changes anything, never raises because something is missing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from rematpass.cost.memory import host_memory
from rematpass.errors import RematError

from .sizes import format_bytes
from .table import align_columns

TORCH_FIRST = (2, 11)
TORCH_BEFORE = (2, 16)
"""The range of `pyproject.toml`; a test keeps them equal."""

COMPILE_SECONDS = 60
"""A compiler that needs longer for five lines is broken; half would do on any machine seen."""

LITTLE_MEMORY_BYTES = 2 * 2**30
"""The demo needs about half of this (2026-11); less makes compilers fail in odd ways."""

_TRIVIAL_SOURCE = """#include <Python.h>
#include <cmath>
#include <omp.h>
extern "C" double rematpass_doctor(double x) { return std::sqrt(x) + omp_get_max_threads(); }
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: what was found, and how to mend it when it is missing. Only a needed one is an error."""

    name: str
    is_ok: bool
    is_needed: bool
    found: str
    mend: str = ""


def examine_machine() -> list[Check]:
    """All checks, in the order in which a first run would meet them."""
    checks: list[Callable[[], Check]] = [check_torch, check_core, check_backend]
    checks += [check_compiler, check_triton, check_memory]
    return [check_python(), *(_guarded(check) for check in checks), *check_packages()]


def is_healthy(checks: Sequence[Check]) -> bool:
    """Whether nothing that is needed is missing."""
    return all(check.is_ok for check in checks if check.is_needed)


def format_checks(checks: Sequence[Check]) -> str:
    """A line per check, and below it how to mend what is missing."""
    rows = align_columns([(_state(check), check.name, check.found) for check in checks])
    lines = []
    for row, check in zip(rows, checks, strict=True):
        lines.append(row)
        if not check.is_ok:
            lines.append(f"         to mend: {check.mend}")
    lines.append("all that is needed is here" if is_healthy(checks) else "something that is needed is missing")
    return "\n".join(lines)


def make_record(checks: Sequence[Check]) -> dict[str, Any]:
    """The checks as JSON-ready data."""
    return {"is_ok": is_healthy(checks), "checks": [asdict(check) for check in checks]}


def check_python() -> Check:
    """Python 3.11 or newer."""
    found = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", sys.version_info >= (3, 11), True, found, "install Python 3.11 or newer")


def check_torch() -> Check:
    """A torch in the range this version was made for."""
    span = f"torch>={_dotted(TORCH_FIRST)},<{_dotted(TORCH_BEFORE)}"
    mend = f'pip install "{span}"'
    found = find_version("torch")
    if found is None:
        return Check("torch", False, True, "not installed", mend)
    is_ok = TORCH_FIRST <= parse_version(found) < TORCH_BEFORE
    return Check("torch", is_ok, True, f"{found} (works with {span})", mend)


def check_backend() -> Check:
    """The entry point by which torch.compile finds `backend="rematpass"`."""
    names = {entry.name for entry in entry_points(group="torch_dynamo_backends")}
    is_ok = "rematpass" in names
    found = 'backend="rematpass" is registered' if is_ok else "not registered"
    return Check("backend", is_ok, True, found, "install the package: pip install -e . in its folder")


def check_core() -> Check:
    """The solver's compiled part, which is built for one version of Python."""
    mend = "in the folder of rematpass: pip install -e . (needs a C++ compiler and Python's headers)"
    try:
        core = import_module("rematpass.solve._core")
    except ImportError as error:
        return Check("compiled core", False, True, str(error.__cause__ or error), mend)
    return Check("compiled core", True, True, Path(core.__file__ or "").name, mend)


def check_compiler(candidates: Sequence[str] | None = None) -> Check:
    """A C++ compiler with Python's headers and OpenMP, as Inductor needs for CPU code.

    Args:
        candidates: compilers to try in turn; those this Python knows, then g++ and clang++, when None.
    """
    mend = "install a C++ compiler and Python's headers: apt-get install g++ python3-dev, or xcode-select --install"
    reasons = []
    for name in _compiler_names() if candidates is None else candidates:
        problem = try_compiler(name)
        if problem is None:
            return Check("C++ compiler", True, True, f"{name} compiles with Python.h and OpenMP")
        reasons.append(f"{name}: {problem}")
    return Check("C++ compiler", False, True, "; ".join(reasons), mend)


def try_compiler(name: str) -> str | None:
    """None when `name` compiles a trivial shared library, else why not, in one line."""
    if shutil.which(name) is None:
        return "not found"
    with tempfile.TemporaryDirectory(prefix="rematpass-doctor-") as folder:
        source = Path(folder) / "trivial.cpp"
        source.write_text(_TRIVIAL_SOURCE)
        include = f"-I{sysconfig.get_path('include')}"
        command = [name, "-shared", "-fPIC", "-fopenmp", include, str(source), "-o", str(source.with_suffix(".so"))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    return None if done.returncode == 0 else _first_error(done.stderr)


def check_triton() -> Check:
    """Triton, needed only where torch sees a CUDA device."""
    found = find_version("triton")
    if not _has_cuda():
        return Check("triton", True, False, f"{found or 'not installed'}; no CUDA device, so not needed")
    mend = "install a CUDA build of torch, which brings Triton: see pytorch.org"
    return Check("triton", found is not None, True, found or "not installed, and a CUDA device is here", mend)


def check_memory() -> Check:
    """Memory that this process may still take; little of it is a warning, not an error."""
    free_bytes = host_memory().free_bytes
    is_ok = free_bytes >= LITTLE_MEMORY_BYTES
    mend = f"free some memory: compiling and the demo want {format_bytes(LITTLE_MEMORY_BYTES)}"
    return Check("memory", is_ok, False, f"{format_bytes(free_bytes)} free", mend)


def check_packages() -> Iterator[Check]:
    """The packages that are needed, then the extras."""
    found = find_version("numpy")
    yield Check("numpy", found is not None, True, found or "not installed", "pip install numpy")
    for name, use, extra in (("rich", "the progress bar", "cli"), ("matplotlib", "plots", "plot")):
        found = find_version(name)
        mend = f'for {use}: pip install "rematpass[{extra}]"'
        yield Check(f"{name} (optional)", found is not None, False, found or "not installed", mend)


def find_version(package: str) -> str | None:
    """The installed version of a package, None when it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def parse_version(text: str) -> tuple[int, int]:
    """Major and minor number.

    >>> parse_version("2.13.0+cpu"), parse_version("2.15.0a0")
    ((2, 13), (2, 15))
    """
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _guarded(check: Callable[[], Check]) -> Check:
    """A check that cannot even look is a failed check."""
    try:
        return check()
    except (ImportError, OSError, RematError) as error:
        name = check.__name__.removeprefix("check_")
        return Check(name, False, True, f"cannot be examined: {error}", "install it again")


def _compiler_names() -> list[str]:
    """The compiler this Python was built with, and the usual ones; `sysconfig` may add flags, which are left off."""
    built_with = str(sysconfig.get_config_var("CXX") or "").split()[:1]
    return list(dict.fromkeys([*built_with, "g++", "clang++"]))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _first_error(stderr: str) -> str:
    """The first line of a compiler's output that speaks of an error."""
    lines = stderr.strip().splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "failed without a message")


def _state(check: Check) -> str:
    return "ok" if check.is_ok else "missing" if check.is_needed else "absent"


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)
