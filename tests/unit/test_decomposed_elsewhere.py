"""Operators that fall apart as they do on the device a plan is made for."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import rematpass
from rematpass.errors import RematError
from rematpass.graph.capture import JointProgram
from rematpass.graph.op_traits import base_name
from rematpass.look import Step, look_at_step
from rematpass.options import parse_options
from rematpass.torch_compat import elsewhere


def joint_ops(model: nn.Module, shape: tuple[int, ...], device: str, dtype: str | None = None) -> list[str]:
    """The operators of forward and backward, as traced for a device."""

    def use(joint: JointProgram, _settings: object) -> list[str]:
        return [base_name(node.target) for node in joint.nodes if node.op == "call_function"]

    step = Step(
        model, (torch.empty(shape, device="meta"),), loss=lambda y: y.square().sum(), device=device, dtype=dtype
    )
    return look_at_step(step, parse_options({"memory_budget": "none"}), use)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_a_norm_hands_on_what_it_does_on_a_gpu(norm):
    """Means and deviations in float32; on a CPU they are rounded for the backward."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(16, 16), norm(16))
    cpu, gpu = (joint_ops(model, (32, 16), device, "bf16") for device in ("cpu", "l4"))
    assert cpu.count("convert_element_type") >= gpu.count("convert_element_type") + 2


def test_the_gradient_of_a_bias_of_a_convolution_is_a_sum_of_its_own_on_a_gpu():
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8))
    cpu, gpu = (joint_ops(model, (2, 3, 16, 16), device) for device in ("cpu", "l4"))
    assert gpu.count("sum") == cpu.count("sum") + 1
    assert (cpu.count("as_strided"), gpu.count("as_strided")) == (2, 0), "GroupNorm's other formula"


def test_products_over_one_element_are_as_on_a_gpu():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 1), nn.Linear(1, 64))
    cpu, gpu = (joint_ops(model, (32, 64), device) for device in ("cpu", "l4"))
    assert (cpu.count("addmm"), gpu.count("addmm")) == (2, 1)


def test_torch_takes_operators_apart_as_before_once_a_plan_is_made():
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    codes = [function.__code__ for function in elsewhere.device_minded()]
    rematpass.plan(model, (x,), loss=torch.sum, device="l4", memory_budget="none")
    with pytest.raises(RematError):
        rematpass.plan(lambda x: x.detach(), (x,), device="l4")
    assert [function.__code__ for function in elsewhere.device_minded()] == codes
    assert all(any("cpu" in str(c) for c in code.co_consts) for code in codes), "each still asks for the device"


def test_whose_attention_it_was_it_is_once_a_plan_is_made(monkeypatch):
    """Other packages put theirs in place of torch's."""

    def attend(*args, **kwargs):
        raise NotImplementedError

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    rematpass.plan(nn.Linear(4, 4), (torch.ones(2, 4),), loss=torch.sum, device="l4", memory_budget="none")
    assert functional.scaled_dot_product_attention is attend
