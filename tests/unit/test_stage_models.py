"""Models of stages against their docstring, worked out anew from the compiled recorder and simulator."""

from itertools import pairwise

import pytest
from hypothesis import given, settings

from rematpass.solve.frontier import Modeller
from rematpass.solve.order import Recorder, must_keep
from rematpass.solve.program import Kind
from rematpass.solve.stages import find_stages
from tests.programs import Layer, layered
from tests.strategies import stacked_programs

QUICK = settings(deadline=None, max_examples=100, derandomize=True)


class Stage:
    """Stages start..stop-1 with what is at hand around them."""

    def __init__(self, program, stages, start, stop):
        self.program = program
        self.forward = {v for s in range(start, stop) for v in stages.forward[s]}
        self.backward = [v for s in range(stop - 1, start - 1, -1) for v in stages.backward[s]]
        self.before = set(stages.boundary[start])
        self.after = set(stages.boundary[stop]) if stop < len(stages) else set()
        self.elsewhere = {v for v in range(len(program)) if self.is_at_hand(v)} - self.forward - self.after

    def is_at_hand(self, v):
        """Views are made again from their base, and what is made from inputs for nothing, too."""
        program = self.program
        return not (program.is_backward[v] or program.kind[v] is Kind.VIEW or program.from_inputs[v])

    def read_elsewhere(self, v):
        return any(v in self.program.inputs[w] for w in range(len(self.program)) if w not in self.backward)

    def of_backward(self, kept):
        """Time computed again and peak of its backward with `kept` at hand."""
        program = self.program
        recorder = Recorder(program, {*self.elsewhere, *self.before, *kept})
        recorder.run(self.backward)
        leaving = {v for v in self.backward if v in program.backward_outputs or self.read_elsewhere(v)}
        outside = {program.root[v] for v in self.before}
        peak = program.core.local_peak(recorder.sequence, sorted(leaving), sorted(outside))
        return sum(program.duration_ns[v] for v in recorder.sequence if program.in_forward[v]), peak

    def of_forward(self, kept):
        """Time of making `kept` and the values at its end."""
        recorder = Recorder(self.program, {*self.elsewhere, *self.before, *must_keep(self.program, self.forward)})
        recorder.demand(sorted({*kept, *(self.after & self.forward)}))
        return sum(self.program.duration_ns[v] for v in recorder.sequence)


@QUICK
@given(stacked_programs())
def test_figures_of_options_are_what_running_the_stage_gives(program):
    stages = find_stages(program)
    modeller = Modeller(program, stages)
    spans = [(s, s + length) for length in (1, 2) for s in range(len(stages) - length + 1)]
    for start, stop in spans:
        run, stage = modeller.run(start, stop), Stage(program, stages, start, stop)
        assert run.model.advance_ns == stage.of_forward(())
        alone = run.model.alone
        assert (alone.extra_ns, alone.backward_peak_bytes) == stage.of_backward(must_keep(program, stage.forward))
        for option in run.model.options:
            kept = run.kept(option)
            assert set(kept) <= stage.forward
            assert option.kept_bytes == sum(program.size_bytes[v] for v in kept)
            assert (option.extra_ns, option.backward_peak_bytes) == stage.of_backward({*kept, *stage.after})
            assert option.again_ns == stage.of_forward(kept)


@QUICK
@given(stacked_programs())
def test_no_option_beats_another(program):
    stages = find_stages(program)
    modeller = Modeller(program, stages)
    for s in range(len(stages)):
        options = modeller.run(s, s + 1).model.options
        for faster, slower in pairwise(options):
            assert faster.extra_ns <= slower.extra_ns
        for i, o in enumerate(options):
            assert not any(
                p.kept_bytes <= o.kept_bytes and p.backward_peak_bytes <= o.backward_peak_bytes for p in options[:i]
            )


@pytest.mark.parametrize("is_fusing", [False, True])
def test_equal_stages_are_modelled_once_and_hold_their_own_values(is_fusing):
    program = layered([Layer()] * 9, is_residual=True, is_fusing=is_fusing)
    stages = find_stages(program)
    modeller = Modeller(program, stages)
    runs = [modeller.run(s, s + 1) for s in range(len(stages))]
    kinds = [run.model.kind for run in runs]
    assert len(set(kinds)) < len(kinds) - 2
    one, *twins = [run for run in runs if kinds.count(run.model.kind) > 2]
    ops = modeller.computed_ops
    for twin in twins:
        assert twin.model is one.model
        held = [{program.size_bytes[v] for v in run.kept(run.model.options[0])} for run in (one, twin)]
        assert held[0] == held[1]
        assert set(twin.kept(twin.model.options[0])) <= set(stages.forward[twin.start])
    assert modeller.run(0, 1).model is runs[0].model
    assert modeller.computed_ops == ops
