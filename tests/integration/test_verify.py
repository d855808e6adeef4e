"""One real step, measured and compared with its plan."""

import gc
import logging
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import rematpass
from rematpass import verify
from rematpass.check import verdict
from rematpass.check.measure import storage_bytes
from rematpass.lessons import Lessons
from rematpass.torch_compat import is_profiling, kept_uncompiled, uses_cuda_graphs


class Layers(nn.Module):
    def __init__(self, count=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = functional.gelu(layer(x)) + x
        return x


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    assert not is_profiling()


def measured_lines(caplog):
    return [r.getMessage() for r in caplog.records if "measured" in r.getMessage()]


def compile_layers(share, **options):
    model, x = Layers(), torch.randn(512, 256)
    fastest = rematpass.plan(model, args=(x,), memory_budget="none")
    budget = int(fastest.smallest_peak_bytes + share * (fastest.fastest_peak_bytes - fastest.smallest_peak_bytes))
    options = {"memory_budget": budget, "verify": True, "cpp.simdlen": 1, **options}  # scalar code compiles faster
    return model, x, torch.compile(model, backend="rematpass", options=options)


def train(model, compiled, x, steps, loss=torch.Tensor.sum):
    for _ in range(steps):
        model.zero_grad()
        loss(compiled(x)).backward()


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
def test_the_second_step_is_measured_and_says_one_line(share, caplog):
    caplog.set_level(logging.INFO, "rematpass.verify")
    model, x, compiled = compile_layers(share)
    train(model, compiled, x, 1)
    assert measured_lines(caplog) == []
    train(model, compiled, x, 3)
    [line] = measured_lines(caplog)
    [plan] = rematpass.plans(compiled)
    assert line.startswith("rematpass: graph 0: measured ")
    assert line.endswith(f"(predicted {plan.peak_bytes / 2**20:.1f} MiB)")


@pytest.mark.parametrize("is_held", [False, True])
def test_it_measures_what_a_profile_of_the_step_shows(is_held, monkeypatch):
    """Also where the loss is not compiled: its own memory is not the graph's."""
    found = []
    monkeypatch.setattr(verify, "_report", lambda measured: found.append((measured.least_bytes, measured.most_bytes)))
    model, x, compiled = compile_layers(0.5)

    def step(waste):
        y = compiled(x)
        loss = (y * torch.ones(())).mean()
        if not is_held:
            del y
        torch.empty(waste)
        loss.backward()

    for _ in range(3):
        model.zero_grad()
        step(2**26)
    model.zero_grad()
    gc.collect()
    static = storage_bytes([x, *model.parameters()])
    elsewhere = static + rematpass.measure_peak(lambda: step(1), device="cpu")
    [(least, most)] = found
    assert most - least <= 512 * 256 * 4
    assert least * 0.99 <= elsewhere <= most * 1.01


def test_nobody_asked(caplog):
    caplog.set_level(logging.INFO, "rematpass.verify")
    model, x, compiled = compile_layers(0.5, verify=False)
    train(model, compiled, x, 3)
    assert measured_lines(caplog) == []


def test_gradients_are_as_without(caplog):
    torch.manual_seed(0)
    model, x, compiled = compile_layers(0.0)
    train(model, compiled, x, 1)
    first = [p.grad.clone() for p in model.parameters()]
    train(model, compiled, x, 1)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), first, strict=True))


def test_a_step_without_backward_is_given_up_and_a_later_one_measured(caplog):
    caplog.set_level(logging.INFO, "rematpass.verify")
    model, x, compiled = compile_layers(0.5)
    train(model, compiled, x, 1)
    compiled(x)
    assert not is_profiling()
    assert measured_lines(caplog) == []
    train(model, compiled, x, 2)
    assert len(measured_lines(caplog)) == 1


def test_a_forward_that_fails_leaves_nothing_behind():
    def fail(*inputs):
        raise RuntimeError("out of memory")

    model, x, compiled = compile_layers(0.5)
    train(model, compiled, x, 1)
    broken = verify.Verified(fail, rematpass.plans(compiled)[0], torch.device("cpu"), print)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="out of memory"):
            broken(x)


