"""Gradients of earlier backwards: how many bytes they are, and what they leave of a budget."""

import dataclasses

import torch
from torch import nn

import rematpass
from rematpass.accumulated import Built, Company, beside, gradient_bytes
from rematpass.device import make_settings
from rematpass.options import parse_options
from rematpass.shares import Offer


def parameter(count, *, is_learning=True, has_gradient=False, dtype=torch.float32):
    p = nn.Parameter(torch.zeros(count, dtype=dtype), requires_grad=is_learning)
    p.grad = torch.zeros_like(p) if has_gradient else None
    return p


def test_one_gradient_stands_for_all():
    batch = torch.zeros(7, requires_grad=True)
    batch.grad = torch.zeros(7)
    frozen = parameter(5, is_learning=False)
    without = [parameter(3), batch, frozen, 4]
    assert gradient_bytes(without) == 0
    assert gradient_bytes([*without, parameter(2, has_gradient=True, dtype=torch.float64)]) == 3 * 4 + 2 * 8
    assert gradient_bytes([]) == 0


def settings(budget, **options):
    return make_settings(parse_options({"memory_budget": budget, **options}, inductor_keys=()), "cpu", "topic")


def test_settings_stand_for_what_they_leave():
    whole = settings(1000)
    assert beside(whole, Company(), has_run=True) == whole
    assert beside(settings("none"), Company(7), has_run=True) == settings("none")
    first, later = beside(whole, Company(7), has_run=False), beside(whole, Company(7), has_run=True)
    others, both = beside(whole, Company(0, 7), has_run=False), beside(whole, Company(3, 4), has_run=False)
    assert (first.budget_bytes, first.beside_bytes, first.on_infeasible) == (1000, 7, "error")
    assert later.on_infeasible == "warn"
    assert (others.on_infeasible, others.beside_bytes) == ("smallest", 7), "they may make room yet"
    assert (both.on_infeasible, both.beside_bytes) == ("error", 7)
    offer = beside(whole, Company(0, 7, Offer(3, 2, 1.0)), has_run=False)
    assert offer.offer == Offer(3, 2, 1.0)
    followed = beside(whole, Company(is_followed=True), has_run=False)
    assert (followed.beside_bytes, followed.is_followed) == (0, True)
    assert len({s.fingerprint for s in (whole, first, later, others, both, offer, followed)}) == 7


def test_a_plan_fits_beside_them_if_it_keeps_what_is_left():
    model, x = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)), torch.randn(64, 32)
    plan = rematpass.plan(model, (x,), memory_budget="none")

    def built(budget, beside_bytes=0):
        return Built(model, dataclasses.replace(plan, budget_bytes=budget), beside_bytes)

    tight = built(plan.peak_bytes + 100)
    assert tight.fits(100)
    assert not tight.fits(101)
    assert tight.may_fit(100)
    assert built(plan.peak_bytes, 100).fits(100)
    assert not built(plan.peak_bytes, 100).fits(101)
    highest = max(moment.live_bytes for moment in plan.timeline if moment.phase == "forward")
    assert built(highest + 7).fits_forward(7)
    assert not built(highest + 7).fits_forward(8)
