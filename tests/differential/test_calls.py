"""What is held from call to call: kernels share a call, and freed buffers are used again, within the plan only."""

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

import rematpass
from rematpass.torch_compat import compile_uncached
from tests.differential import kept_models
from tests.differential.compiled import compiled_step


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
