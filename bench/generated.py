"""Is the predicted peak that of the code Inductor generates for a GPU? Counted without one.

In: models, small or of the size people train. Out: a table, and a result as JSON. Never runs a kernel, never measures
time.

    pip install triton
    python -m bench.generated [--cases llama_plain unet] [--dtype bf16] [--budgets 3] [--json [FILE]]
    python -m bench.generated --size large [--cases llama_fused t5] ...

Forward and backward are planned for an H100, lowered by Inductor for CUDA tensors without memory, and the generated
wrappers are executed with kernels that do nothing: at every allocation and call it is known which tensors are alive.
Scratch that libraries take at run time (cuDNN) cannot be seen so. The exit code is 1 when more than 1 % above the
budget is alive.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode

import rematpass
from bench.case_file import merge_cases, read_cases, write_cases
from bench.peaks import Row, format_row, make_case, rows_of, summarise
from bench.pretend_gpu import pretend_gpu
from bench.runnable import CASES, build
from bench.step_cases import SIZES
from bench.step_cases import build as build_for_steps
from rematpass import torch_compat
from rematpass.emit.layouts import lay_out_images
from rematpass.graph.capture import JointProgram
from rematpass.graph.layouts import find_images
from rematpass.graph.operators import CUDA_BLOCK_BYTES
from rematpass.look import Step, look_at_step
from rematpass.options import parse_options
from rematpass.pipeline import Planned, Settings, plan_and_split, room_beside_inputs

RESULTS = Path(__file__).parent / "results"
SCHEMA = 1
DEVICE = "h100-sxm"
MODE = FakeTensorMode(allow_non_fake_inputs=True)


@dataclass
class Memory:
    """Who is alive while a wrapper runs.

    Attributes:
        held: tensors that the caller holds throughout.
        peak_bytes: the most so far.
        alive: at that moment, (bytes, name in the wrapper), largest first.
    """

    held: list[Tensor] = field(default_factory=list)
    peak_bytes: int = 0
    alive: list[tuple[int, str]] = field(default_factory=list)

    def look(self, *new: object) -> None:
        """Count what the wrapper that calls has in its variables, and what it is about to get."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "call":
            frame = frame.f_back
        names = {} if frame is None else frame.f_locals
        found: dict[int, tuple[int, str]] = {}
        for name, value in [*names.items(), *(("new", n) for n in new), *(("held", h) for h in self.held)]:
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, Tensor):
                    storage = tensor.untyped_storage()
                    found.setdefault(
                        storage._cdata, (-(-storage.nbytes() // CUDA_BLOCK_BYTES) * CUDA_BLOCK_BYTES, name)
                    )
        total = sum(size for size, _ in found.values())
        if total > self.peak_bytes:
            self.peak_bytes, self.alive = total, sorted(found.values(), reverse=True)


def lower(
    half: fx.GraphModule, inputs: Sequence[object], compile_half: Callable[..., Any], donated: list[int] | None
) -> str:
    """The wrapper that Inductor generates for a half, as text; `donated`: inputs of a backward that are its own."""
    from torch._guards import TracingContext, tracing
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    codes: list[str] = []

    def keep_code(lowering: Any) -> Any:
        codes.append(lowering.codegen()[0].value)
        raise _Generated

    GraphLowering.compile_to_module = keep_code
    is_backward = donated is not None
    context = TracingContext(MODE)
    context.fw_metadata = SimpleNamespace(bw_donated_idxs=donated)
    static = range(len(inputs)) if is_backward else ()
    with V.set_fake_mode(MODE), tracing(context), torch_compat.compile_uncached(), suppress(_Generated):
        compile_half(half, list(inputs), static_input_idxs=static, is_backward=is_backward, graph_id=0)
    return codes[0]


class _Generated(BaseException):
    """Carries us out of Inductor once the code is there; no `Exception`, which Inductor would wrap."""


def _donated(forward: fx.GraphModule, backward: fx.GraphModule) -> list[int]:
    """What the backward is handed for good: kept tensors that the caller of the forward has no hold of."""
    seen = {node.name for node in forward.graph.find_nodes(op="placeholder")}
    seen.add(forward.graph.output_node().args[0][0].name)  # the loss
    given = enumerate(node.name for node in backward.graph.find_nodes(op="placeholder"))
    return [i for i, name in given if name not in seen and not name.startswith("tangents")]


def move_to_gpu(half: fx.GraphModule) -> fx.GraphModule:
    """The graph as if it had been traced on a GPU, in place."""
    for module in half.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            if "val" in node.meta:
                node.meta["val"] = torch_compat.map_leaves(_on_gpu, node.meta["val"])
            node.meta.pop("tensor_meta", None)
            node.args, node.kwargs = (fx.node.map_aggregate(a, _on_gpu) for a in (node.args, node.kwargs))
    half.recompile()
    return half


def _on_gpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cuda", 0)
    if not isinstance(value, Tensor):
        return value
    return allocate_fake(tuple(map(int, value.shape)), tuple(map(int, value.stride())), value.dtype)


def allocate_fake(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A CUDA tensor that takes no memory."""
    with MODE:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


class Called:
    """An operator of torch by its path, run on tensors without memory; kernels and `out=` do nothing."""

    def __init__(self, memory: Memory, operator: Any) -> None:
        self._memory, self._operator = memory, operator

    def __getattr__(self, name: str) -> Called:
        return Called(self._memory, getattr(self._operator, name, None))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Its result, nothing of a kernel."""
        if self._operator is None or "out" in kwargs:
            return self._memory.look()
        with MODE, torch.no_grad():
            result = self._operator(*args, **kwargs)
        self._memory.look(result)
        return result


def run_wrapper(code: str, inputs: Sequence[object], memory: Memory) -> Sequence[object]:
    """What the wrapper returns; `memory` has seen it run."""
    skipped = r"^(assert_\w+|reinterpret_tensor|alloc_from_pool|empty_strided_\w+|async_compile) = .*$"
    text = re.sub(skipped, "", code, flags=re.MULTILINE)
    text = re.sub(r"^.*get_raw_stream.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^.*(torch\.cuda\.set_device\(.*|del async_compile)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"with torch\.cuda\._DeviceGuard\(0\):", "if True:", text)
    text = re.sub(r"stream=(raw_)?stream0", "", text).replace("extern_kernels.", "_kernels.")
    text = text.replace("torch.ops.", "_operators.")

    def allocate(*layout: Any) -> Tensor:
        made = allocate_fake(*layout)
        memory.look(made)
        return made

    def reinterpret(tensor: Tensor | None, size: Any, stride: Any, offset: int = 0) -> Tensor | None:
        with MODE:
            return None if tensor is None else torch.as_strided(tensor, size, stride, offset)

    kernel = Called(memory, None)
    names: dict[str, Any] = {
        "__name__": "wrapper",
        "async_compile": SimpleNamespace(triton=lambda *_, **__: kernel, wait=lambda _: None),
        "assert_size_stride": lambda *_, **__: None,
        "assert_alignment": lambda *_, **__: None,
        "reinterpret_tensor": reinterpret,
        "empty_strided_cuda": allocate,
        "_kernels": Called(memory, torch),
        "_operators": Called(memory, torch.ops),
    }
    exec(compile(text, "wrapper", "exec"), names)
    returned: Sequence[object] = names["call"](list(inputs))
    return returned


def count_peak(planned: Planned) -> int:
    """The most bytes alive in either half, parameters and batch counted."""
    forward, backward = (move_to_gpu(planned.forward), move_to_gpu(planned.backward))
    compile_half = torch_compat.inner_compiler(
        lambda late: room_beside_inputs(planned.plan, is_backward=late),
        find_images=find_images,
        store_images=lay_out_images,
    )
    given = {node.name: node.meta["val"] for node in forward.graph.find_nodes(op="placeholder")}
    memory = Memory([tensor for tensor in given.values() if isinstance(tensor, Tensor)])
    returned = run_wrapper(lower(forward, [*given.values()], compile_half, None), [*given.values()], memory)
    outputs = [getattr(node, "name", None) for node in forward.graph.output_node().args[0]]
    known = given | dict(zip(outputs, returned, strict=True))
    # The backward is compiled for the layouts that the forward hands over.
    handed = [known.get(n.name, n.meta["val"]) for n in backward.graph.find_nodes(op="placeholder")]
    del known, returned
    run_wrapper(lower(backward, handed, compile_half, _donated(forward, backward)), handed, memory)
    return memory.peak_bytes


def budgets_of(model: torch.nn.Module, inputs: tuple[Tensor, ...], dtype: str, count: int) -> list[int]:
    """Budgets between the fastest plan's peak, left out, and the smallest."""
    curve = rematpass.frontier(model, inputs, device=DEVICE, dtype=dtype, count=2)
    peaks = [point.peak_bytes for point in curve.points]
    return [round(max(peaks) + (min(peaks) - max(peaks)) * i / count) for i in range(1, count + 1)]


@dataclass(frozen=True)
class Counted:
    """A model that is planned as `dtype`, and its inputs."""

    name: str
    dtype: str
    model: torch.nn.Module
    inputs: tuple[Tensor, ...]


def make_counted(name: str, size: str, dtype: str | None) -> Counted:
    """A small model as `dtype`; a large one without memory, in its own precision unless told."""
    if size == "small":
        return Counted(name, dtype or "fp32", *build(name, "cpu"))
    case = SIZES[size][name]
    own = {torch.bfloat16: "bf16", torch.float32: "fp32"}[case.dtype]
    return Counted(name, dtype or own, *build_for_steps(case, torch.device("meta"), 0))


def count_case(counted: Counted, count: int) -> Iterator[Row]:
    """Rows at `count` budgets."""
    model, inputs, dtype = counted.model, counted.inputs, counted.dtype

    def use(joint: JointProgram, settings: Settings) -> Planned:
        return plan_and_split(joint, settings, "graph 0")

    for budget in budgets_of(model, inputs, dtype, count):
        options = parse_options({"memory_budget": budget}, inductor_keys=torch_compat.inductor_keys())
        planned = look_at_step(Step(model, inputs, device=DEVICE, dtype=dtype), options, use)
        plan = planned.plan
        yield Row(counted.name, plan.static_bytes, budget, plan.peak_bytes, count_peak(planned))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked before anything is planned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="default: all of the size")
    parser.add_argument(
        "--size", choices=["small", "large"], default="small", help="large: those of bench.step for GPUs"
    )
    parser.add_argument("--dtype", choices=["bf16", "fp32"], help="default: fp32, large models their own")
    parser.add_argument("--budgets", type=int, default=3)
    parser.add_argument("--json", nargs="?", type=Path, const=Path(), metavar="FILE")
    chosen = parser.parse_args(argv)
    known = CASES if chosen.size == "small" else SIZES[chosen.size]
    unknown = sorted({*(chosen.cases or ())} - set(known))
    if unknown:
        parser.error(f"no case {unknown[0]!r} in size {chosen.size!r}; known: {', '.join(known)}")
    if chosen.json == Path():
        chosen.json = RESULTS / ("generated_gpu.json" if chosen.size == "small" else "generated_gpu_large.json")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Count, print, write."""
    chosen = parse_arguments(argv)
    pretend_gpu()
    cases = read_cases(chosen.json, SCHEMA, make_case("", (), {"size": chosen.size}))
    print(f"{'case':18s} {'static':>9s} {'budget':>9s} {'predicted':>9s} {'counted':>9s}  {'error':>7s}   (MiB)")
    found: list[Row] = []
    for name in chosen.cases or (CASES if chosen.size == "small" else SIZES[chosen.size]):
        counted, rows = make_counted(name, chosen.size, chosen.dtype), []
        for row in count_case(counted, chosen.budgets):
            rows.append(row)
            print(format_row(row), flush=True)
        found += rows
        settings = {"size": chosen.size, "device": DEVICE, "budgets": len(rows)}
        cases = merge_cases(cases, make_case(f"{name} {counted.dtype}", rows, settings))
        if chosen.json:
            write_cases(chosen.json, cases, SCHEMA, summarise(rows_of(cases)))
    summary = summarise(rows_of(cases))
    print(f"{summary['steps']} steps: median error {summary['median_error']:.1%}, worst {summary['worst_error']:.1%}")
    return 1 if any(row.is_over for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
