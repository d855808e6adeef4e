"""Plans for a device that is not here, of models without weights."""

import functools
import gc
import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import rematpass
from rematpass.device import find_target
from rematpass.errors import OptionError, RematError
from rematpass.graph.capture import JointProgram
from rematpass.graph.gpu_attention import gpu_attention_parts
from rematpass.look import Step, look_at_step
from rematpass.options import parse_options
from rematpass.stand_in import count_bytes, find_modules, needs_stand_ins, read_dtype, stand_ins


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.into, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.scale = torch.ones(1)  # a plain attribute, neither parameter nor buffer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.into(x * self.scale).view(*x.shape[:2], 3, 2, 32).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        return self.out(y.transpose(1, 2).flatten(2)).relu()


def on_meta(dropout: float = 0.0) -> tuple[nn.Module, torch.Tensor]:
    with torch.device("meta"):
        return Attention(dropout), torch.empty(2, 128, 64)


def ops_of(plan: rematpass.Plan) -> list[str]:
    return [point.op for point in plan.timeline]


def test_what_is_sparse_is_refused_before_anything_is_replaced():
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(neighbours, self.layer(x)).sum()

    model = Mixing()
    weight = model.layer.weight
    with pytest.raises(RematError, match=r"an argument is sparse \(sparse_coo\); .*Try: .*to_dense"):
        rematpass.plan(model, (torch.ones(4, 4), torch.eye(4).to_sparse()), device="h100-sxm")
    assert model.layer.weight is weight


def test_a_model_without_weights_gets_the_plan_of_the_real_one():
    torch.manual_seed(0)
    real = rematpass.plan(Attention(), (torch.ones(2, 128, 64),), loss=torch.sum, memory_budget="none")
    model, x = on_meta()
    for arguments in ({"device": "cpu"}, {}):
        plan = rematpass.plan(model, (x,), loss=torch.sum, memory_budget="none", **arguments)
        assert (plan.values, plan.timeline) == (real.values, real.timeline)
        assert plan.graph_fingerprint == real.graph_fingerprint
    assert {t.device.type for t in (*model.parameters(), model.scale)} == {"meta"}


def test_a_declared_device_has_its_own_prices_and_memory():
    model, x = on_meta()
    plan = rematpass.plan(model, (x,), loss=torch.sum, device="H100-SXM", dtype="bf16", memory_budget="50%")
    assert (plan.device, plan.budget_bytes) == ("h100-sxm", 40_000_000_000)
    assert rematpass.plan(model, (x,), device="l4", loss=torch.sum).budget_bytes <= 0.95 * 24e9
    assert plan.gradient_bytes % 512 == 0
    assert {v.dtype for v in plan.values} <= {"bfloat16", "float32", "int64", "bool"}, (
        "sums of rows are float32, states of generators int64, the mask of the ReLU is bool"
    )
    assert any("h100-sxm" in note for note in plan.notes)
    other = rematpass.plan(model, (x,), loss=torch.sum, device="h200-sxm", dtype="bf16", memory_budget="50%")
    assert other.step_seconds < plan.step_seconds
    assert other.fingerprint != plan.fingerprint
    assert other.graph_fingerprint == plan.graph_fingerprint


def test_attention_takes_what_it_takes_on_the_target():
    """No scores of this CPU's threads, but the sums of a GPU's backward: rows of 128, in float32."""
    model, x = on_meta()
    plan = rematpass.plan(model, (x,), loss=torch.sum, device="h100-sxm", dtype="bf16", memory_budget="none")
    at = ops_of(plan).index("_scaled_dot_product_cudnn_attention_backward")
    alive = sum(life.bytes for life in plan.lives if life.first <= at <= life.last)
    scratch = plan.timeline[at].live_bytes - plan.static_bytes - alive
    returned = 3 * 2 * 2 * 128 * 32 * 2
    assert scratch == returned + 2 * 2 * 128 * (1 + 32) * 4


def test_dropout_does_not_break_attention_up_on_a_gpu():
    model, x = on_meta(dropout=0.5)
    gpu = rematpass.plan(model, (x,), loss=torch.sum, device="h100-sxm", memory_budget="none")
    cpu = rematpass.plan(model, (x,), loss=torch.sum, device="cpu", memory_budget="none")
    name = "_scaled_dot_product_efficient_attention"
    assert name in ops_of(gpu), "in float32"
    assert not any("scaled_dot_product" in op for op in ops_of(cpu))
    with pytest.warns(UserWarning, match="smallest peak"):
        small = rematpass.plan(
            model, (x,), loss=torch.sum, device="h100-sxm", memory_budget=1, on_infeasible="warn", recompute=["into"]
        )
    assert ops_of(small).count(name) == 1, "it would draw again"


