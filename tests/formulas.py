"""What tests of formulas share: a block, tensors without memory, and what a decision takes at other sizes."""

import torch
from torch import nn
from torch.nn import functional

from rematpass.look import look_at_step
from rematpass.sized.sample import take_sample
from rematpass.solve.liveness import simulate


class Fused(nn.Module):
    """One block with fused attention, without dropout."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(x)))


def total(y):
    return y.float().sum()


def meta(make, *shape):
    with torch.device("meta"):
        return make(), torch.empty(*shape)


def peak_of_decision(plan, *sizes):
    """What the same decision takes at other sizes, simulated there."""
    step = plan.sized._steps().step_at(*sizes)
    sample = look_at_step(step, plan.sized._options, lambda *seen: take_sample(sizes, *seen))
    return simulate(sample.program, plan.sized._decision.schedule).peak_bytes
