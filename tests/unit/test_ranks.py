"""Ranks of a job, one after the other in this process, over a store of torch's."""

import logging
import warnings
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import fx

from rematpass import ranks
from rematpass.backend import plan_topic
from rematpass.options import Options
from tests.tracing import TOY
from tests.unit.test_plan import make_plan


@pytest.fixture
def store(monkeypatch):
    """A job of two ranks whose store is in memory; `as_rank` says who asks."""
    found = dist.HashStore()
    monkeypatch.setattr(ranks, "_job_store", lambda: found)
    as_rank(monkeypatch, 0)
    return found


def as_rank(monkeypatch, number):
    monkeypatch.setattr(dist, "get_rank", lambda: number)


def test_outside_of_a_job_everyone_is_first():
    assert ranks.first_said("x", "mine") == "mine"
    assert ranks.share_device("cpu", TOY) == TOY
    assert ranks.share_budget("x", 5, 0) == 5
    ranks.compare_plans("x", [make_plan()])


def test_the_first_is_heard_by_all(store):
    assert [ranks.first_said("x", text) for text in ("one", "two", "one")] == ["one"] * 3
    assert ranks.first_said("y", "two") == "two"


def test_all_price_with_the_figures_of_the_first(store):
    other = replace(TOY, bandwidth_bytes_per_second=2e9, source="measured elsewhere")
    assert ranks.share_device("cpu", TOY) == TOY
    assert ranks.share_device("cpu", other) == TOY
    assert ranks.share_device("cuda", other) == other


def test_figures_that_cannot_be_read_are_told_and_left(store, caplog):
    ranks.first_said("device/cpu", '{"figures": "of another version"}')
    with caplog.at_level(logging.WARNING):
        assert ranks.share_device("cpu", TOY) == TOY
    assert "another version" in caplog.text


@pytest.mark.parametrize(
    ("mine", "free", "taken"), [(1000, 1500, 900), (800, 950, 900), (800, 850, 800), (900, 900, 900)]
)
def test_the_first_auto_budget_is_taken_where_it_fits(store, mine, free, taken):
    assert ranks.share_budget("x", 900, 10**6) == 900
    assert ranks.share_budget("x", mine, free) == taken


def test_equal_plans_are_no_news(store, monkeypatch):
    for rank in (0, 1):
        as_rank(monkeypatch, rank)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ranks.compare_plans("x", [make_plan(plan_seconds=float(rank))])


@pytest.mark.parametrize(
    ("plans", "words"),
    [
        ([make_plan(budget_bytes=5000)], r"budget_bytes \(5000 and 4096\)\. Gradients"),
        ([make_plan(values=(), device="other")], r"differently: device, values\. Gradients"),
        ([], "0 and 1 plans"),
    ],
)
def test_other_plans_are_told_with_what_differs(store, monkeypatch, plans, words):
    ranks.compare_plans("x", [make_plan()])
    as_rank(monkeypatch, 3)
    with pytest.warns(UserWarning, match=f"rank 3 and rank 0 planned one graph .*{words}"):
        ranks.compare_plans("x", plans)
    ranks.compare_plans("another graph", plans)


class BrokenStore:
    def compare_set(self, *_):
        raise dist.DistNetworkError("connection reset")


def test_a_store_that_fails_is_told_and_stops_nobody(monkeypatch, caplog):
    monkeypatch.setattr(ranks, "_job_store", BrokenStore)
    as_rank(monkeypatch, 0)
    with caplog.at_level(logging.WARNING):
        assert ranks.share_device("cpu", TOY) == TOY
        ranks.compare_plans("x", [make_plan()])
    assert "connection reset" in caplog.text


def graph_on(device):
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(torch.zeros, (3,), {"device": torch.device(device)})
    graph.output(graph.call_function(torch.add, (x, made)))
    return fx.GraphModule(torch.nn.Module(), graph)


def test_the_topic_is_the_same_on_all_ranks_that_ask_for_the_same():
    def topic(device="cuda:0", size=2, options=Options()):  # noqa: B008  frozen
        return plan_topic(graph_on(device), [torch.empty(size, device="meta"), 5], options)

    assert topic("cuda:0") == topic("cuda:1")
    assert len({topic(), topic("cpu"), topic(size=3), topic(options=Options(time_limit=1.0))}) == 4
