"""A user's script, run in a process of its own with its compiled graphs following one plan.

In: a plan file, a script, its arguments. Out: the script's own doings, and a file with what its steps took. Never
changes what the script computes.

    python -P -m rematpass.script NOTES PLAN (stop | whole) SCRIPT [ARGS...]

The process writes NOTES after everything that happens: whatever ends it, what was seen by then stays.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .check.verdict import Measurement
from .errors import PlanFileError
from .files import write_whole
from .options import Options

STOP, WHOLE = "stop", "whole"
EXIT_FAILED = 1


@dataclass(frozen=True)
class Notes:
    """What is known of a script's run.

    Attributes:
        compiled: graphs handed to the backend.
        replaying: of them, those that have a backward and follow the plan.
        measured: steps of theirs.
        refused: why a graph cannot follow the plan, "" when all can.
        raised: what the script raised; "" when nothing.
    """

    compiled: int = 0
    replaying: int = 0
    measured: tuple[Measurement, ...] = ()
    refused: str = ""
    raised: str = ""


class _Stop(SystemExit):
    """Ends the script as `sys.exit(0)` would: what it does at its end is done, and `except Exception` lets it pass."""


@dataclass
class Watch:
    """The backend for the script: every graph follows the plan at `plan_path`, and one step of each is measured."""

    notes_path: Path
    plan_path: Path
    is_whole: bool = False
    notes: Notes = field(default_factory=Notes)

    def compile_graph(
        self,
        gm: Any,
        example_inputs: Sequence[Any],
        *,
        options: Mapping[str, object] | None = None,
        mode: str | None = None,
        **_: object,
    ) -> Callable[..., Any]:
        """As `rematpass.backend.rematpass`, with the script's budget replaced by the plan's."""
        from . import torch_compat
        from .backend import compile_graph
        from .options import parse_options
        from .partitioner import errors_pass
        from .verify import Verified

        with errors_pass():
            asked = parse_options(options, mode=mode, inductor_keys=torch_compat.inductor_keys())
        self.note(compiled=self.notes.compiled + 1)
        try:
            compiled = compile_graph(gm, example_inputs, following(asked, self.plan_path), self.hear)
        except PlanFileError as error:
            self.note(refused=str(error))
            raise
        self.note(replaying=self.notes.replaying + isinstance(compiled, Verified))
        return compiled

    def hear(self, found: Measurement) -> None:
        """A step was measured. The last one that is waited for ends the script, unless it shall run whole."""
        self.note(measured=(*self.notes.measured, found))
        if not self.is_whole and len(self.notes.measured) >= self.notes.replaying:
            raise _Stop(0)

    def note(self, **changes: Any) -> None:
        """Change the notes, and the file with them."""
        self.notes = replace(self.notes, **changes)
        write_whole(self.notes_path, json.dumps(asdict(self.notes)))


def following(asked: Options, plan_path: Path) -> Options:
    """The script's options with the plan in place of its budget. What cannot follow is an error, not a plain step."""
    budget = Options().memory_budget
    return replace(asked, plan=str(plan_path), memory_budget=budget, verify=True, on_error="raise")


def run_script(script: Path, arguments: Sequence[str], watch: Watch) -> int:
    """Run `script` as `python SCRIPT ARGUMENTS` does.

    Returns:
        The exit code: the script's own, 0 where it was stopped, 1 where it raised; its traceback is on stderr then.
    """
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    watch.note()
    try:
        runpy.run_path(str(script), run_name="__main__")
    except _Stop:
        return 0
    except Exception as error:  # whatever a script may raise is told, with its traceback unless the reason is known
        watch.note(raised="".join(traceback.format_exception_only(error)).strip())
        if not watch.notes.refused:
            traceback.print_exc()
        return EXIT_FAILED
    return 0


def main(argv: Sequence[str]) -> int:
    """The process: arguments as in this module's docstring."""
    from . import torch_compat

    notes, plan, until, script, *arguments = argv
    watch = Watch(Path(notes), Path(plan), until == WHOLE)
    torch_compat.register_backend("rematpass", watch.compile_graph)
    return run_script(Path(script), arguments, watch)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
