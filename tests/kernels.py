"""Kernels of a graph compiled together.

Inductor runs the compiler once per kernel, and half of that time goes into reading the same headers again. Here the
kernels that are asked for until the first is wanted, those of a graph, are one file. What they compute is the same.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor
from torch._inductor.codecache import CppPythonBindingsCodeCache, LambdaFuture

INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)
NAME = re.compile(r'(extern "C"\s+void\s+kernel)\(')
NUMBERS = {"float": ctypes.c_float, "double": ctypes.c_double}


class Library(CppPythonBindingsCodeCache):
    """Compiled with the same flags and headers, but called by `ctypes`."""

    cache: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _load_library_inner(cls, path: str, key: str) -> ctypes.CDLL:
        return ctypes.CDLL(path)


@dataclass(eq=False)
class Batch:
    """Kernels that are compiled by one run of the compiler."""

    sources: list[str] = field(default_factory=list)

    def add(self, source: str) -> int:
        self.sources.append(source)
        return len(self.sources) - 1

    @property
    def is_compiled(self) -> bool:
        return "library" in self.__dict__

    @cached_property
    def library(self) -> ctypes.CDLL:
        includes = sorted({line for source in self.sources for line in INCLUDE.findall(source)})
        renamed = (NAME.sub(rf"\1_{i}(", INCLUDE.sub("", source)) for i, source in enumerate(self.sources))
        bodies = (f"namespace n{i} {{\n{body}\n}}" for i, body in enumerate(renamed))
        return Library.load("\n".join([*includes, *bodies]))


def kernel(batch: Batch, index: int, types: list[str]) -> Callable[..., None]:
    """Takes tensors where `types` has pointers, numbers elsewhere."""
    function = getattr(batch.library, f"kernel_{index}")
    function.restype = None
    function.argtypes = [ctypes.c_void_p if t.endswith("*") else NUMBERS.get(t, ctypes.c_int64) for t in types]

    def run(*arguments: object) -> None:
        function(*(x.data_ptr() if isinstance(x, Tensor) else x for x in arguments))

    return run


def compile_together(compiler: Any, types: list[str], source: str) -> LambdaFuture:
    """In place of `AsyncCompile.cpp_pybinding`: one compiler object is made per graph."""
    batch = compiler.__dict__.setdefault("batch", Batch())
    if batch.is_compiled:
        batch = compiler.batch = Batch()
    index = batch.add(source)
    return LambdaFuture(lambda: kernel(batch, index, types))
