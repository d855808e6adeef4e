"""Autocast as on a GPU, on CPU tensors."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import rematpass
from rematpass.errors import RematError
from rematpass.torch_compat import autocast, autocast_as_on_gpu

HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
HALF, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64


def listed(policy):
    """Operators that torch's header has under this policy, without those of named tensors."""
    macro = re.search(rf"#define AT_FORALL_{policy}\(_\)((?:.*\\\n)*.*)", HEADER.read_text())
    found = re.findall(r"_\((\w+)(?:, (\w+))?\)", macro[1])
    names = {f"{name}.{overload}" if overload else name for name, overload in found}
    return {name for name in names if "name" not in name.lower()}


def test_policies_are_those_of_the_header():
    assert listed("LOWER_PRECISION_FP") == autocast.TO_16_BITS
    assert listed("FP32_SET_OPT_DTYPE") == autocast.RESULT_OF_32_BITS
    assert listed("PROMOTE") == autocast.TO_THE_WIDEST
    others = autocast.cuda_rules() - listed("LOWER_PRECISION_FP") - listed("FP32_SET_OPT_DTYPE") - listed("PROMOTE")
    assert others == listed("FP32") | autocast.WITH_DTYPE.keys() | autocast.REFUSED


X = torch.linspace(0.1, 1, 64).view(4, 16)

# What is called, the types of its arguments, the type of the result on a GPU, and on a CPU.
CASES = [
    pytest.param(lambda x: functional.layer_norm(x, (16,)), [HALF], SINGLE, HALF, id="layer_norm"),
    pytest.param(lambda x: x.softmax(-1), [HALF], SINGLE, HALF, id="softmax"),
    pytest.param(lambda x: x.softmax(-1, dtype=HALF), [SINGLE], HALF, HALF, id="softmax_of_a_type"),
    pytest.param(lambda x: torch.softmax(x, -1, HALF), [SINGLE], HALF, HALF, id="softmax_of_a_type_by_place"),
    pytest.param(lambda x: x.softmax(-1), [DOUBLE], DOUBLE, DOUBLE, id="softmax_of_64_bits"),
    pytest.param(lambda x: x.sum(), [HALF], SINGLE, HALF, id="sum"),
    pytest.param(lambda x: x.sum(-1, keepdim=True), [HALF], SINGLE, HALF, id="sum_over_one_dimension"),
    pytest.param(lambda x: x.prod(-1), [HALF], SINGLE, SINGLE, id="prod"),
    pytest.param(lambda x: x.pow(2), [HALF], SINGLE, HALF, id="pow"),
    pytest.param(torch.exp, [HALF], SINGLE, HALF, id="exp"),
    pytest.param(lambda x: torch.norm(x, 2), [HALF], SINGLE, HALF, id="norm"),
    pytest.param(lambda x: torch.ops.aten.norm(x, 2), [HALF], SINGLE, HALF, id="norm_of_all"),
    pytest.param(lambda x: torch.ops.aten.norm(x, 2, [1]), [HALF], SINGLE, HALF, id="norm_over_one_dimension"),
    pytest.param(lambda x: torch.ops.aten.norm(x, 2, [1]), [DOUBLE], DOUBLE, DOUBLE, id="norm_of_64_bits"),
    pytest.param(lambda x, y: x @ y.T, [SINGLE, SINGLE], HALF, HALF, id="matmul"),
    pytest.param(lambda x, y: x @ y.T, [DOUBLE, DOUBLE], DOUBLE, DOUBLE, id="matmul_of_64_bits"),
    pytest.param(lambda x, y: torch.einsum("ij,kj->ik", x, y), [SINGLE, SINGLE], HALF, HALF, id="einsum"),
    pytest.param(lambda x: torch.mv(x, x[0]), [SINGLE], HALF, SINGLE, id="mv"),
    pytest.param(lambda x, y: torch.addcmul(x, x, y), [HALF, SINGLE], SINGLE, SINGLE, id="addcmul"),
    pytest.param(lambda x, y: torch.addcmul(x, x, y), [HALF, HALF], HALF, HALF, id="addcmul_of_16_bits"),
    pytest.param(lambda x: functional.pad(x, (1, 1), mode="reflect"), [HALF], HALF, SINGLE, id="pad"),
    pytest.param(lambda x: x.add(1), [HALF], HALF, HALF, id="add"),
]


