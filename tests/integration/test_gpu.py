"""Real steps on a CUDA device: gradients, peaks, and what is said of them. `pytest -m gpu`."""

import itertools
import logging

import pytest
import torch
from torch import nn
from torch.nn import functional

import rematpass
from rematpass.check.measure import storage_bytes
from rematpass.device import known_name

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # full float32 is meant
]

WIDTH = 256


class Attending(nn.Module):
    """Blocks of fused attention and a wide hidden layer, dropout in both."""

    def __init__(self, dropout=0.0, count=3):
        super().__init__()
        self.dropout = dropout
        self.into = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(count))
        self.wide = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(count))
        self.narrow = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(count))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * count))

    def forward(self, x):
        norms = iter(self.norms)
        for into, wide, narrow in zip(self.into, self.wide, self.narrow, strict=True):
            q, k, v = into(next(norms)(x)).unflatten(-1, (3, 4, WIDTH // 4)).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
            x = x + y.transpose(1, 2).flatten(2)
            x = x + narrow(functional.dropout(functional.gelu(wide(next(norms)(x))), self.dropout))
        return x.float().square().mean()


class Convolving(nn.Module):
    """Convolutions, BatchNorm and dropout of whole channels on images."""

    def __init__(self, dropout=0.0):
        super().__init__()
        widths = (16, 32, 32, 64)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.SiLU(), nn.Dropout2d(dropout), nn.AvgPool2d(2)
                )
                for a, b in itertools.pairwise(widths)
            )
        )

    def forward(self, x):
        return self.layers(x).float().square().mean()


MODELS = {
    "attending": (Attending, (8, 256, WIDTH), torch.bfloat16),
    "attending in float32": (Attending, (8, 256, WIDTH), torch.float32),
    "convolving": (Convolving, (16, 16, 64, 64), torch.float32),
}


def build(name, dropout=0.0):
    torch.manual_seed(0)
    make, shape, dtype = MODELS[name]
    model = make(dropout).to("cuda", dtype).train()
    return model, torch.randn(shape, dtype=dtype, device="cuda")


def train(call, model, x):
    model.zero_grad(set_to_none=True)
    torch.manual_seed(7)
    loss = call(x)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def compiled_at(model, budget, **options):
    torch._dynamo.reset()
    return torch.compile(model, backend="rematpass", options={"memory_budget": budget, "verify": False, **options})


def ends(model, x):
    """(peak of the fastest plan, smallest peak)."""
    plan = rematpass.plan(model, (x,), memory_budget="none")
    return plan.fastest_peak_bytes, plan.smallest_peak_bytes


