"""Random operators: the same seed gives the same draws, gradients and generator state at any budget."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import rematpass
from tests.differential.steps import OpByOp, check_backend, check_budgets, quick_and_thorough, run_step

WIDTH = 16


class Blocks(nn.Module):
    """x + noise(tanh(linear(x))), three times."""

    def __init__(self, noise):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.noise = noise

    def forward(self, x):
        for layer in self.layers:
            x = self.noise(torch.tanh(layer(x))) + x
        return x.square().mean()


def blocks(noise):
    return lambda: (Blocks(noise), (torch.randn(32, WIDTH).requires_grad_(),))


def images(x):
    return functional.dropout2d(x.view(8, 16, 2, 2), 0.5).reshape(x.shape)


def attention(x):
    heads = x.view(2, 2, 8, 16)
    y = functional.scaled_dot_product_attention(heads, heads.tanh(), heads.exp() * 0.1, dropout_p=0.2)
    return y.reshape(x.shape)


def several(x):
    """Many draws in one block, some of one shape and kind."""
    y = functional.dropout(x, 0.1) * torch.rand_like(x) + torch.randn_like(x) * x.exp()
    z = torch.randn_like(x) - torch.randn_like(x)
    return (y + z * x.sin()) * torch.bernoulli(torch.full_like(x, 0.5))


def chosen(x):
    index = torch.multinomial(x.softmax(-1), 4)
    return x.scatter(1, index, x.gather(1, index).exp())


def drawn(name, *arguments):
    """The difference of two equal in-place draws."""
    return lambda x: (
        (getattr(torch.empty_like(x), name)(*arguments) - getattr(torch.empty_like(x), name)(*arguments)) * x
    )


DRAWS = {
    "dropout_0.1": lambda x: functional.dropout(x, 0.1),
    "dropout_0.5": lambda x: functional.dropout(x, 0.5),
    "dropout2d": images,
    "alpha_dropout": lambda x: functional.alpha_dropout(x, 0.3, training=True),
    "feature_alpha_dropout": lambda x: functional.feature_alpha_dropout(x.view(8, 4, 16), 0.3, True).view(x.shape),
    "attention_with_dropout": attention,
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn_like": lambda x: x + torch.randn_like(x) * x.sigmoid(),
    "randint_like": lambda x: x * (torch.randint_like(x, 0, 5) - torch.randint_like(x, 0, 5)),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)) * x.exp(),
    "multinomial": chosen,
    "rrelu": lambda x: functional.rrelu(x, training=True),
    "randperm": lambda x: x[torch.randperm(x.shape[0])] * x.exp(),
    "normal": lambda x: torch.normal(x.detach(), 1.0) * x,
    "gumbel": lambda x: functional.gumbel_softmax(x, tau=0.7) * x,
    "gumbel_hard": lambda x: functional.gumbel_softmax(x, tau=0.7, hard=True) * x,
    "poisson": lambda x: torch.poisson(x.detach().exp()) * x,
    "binomial": lambda x: torch.binomial(torch.full_like(x, 5.0), x.detach().sigmoid()) * x,
    "uniform_": drawn("uniform_"),
    "exponential_": drawn("exponential_"),
    "geometric_": drawn("geometric_", 0.3),
    "log_normal_": drawn("log_normal_"),
    "cauchy_": drawn("cauchy_"),
    "several": several,
}


@pytest.mark.parametrize("name", DRAWS)
def test_op_by_op(name):
    plans = check_budgets(blocks(DRAWS[name]))
    assert plans[-1].recompute_seconds > 0


# With `fallback_random` Inductor draws what eager draws. Without it the numbers are its own, the same at any budget.
THROUGH_INDUCTOR = ["multinomial", "attention_with_dropout"]


# Plain Inductor of 2.13 fails on it: "Not all inputs to pattern found in match.kwargs".
COMPILED = [name for name in DRAWS if name != "randperm"]


@pytest.mark.parametrize(("name", "count"), quick_and_thorough(THROUGH_INDUCTOR, COMPILED))
def test_backend_draws_what_eager_draws(name, count):
    check_backend(blocks(DRAWS[name]), count=count, fallback_random=True)


@pytest.mark.parametrize(("name", "count"), quick_and_thorough(["dropout_0.1", "rrelu"], COMPILED))
def test_backend_draws_the_same_at_any_budget(name, count):
    plans = check_backend(blocks(DRAWS[name]), count=count, is_as_eager=False)
    assert plans[-1].recompute_seconds > 0


def test_masks_are_recomputed_from_their_seeds():
    """Inductor's random numbers are functions of a seed: the seed is kept, the masks need not be."""
    plans = check_backend(blocks(DRAWS["dropout_0.5"]), count=2, is_as_eager=False)
    records = [(record.op, record.decision) for record in plans[-1].values]
    # All seeds at once or those that are looked up: which is cheaper depends on the machine's prices.
    assert ("inductor_seeds", "keep") in records or ("inductor_lookup_seed", "keep") in records
    assert {decision for op, decision in records if op == "inductor_random"} == {"recompute"}


class Restless(torch.autograd.Function):
    """Draws in its backward, too."""

    @staticmethod
    def forward(ctx, x, w):
        y = x.exp()
        ctx.save_for_backward(x, y, w)
        return (y @ w).tanh()

    @staticmethod
    def backward(ctx, g):
        x, y, w = ctx.saved_tensors
        return (g @ w.t()) * y * x.sigmoid() + torch.rand(8, 8), y.t() @ g


def restless():
    def function(x, w):
        for _ in range(3):
            x = functional.dropout(Restless.apply(x, w), 0.3)
        return x

    return function, (torch.randn(8, 8).requires_grad_(), torch.randn(8, 8).requires_grad_())


def test_draws_of_the_backward_happen_in_the_backward():
    """Whoever draws between forward and backward sees the state that eager shows."""
    check_budgets(restless)

    def states(wrap):
        torch.manual_seed(0)
        function, arguments = restless()
        loss = wrap(function)(*arguments).sum()
        between = torch.get_rng_state()
        loss.backward()
        return between, torch.get_rng_state()

    expected = states(lambda function: function)
    smallest = OpByOp("none")
    run_step(restless, smallest)
    found = states(OpByOp(smallest.plans[0].smallest_peak_bytes))
    assert [torch.equal(x, y) for x, y in zip(expected, found, strict=True)] == [True, True]


def test_a_random_op_cannot_be_pinned_to_recompute():
    model, arguments = blocks(DRAWS["rand_like"])()
    split = OpByOp("none", recompute=["rand_like"])
    with pytest.raises(rematpass.OptionError, match="rand_like is random and would draw again"):
        split(model)(*arguments)
