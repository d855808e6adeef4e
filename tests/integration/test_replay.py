"""A plan made without weights is followed where the model is trained, and its peak is what is measured."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import rematpass
from tests.perceptron import Perceptron

# Of the prediction; these two measure within 1 % of it (2026-11).
MOST_OFF = 0.03


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(128, 384) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            q, k, v = block(x).view(*x.shape[:2], 3, 2, 64).permute(2, 0, 3, 1, 4)
            x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x.square().mean()


SCALAR = {"cpp.simdlen": 1}  # compiles faster


def train(compiled, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor | None]:
    for parameter in model.parameters():
        parameter.grad = None
    compiled(x).backward()
    return [parameter.grad for parameter in model.parameters()]


def test_a_plan_from_elsewhere_is_followed_here(tmp_path):
    with torch.device("meta"):
        model, x = Perceptron(), torch.empty(2048, 128)
    ends = rematpass.plan(model, (x,), device="cpu", memory_budget="none")
    plan = rematpass.plan(model, (x,), device="cpu", memory_budget=(ends.peak_bytes + ends.smallest_peak_bytes) // 2)
    path = plan.save(tmp_path / "plan.json")

    torch._dynamo.reset()
    model, x = Perceptron(), torch.randn(2048, 128)
    wanted = train(model, model, x)
    compiled = torch.compile(model, backend="rematpass", options={"plan": str(path), **SCALAR})
    torch.testing.assert_close(train(compiled, model, x), wanted, rtol=1e-4, atol=1e-6)
    assert rematpass.plans(compiled) == [plan]
    for parameter in model.parameters():
        parameter.grad = None
    measured = rematpass.measure_peak(lambda: compiled(x).backward(), device="cpu") + plan.static_bytes
    assert measured <= 1.01 * plan.budget_bytes

    with pytest.raises(rematpass.PlanFileError, match=r"another graph[\s\S]*\(2048, 128\) in the plan"):
        torch.compile(model, backend="rematpass", options={"plan": str(path)}, dynamic=False)(torch.randn(512, 128))


@pytest.mark.parametrize(("make", "shape"), [(Perceptron, (2048, 128)), (Attention, (2, 1024, 128))])
def test_what_is_planned_as_if_elsewhere_is_measured_here(make, shape):
    with torch.device("meta"):
        model, x = make(), torch.empty(shape)
    plan = rematpass.plan(model, (x,), device="cpu", memory_budget="none")
    torch._dynamo.reset()
    model, x = make(), torch.randn(shape)
    # A budget that binds: without one Inductor orders and groups kernels as it likes.
    compiled = torch.compile(model, backend="rematpass", options={"memory_budget": plan.peak_bytes, **SCALAR})
    train(compiled, model, x)
    for parameter in model.parameters():
        parameter.grad = None
    measured = rematpass.measure_peak(lambda: compiled(x).backward(), device="cpu") + plan.static_bytes
    assert measured == pytest.approx(plan.peak_bytes, rel=MOST_OFF)
