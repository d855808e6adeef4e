"""What the user changes between forward and backward: right gradients or torch's error, at every budget."""

from functools import partial

import pytest
import torch
from torch import nn

from tests.differential.steps import Backend, OpByOp, Outcome, as_it_is, budgets_between, close, run_step, weighted_sum

# torch itself, where it looks at an input that is no leaf.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Layers(nn.Module):
    """Eager keeps neither the input nor the first output, but a plan may: to compute sigmoids and tangents again."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.register_buffer("shift", torch.rand(8))

    def forward(self, x):
        h = self.first((x.sigmoid() * x.tanh()).sin()) + self.shift
        return h, self.second(h.sigmoid() * h.tanh()).exp()


class Convolved(nn.Module):
    """Keeps weights and hidden layers of four dimensions, the latter with channels last in the shape."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.register_buffer("shift", torch.rand(4))

    def forward(self, x):
        h = self.first(x.view(4, 2, 4, 4)).permute(0, 2, 3, 1).contiguous().sin() + self.shift
        return h, self.second((h.sigmoid() * h.tanh()).permute(0, 3, 1, 2)).exp()


class Stash(torch.autograd.Function):
    """Keeps its input without a version check, as many hand-written functions do."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 * ctx.x


class Stashing(Layers):
    def forward(self, x):
        h, y = super().forward(x)
        return h, y + Stash.apply(x)


def make(module):
    return lambda: (module(), (torch.randn(16, 8).requires_grad_(),))


def step(change):
    """Forward, then `change(model, x, outputs)` without a gradient, then backward through the second output."""

    def run(model, arguments, wrap):
        x = arguments[0] * 1
        outputs = wrap(model)(x)
        with torch.no_grad():
            change(model, x, outputs)
        weighted_sum(outputs[1]).backward()

    return run


CHANGES = {
    "nothing": lambda model, x, outputs: None,
    "an input": lambda model, x, outputs: x.add_(1),
    "an input through a view": lambda model, x, outputs: x.view(-1)[3:9].zero_(),
    "a parameter": lambda model, x, outputs: model.second.weight.mul_(2),
    "all parameters": lambda model, x, outputs: [p.add_(1) for p in model.parameters()],
    "a buffer": lambda model, x, outputs: model.shift.add_(1),
    "an output": lambda model, x, outputs: outputs[0].add_(1),
    "the output differentiated": lambda model, x, outputs: outputs[1].add_(1),
}


def gradients_after(module, change, wrap):
    """The gradients of a step; None where torch refuses the backward."""
    try:
        outcome = run_step(make(module), wrap, step(change))
    except RuntimeError as error:
        if "has been modified by an inplace operation" not in str(error):
            raise
        return None
    return Outcome({name: t for name, t in outcome.tensors.items() if name.startswith("gradient")})


@pytest.mark.parametrize(
    ("module", "executor", "count"),
    [(Layers, OpByOp, 5), (Stashing, OpByOp, 5), (Stashing, Backend, 2), (Convolved, Backend, 2)],
)
def test_right_or_refused(module, executor, count):
    """Right is what eager gives with the change; where eager refuses, what it gives without."""
    untouched = gradients_after(module, CHANGES["nothing"], as_it_is)
    right = {name: gradients_after(module, change, as_it_is) or untouched for name, change in CHANGES.items()}
    unlimited = executor("none")
    run_step(make(module), unlimited)
    for budget in budgets_between(unlimited.plans, count):
        compiled = executor(budget)(lambda model, x: model(x))
        wrap = partial(partial, compiled)  # one compilation for all models
        found = {name: gradients_after(module, change, wrap) for name, change in CHANGES.items()}
        wrong = [name for name, o in found.items() if o and o.differences(right[name], close(1e-5))]
        assert wrong == [], f"at a budget of {budget} bytes"
        assert found["nothing"] is not None
        assert found["all parameters"] is None


def test_the_check_also_sees_an_input_that_the_backward_reads_through_a_view():
    """Inductor alone keeps the view and gives the gradient of the changed input (pytorch#197887); we keep the input."""
    x, weight = torch.randn(2, 3), torch.ones(3, 3, requires_grad=True)
    product = Backend("none")(lambda x, weight: x @ weight)(x, weight)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
