"""Flaws of Inductor that would make gradients wrong, in kernels as people run them: vector instructions, threads."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._inductor.dependencies import StarDep
from torch._inductor.ir import NonOwningLayout
from torch._inductor.scheduler import MixOrderReduction, OutputNode
from torch.nn import functional

import rematpass
from rematpass.torch_compat import compile_uncached
from rematpass.torch_compat.flaws import flaws_mended

THREADS = {"cpp.threads": 2}


class LookedUp(nn.Module):
    """Columns are read by row and by column: their gradient, a sum of the two, is scattered."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 64)
        self.rows, self.columns = (nn.Parameter(torch.randn(64, 64)) for _ in range(2))
        self.register_buffer("places", torch.arange(64) // 2)

    def forward(self, x):
        y = self.up(x)[:, self.places]
        return (self.rows * y).sum() + (self.columns * y.t()).sum()


class Bordered(nn.Module):
    """An image with a border times itself, turned: rows of 66 end amid a tile."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        y = functional.gelu(self.mix(x))
        turned = functional.pad(y.permute(3, 2, 1, 0), (0, 0, 0, 58), value=0.5)
        return (functional.pad(y, (0, 0, 0, 0, 0, 58), value=0.5) @ turned).square().mean()


def assert_gradients_are_right(model, x, make_compiled):
    reference = copy.deepcopy(model)
    reference(x).backward()
    make_compiled(model)(x).backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("end", ["fastest", "smallest"])
def test_scattered_sums_are_added_where_they_belong(end):
    """torch 2.13 by itself writes elsewhere, also beyond the tensor, and mostly aborts."""
    torch.manual_seed(0)
    model, x = LookedUp(), torch.randn(64, 64)
    budget = getattr(rematpass.plan(model, (x,), memory_budget="none"), f"{end}_peak_bytes")
    options = {"memory_budget": budget, **THREADS}
    assert_gradients_are_right(model, x, lambda model: torch.compile(model, backend="rematpass", options=options))


def test_rows_end_where_they_should():
    """Inductor alone, mended: of torch 2.13 by itself the last tile of a row covers the next one, and it aborts."""
    torch.manual_seed(0)
    x = torch.randn(1, 8, 66, 66).to(memory_format=torch.channels_last)
    with compile_uncached(), flaws_mended():
        assert_gradients_are_right(Bordered(), x, lambda model: torch.compile(model, options=THREADS))


class Reduction:
    """A scheduler's node that reduces into `layout`, or, where it is split, has another reduction do so."""

    def __init__(self, layout, last=None):
        users = [] if last is None else [SimpleNamespace(node=last)]
        self.outputs = [SimpleNamespace(node=SimpleNamespace(layout=layout), users=users)]
        self.is_split = last is not None

    def get_outputs(self):
        return self.outputs


def test_parts_of_a_gradient_are_written(monkeypatch):
    """Chunks of one parameter in two norms: torch 2.13 never writes the gradient of the second on a GPU."""
    own, part = SimpleNamespace(), NonOwningLayout.__new__(NonOwningLayout)
    monkeypatch.setattr(MixOrderReduction, "can_fuse", classmethod(lambda cls, one, other: True))
    monkeypatch.setattr(MixOrderReduction, "is_split_reduction", lambda node: node.is_split)
    whole, split = Reduction(own), Reduction(own, last=Reduction(own))
    with flaws_mended():
        assert MixOrderReduction.can_fuse(whole, split)
        assert not MixOrderReduction.can_fuse(whole, Reduction(part))
        assert not MixOrderReduction.can_fuse(Reduction(own, last=Reduction(part)), whole)
        returned = Reduction(own, last=OutputNode(StarDep("own")))
        assert MixOrderReduction.can_fuse(returned, whole)
    assert MixOrderReduction.can_fuse(whole, Reduction(part))
