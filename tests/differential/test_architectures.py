"""Architectures people train: at two or three budgets a step leaves what it leaves with no limit, and what eager does.

The suite runs some of them, small; `pytest -m fuzz tests/differential/test_architectures.py` all of them, also through
Inductor and in the ways they are trained (half precision, checkpointing, other attention).
"""

import functools

import pytest

from tests.differential.architectures import ARCHITECTURES
from tests.differential.steps import check_backend, check_budgets, close, plain_inductor, run_step
from tests.fuzz.replay import Replay
from tests.fuzz.trial import quiet

# Gradients that are zero in exact arithmetic (biases before a softmax or a batch norm) come out as large as this.
ROUNDING = 1e-5
NEAR = close(1e-4, floor=ROUNDING)
ONCE = {"num_hidden_layers": 1}
ONCE_GPT = {"n_layer": 1}

# What the suite runs, with fields that keep it short.
SHORT = {
    "llama": {},
    "resnet": {},
    "unrolled-lstm": {},
    "vit": {},
}
SHORT_BY_REPLAY = {
    "albert": {},
    "bert": {},
    "clip": {},
    "deberta": {},
    "gemma3": {},
    "gpt2": ONCE_GPT,
    "lstm": {},
    "mamba": ONCE,
    "qwen2-moe": ONCE,
    "swin": {},
    "t5": {"num_layers": 1},
    "unet": {},
    "wav2vec2": {},
    "whisper": {"encoder_layers": 1, "decoder_layers": 1},
    "xlnet": {},
}

# Op by op, torch fails by itself: `backend="aot_eager"` raises the same error, that a view does not fit its strides.
ONLY_THROUGH_INDUCTOR = {"patchtst", "qwen3-next"}
OP_BY_OP = sorted(ARCHITECTURES.keys() - ONLY_THROUGH_INDUCTOR)


def cases(names, short):
    """A short form of some in the suite, all of them by command."""
    quick = [pytest.param(functools.partial(ARCHITECTURES[n], **short[n]), id=f"{n}-short") for n in sorted(short)]
    return quick + [pytest.param(ARCHITECTURES[n], id=n, marks=pytest.mark.fuzz) for n in sorted(names)]


def count_for(request):
    """Budgets: the two ends in the suite, one between them by command."""
    return 3 if request.node.get_closest_marker("fuzz") else 2


@pytest.fixture(autouse=True)
def without_warnings_of_others():
    with quiet():
        yield


def recomputes(plans):
    return any(value.decision == "recompute" for plan in plans for value in plan.values)


@pytest.mark.parametrize("make", cases(OP_BY_OP, SHORT))
def test_op_by_op(make, request):
    plans = check_budgets(make, count=count_for(request), eager=NEAR)
    assert recomputes(plans)


@pytest.mark.fuzz
@pytest.mark.parametrize("make", cases((), SHORT_BY_REPLAY))
def test_each_graph_op_by_op(make):
    """The halves of three budgets on what the halves without limit were given: one trace for all of them."""
    replay = Replay((100, 50, 0))
    assert run_step(make, replay).differences(run_step(make), NEAR) == []
    assert [list(graph.check()) for graph in replay.graphs] == [[] for _ in replay.graphs]
    assert recomputes(plan for graph in replay.graphs for _, plan, _ in graph.others)


@pytest.mark.parametrize("make", cases(ARCHITECTURES, {}))
def test_through_inductor(make, request):
    """Plain Inductor is the reference: it draws the same random numbers, and rounds as we do where eager does not."""
    plans = check_backend(make, count=count_for(request), relative=1e-3, floor=ROUNDING, reference=plain_inductor)
    assert recomputes(plans)
