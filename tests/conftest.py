"""What every test needs."""

import dataclasses
import gc
import logging
import os

import pytest
import torch
from torch._dynamo import guards
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile

from rematpass import device
from tests.kernels import compile_together

# Every process, and every new cache, would try out anew what the C++ compiler makes of this processor: 2 to 14 seconds.
# Where it fails at that, tests fail. Processes that tests start inherit it; here the setting was read at the import.
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
inductor_config.cpp.vec_isa_ok = True

# pytest listens to loggers that hand nothing on. If anyone listens to this one, torch prints every graph that it makes.
logging.getLogger("torch.__trace").propagate = True


@pytest.fixture(autouse=True, scope="module")
def earlier_modules_are_not_searched():
    """What earlier modules left (graphs, caches of torch) is no longer searched for garbage.

    A collection, of which a measured step makes several, took ten times as long at the end of the suite as alone.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def kernels_are_compiled_together(monkeypatch):
    """Of each compiler run, half is reading the same headers."""
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", compile_together)


@pytest.fixture(autouse=True)
def guards_are_not_timed(monkeypatch):
    """Dynamo times every set of guards it makes, for its own statistics; it empties the processor's caches for that."""
    monkeypatch.setattr(guards, "profile_guard_manager", lambda *_: 0.0)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """One folder for all workers of this run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def inductor_caches(shared_folder):
    """One folder for whoever only needs its own kernels compiled: compiled headers are made once, by one worker."""
    return str(shared_folder / "inductor")


@pytest.fixture
def own_caches(tmp_path_factory, inductor_caches, monkeypatch):
    """Nothing from earlier runs, nothing left behind."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", inductor_caches)
    monkeypatch.setenv("REMATPASS_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "rematpass"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def speeds_are_given(monkeypatch):
    """Which plan is found depends on how fast the processor is: what fails on one machine is to fail on all."""
    speeds = {"flops_per_second": (("float64", 8e10), ("float32", 1.6e11)), "bandwidth_bytes_per_second": 1.3e10}
    present_device = device.present_device
    given = dataclasses.replace(present_device("cpu"), **speeds, link_bytes_per_second=1.3e10)
    monkeypatch.setattr(device, "present_device", lambda type_: given if type_ == "cpu" else present_device(type_))


@pytest.fixture
def zeros_are_computed(kernels_are_compiled_together, monkeypatch):
    """Compiled steps allocate, free and call operators as ever, but instead of generated C++ they write zeros.

    To compile it is most of what a test of a peak would take, and no peak depends on what is computed.
    """

    def write_zeros(_, types, __):
        written = [not kind.startswith("const") for kind in types]
        return lambda *arguments: [x.zero_() for x, is_written in zip(arguments, written, strict=True) if is_written]

    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", write_zeros)
