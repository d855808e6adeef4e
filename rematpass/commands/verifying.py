"""The command that measures: verify.

In: arguments. Out: text or JSON on stdout, an exit code: 0 kept, 1 not kept, 2 could not be run. Never measures itself:
the script runs in a process of its own, and its end, whatever it is, ends nothing here.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import OptionError, RematError
from .arguments import add_json_argument

if TYPE_CHECKING:
    from ..script import Notes

EXIT_KEPT, EXIT_BROKEN = 0, 1
_STDERR = 2

_VERIFY = """examples:
  rematpass verify plan.json train.py
  rematpass verify plan.json train.py --batch 8 --epochs 1
  rematpass verify --json --whole plan.json train.py > verdict.json

The script runs as `python SCRIPT ARGS` would. Every torch.compile(..., backend="rematpass") in it follows the plan, as
options={"plan": PLAN} would, in place of the script's own budget; another graph than the planned one is refused. The
second step is measured, and the script is stopped then. Options of this command stand before PLAN.

exit code: 0 when the measured peak is within 1 % of the budget (without one: of the predicted peak) or below, 1 when it
is above, 2 when it could not be run.
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "verify",
        help="run a training script and compare a step's measured peak with a plan",
        description="Runs a training script whose compiled step follows a plan file, measures a real step, and says "
        "whether the plan's budget is kept.",
        epilog=_VERIFY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_json_argument(parser)
    parser.add_argument("--whole", action="store_true", help="let the script run to its end")
    parser.add_argument("plan", metavar="PLAN", help="a plan file")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file that trains")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="passed to the script")
    parser.set_defaults(run=run_verify)


def run_verify(arguments: argparse.Namespace) -> int:
    """`rematpass verify`."""
    from ..plan_file import load_plan
    from ..report.verdict import format_measurements, verdict_record

    load_plan(arguments.plan)  # refused now, not after the script has loaded its data
    if not Path(arguments.script).is_file():
        raise OptionError(f"there is no script {arguments.script}. Try: the file that `python` would run")
    notes, code = _run(arguments)
    problem = find_problem(notes, code, arguments)
    if problem:
        raise RematError(problem)
    found = notes.measured
    record = verdict_record(found)
    if arguments.json:
        print(json.dumps({"plan": arguments.plan, "script": arguments.script, **record}, indent=1, sort_keys=True))
    else:
        print(format_measurements(found))
        if not arguments.whole:
            print("the script was stopped after the measured step; --whole lets it run to its end")
    return EXIT_KEPT if record["is_kept"] else EXIT_BROKEN


def find_problem(notes: Notes, code: int, arguments: argparse.Namespace) -> str:
    """Why there is nothing to judge, and what to try; "" when there is.

    Args:
        notes: what the script's process wrote.
        code: its exit code, negative for a signal.
        arguments: what was typed.
    """
    alone = shlex.join(["python", arguments.script, *arguments.arguments])
    is_stopped = bool(notes.measured) and not arguments.whole
    if notes.refused:
        return notes.refused
    if notes.raised:
        return f"the script raised {notes.raised}. Try: {alone}, which should run by itself"
    if code and not is_stopped:
        return f"the script ended with {_name_code(code)}. Try: {alone}, which should run by itself"
    return "" if notes.measured else _explain_nothing(notes)


def _explain_nothing(notes: Notes) -> str:
    """Why a script that ran well showed no step to measure."""
    if not notes.compiled:
        return (
            'the script never compiled anything with backend="rematpass". '
            'Try: model = torch.compile(model, backend="rematpass") in it, called in a training step'
        )
    if not notes.replaying:
        return (
            "the script compiled no graph with a backward. Try: a step outside torch.no_grad(), of a model with "
            "parameters that need gradients"
        )
    return (
        "the script never ran a backward from its second step on, and the first, which compiles, is not measured. "
        "Try: two or more steps of loss = model(...); loss.backward()"
    )


def _run(arguments: argparse.Namespace) -> tuple[Notes, int]:
    """The script in a fresh interpreter; its stdout goes to stderr where ours is JSON."""
    from ..script import STOP, WHOLE, Notes
    from ..typed_json import read_json, read_record

    until = WHOLE if arguments.whole else STOP
    with tempfile.TemporaryDirectory(prefix="rematpass-verify-") as folder:
        path = Path(folder) / "notes.json"
        words = [str(path), str(Path(arguments.plan).resolve()), until, arguments.script, *arguments.arguments]
        command = [sys.executable, "-P", "-m", "rematpass.script", *words]
        sys.stdout.flush()
        code = subprocess.run(command, stdout=_STDERR if arguments.json else None, check=False).returncode
        if not path.exists():
            raise RematError(f"the script's process ended with {_name_code(code)} before the script began")
        return read_record(Notes, read_json(path.read_text(encoding="utf-8")), "notes"), code


def _name_code(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"signal {known.get(-code, str(-code))}"
