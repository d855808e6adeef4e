"""Builds the compiled core of the solver; everything else about the package stands in pyproject.toml."""

import hashlib
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

CORE = Path("rematpass/solve/core")
FILES = sorted([*CORE.glob("*.cpp"), *CORE.glob("*.hpp")])
# The core knows what it was made from: compiled steps of another core are not taken from a cache.
DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in FILES)).hexdigest()

ParallelCompile("MAX_JOBS").install()  # the variable that torch's own extensions heed
setup(
    ext_modules=[
        Pybind11Extension(
            "rematpass.solve._core",
            [str(path) for path in FILES if path.suffix == ".cpp"],
            depends=[str(path) for path in FILES],
            define_macros=[("REMATPASS_SOURCES", f'"{DIGEST}"')],
            cxx_std=17,
        )
    ]
)
