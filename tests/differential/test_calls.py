"""What is held from call to call: kernels share a call, and freed buffers are used again, within the plan only."""

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

import rematpass
from rematpass.check.measure import storage_bytes
from rematpass.torch_compat import compile_uncached
from tests.differential import kept_models
from tests.differential.compiled import SCALAR, clear, compiled_step, train_step


class Regions(nn.Module):
    """Each layer a region that is compiled once: a graph inside the graph."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + region(layer, x)
        return x.square().mean()


@torch.compiler.nested_compile_region
def region(layer, x):
    return layer(x)


@pytest.mark.usefixtures("zeros_are_computed")
def test_what_graphs_inside_take_is_not_added_by_reuse():
    torch.manual_seed(0)
    model, x = Regions(), torch.randn(128, 32)

    def peaks(budget):
        """Of the outer graph, the last to be planned: planned, measured."""
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="rematpass", options={"memory_budget": budget, **SCALAR})
        train_step(compiled, x)
        clear(model)
        above = rematpass.measure_peak(lambda: train_step(compiled, x), device="cpu")
        clear(model)
        return rematpass.plans(compiled)[-1], above + storage_bytes([x, *model.parameters()])

    plan, _ = peaks("none")
    smallest, measured = peaks(plan.smallest_peak_bytes)
    assert measured <= smallest.peak_bytes * 1.005


class Chain(nn.Module):
    """Generated kernels only, each freeing what the one before returned."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x):
        x = x * self.scale
        for i in range(6):
            x = torch.tanh(x - x.mean(i % 2, keepdim=True))
        return x.square().mean()


@pytest.mark.usefixtures("zeros_are_computed")
def test_kernels_share_a_call_where_there_is_room():
    torch.manual_seed(0)
    model, x = Chain(), torch.randn(512, 64)
    plan = rematpass.plan(model, (x,), memory_budget="none")

    def calls(budget):
        """C++ functions of both halves; each is called once and compiled by itself."""
        with compile_uncached():
            (plan, _, measured), codes = run_and_get_code(compiled_step, model, x, budget)
        assert measured <= plan.peak_bytes * 1.005
        return sum(code.count("async_compile.cpp_pybinding(") for code in codes)

    assert calls(plan.fastest_peak_bytes * 6 // 5) < calls(plan.smallest_peak_bytes)


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize("end", ["fastest", "smallest"])
def test_freed_buffers_are_used_again_where_there_is_room(end):
    torch.manual_seed(0)
    model, x = kept_models.GraphConvolution(), torch.randn(512, 64)
    budget = getattr(rematpass.plan(model, (x,), memory_budget="none"), f"{end}_peak_bytes")

    def reuses(**options):
        with compile_uncached():
            (plan, _, measured), codes = run_and_get_code(compiled_step, model, x, budget, **options)
        assert measured <= plan.peak_bytes * 1.005
        return sum(code.count("# reuse") for code in codes)

    assert reuses() > reuses(allow_buffer_reuse=False) > 0  # the latter write over what they read
