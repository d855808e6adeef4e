"""Which plans several graphs follow that share a budget."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import rematpass
from rematpass import shares
from rematpass.shares import Moment, Offer, choose_together, excess_bytes, leaves_half, offer_of

SIZES = st.integers(0, 20)
OFFERS = st.lists(st.builds(Offer, SIZES, SIZES, st.integers(0, 9).map(float)), min_size=1, max_size=4)


@st.composite
def steps(draw):
    offers = draw(st.lists(OFFERS, min_size=1, max_size=4))
    graph = st.integers(0, len(offers) - 1)
    waiting = st.lists(graph, max_size=3).map(tuple)
    moments = draw(st.lists(st.builds(Moment, graph, waiting, SIZES, st.integers(0, 90)), max_size=5))
    runs = draw(st.lists(st.integers(1, 3), min_size=len(offers), max_size=len(offers)))
    return offers, runs, moments


def seconds(offers, runs, picks):
    return sum(those[place].extra_seconds * count for those, place, count in zip(offers, picks, runs, strict=True))


def worst(offers, picks, moments):
    chosen = [those[place] for those, place in zip(offers, picks, strict=True)]
    return max((excess_bytes(moment, chosen) for moment in moments), default=0)


def fits(offers, picks, moments):
    return worst(offers, picks, moments) <= 0


def all_that_fit(offers, moments):
    return [p for p in itertools.product(*(range(len(those)) for those in offers)) if fits(offers, p, moments)]


@given(steps())
def test_few_graphs_get_the_best_choice(step):
    offers, runs, moments = step
    picks = choose_together(offers, runs, moments)
    possible = all_that_fit(offers, moments)
    if possible:
        assert fits(offers, picks, moments)
        assert seconds(offers, runs, picks) == min(seconds(offers, runs, p) for p in possible)
    else:
        combinations = itertools.product(*(range(len(those)) for those in offers))
        assert worst(offers, picks, moments) == min(worst(offers, p, moments) for p in combinations)


@given(steps())
def test_more_graphs_get_a_choice_that_no_single_change_makes_faster(step):
    offers, runs, moments = step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "MOST_COMBINATIONS", 0)
        picks = choose_together(offers, runs, moments)
    if not fits(offers, picks, moments):
        return  # neither what holds least nor what peaks least fits
    for graph, those in enumerate(offers):
        for place in range(len(those)):
            changed = [*picks[:graph], place, *picks[graph + 1 :]]
            assert not fits(offers, changed, moments) or seconds(offers, runs, changed) >= seconds(offers, runs, picks)


def test_many_graphs_are_chosen_for_without_looking_at_all_combinations():
    offers = [[Offer(10, 9, 0.0), Offer(10, 1, 1.0 + i / 100)] for i in range(40)]
    moments = [Moment(i, tuple(range(i)), 0, 200) for i in range(40)]
    picks = choose_together(offers, [1] * 40, moments)
    assert fits(offers, picks, moments)
    assert 18 <= picks.count(0) <= 20, "all that fit: 190 bytes beside the last one's peak, 39 of them for its waiting"


def test_what_a_plan_holds_is_what_its_backward_is_handed():
    """Two activations, and what is returned, which the caller holds; the first input is the caller's."""
    model = nn.Sequential(nn.Linear(32, 32), nn.Sigmoid(), nn.Linear(32, 32), nn.Sigmoid(), nn.Linear(32, 1))
    plan = rematpass.plan(model, (torch.randn(64, 32),), memory_budget="none")
    held = offer_of(plan)
    assert held.peak_bytes == plan.peak_bytes
    assert held.held_bytes == 2 * 64 * 32 * 4 + 64 * 4
    assert held.extra_seconds == plan.recompute_seconds


def test_half_of_what_there_is_counts_what_is_live_beside():
    assert leaves_half(50, 100, 0)
    assert not leaves_half(51, 100, 0)
    assert leaves_half(40, 90, 10)
    assert not leaves_half(41, 90, 10)
