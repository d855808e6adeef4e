"""Effects happen once: custom operators, assertions, communication, writes to the caller's tensors."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import rematpass
from rematpass import declared
from tests.differential.steps import Backend, OpByOp, budgets_between, check_backend, check_budgets, run_step

CALLS = {"square": 0, "noise": 0}


@torch.library.custom_op("rematpass_effects::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    CALLS["square"] += 1
    return x * x


@torch.library.custom_op("rematpass_effects::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    CALLS["noise"] += 1
    return x + torch.rand_like(x)


@torch.library.custom_op("rematpass_effects::bump", mutates_args=("x",))
def bump(x: torch.Tensor) -> None:
    x.add_(1)


square.register_fake(torch.empty_like)
noise.register_fake(torch.empty_like)
square.register_autograd(
    lambda ctx, g: g * 2 * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)
noise.register_autograd(lambda ctx, g: g)


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def repeated(body):
    def make():
        def function(x, w):
            for _ in range(3):
                x = body(x, w)
            return x

        return function, (leaf(32, 8), leaf(8, 8))

    return make


def custom(x, w):
    return (noise(square(x @ w).tanh()).exp() * 0.1) @ w


def writing(x, w):
    y = (x @ w).tanh()
    z = y.detach().clone()
    bump(z)
    return y * z.exp() * 0.1


def asserting(x, w):
    y = (x @ w).tanh()
    torch._assert_async(y.abs().max() < 2)
    return y.exp() @ w * 0.1


@pytest.fixture(autouse=True)
def no_declarations(monkeypatch):
    monkeypatch.setattr(declared, "_DECLARED", {})


@pytest.mark.parametrize("body", [custom, writing, asserting])
def test_op_by_op(body):
    check_budgets(repeated(body))


@pytest.mark.parametrize("body", [custom, writing])
def test_backend(body):
    check_backend(repeated(body), count=2)


def calls_at(memory_budget, **options):
    """How often each operator ran in one step, and the plan."""
    executor = OpByOp(memory_budget, **options)
    CALLS.update(square=0, noise=0)
    run_step(repeated(custom), executor)
    return dict(CALLS), executor.plans[0]


def test_an_undeclared_operator_runs_once_and_is_reported():
    _, fastest = calls_at("none")
    calls, plan = calls_at(fastest.smallest_peak_bytes)
    assert calls == {"square": 3, "noise": 3}
    assert [note for note in plan.notes if "rematpass_effects::square (3 calls)" in note]


def test_a_pure_operator_may_run_again_a_random_one_not():
    _, undeclared = calls_at("none")
    rematpass.register_op(square, is_pure=True, flops=lambda x: x.numel())
    rematpass.register_op(noise, is_random=True)
    _, fastest = calls_at("none", recompute=["square"])
    calls, plan = calls_at(fastest.smallest_peak_bytes, recompute=["square"])
    assert calls["square"] > 3
    assert calls["noise"] == 3
    assert not [note for note in plan.notes if "purity" in note]
    assert plan.peak_bytes < undeclared.smallest_peak_bytes
    check_budgets(repeated(custom), count=3)


@pytest.fixture
def alone(tmp_path):
    """A job of one rank: enough for collectives to stand in the graph."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_collectives_are_not_recomputed(alone):
    def reduced(x, w):
        y = (x @ w).tanh().exp()
        return collectives.all_reduce(y, "sum", alone).sigmoid() @ w

    for plan in check_budgets(repeated(reduced), count=3):
        assert {r.decision.value for r in plan.values if r.op in ("all_reduce", "wait_tensor")} <= {"keep"}


def test_the_same_graph_in_many_budgets_runs_each_op_of_the_forward_once():
    """Counted on the halves themselves: no random, asserting or custom operator stands in both."""
    executor = OpByOp("none")
    run_step(repeated(custom), executor)
    for budget in budgets_between(executor.plans, 3):
        assert calls_at(budget)[0] == {"square": 3, "noise": 3}


@pytest.fixture(scope="module")
def ordered_effect():
    """An operator that torch threads a token through, so that its effects keep their order."""
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    with torch.library._scoped_library("rematpass_effects", "FRAGMENT") as library:
        library.define("say(Tensor x) -> Tensor")
        library.impl("say", lambda x: (SAID.append(1), x.clone())[1], "CompositeExplicitAutograd")
        library.impl("say", torch.empty_like, "Meta")
        torch.library.register_autograd("rematpass_effects::say", lambda ctx, g: g * 2, lib=library)
        _register_effectful_op("rematpass_effects::say", _EffectType.ORDERED)
        yield torch.ops.rematpass_effects.say


SAID = []


def test_ordered_effects_happen_once(ordered_effect):
    body = repeated(lambda x, w: ordered_effect((x @ w).tanh()).exp() @ w * 0.1)
    plans = check_budgets(body, count=3)
    SAID.clear()
    run_step(body, OpByOp(plans[-1].peak_bytes))
    assert len(SAID) == 3


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(x)))


def replicated():
    return nn.parallel.DistributedDataParallel(nn.Sequential(*(Residual() for _ in range(3))))


def sharded():
    model = nn.Sequential(*(Residual() for _ in range(3)))
    for block in model:
        fully_shard(block)
    return fully_shard(model)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo's own
@pytest.mark.filterwarnings("ignore:rematpass. the graphs of one step take")  # the budget is that of one graph alone
@pytest.mark.parametrize("executor", [OpByOp, Backend])
@pytest.mark.parametrize("build", [replicated, sharded])
def test_parallel_training(alone, build, executor):
    """Two steps of DDP and of FSDP2, at no limit and at the smallest budget that every graph can keep."""

    def gradients(wrap):
        torch.manual_seed(0)
        model, x = build(), torch.randn(8, 16)
        compiled = wrap(model)
        found = []
        for _ in range(2):
            compiled(x).square().mean().backward()
            found += [getattr(p.grad, "full_tensor", p.grad.clone)().clone() for p in model.parameters()]
            model.zero_grad()
        return found

    expected = gradients(lambda function: function)
    unlimited = executor("none")
    torch.testing.assert_close(gradients(unlimited), expected, rtol=1e-4, atol=1e-6)
    smallest = executor(max(plan.smallest_peak_bytes for plan in unlimited.plans))
    torch.testing.assert_close(gradients(smallest), expected, rtol=1e-4, atol=1e-6)
