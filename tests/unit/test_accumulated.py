"""Gradients of earlier backwards: how many bytes they are, and what they leave of a budget."""

import dataclasses

import torch
from torch import nn

import rematpass
from rematpass.accumulated import beside, gradient_bytes, still_fits
from rematpass.device import make_settings
from rematpass.options import parse_options
from rematpass.pipeline import AMPLE


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
    assert beside(whole, 0, has_run=True) == whole
    assert beside(settings("none"), 7, has_run=True) == settings("none")
    first, later = beside(whole, 7, has_run=False), beside(whole, 7, has_run=True)
    assert (first.budget_bytes, first.beside_bytes, first.on_infeasible) == (1000, 7, "error")
    assert later.on_infeasible == "warn"
    assert len({s.fingerprint for s in (whole, first, later, beside(whole, 8, has_run=True))}) == 4


def test_a_plan_fits_beside_them_if_it_keeps_what_is_left_and_is_compiled_alike():
    model, x = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)), torch.randn(64, 32)
    plan = rematpass.plan(model, (x,), memory_budget="none")
    assert still_fits(plan, 10**9)
    tight = dataclasses.replace(plan, budget_bytes=plan.peak_bytes + 100)
    assert still_fits(tight, 100)
    assert not still_fits(tight, 101)
    ample = dataclasses.replace(plan, budget_bytes=int(AMPLE * plan.fastest_peak_bytes) + 100)
    assert still_fits(ample, 99)
    assert not still_fits(ample, 102)
