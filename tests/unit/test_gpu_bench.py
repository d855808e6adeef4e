"""What `bench/gpu.py` would run, and how it keeps its time."""

import pytest

from bench import gpu, peaks, ranking, scratch, step
from bench.gpu import Job, Session, format_runs, list_jobs, run_all


def test_every_command_is_one_that_its_bench_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "choose_device", lambda name: name)
    monkeypatch.setattr(ranking, "choose_device", lambda name: name)
    parsers = {"bench.peaks": peaks, "bench.step": step, "bench.ranking": ranking, "bench.scratch": scratch}
    jobs = list_jobs(tmp_path)
    assert {job.kind for job in jobs} == set(gpu.KINDS)
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        module = job.command[1]
        if module != "pytest":
            chosen = parsers[module].parse_arguments(job.command[2:])
            assert chosen.json == tmp_path / f"{job.name}.json"


def test_what_measures_time_runs_alone_and_what_has_no_time_is_listed(tmp_path):
    def job(name, code, *, is_timing=False):
        return Job("tests", name, ("-c", code), is_timing)

    beside = f"import pathlib; print(len(list(pathlib.Path({str(tmp_path)!r}).glob('*.log'))))"
    jobs = [
        job("timing", beside, is_timing=True),
        job("good", "print('fine')"),
        job("bad", "raise SystemExit(3)"),
    ]
    runs = {run.job.name: run for run in run_all(jobs, Session(tmp_path, 60), 2)}
    assert (runs["good"].outcome, runs["good"].last_line) == ("0", "fine")
    assert runs["bad"].outcome == "3"
    assert runs["timing"].last_line == "3", "the others have ended before"
    (late,) = run_all(jobs[1:2], Session(tmp_path, gpu.LEAST_SECONDS - 1), 1)
    assert late.outcome == "left out: no time"
    assert "bad" in format_runs([*runs.values()])


def test_a_job_that_does_not_end_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "LEAST_SECONDS", 0)
    run = Session(tmp_path, 1).run(Job("tests", "slow", ("-c", "import time; time.sleep(60)")))
    assert run.outcome == "cut off"


def test_without_a_gpu_it_says_so_and_what_would_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main([str(tmp_path / "out")])
    assert "no CUDA device here. Try: --dry" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert gpu.main([str(tmp_path), "--dry", "--jobs", "step"]) == 0
    assert "python -m bench.step --cases llama_fused" in capsys.readouterr().out
