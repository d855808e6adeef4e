"""The largest size that fits: the search, the arguments at other sizes, the answer."""

import pytest
import torch
from torch import nn

import rematpass
from rematpass.errors import BudgetTooSmall, OptionError
from rematpass.resize import SizedArguments
from rematpass.sizing import SizeSearch
from rematpass.torch_compat import storage_key


@pytest.mark.parametrize("start", [1, 7, 1000])
@pytest.mark.parametrize("step", [1, 8])
@pytest.mark.parametrize(
    "peak", [lambda n: 100 + 3 * n, lambda n: 5 * n * n, lambda n: 10**6 + n // 7, lambda n: n**3 // 50]
)
def test_the_answer_fits_and_the_next_size_does_not(peak, step, start):
    budget = 1_000_100
    search = SizeSearch(lambda n: (peak(n), budget), step=step, most=10**7)
    found = search.run(start)
    assert found % step == 0
    assert peak(found) <= budget < peak(found + step)
    tried = {t.size for t in search.tried}
    assert {found, found + step} <= tried
    assert len(search.tried) == len(tried) <= 32, "no size twice"


def test_a_straight_line_takes_few_tries():
    search = SizeSearch(lambda n: (1000 + 17 * n, 10**6))
    assert search.run(1) == (10**6 - 1000) // 17
    assert len(search.tried) <= 6


def test_nothing_fits_and_everything_fits():
    assert SizeSearch(lambda n: (n + 10, 10), most=64).run(16) == 0
    assert SizeSearch(lambda n: (n, 10**9), step=3, most=64).run(1) == 63
    with pytest.raises(OptionError, match="step"):
        SizeSearch(lambda n: (n, 1), step=0).run(1)


def test_arguments_of_another_size():
    tokens, mask, scale = torch.zeros(2, 8).long(), torch.zeros(2, 1, 8, 8), torch.ones(())
    (args, kwargs) = SizedArguments((tokens, scale), {"mask": [mask]}, "sequence").at(32)
    assert [tuple(t.shape) for t in (*args, kwargs["mask"][0])] == [(2, 32), (), (2, 1, 32, 32)]
    (args, _) = SizedArguments((tokens, torch.ones(1, 8)), {}, "batch").at(5)
    assert [tuple(t.shape) for t in args] == [(5, 8), (1, 8)]
    assert args[0].dtype == torch.long


def at_length(length, *tensors):
    return SizedArguments(tensors, {}, "sequence").at(length)[0]


def test_tensors_that_share_memory_share_it_at_another_size():
    ids = torch.zeros(3, 41, dtype=torch.long)
    read, labels = at_length(64, ids[:, :-1], ids[:, 1:])
    assert [(t.shape, t.stride(), t.storage_offset()) for t in (read, labels)] == [
        ((3, 64), (65, 1), 0),
        ((3, 64), (65, 1), 1),
    ]
    assert storage_key(read) == storage_key(labels)
    assert read.untyped_storage().nbytes() == 3 * 65 * 8
    same, again = at_length(64, ids, ids)
    assert same is again


@pytest.mark.parametrize(
    ("tensor", "strides"),
    [
        (torch.zeros(3, 8, 10).transpose(1, 2), (8 * 64, 1, 64)),
        (torch.zeros(3, 1, 10).expand(3, 8, 10), (64, 0, 1)),
        (torch.zeros(3, 4, 10, 8).permute(0, 2, 3, 1), (4 * 64 * 8, 8, 1, 64 * 8)),
        (torch.zeros(3, 10, 8)[:, :, 2:5], (64 * 8, 8, 1)),
        (torch.zeros(10, 3).t(), (1, 3)),
        (torch.zeros(3, 10), (64, 1)),
    ],
)
def test_rows_lie_as_before(tensor, strides):
    _, sized = at_length(64, torch.zeros(3, 10), tensor)
    assert sized.stride() == strides
    assert sized.shape == tuple(64 if size == 10 else size for size in tensor.shape)


def test_a_sparse_tensor_stays_or_is_refused():
    sparse = torch.zeros(3, 12).to_sparse()
    assert at_length(64, torch.zeros(3, 40), sparse)[1] is sparse
    with pytest.raises(OptionError, match="sparse_coo"):
        at_length(64, sparse)


@pytest.mark.parametrize(
    ("args", "vary", "words"),
    [
        ((torch.ones(2, 2),), "sequence", "both 2"),
        ((torch.ones(2, 3), torch.ones(5, 3)), "batch", "contradict"),
        ((torch.ones(3),), "sequence", "no argument has a sequence dimension"),
        ((torch.ones(3),), "width", "'batch' or 'sequence'"),
    ],
)
def test_sizes_that_cannot_be_told_are_refused(args, vary, words):
    with pytest.raises(OptionError, match=words):
        SizedArguments(args, {}, vary)


def test_the_largest_batch_is_planned_exactly_and_the_next_one_refused():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        x = torch.empty(3, 64)
    asked = {"device": "l4", "loss": torch.sum}
    found = rematpass.max_size(model, (x,), vary="batch", memory_budget="2MiB", step=4, **asked)
    assert found.size % 4 == 0
    assert found.plan.peak_bytes <= 2 * 2**20 < found.above_minimum_bytes
    assert found.above == found.size + 4

    def args(size):
        return (torch.empty(size, 64, device="meta"),)

    assert rematpass.plan(model, args(found.size), memory_budget="2MiB", **asked) == found.plan
    with pytest.raises(BudgetTooSmall) as error:
        rematpass.plan(model, args(found.above), memory_budget="2MiB", **asked)
    assert error.value.minimum_bytes == found.above_minimum_bytes
    again = rematpass.max_size(model, args, vary="batch", memory_budget="2MiB", step=4, **asked)
    assert (again.size, again.plan) == (found.size, found.plan)
    assert f"the largest batch that fits 2.0 MiB is {found.size}" in str(found)


def test_not_even_one_fits():
    with torch.device("meta"):
        model, x = nn.Linear(64, 64), torch.empty(3, 64)
    with pytest.raises(BudgetTooSmall):
        rematpass.max_size(model, (x,), vary="batch", memory_budget="1KiB", device="l4", loss=torch.sum)
    with pytest.raises(OptionError, match="no largest size"):
        rematpass.max_size(model, (x,), vary="batch", memory_budget="none", device="l4")
