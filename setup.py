"""Builds the compiled core of the solver; everything else about the package stands in pyproject.toml."""

from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

CORE = Path("rematpass/solve/core")

ParallelCompile("NPY_NUM_BUILD_JOBS").install()
setup(
    ext_modules=[
        Pybind11Extension(
            "rematpass.solve._core",
            sorted(map(str, CORE.glob("*.cpp"))),
            depends=sorted(map(str, CORE.glob("*.hpp"))),
            cxx_std=17,
        )
    ]
)
