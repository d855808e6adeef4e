"""Torch made to believe that an H100 is here, so that Inductor generates Triton code for it. Nothing can run.

In: nothing. Out: a process whose fake tensors may be CUDA tensors. Never undone, never for a process that measures.

torch's CPU build has no guard for CUDA devices, and one built for CUDA asks the driver; one that does nothing is
compiled. Triton is needed to generate code (`pip install triton`), not to compile it.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rematpass import torch_compat

GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
using c10::Device, c10::DeviceType, c10::Stream;
struct Guard final : c10::impl::DeviceGuardImplInterface {
  Device here() const { return Device(DeviceType::CUDA, 0); }
  Stream stream() const { return Stream(Stream::DEFAULT, here()); }
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return here(); }
  Device getDevice() const override { return here(); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return stream(); }
  Stream getNewStream(Device, int) const override { return stream(); }
  Stream exchangeStream(Stream) const override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);
"""
HOOKS = """
#include <ATen/detail/CUDAHooksInterface.h>
namespace at {
struct CUDAHooks final : CUDAHooksInterface {
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  bool hasCuDNN() const override { return true; }
  double batchnormMinEpsilonCuDNN() const override { return 1e-5; }
  long versionCuDNN() const override { return 91500; }
  long versionRuntimeCuDNN() const override { return 91500; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
};
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, CUDAHooks)
}
"""
"""What autograd asks before it differentiates on CUDA tensors. Must be loaded before torch is (`LD_PRELOAD`)."""
# What Inductor asks of the device: NVIDIA's H100 SXM (CUDA's own figures for it).
_CAPABILITY = (9, 0)
_H100 = SimpleNamespace(
    name="NVIDIA H100",
    major=_CAPABILITY[0],
    minor=_CAPABILITY[1],
    multi_processor_count=132,
    total_memory=80 << 30,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 << 20,
    gcnArchName="",
)


def pretend_gpu() -> None:
    """From here on this process has a GPU, as far as generating code goes.

    Raises:
        RuntimeError: no C++ compiler, or no Triton.
    """
    try:
        from triton.backends.compiler import GPUTarget
        from triton.runtime import driver
    except ImportError as error:
        raise RuntimeError("generating code for a GPU needs Triton. Try: pip install triton") from error
    _load_guard()
    driver.set_active(SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 10 * _CAPABILITY[0], 32)))
    found: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": _H100,
        "get_device_capability": _CAPABILITY,
        "get_device_name": _H100.name,
        "mem_get_info": (_H100.total_memory, _H100.total_memory),
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "_lazy_init": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }
    for name, value in found.items():
        setattr(torch.cuda, name, _always(value))
    torch.version.cuda = "13.0"
    native: Any = torch._C
    native._conv_determine_backend_memory_format = _layout_of_cudnn
    _replace_interface()


def _replace_interface() -> None:
    from torch._dynamo.device_interface import CudaInterface
    from torch.utils import _triton

    interface: Any = CudaInterface
    for name, value in {
        "is_available": True,
        "current_device": 0,
        "device_count": 1,
        "exchange_device": 0,
        "maybe_exchange_device": 0,
        "get_raw_stream": 0,
        "set_device": None,
        "synchronize": None,
        "get_device_properties": _H100,
        "get_compute_capability": 10 * _CAPABILITY[0],
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
    }.items():
        setattr(interface, name, staticmethod(_always(value)))
    interface.Worker.get_device_properties = staticmethod(_always(_H100))
    interface.Worker.current_device = staticmethod(_always(0))
    _triton.has_triton = _always(True)


def _layout_of_cudnn(image: torch.Tensor, weight: torch.Tensor, _: object) -> torch.memory_format:
    """Channels last where either operand is, and only that: weights of 1 x 1 are both.

    As `cudnn_conv_suggest_memory_format` (aten/src/ATen/native/ConvUtils.h); without cuDNN torch would say otherwise.
    """
    layout = torch.channels_last
    images = [t for t in (image, weight) if t.ndim == torch_compat.IMAGE_RANK]
    is_last = any(t.is_contiguous(memory_format=layout) and not t.is_contiguous() for t in images)
    return layout if is_last else torch.contiguous_format


def _always(value: object) -> Any:
    return lambda *_, **__: value


def _load_guard() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ctypes.CDLL(str(build_library(GUARD, Path(folder))))


def build_library(source: str, folder: Path) -> Path:
    """A shared library made of C++ against torch's headers, in a folder.

    Raises:
        RuntimeError: no C++ compiler.
    """
    compiler = shutil.which("c++")
    if compiler is None:
        raise RuntimeError("a stand-in for parts of CUDA is compiled, and there is no c++. Try: apt install g++")
    root = Path(torch.__file__).parent
    text, library = folder / "part.cpp", folder / "part.so"
    text.write_text(source)
    flags = ["-shared", "-fPIC", "-std=c++20", f"-I{root / 'include'}", f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
    subprocess.run([compiler, str(text), "-o", str(library), *flags, f"-Wl,-rpath,{root / 'lib'}"], check=True)
    return library
