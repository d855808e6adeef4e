"""Both halves lay images out alike: the backward is told what was decided for the forward."""

import pytest
import torch
from torch import fx
from torch._inductor import compile_fx
from torch.fx.experimental.proxy_tensor import make_fx

from rematpass.torch_compat import IMAGES_LAST, inner_compiler

aten = torch.ops.aten
WIDE, NARROW = (128, 128), (64, 64)  # a GPU's images are laid out channels last for the first


def forward_half(channels: tuple[int, int]) -> fx.GraphModule:
    def convolve(x, weight):
        return aten.convolution(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    return make_fx(convolve, tracing_mode="fake")(torch.empty(2, channels[1], 8, 8), torch.empty(*channels, 3, 3))


def backward_half(channels: tuple[int, int], *recomputed: tuple[int, int]) -> fx.GraphModule:
    """The gradient of the convolution; it may recompute convolutions of other widths."""

    def gradient(grad, x, weight, *others):
        for other in others:
            image = torch.empty(2, other.shape[1], 8, 8)
            grad = grad + aten.convolution(image, other, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1).sum()
        mask = [True, True, False]
        return aten.convolution_backward(grad, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)

    image, weight = torch.empty(2, channels[1], 8, 8), torch.empty(*channels, 3, 3)
    grad = torch.empty(2, channels[0], 8, 8)
    return make_fx(gradient, tracing_mode="fake")(grad, image, weight, *(torch.empty(*c, 3, 3) for c in recomputed))


@pytest.fixture
def decisions(monkeypatch):
    """What Inductor, asked as for a GPU, decides for each half that it is handed."""
    found: list[bool] = []

    def compile_half(half: fx.GraphModule, *_: object, **_options: object) -> None:
        decide = compile_fx.GraphLowering.decide_layout_opt
        found.append(bool(decide(half, is_inference=False)))

    monkeypatch.setattr(compile_fx, "compile_fx_inner", compile_half)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    return found


@pytest.mark.parametrize("channels", [WIDE, NARROW])
@pytest.mark.parametrize("recomputed", [(), (WIDE,), (NARROW,)])
def test_the_backward_has_the_layout_of_the_forward(decisions, channels, recomputed):
    compile_half = inner_compiler(lambda _: None)
    compile_half(forward_half(channels), [])
    compile_half(backward_half(channels, *recomputed), [], is_backward=True)
    assert decisions == [channels == WIDE] * 2


@pytest.mark.parametrize("channels", [WIDE, NARROW])
@pytest.mark.parametrize("is_planned", [False, True])
def test_both_halves_have_the_layout_of_the_plan(decisions, channels, is_planned):
    forward = forward_half(channels)
    forward.graph.output_node().meta[IMAGES_LAST] = is_planned
    compile_half = inner_compiler(lambda _: None)
    compile_half(forward, [])
    compile_half(backward_half(channels), [], is_backward=True)
    assert decisions == [is_planned] * 2


def test_a_layout_that_the_user_set_wins_over_the_plan(decisions):
    forward = forward_half(WIDE)
    forward.graph.output_node().meta[IMAGES_LAST] = False
    inner_compiler(lambda _: None, {"force_layout_optimization": True})(forward, [])
    assert decisions == [True]