def attention_kernels(device: str, dtype: str, width: int, *, is_masked: bool, dropout: float = 0.0) -> set[str]:
    """Which of torch's fused kernels, by the middle of their names, attend on a device."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(16, 16, dtype=torch.bool, device=x.device).tril() if is_masked else None
        return functional.scaled_dot_product_attention(x * 2, x, x, attn_mask=mask, dropout_p=dropout).sum()

    x = torch.empty(1, 2, 16, width, device="meta", requires_grad=True)
    ops = ops_of(rematpass.plan(attend, (x,), device=device, dtype=dtype, memory_budget="none"))
    found = (re.fullmatch(r"_scaled_dot_product_(\w+)_attention", op) for op in ops)
    return {match[1] for match in found if match is not None}


@pytest.mark.parametrize(
    ("dtype", "width", "is_masked", "kernel"),
    [
        ("bf16", 32, False, "flash"),
        ("bf16", 32, True, "efficient"),
        ("fp32", 32, False, "efficient"),
        ("bf16", 512, False, "efficient"),
        ("bf16", 33, False, None),
    ],
)
def test_the_kernel_is_the_one_that_cuda_chooses(dtype, width, is_masked, kernel):
    assert attention_kernels("a100-sxm", dtype, width, is_masked=is_masked) == ({kernel} if kernel else set())


def test_attention_inside_a_function_that_is_left_whole_is_the_targets_too():
    """dynamo leaves `multi_head_attention_forward` as one call: encoder layers were planned with a CPU's attention."""
    layer, own = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True), functional.scaled_dot_product_attention
    ops = ops_of(rematpass.plan(layer, (torch.randn(2, 16, 64),), loss=torch.sum, device="a100-sxm", dtype="bf16"))
    assert "_scaled_dot_product_flash_attention" in ops
    assert functional.scaled_dot_product_attention is own


@pytest.mark.parametrize(
    ("width", "is_masked", "dropout", "kernel"),
    [
        (32, False, 0.0, "cudnn"),
        (32, True, 0.0, "cudnn"),
        (32, False, 0.25, "cudnn"),
        (32, False, 0.1, "flash"),
        (256, False, 0.0, "flash"),
        (256, True, 0.0, "efficient"),
    ],
)
@pytest.mark.parametrize("device", ["h100-sxm", "b200"])
def test_cudnn_is_asked_first_on_the_latest(device, width, is_masked, dropout, kernel):
    assert attention_kernels(device, "fp16", width, is_masked=is_masked, dropout=dropout) == {kernel}


@pytest.mark.parametrize(("variable", "kernel"), [("1", "flash"), ("0", "cudnn")])
def test_whoever_asks_cudnn_last_has_that_planned(variable, kernel, monkeypatch):
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", variable)
    assert attention_kernels("h200-sxm", "bf16", 64, is_masked=False) == {kernel}


