"""The command line.

In: arguments. Out: text or JSON on stdout, an exit code: 0 good, 1 found something wrong, 2 not run.
Never imports torch before a command needs it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import select
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .commands import looking, planning, verifying
from .errors import RematError
from .report.doctor import find_version

if TYPE_CHECKING:
    from .demo.result import DemoRow
    from .demo.train import DemoSettings

EXIT_OK, EXIT_WRONG, EXIT_REFUSED, EXIT_INTERRUPTED, EXIT_PIPE = 0, 1, 2, 130, 141

_EXAMPLES = """examples:
  rematpass doctor                      what is missing on this machine, and how to mend it
  rematpass demo                        train a small model in six ways and compare peak memory and time
  rematpass demo --budget 150MiB        the same, and once more within 150 MiB
  rematpass plan hf:gpt2 --device l4    does it fit that device? no GPU and no weights are needed to know
"""

_DEMO_EXAMPLES = """examples:
  rematpass demo                                    about a minute on two cores; writes demo.png
  rematpass demo --device cpu --steps 30 --plot a.svg
  rematpass demo --budget 150MiB --no-plot
  rematpass demo --json > result.json               progress goes to stderr

exit code: 0 when all losses agree and every budget was kept (within 1 %), 1 when not, 2 when it could not run.
"""

_DOCTOR_EXAMPLES = """examples:
  rematpass doctor
  rematpass doctor --json

exit code: 0 when nothing that is needed is missing, else 1.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; those of the process when None.

    Returns:
        The exit code. What rematpass refuses is one message on stderr and code 2.
    """
    arguments, unknown = make_parser().parse_known_args(argv)
    if unknown:
        _refuse(arguments.command, unknown)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()  # here, where a closed pipe is met, not when the process ends
        return code
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        return EXIT_PIPE
    except RematError as error:
        print(f"rematpass: error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        print("rematpass: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _is_output_closed() -> bool:
    """Whether nobody reads our output any more, such as `head` that has enough; what is left of it is dropped then."""
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="rematpass",
        description="Train a PyTorch model within a byte budget, at the least extra time.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rematpass {own_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    planning.add_commands(commands)
    verifying.add_commands(commands)
    looking.add_commands(commands)
    _add_doctor(commands)
    for command in commands.choices.values():
        command.set_defaults(command=command)
    return parser


def _refuse(command: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """What the command does not know, with the nearest option; argparse would show the usage of all commands."""
    known = [name for action in command._actions for name in action.option_strings if name.startswith("--")]
    words = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    near = dict.fromkeys(name for word in words for name in difflib.get_close_matches(word, known, n=2))
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    what = f"unrecognized arguments: {' '.join(unknown)}"
    command.exit(EXIT_REFUSED, f"{command.prog}: error: {what}.{hint} Try: {command.prog} --help\n")


def own_version() -> str:
    """The installed version, or that there is none (run from a source folder)."""
    return find_version("rematpass") or "(not installed)"


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo",
        help="train a small model in several ways and compare peak memory and time",
        description="Trains a byte-level transformer on the sources of Python's standard library: eager, with "
        "checkpointing, with torch.compile, and with rematpass at three budgets. All start from the same weights and "
        "see the same batches.",
        epilog=_DEMO_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run_demo)
    parser.add_argument("--budget", metavar="SIZE", help="add a run at this memory_budget, e.g. 150MiB or 80%%")
    parser.add_argument("--steps", type=int, default=10, help="training steps of each run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each run (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="blocks of the model (default: %(default)s)")
    parser.add_argument("--width", type=int, default=256, help="width, a multiple of 32 (default: %(default)s)")
    parser.add_argument("--context", type=int, default=512, help="bytes per sequence (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=2, help="sequences per step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="for weights and batches (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, and only that, on stdout")
    plot = parser.add_mutually_exclusive_group()
    plot.add_argument("--plot", metavar="PATH", default="demo.png", help="where the plot goes (default: %(default)s)")
    plot.add_argument("--no-plot", action="store_const", const=None, dest="plot", help="write no plot")


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="say what is missing on this machine, and how to mend it",
        description="Looks at torch, the backend's registration, the C++ compiler, Triton and the other packages.",
        epilog=_DOCTOR_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run_doctor)
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def _run_doctor(arguments: argparse.Namespace) -> int:
    from .report.doctor import examine_machine, format_checks, is_healthy, make_record

    checks = examine_machine()
    print(json.dumps(make_record(checks), indent=2) if arguments.json else format_checks(checks))
    return EXIT_OK if is_healthy(checks) else EXIT_WRONG


def _run_demo(arguments: argparse.Namespace) -> int:
    from .demo.machine import describe_conditions
    from .demo.result import find_problems, make_record
    from .demo.train import count_pieces, run_demo
    from .report.plot import check_plot
    from .report.progress import open_progress

    settings = _read_settings(arguments)
    if arguments.plot is not None:
        check_plot(arguments.plot)  # now, not after a minute of training
    with open_progress(sys.stderr if arguments.json else sys.stdout, count_pieces(settings)) as advance:
        rows, model = run_demo(settings, advance)
    if arguments.json:
        print(json.dumps(make_record(rows, {**describe_conditions(settings), "model": model}), indent=2))
    else:
        _print_demo(rows, settings, model)
    if arguments.plot is not None:
        _plot_demo(rows, arguments.plot)
    return EXIT_WRONG if find_problems(rows) else EXIT_OK


def _read_settings(arguments: argparse.Namespace) -> DemoSettings:
    from .demo.model import ModelShape
    from .demo.train import DemoSettings

    budget = arguments.budget
    return DemoSettings(
        shape=ModelShape(layers=arguments.layers, width=arguments.width, context=arguments.context),
        batch=arguments.batch,
        steps=arguments.steps,
        rounds=arguments.rounds,
        device=arguments.device,
        budget=int(budget) if budget is not None and budget.isdecimal() else budget,
        seed=arguments.seed,
    )


def _print_demo(rows: Sequence[DemoRow], settings: DemoSettings, model: dict[str, Any]) -> None:
    from .demo.machine import describe_conditions
    from .demo.result import find_problems, format_conditions, format_rows, format_verdict

    print(f"\n{format_conditions({**describe_conditions(settings), 'model': model})}\n")
    print(f"{format_rows(rows)}\n")
    print(format_verdict(find_problems(rows)))


def _plot_demo(rows: Sequence[DemoRow], path: str) -> None:
    from .report.plot import RunPoint, plot_runs

    points = [RunPoint(row.label, row.measured_peak_bytes, row.step_ms, row.is_rematpass) for row in rows]
    print(f"plot: {plot_runs(points, path)}", file=sys.stderr)
