"""One training step compiled at a budget, small and alone: its plan, its gradients, its measured peak."""

import torch

import rematpass
from rematpass.check.measure import storage_bytes

# Kernels without vector instructions compile twice as fast and allocate the same.
SCALAR = {"cpp.simdlen": 1}


def train_step(model, x):
    torch.manual_seed(7)
    model(x).backward()


def gradients(model):
    return [p.grad for p in model.parameters()]


def clear(model):
    for p in model.parameters():
        p.grad = None


def compiled_step(model, x, budget, **options):
    """(plan, gradients, measured peak) after compiling at `budget`."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="rematpass", options={"memory_budget": budget, **SCALAR, **options})
    train_step(compiled, x)
    found = [g.clone() for g in gradients(model)]
    clear(model)
    above = rematpass.measure_peak(lambda: train_step(compiled, x), device="cpu")
    clear(model)
    inputs = storage_bytes([x, *model.parameters(), *model.buffers()])
    return rematpass.plans(compiled)[0], found, above + inputs


def check_fastest(model, x):
    """The fastest plan of the model, once its gradients are eager's and its peak is kept."""
    train_step(model, x)
    expected = [gradient.clone() for gradient in gradients(model)]
    clear(model)
    plan, found, measured = compiled_step(model, x, "none")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert measured <= plan.peak_bytes * 1.002
    return plan