def test_wheels_for_older_cuda_have_a_cudnn_that_is_not_asked_first(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert attention_kernels("h100-sxm", "bf16", 64, is_masked=False) == {"flash"}


def test_attention_of_the_backward_asks_nothing_of_the_forward():
    """It has an operator that torch calls impure; what only the backward reads is left to the backward all the same."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        y = x.pow(2)
        return functional.scaled_dot_product_attention(y, y, y).sum()

    def use(joint: JointProgram, _settings: object) -> set[str]:
        return {n.name for n, f in zip(joint.nodes, joint.in_forward, strict=True) if f and n.op == "call_function"}

    x = torch.empty(1, 2, 16, 32, device="meta", requires_grad=True)
    found = look_at_step(Step(attend, (x,), device="a100-sxm"), parse_options({"memory_budget": "none"}), use)
    assert found == {"pow_1", "_scaled_dot_product_efficient_attention", "getitem", "sum_1"}


def test_gradients_of_the_loss_only():
    model, x = on_meta()
    whole = rematpass.plan(model, (x,), device="cpu", memory_budget="none")
    loss = rematpass.plan(model, (x,), loss=lambda y: y.mean(), device="cpu", memory_budget="none")
    assert "mean" in ops_of(loss)
    assert "mean" not in ops_of(whole)


def test_frontier_elsewhere():
    model, x = on_meta()
    curve = rematpass.frontier(model, (x,), loss=torch.sum, device="l4", count=3, progress=False)
    assert curve.device == "l4"
    assert curve.points


def test_functions_of_modules_are_traced_too():
    model, x = on_meta()
    step = functools.partial(lambda scale, y: (model(y) * scale).sum(), 2.0)
    assert find_modules(step) == [model]
    plan = rematpass.plan(step, (x,), device="l4", memory_budget="none")
    assert plan.gradient_bytes >= sum(p.numel() * 4 for p in model.parameters())


def test_tied_parameters_count_once():
    with torch.device("meta"):
        model, tokens = nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 100, bias=False)), torch.zeros(4).long()
        model[1].weight = model[0].weight
    assert count_bytes(model) == (6400, 0)
    assert count_bytes(model, torch.bfloat16) == (3200, 0)
    plan = rematpass.plan(model, (tokens,), loss=torch.sum, device="cpu", memory_budget="none")
    assert plan.static_bytes == 6400 + 4 * 8
    assert plan.gradient_bytes == 6400


def test_the_model_is_restored_whatever_happens():
    model, x = Attention(), torch.ones(1)
    before = dict(model.named_parameters())
    seen: list[torch.dtype] = []

    def fail_inside() -> None:
        with stand_ins(model, ((x,), {}), torch.bfloat16) as ((y,), _):
            seen.extend([model.into.weight.dtype, y.dtype])
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert seen == [torch.bfloat16] * 2
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert x.dtype == torch.float32


def test_the_collector_is_as_it_was():
    model, x = on_meta()
    assert gc.isenabled()
    rematpass.plan(model, (x,), loss=torch.sum, device="l4")
    assert gc.isenabled()
    gc.disable()
    try:
        rematpass.plan(model, (x,), loss=torch.sum, device="l4")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_has_no_numbers_is_seen():
    model, x = on_meta()
    assert needs_stand_ins(model, ((), {}))
    assert needs_stand_ins(Attention(), ((), {"x": [x]}))
    assert not needs_stand_ins(Attention(), ((torch.ones(1),), {}))


@pytest.mark.parametrize("value", ["int8", "bf", 3, torch.int64])
def test_a_dtype_must_be_floating(value):
    with pytest.raises(OptionError, match=r"dtype=.* is not taken"):
        read_dtype(value)


def test_an_unknown_device_is_refused_with_the_nearest_names():
    model, x = on_meta()
    with pytest.raises(OptionError, match=r"unknown device 'h100'.*Did you mean 'h100-sxm'"):
        rematpass.plan(model, (x,), device="h100")
    assert find_target("cpu")[1] == "cpu"


def chooses(x: torch.Tensor) -> torch.Tensor:
    if x.sum().item() > 0:
        x = x * 2
    return x


def cuts(x: torch.Tensor) -> torch.Tensor:
    return x[: int(x.sum())]


def lists(x: torch.Tensor) -> torch.Tensor:
    return x * len(x.tolist())


@pytest.mark.parametrize(
    ("function", "reason", "line", "advice"),
    [
        (chooses, "hangs on a number", "in chooses: if x.sum().item() > 0:", "Try: torch.where"),
        (cuts, "hangs on a number", "", "Try: torch.where"),
        (lists, "does not support tracing `tolist()`", "in lists: return x * len(x.tolist())", "rematpass.plans"),
    ],
)
def test_why_a_model_is_not_traced_is_said_in_three_lines(function, reason, line, advice):
    with pytest.raises(RematError) as caught:
        rematpass.plan(function, (torch.ones(2, 2, requires_grad=True),), device="l4")
    said = str(caught.value)
    assert all(words in said for words in (reason, line, advice))
    assert said.count("\n") == (2 if line else 1)
    assert isinstance(caught.value.__cause__, RuntimeError)  # with all that dynamo says


def test_what_cannot_be_traced_says_where_and_what_to_try():
    def breaks(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x * 2

    def mismatched(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(3, 3)

    x = torch.ones(2, 2, device="meta", requires_grad=True)
    with pytest.raises(RematError, match=r"one graph[\s\S]*test_elsewhere.py[\s\S]*Try"):
        rematpass.plan(breaks, (x,), device="l4")
    with pytest.raises(RematError, match=r"cannot be traced[\s\S]*test_elsewhere.py[\s\S]*Try"):
        rematpass.plan(mismatched, (x,), device="l4")
    with pytest.raises(OptionError, match="a module or a function"):
        rematpass.plan(3, (x,), device="l4")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((torch.ones(2, 2),), r"args is a Tensor; .*Try: args=\(x,\)"),
        (({"x": torch.ones(2, 2)},), "args is a dict; .*Try: kwargs=batch"),
        (((), torch.ones(2, 2)), r"kwargs is a Tensor; .*Try: args=\(x, y\)"),
    ],
)
@pytest.mark.parametrize("ask", [rematpass.plan, rematpass.frontier])
def test_arguments_that_are_none_are_refused(ask, given, told):
    with pytest.raises(OptionError, match=told):
        ask(torch.nn.Linear(2, 2), *given)


def test_what_fails_behind_dynamo_is_said_in_its_own_words():
    @torch.library.custom_op("remat_elsewhere::half_done", mutates_args=())
    def half_done(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    half_done.register_fake(torch.empty_like)

    def differentiate(_context, _gradient):
        raise ValueError("nobody has written the gradient")

    half_done.register_autograd(differentiate)
    with pytest.raises(RematError, match="cannot be traced: ValueError: nobody has written the gradient"):
        rematpass.plan(
            lambda x: half_done(x).sum(), (torch.ones(2, 2, device="meta", requires_grad=True),), device="l4"
        )


def test_a_gpus_forward_takes_no_scratch():
    graph = torch.fx.symbolic_trace(lambda x: x.relu()).graph
    assert [gpu_attention_parts(node) for node in graph.nodes if node.op == "call_method"] == [()]