def difference(found, wanted):
    """Norm of all differences over the norm of what is wanted."""
    size = sum(w.double().square().sum() for w in wanted)
    return float(
        (sum((f.double() - w.double()).square().sum() for f, w in zip(found, wanted, strict=True)) / size).sqrt()
    )


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_eager(name):
    """In float64 as eager computes them there; half precision may be off by as much as eager in half precision is."""
    model, x = build(name)
    fastest, smallest = ends(model, x)
    exact, _ = build(name)
    wanted = [g.cpu() for g in train(exact.double(), exact, x.double())]
    allowed = 2 * difference([g.cpu() for g in train(model, model, x)], wanted) + 1e-4
    for budget in ("none", (fastest + smallest) // 2, smallest):
        found = [g.cpu() for g in train(compiled_at(model, budget), model, x)]
        assert difference(found, wanted) < allowed, budget


@pytest.mark.parametrize("name", MODELS)
def test_recomputed_dropout_is_that_of_the_forward(name):
    """Another mask would change gradients by about as much as they are."""
    model, x = build(name, dropout=0.3)
    fastest, smallest = ends(model, x)
    wanted = [g.clone() for g in train(compiled_at(model, "none"), model, x)]
    off = 0.02 if x.dtype == torch.bfloat16 else 1e-4
    for budget in ((fastest + smallest) // 2, smallest):
        assert difference(train(compiled_at(model, budget), model, x), wanted) < off, budget


@pytest.mark.parametrize("name", MODELS)
def test_a_budget_bounds_the_measured_peak(name):
    model, x = build(name, dropout=0.1)
    fastest, smallest = ends(model, x)
    static = storage_bytes([*model.parameters(), *model.buffers(), x])
    peaks = []
    for budget in (fastest, (fastest + smallest) // 2, smallest):
        compiled = compiled_at(model, budget)
        train(compiled, model, x)
        model.zero_grad(set_to_none=True)
        above = rematpass.measure_peak(lambda compiled=compiled: train(compiled, model, x) and None)
        (plan,) = rematpass.plans(compiled)
        peaks.append(static + above)
        assert peaks[-1] <= 1.01 * budget, (peaks[-1], budget)
        assert peaks[-1] == pytest.approx(plan.peak_bytes, rel=0.05)
    assert peaks == sorted(peaks, reverse=True)


def test_the_second_step_is_measured(caplog):
    caplog.set_level(logging.INFO, "rematpass.verify")
    model, x = build("attending")
    fastest, smallest = ends(model, x)
    compiled = compiled_at(model, (fastest + smallest) // 2, verify=True)
    for _ in range(3):
        train(compiled, model, x)
    (line,) = [r.getMessage() for r in caplog.records if "measured" in r.getMessage()]
    assert line.startswith("rematpass: graph 0: measured ")


def test_an_automatic_budget_keeps_everything_where_there_is_room():
    model, x = build("attending")
    compiled = compiled_at(model, "auto")
    train(compiled, model, x)
    (plan,) = rematpass.plans(compiled)
    assert plan.recompute_seconds == 0
    assert plan.budget_bytes <= torch.cuda.mem_get_info()[1]


def test_recorded_steps_have_the_same_gradients():
    model, x = build("attending")
    _, smallest = ends(model, x)
    wanted = [g.clone() for g in train(compiled_at(model, smallest), model, x)]
    compiled = compiled_at(model, smallest, mode="reduce-overhead")
    for _ in range(4):
        found = [g.clone() for g in train(compiled, model, x)]
    assert difference(found, wanted) < 0.02


def test_measured_prices_make_plans_that_train(tmp_path, monkeypatch):
    monkeypatch.setenv("REMATPASS_CACHE_DIR", str(tmp_path))
    model, x = build("attending")
    fastest, smallest = ends(model, x)
    compiled = compiled_at(model, (fastest + smallest) // 2, cost_model="measured")
    train(compiled, model, x)
    (plan,) = rematpass.plans(compiled)
    assert plan.recompute_seconds > 0
    assert rematpass.save_prices(tmp_path / "prices.json").exists()


@pytest.mark.skipif(
    not torch.cuda.is_available() or known_name(torch.cuda.get_device_name()) is None, reason="needs a declared device"
)
def test_a_plan_made_without_the_device_is_followed_on_it(tmp_path):
    with torch.device("meta"):
        far, y = Attending().to(torch.bfloat16), torch.empty(8, 256, WIDTH, dtype=torch.bfloat16)
    name = known_name(torch.cuda.get_device_name())
    end = rematpass.plan(far, (y,), device=name, memory_budget="none")
    budget = (end.fastest_peak_bytes + end.smallest_peak_bytes) // 2
    path = rematpass.plan(far, (y,), device=name, memory_budget=budget).save(tmp_path / "plan.json")
    model, x = build("attending")
    compiled = torch.compile(model, backend="rematpass", options={"plan": str(path), "verify": False})
    train(compiled, model, x)
    model.zero_grad(set_to_none=True)
    static = storage_bytes([*model.parameters(), x])
    above = rematpass.measure_peak(lambda: train(compiled, model, x) and None)
    assert static + above == pytest.approx(rematpass.plans(compiled)[0].peak_bytes, rel=0.03)
    assert static + above <= 1.01 * budget
