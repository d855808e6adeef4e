"""Everything that only a GPU can tell, for whoever has one for a quarter of an hour.

In: a machine with a CUDA device. Out: a folder with result files and logs, and a table of what ran. Never decides which
figures are good.

    python -m bench.gpu OUT [--minutes 10] [--jobs tests peaks scratch step]

First what measures memory runs side by side: the tests marked `gpu`, `bench.peaks` of small and large models and in
mixed precision, `bench.scratch`. Then what measures time, alone: real steps of a Llama-like model of a billion
parameters on 8,192 tokens and of others, ranks of predicted times. What does not fit into the minutes is left out, and
listed. The exit code is 1 when something failed. What would run, without a GPU: `--dry`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.runnable import CASES
from bench.step_cases import SIZES
from rematpass.report.table import align_columns

LEAST_SECONDS = 20  # with less left, nothing is started
KINDS = ("tests", "peaks", "scratch", "step", "ranking")
IN_BOTH_PRECISIONS = ("llama_plain", "unet", "bert", "lstm", "t5", "resnet")
# So that processes side by side leave each other some cores.
SHARED = {"TORCHINDUCTOR_COMPILE_THREADS": "3", "OMP_NUM_THREADS": "2"}


@dataclass(frozen=True)
class Job:
    """A command of this project; `is_timing`: it measures time, and must be alone."""

    kind: str
    name: str
    command: tuple[str, ...]
    is_timing: bool = False


@dataclass
class Run:
    """What became of a job: its exit code, or why there is none."""

    job: Job
    outcome: str = "left out: no time"
    seconds: float = 0.0
    last_line: str = ""


@dataclass
class Session:
    """So much time, and a folder for all that comes of it."""

    folder: Path
    seconds: float
    start: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.seconds - (time.monotonic() - self.start)

    def run(self, job: Job) -> Run:
        """Run a job until it ends or the time does."""
        done = Run(job)
        if self.left < LEAST_SECONDS:
            return done
        began = time.monotonic()
        log = self.folder / f"{job.name}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, *job.command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **({} if job.is_timing else SHARED)},
                start_new_session=True,  # compilers in it end with it
            )
            try:
                done.outcome = str(process.wait(self.left))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                done.outcome = "cut off"
        done.seconds = time.monotonic() - began
        done.last_line = (log.read_text(errors="replace").strip().splitlines() or [""])[-1]
        print(f"{job.name}: {done.outcome}, {done.seconds:.0f} s", file=sys.stderr, flush=True)
        return done


def list_jobs(folder: Path) -> list[Job]:
    """All there is to run, what matters most first."""

    def result(name: str) -> tuple[str, str]:
        return "--json", str(folder / f"{name}.json")

    def peaks(name: str, case: str, *options: str) -> Job:
        command = ("-m", "bench.peaks", "--device", "cuda", "--cases", case, *options, *result(name))
        return Job("peaks", name, command)

    def steps(case: str, *peers: str) -> Job:
        asked = ("--size", "large", "--device", "cuda", "--rounds", "9", "--compiles", "1", "--peers", *peers)
        name = f"step_{case}"
        return Job("step", name, ("-m", "bench.step", "--cases", case, *asked, *result(name)), is_timing=True)

    compiled, blocks = "torch.compile", "torch.compile, checkpoint per block"
    ranked = ("--device", "cuda", "--size", "large", "--cost-models", "roofline", "measured", "--points", "5")
    return [
        Job("tests", "tests", ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-n", "4")),
        *(peaks(f"peaks_{case}_large", case, "--size", "large", "--budgets", "2") for case in SIZES["large"]),
        *(peaks(f"peaks_{case}", case, "--budgets", "3") for case in CASES),
        *(peaks(f"peaks_{c}_autocast", c, "--budgets", "2", "--autocast") for c in IN_BOTH_PRECISIONS),
        Job("scratch", "scratch", ("-m", "bench.scratch", "--device", "cuda", *result("scratch"))),
        steps("llama_fused", compiled, blocks),
        steps("unet", compiled, "torch.compile, budget 0.3"),
        steps("gpt2", compiled, blocks),
        Job("ranking", "ranking", ("-m", "bench.ranking", "--cases", "unet", *ranked, *result("ranking")), True),
    ]


def run_all(jobs: Sequence[Job], session: Session, width: int) -> list[Run]:
    """Jobs that do not measure time side by side, `width` at once; then the others, one after another."""
    with ThreadPoolExecutor(width) as pool:
        done = list(pool.map(session.run, [job for job in jobs if not job.is_timing]))
    return done + [session.run(job) for job in jobs if job.is_timing]


def format_runs(runs: Sequence[Run]) -> str:
    """A line per job."""
    rows = [(run.job.name, run.outcome, f"{run.seconds:.0f}", run.last_line[:100]) for run in runs]
    return "\n".join(align_columns([("job", "exit code", "seconds", "last line"), *rows], right=(2,)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="a folder for results and logs")
    parser.add_argument("--minutes", type=float, default=10, help="for all of it (default: %(default)s)")
    parser.add_argument("--jobs", nargs="+", choices=KINDS, default=KINDS, help="default: all", metavar="KIND")
    parser.add_argument("--width", type=int, default=max(1, (os.cpu_count() or 2) * 2 // 3), help="processes at once")
    parser.add_argument("--dry", action="store_true", help="list the commands, run nothing")
    chosen = parser.parse_args(argv)
    jobs = [job for job in list_jobs(chosen.out) if job.kind in chosen.jobs]
    if chosen.dry:
        print("\n".join(f"python {shlex.join(job.command)}" for job in jobs))
        return 0
    import torch

    if not torch.cuda.is_available():
        parser.error("no CUDA device here. Try: --dry, to see what would run")
    chosen.out.mkdir(parents=True, exist_ok=True)
    runs = run_all(jobs, Session(chosen.out, 60 * chosen.minutes), chosen.width)
    print(format_runs(runs))
    return int(any(run.outcome != "0" for run in runs))


if __name__ == "__main__":
    sys.exit(main())