@pytest.mark.parametrize(("call", "types", "there", "here"), CASES)
def test_results_have_the_type_that_they_have_on_a_gpu(call, types, there, here):
    arguments = [X.to(dtype) for dtype in types]
    expected = call(*arguments)
    with torch.autocast("cpu", HALF):
        before = call(*arguments)
        with autocast_as_on_gpu():
            found = call(*arguments)
        after = call(*arguments)
    assert (before.dtype, found.dtype, after.dtype) == (here, there, here)
    torch.testing.assert_close(found, expected.to(there), rtol=0.05, atol=0.05)


def test_gradients_come_back_in_the_type_of_what_was_cast():
    x, w = X.to(HALF).requires_grad_(), torch.ones(16, requires_grad=True)
    with autocast_as_on_gpu(), torch.autocast("cuda", HALF):
        functional.layer_norm(x, (16,), w).square().sum().backward()
    y, v = x.detach().float().requires_grad_(), w.detach().clone().requires_grad_()
    functional.layer_norm(y, (16,), v).square().sum().backward()
    assert torch.equal(x.grad, y.grad.to(HALF))
    assert torch.equal(w.grad, v.grad)


def test_without_autocast_nothing_is_cast():
    with autocast_as_on_gpu():
        assert functional.layer_norm(X.to(HALF), (16,)).dtype == HALF
        with torch.autocast("cuda", HALF, enabled=False):
            assert (X @ X.T).dtype == SINGLE


def test_on_a_gpu_the_type_is_float16_where_none_is_given():
    with autocast_as_on_gpu(), torch.autocast("cuda"):
        assert (X @ X.T).dtype == torch.float16


class Block(nn.Module):
    """A LayerNorm between products, under autocast of `kind` if any."""

    def __init__(self, kind=None):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)
        self.kind = kind

    def forward(self, x):
        with torch.autocast(self.kind or "cpu", HALF, enabled=self.kind is not None):
            return self.norm(self.down(functional.gelu(self.up(x)))).square().mean()


def plan_of(kind, device):
    with torch.device("meta"):
        model, x = Block(kind), torch.empty(512, 64)
    return rematpass.plan(model, (x,), device=device, memory_budget="none")


def rounded(plan):
    return sum(v.op == "convert_element_type" and v.dtype == "bfloat16" for v in plan.values)


def test_a_plan_for_a_gpu_is_of_what_autocast_does_there():
    """No warning that there is no CUDA here, and no plan without the casts that there will be."""
    by_name, by_device = plan_of("cuda", "l4"), plan_of("cpu", "l4")
    assert by_name.timeline == by_device.timeline
    assert by_name.peak_bytes < plan_of(None, "l4").peak_bytes
    assert rounded(by_name) < rounded(plan_of("cpu", "cpu")), "what a LayerNorm makes is not rounded on a GPU"


@pytest.mark.parametrize(("device", "kernel"), [("h100-sxm", "cudnn"), ("l4", "flash")])
@pytest.mark.parametrize("is_cast", [False, True])
def test_attention_is_that_of_what_it_is_cast_to(device, kernel, is_cast):
    """Queries of 32 bits, as after a rotation."""
    with torch.device("meta"):
        model, x = nn.Linear(64, 192), torch.empty(2, 128, 64)

    def loss(x):
        with torch.autocast("cuda", HALF, enabled=is_cast):
            q, k, v = model(x).float().view(2, 128, 3, 2, 32).permute(2, 0, 3, 1, 4)
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True).float().square().mean()

    plan = rematpass.plan(loss, (x,), device=device, memory_budget="none")
    kernels = {name for name in ("cudnn", "flash", "efficient") for p in plan.timeline if f"_{name}_attention" in p.op}
    assert kernels == {kernel if is_cast else "efficient"}


def test_what_autocast_refuses_on_a_gpu_is_refused_here():
    with torch.device("meta"):
        model, x, y = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid()), torch.empty(4, 8), torch.empty(4, 1)

    def loss(x, y):
        with torch.autocast("cuda", HALF):
            return functional.binary_cross_entropy(model(x), y)

    with pytest.raises(RematError, match=r"unsafe to autocast[\s\S]*binary_cross_entropy_with_logits"):
        rematpass.plan(loss, (x, y), device="l4")


def test_rules_are_a_cpus_again_even_after_an_error():
    def rules():
        return set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU"))

    def fail():
        with autocast_as_on_gpu():
            assert rules() > before
            raise ZeroDivisionError

    before, init = rules(), torch.autocast.__init__
    with pytest.raises(ZeroDivisionError):
        fail()
    assert rules() == before
    assert torch.autocast.__init__ is init
