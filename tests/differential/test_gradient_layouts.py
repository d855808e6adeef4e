"""Gradients of parameters lie as the parameters do, so autograd takes them as they are."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from tests.differential.steps import SCALAR, measure_at_smallest


class Convolutions(nn.Module):
    """Weights far larger than images, the largest last: at its smallest peak a step holds little but gradients."""

    def __init__(self, dtype=None, widths=(16, 32, 48)):
        super().__init__()
        self.dtype = dtype
        sizes = zip((3, *widths), widths, strict=False)
        self.layers = nn.ModuleList(nn.Conv2d(n, m, 3, padding=1, bias=False) for n, m in sizes)
        self.last = nn.Conv2d(widths[-1], widths[-1], 3, padding=1, bias=False)

    def forward(self, x):
        with torch.autocast("cpu", self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            for layer in self.layers:
                x = F.relu(layer(x))
            return self.last(x).float().square().mean()


class Heads(nn.Module):
    """Its product gives the gradient with heads behind."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 64, 16))

    def forward(self, x):
        return torch.einsum("bi,hid->bhd", x.tanh(), self.weight).square().mean()


class Returned(nn.Module):
    """Parameters that are outputs themselves, one turned, one of which rows follow each other the other way round."""

    def __init__(self):
        super().__init__()
        self.first, self.turned = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(5, 6).t())

    def forward(self, x):
        return self.first, self.first.t(), self.turned * 2, x @ self.turned.t() @ self.first


class Shared(nn.Module):
    """A weight of two convolutions that is also made into another's, and one in groups."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Conv2d(4, 4, 3, padding=1)
        self.grouped = nn.Conv2d(4, 4, 3, padding=1, groups=2)

    def forward(self, x):
        y = self.grouped(self.shared(self.shared(x)))
        return y, F.conv2d(y, self.shared.weight * self.shared.weight.mean(), stride=2)


def images():
    return torch.randn(1, 3, 8, 8)


def strides_returned(model, x, **options):
    """Strides of each gradient as the backward returns it, by parameter."""
    found = {}
    handles = [
        parameter.register_hook(lambda gradient, name=name: found.update({name: gradient.stride()}))
        for name, parameter in model.named_parameters()
    ]
    torch._dynamo.reset()
    torch.compile(model, backend="rematpass", options={"verify": False, **SCALAR, **options})(x).backward()
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.usefixtures("zeros_are_computed")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_gradients_lie_as_their_parameters(layout, dtype):
    model = Convolutions(dtype).to(memory_format=layout)
    found = strides_returned(model, images(), memory_budget="none")
    assert found == {name: parameter.stride() for name, parameter in model.named_parameters()}


@pytest.mark.usefixtures("zeros_are_computed")
def test_a_turned_gradient_is_turned_back():
    found = strides_returned(Heads(), torch.randn(32, 64), memory_budget="none")
    assert found == {"weight": (1024, 16, 1)}


@pytest.mark.parametrize(("make", "shape"), [(Returned, (3, 5)), (Shared, (2, 4, 8, 8))])
def test_gradients_add_up_like_eagers_and_lie_like_them(make, shape):
    torch.manual_seed(0)
    eager, x = make(), torch.randn(shape)
    compiled = make()
    compiled.load_state_dict(eager.state_dict())
    torch._dynamo.reset()
    step = torch.compile(compiled, backend="rematpass", options={"memory_budget": "none", "verify": False, **SCALAR})
    for _ in range(2):
        for run in (eager, step):
            sum((y * torch.linspace(0, 1, y.numel()).view_as(y)).sum() for y in run(x)).backward()
    for own, other in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-4)
        assert own.grad.stride() == other.grad.stride()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_smallest_peak_is_kept_where_gradients_are_all_there_is(dtype):
    torch.manual_seed(0)
    model, x = Convolutions(dtype, (*[128] * 11, 256, 256)), images()
    measured, budget = measure_at_smallest(model, x)
    assert measured <= 1.01 * budget
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    model(x).backward()
    for name, parameter in model.named_parameters():
        tolerance = 1e-5 if dtype is None else 0.05
        difference = (parameter.grad - gradients[name]).norm() / parameter.grad.norm()
        assert difference < tolerance, name
