"""Is a plan kept? What a real step took, against what was promised.

In: a plan, and the bytes measured. Out: one record and its verdict. Never measures, never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..plan_types import Plan

TOLERANCE = 1.01
"""What Inductor may add without anybody's fault: rounding of blocks, scratch that no prediction knows (2026-11). At
1.005 good plans would be called broken; at 1.02 a budget would be a wish."""

SCRATCH_BYTES = 24 * 1024
"""What a kernel library takes for itself however small its operands are, and no prediction knows: up to 20 KiB for a
product in half precision with AMX, 8 KiB for a convolution (oneDNN, torch 2.13, 2026-11)."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One real step of one graph. Bytes of the peak, with the graph's inputs and the gradients it returns.

    Attributes:
        graph_name: which graph of the compiled model.
        budget_bytes: what the plan was made for, None for no limit.
        predicted_bytes: the plan's peak.
        least_bytes, most_bytes: the measured peak. They differ by the gradients handed to the backward, where nobody
            sees when these are freed.
    """

    graph_name: str
    budget_bytes: int | None
    predicted_bytes: int
    least_bytes: int
    most_bytes: int

    @property
    def limit_bytes(self) -> int:
        """What the peak must stay within: the budget, or the prediction where there is none."""
        return self.predicted_bytes if self.budget_bytes is None else self.budget_bytes

    @property
    def is_kept(self) -> bool:
        """Whether it did, as far as can be known."""
        return self.least_bytes <= TOLERANCE * self.limit_bytes + SCRATCH_BYTES

    @property
    def difference(self) -> float:
        """(measured - predicted) / predicted, of the lower measured figure."""
        return self.least_bytes / self.predicted_bytes - 1 if self.predicted_bytes else 0.0


def measured(plan: Plan, least_bytes: int, most_bytes: int) -> Measurement:
    """The record of a step of `plan`'s graph; the bytes measured have the graph's inputs left out."""
    least, most = plan.static_bytes + least_bytes, plan.static_bytes + most_bytes
    return Measurement(plan.graph_name, plan.budget_bytes, plan.peak_bytes, least, most)
