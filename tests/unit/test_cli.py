"""The command line: what it prints, what it returns, what it refuses."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rematpass import cli
from rematpass.errors import OptionError, RematError
from rematpass.report import doctor
from rematpass.report.plot import RunPoint, check_plot, plot_runs
from rematpass.report.progress import Tick, drop_stderr_lines, open_progress

POINTS = [RunPoint("eager", 400 * 2**20, 500.0, is_rematpass=False), RunPoint("ours", 2**27, 520.0, is_rematpass=True)]


def test_help_lists_the_commands_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("demo", "doctor", "examples:", "rematpass demo --budget"))


def test_the_package_runs_as_a_module() -> None:
    run = subprocess.run([sys.executable, "-m", "rematpass", "devices", "--json"], capture_output=True, check=True)
    assert "h100-sxm" in {device["name"] for device in json.loads(run.stdout)}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["plan", "hf:gpt2", "--bugdet", "1GiB"], "Did you mean --budget"),
        (["plot", "plan.json", "--budgets=1GiB"], "Did you mean --budget"),
        (["plan", "hf:gpt2", "--frobnicate"], "unrecognized arguments: --frobnicate. Try: rematpass plan --help"),
        (["demo", "more"], "unrecognized arguments: more. Try: rematpass demo --help"),
    ],
)
def test_an_unknown_option_is_answered_by_its_command(argv, words, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(argv)
    assert exit_info.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith(f"rematpass {argv[0]}: error: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("argv", [["frobnicate"], [], ["demo", "--steps", "many"], ["doctor", "--nonsense"]])
def test_unknown_arguments_give_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(argv)
    assert exit_info.value.code == 2
    assert "rematpass" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["--version"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out == f"rematpass {cli.own_version()}\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["demo", "--width", "100"], "width must be a multiple of 32"),
        (["demo", "--steps", "0"], "steps and rounds must be at least 1"),
        (["demo", "--plot", "/nowhere/at/all.png"], "cannot write the plot"),
        (["demo", "--plot", "demo.xyz"], "no image format"),
        (["demo", "--no-plot", "--device", "toaster"], "no device 'toaster'"),
        (["demo", "--no-plot", "--device", "meta"], "device 'meta' is not available"),
    ],
)
def test_what_is_refused_is_one_message_and_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("rematpass: error: ")
    assert message in captured.err
    assert captured.out == ""


def test_doctor_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert code == (0 if record["is_ok"] else 1)
    names = {check["name"] for check in record["checks"]}
    assert {
        "python",
        "torch",
        "backend",
        "C++ compiler",
        "triton",
        "memory",
        "compiled core",
        "rich (optional)",
    } <= names


def test_a_missing_needed_thing_gives_code_1_and_says_how_to_mend_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = doctor.Check("C++ compiler", False, True, "not found", "install one")
    checks = [missing, doctor.Check("rich", False, False, "not installed", "pip install rich")]
    monkeypatch.setattr(doctor, "examine_machine", lambda: checks)
    assert cli.main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "missing  C++ compiler  not found\n         to mend: install one" in text
    assert "absent   rich" in text


def test_optional_things_are_not_an_error() -> None:
    assert doctor.is_healthy([doctor.Check("rich", False, False, "not installed", "")])


def test_the_compiler_check_says_why_each_one_failed(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'fatal error: Python.h: No such file' >&2\nexit 1\n")
    broken.chmod(0o755)
    check = doctor.check_compiler([str(broken), "no-such-compiler"])
    assert not check.is_ok
    assert "Python.h: No such file" in check.found
    assert "no-such-compiler: not found" in check.found


@pytest.mark.parametrize(
    ("found", "is_ok"), [("2.10.9", False), ("2.11.0", True), ("2.15.1+cu130", True), ("2.16", False)]
)
def test_the_range_of_torch(found: str, is_ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_version", lambda package: found)
    assert doctor.check_torch().is_ok is is_ok


def test_the_range_of_torch_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    low, high = (".".join(map(str, numbers)) for numbers in (doctor.TORCH_FIRST, doctor.TORCH_BEFORE))
    assert f"torch>={low},<{high}" in project["dependencies"]


def test_a_check_that_cannot_look_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_memory() -> doctor.Check:
        raise RematError("no /proc")

    monkeypatch.setattr(doctor, "check_memory", check_memory)
    found = {check.name: check for check in doctor.examine_machine()}
    assert not found["memory"].is_ok
    assert "no /proc" in found["memory"].found


def test_interrupting_gives_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> list[doctor.Check]:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine_machine", interrupt)
    assert cli.main(["doctor"]) == 130


def test_a_reader_that_has_enough_is_no_error() -> None:
    script = "import sys; from rematpass.cli import main; sys.exit(main(['devices', '--json']))"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_pipe_of_somebody_else_that_breaks_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[doctor.Check]:
        raise BrokenPipeError("a worker's")

    monkeypatch.setattr(doctor, "examine_machine", fail)
    with pytest.raises(BrokenPipeError, match="a worker's"):
        cli.main(["doctor"])


def test_an_error_of_ours_while_running_is_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> list[doctor.Check]:
        raise OptionError("this and that")

    monkeypatch.setattr(doctor, "examine_machine", refuse)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "rematpass: error: this and that\n"


def test_the_plot_is_an_image_and_leaves_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    check_plot(tmp_path / "runs.png")
    plot_runs(POINTS, tmp_path / "runs.png")
    assert (tmp_path / "runs.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["runs.png"]


def test_a_failed_plot_keeps_the_old_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    old = tmp_path / "runs.xyz"
    old.write_text("old")
    with pytest.raises(RematError, match="cannot write the plot"):
        plot_runs(POINTS, old)
    assert old.read_text() == "old"


def test_plain_progress_prints_a_line_per_part(capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    with open_progress(sys.stdout, total=2) as advance:
        advance(Tick("eager: training", 1, 2, "loss 5.0"))
        advance(Tick("eager: training", 2, 2, "loss 4.0"))
    assert capsys.readouterr().out == "eager: training: 2 of 2 loss 4.0\n"


def test_lines_of_the_profiler_are_dropped_and_others_kept(capfd: pytest.CaptureFixture[str]) -> None:
    import os

    with drop_stderr_lines("USDT:"):
        os.write(2, b"USDT: start\nsomething else\n")
    os.write(2, b"USDT: outside\n")
    assert capfd.readouterr().err == "something else\nUSDT: outside\n"
