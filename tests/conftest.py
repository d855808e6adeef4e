"""What every test needs."""

import gc

import pytest
from torch._inductor.async_compile import AsyncCompile


@pytest.fixture(autouse=True, scope="module")
def earlier_modules_are_not_searched():
    """What earlier modules left (graphs, caches of torch) is no longer searched for garbage.

    A collection, of which a measured step makes several, took ten times as long at the end of the suite as alone.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def zeros_are_computed(monkeypatch):
    """Compiled steps allocate, free and call operators as ever, but instead of generated C++ they write zeros.

    A compiler run per kernel is most of what a test of a peak would take, and no peak depends on what is computed.
    """

    def write_zeros(_, types, __):
        written = [not kind.startswith("const") for kind in types]
        return lambda *arguments: [x.zero_() for x, is_written in zip(arguments, written, strict=True) if is_written]

    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", write_zeros)