def test_a_backward_that_fails_leaves_nothing_behind(caplog):
    """The profile that it began ends with it; the next step is measured."""
    caplog.set_level(logging.INFO, "rematpass.verify")

    def fail(gradients):
        raise RuntimeError("out of memory")

    model, x, compiled = compile_layers(0.5)
    train(model, compiled, x, 1)
    y = compiled(x)
    verify.backward_of([y]).register_prehook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        y.sum().backward()
    assert not is_profiling()
    assert measured_lines(caplog) == []
    del y  # and what its backward was handed
    train(model, compiled, x, 1)
    assert len(measured_lines(caplog)) == 1


def test_a_forward_inside_a_backward_is_left_alone(caplog):
    """A checkpoint of the user's own runs it again there."""
    caplog.set_level(logging.INFO, "rematpass.verify")
    model, x, compiled = compile_layers(0.5)

    def again(x):
        return torch.utils.checkpoint.checkpoint(compiled, x, use_reentrant=False)

    train(model, again, x, 4)
    assert len(measured_lines(caplog)) == 1


def test_it_waits_for_another_profiler_to_end(caplog):
    caplog.set_level(logging.INFO, "rematpass.verify")
    model, x, compiled = compile_layers(0.5)
    train(model, compiled, x, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        train(model, compiled, x, 1)
    assert measured_lines(caplog) == []
    train(model, compiled, x, 1)
    assert len(measured_lines(caplog)) == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, at a graph break
def test_two_graphs_are_measured_one_step_each(caplog):
    caplog.set_level(logging.INFO, "rematpass.verify")

    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Layers(2), Layers(2)

        def forward(self, x):
            y = self.first(x)
            torch._dynamo.graph_break()
            return self.second(y)

    model, x = Broken(), torch.randn(512, 256)
    compiled = torch.compile(model, backend="rematpass", options={"memory_budget": "none", "verify": True})
    train(model, compiled, x, 4)
    assert sorted(line.split(":")[1] for line in measured_lines(caplog)) == [" graph 0", " graph 1"]


@torch.library.custom_op("test_verify::wasteful", mutates_args=())
def wasteful(x: torch.Tensor) -> torch.Tensor:
    """Twice x, by way of memory that no prediction can know of."""
    hidden = torch.empty(2**21, dtype=torch.uint8)
    twice = x * 2
    del hidden
    return twice


wasteful.register_fake(torch.empty_like)
wasteful.register_autograd(lambda ctx, gradient: wasteful(gradient))


class Wasteful(Layers):
    def forward(self, x):
        return wasteful(super().forward(x))


def test_over_the_budget_the_step_is_planned_again_and_that_is_remembered(caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("REMATPASS_CACHE_DIR", str(tmp_path))
    caplog.set_level(logging.INFO, "rematpass.verify")
    torch.manual_seed(0)
    model, x = Wasteful(6), torch.randn(1024, 256)
    fastest = rematpass.plan(model, args=(x,), memory_budget="none")
    budget = (fastest.smallest_peak_bytes + fastest.fastest_peak_bytes) // 2

    def start():
        torch._dynamo.reset()
        caplog.clear()
        return torch.compile(model, backend="rematpass", options={"memory_budget": budget})

    compiled = start()
    train(model, compiled, x, 1)
    [first] = rematpass.plans(compiled)
    gradients = [p.grad.clone() for p in model.parameters()]
    train(model, compiled, x, 4)
    [second] = rematpass.plans(compiled)
    over, planned, kept = [record.getMessage() for record in caplog.records]
    assert "over budget; the next step follows a new plan" in over
    assert "planned again with 1.0 MiB left free" in planned
    assert kept.startswith("rematpass: graph 0: measured ")
    assert first.peak_bytes <= budget == first.budget_bytes == second.budget_bytes
    assert second.peak_bytes + 2**20 <= budget
    assert any("took 1.0 MiB more than predicted" in note for note in second.notes)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    compiled = start()
    train(model, compiled, x, 3)
    assert [plan.peak_bytes for plan in rematpass.plans(compiled)] == [second.peak_bytes]
    [line] = [record.getMessage() for record in caplog.records]
    assert line == kept


def test_where_nothing_smaller_exists_it_is_a_warning_with_both_figures(monkeypatch, tmp_path):
    monkeypatch.setenv("REMATPASS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(verdict, "TOLERANCE", 0.5)
    model, x, compiled = compile_layers(0.0)
    with pytest.warns(UserWarning, match=r"graph 0: measured .* MiB of .* MiB \(predicted .*over budget. Try: mem"):
        train(model, compiled, x, 3)


def test_a_graph_that_cannot_fit_is_not_told_to_leave_room():
    """Other graphs of its step left it less than nothing."""
    found = verdict.Measurement(
        "graph 2", budget_bytes=-468_864, predicted_bytes=2048, least_bytes=2048, most_bytes=2048
    )
    with pytest.warns(
        UserWarning, match=r"2.0 KiB of 0 B \(predicted 2.0 KiB\), and no plan .* Try: a larger memory_b"
    ):
        verify._report(found)


def test_a_damaged_lesson_counts_as_none(tmp_path, caplog):
    lessons = Lessons(tmp_path, "key")
    assert lessons.recall() == 0
    lessons.note(7)
    lessons.note(3)
    assert lessons.recall() == 7
    (tmp_path / "lessons" / "key.json").write_text("{")
    assert lessons.recall() == 0
    assert "cannot be read" in caplog.text


def test_steps_in_cuda_graphs_are_not_measured():
    assert uses_cuda_graphs({"triton.cudagraphs": True})
    assert not uses_cuda_graphs({})


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, of a block's input
def test_a_block_that_many_places_share_is_measured_once_and_not_before_its_backward_ran(caplog):
    """Their forwards run one after the other, and the first backward is compiled when it runs."""
    caplog.set_level(logging.INFO, "rematpass.verify")
    blocks, x = nn.ModuleList(Layers(1) for _ in range(4)), torch.randn(512, 256)
    for block in blocks:
        block.compile(backend="rematpass", options={"memory_budget": "1GiB"})
    for _ in range(4):
        y = x
        for block in blocks:
            y = block(y)
        y.sum().backward()
        blocks.zero_grad()
    lines = measured_lines(caplog)
    assert len(lines) == 2  # the first block's input needs no gradient, so that it has a graph of its own
    assert not [line for line in lines if "over budget" in line]


def test_sizes_without_a_bound_are_not_measured(caplog):
    caplog.set_level(logging.INFO, "rematpass.verify")
    model = Layers(2)
    compiled = torch.compile(model, backend="rematpass", dynamic=True, options={"memory_budget": "none"})
    for rows in (8, 16, 512, 512):
        train(model, compiled, torch.randn(rows, 256), 1)
    assert measured_lines(caplog) == []


class Interrupted(nn.Module):
    """`before` is not compiled, and the gradient of its input needs what it keeps."""

    def __init__(self, before):
        super().__init__()
        self.before, self.after = torch.compiler.disable(before), Layers(2)

    def forward(self, x):
        return self.after(self.before(x))


def train_interrupted(before):
    """Three steps, of which the second is measured; what the first, which compiles, warns of is torch's own."""
    model, x = Interrupted(before), torch.randn(512, 256, requires_grad=True)
    compiled = torch.compile(model, backend="rematpass", options={"memory_budget": "5MiB", "cpp.simdlen": 1})
    train(model, compiled, x, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        train(model, compiled, x, 2)
    return [str(w.message) for w in caught]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at it
def test_what_is_kept_by_code_that_is_not_compiled_is_told():
    [told] = train_interrupted(lambda x: sum(((x * k).sin() for k in range(8)), x * 1))
    assert "that runs before it and is not compiled keeps 4.0 MiB for its backward" in told  # what eight sines read
    assert "Try: fullgraph=True" in told


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at it
def test_code_that_is_not_compiled_and_keeps_little_is_not_told_of():
    assert train_interrupted(lambda x: x.sin()) == []


def test_what_is_kept_uncompiled_is_neither_parameters_nor_what_a_checkpoint_computes_again():
    ran = []

    def block(x):
        ran.append(x)
        return (x @ weight.t()).sin()

    weight, x = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    once = (x @ weight.t()).sin()
    [read] = kept_uncompiled([once])
    assert read.shape == (8, 8)
    assert kept_uncompiled([checkpoint(block, x, use_reentrant=False)]) == []
    assert len(ran) == 1
    once.sum().backward()
    assert kept_uncompiled([once]) == []
