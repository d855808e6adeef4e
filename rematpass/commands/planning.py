"""The commands that plan a model: plan, explain, frontier, plot, report, max-size.

In: arguments. Out: text or JSON on stdout, an exit code: 0 fits, 1 does not, 2 could not be run. Never imports torch
before a command runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BudgetTooSmall, OptionError
from ..plan_types import PLANNED_FROM
from .arguments import EXIT_CODES, Work, add_budget_argument, add_json_argument, add_model_arguments, read_work

if TYPE_CHECKING:
    from ..formula.record import PeakFormula
    from ..plan_types import Curve, Plan
    from ..sizing import MaxSize, Tried

EXIT_FITS, EXIT_TOO_SMALL = 0, 1
Commands = "argparse._SubParsersAction[argparse.ArgumentParser]"

_PLAN = """examples:
  rematpass plan my_module:build_model --device h100-sxm
  rematpass plan hf:llama --device h100-sxm --dtype bf16 --sequence 4096 --optimizer adamw --budget 80GB
  rematpass plan hf:path/to/config.json --lora-rank 16 --device rtx-4090 --dtype bf16 --save plan.json
  rematpass plan hf:gpt2 --set n_layer=4 --batch 8 --budget 2GiB --json > plan.json
  rematpass plan hf:gpt2 --set n_layer=4 --device l4 --formula

build_model() returns (model, args), (model, args, kwargs) or (model, args, kwargs, loss). It is called under
torch.device("meta"): no weight takes memory.

"""
_EXPLAIN = """examples:
  rematpass explain hf:gpt2 'transformer.h.*.attn' --device l4 --budget 12GiB
  rematpass explain plan.json lm_head

MODEL may be a plan file that `rematpass plan --save` or plan.save() wrote. MODULE is a module path or a glob;
operators, values and names given by rematpass.name() match, too.

"""
_FRONTIER = """examples:
  rematpass frontier hf:gpt2 --device l4 --batch 8
  rematpass frontier my_module:build_model --device a100-sxm --count 12 --json

exit code: 0, or 2 when it could not be run.
"""
_PLOT = """examples:
  rematpass plot hf:gpt2 --device l4 --budget 12GiB --out timeline.png
  rematpass plot plan.json --out timeline.svg
  rematpass plot hf:gpt2 --device l4 --curve --out curve.png

"""
_REPORT = """examples:
  rematpass report hf:gpt2 --device l4 --budget 12GiB --out report.html
  rematpass report plan.json --out report.html

The file holds table, timeline and curve with all that draws them; a browser opens it without a network. A plan file
has no curve.

"""
_MAX_SIZE = """examples:
  rematpass max-size hf:llama --vary sequence --step 128 --device h100-sxm --dtype bf16 --lora-rank 16
  rematpass max-size my_module:build_model --vary batch --device l4 --budget 20GiB

The model is built anew for every size that is tried; my_module:build_model must take a keyword argument `batch` or
`sequence`. The answer and the next size above it are planned exactly.

"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of all six."""
    parser = _add(commands, "plan", "does it fit, at what extra time, and what holds the memory", _PLAN + EXIT_CODES)
    add_model_arguments(parser)
    add_budget_argument(parser)
    parser.add_argument("--save", metavar="PATH", help="write the plan as a file")
    parser.add_argument("--formula", action="store_true", help="show the peak as a formula in batch and sequence")
    parser.set_defaults(run=run_plan)

    parser = _add(commands, "explain", "what a part of the model keeps, why, and at what price", _EXPLAIN + EXIT_CODES)
    add_model_arguments(parser)
    parser.add_argument("module", metavar="MODULE", nargs="?", default="*", help="a module path or glob (default: all)")
    add_budget_argument(parser)
    parser.set_defaults(run=run_explain)

    parser = _add(commands, "frontier", "what every budget costs, with a proven bound", _FRONTIER)
    add_model_arguments(parser)
    parser.add_argument("--count", type=int, default=12, help="budgets, evenly spread (default: %(default)s)")
    parser.set_defaults(run=run_frontier)

    parser = _add(commands, "plot", "memory over the step by module, or extra time over memory", _PLOT + EXIT_CODES)
    add_model_arguments(parser)
    add_budget_argument(parser)
    parser.add_argument(
        "--out", "-o", "--output", metavar="PATH", default="timeline.png", help=".png or .svg (default: %(default)s)"
    )
    parser.add_argument("--curve", action="store_true", help="draw extra time over peak memory instead")
    parser.add_argument("--count", type=int, default=12, help="budgets of the curve (default: %(default)s)")
    parser.set_defaults(run=run_plot)

    parser = _add(commands, "report", "one HTML file: table, curve, timeline", _REPORT + EXIT_CODES)
    add_model_arguments(parser)
    add_budget_argument(parser)
    parser.add_argument(
        "--out", "-o", "--output", metavar="PATH", default="report.html", help="the file (default: %(default)s)"
    )
    parser.add_argument("--count", type=int, default=12, help="budgets of the curve (default: %(default)s)")
    parser.set_defaults(run=run_report)

    parser = _add(commands, "max-size", "the largest batch or the longest sequence that fits", _MAX_SIZE + EXIT_CODES)
    add_model_arguments(parser)
    add_budget_argument(parser)
    parser.add_argument("--vary", choices=("batch", "sequence"), required=True, help="what to vary")
    parser.add_argument("--step", type=int, default=1, help="sizes are multiples of it (default: %(default)s)")
    parser.add_argument("--most", type=int, default=2**20, help="no larger size is tried (default: %(default)s)")
    parser.set_defaults(run=run_max_size)


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, words: str, examples: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=words,
        description=f"{words[0].upper()}{words[1:]}. Traces only: no GPU, no weights, nothing is run.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_json_argument(parser)
    return parser


def run_plan(arguments: argparse.Namespace) -> int:
    """`rematpass plan`."""
    from ..report.breakdown import format_breakdown, make_breakdown

    work = read_work(arguments)
    try:
        plan = _plan(work, arguments)
    except BudgetTooSmall as error:
        return _say_too_small(error, work, arguments)
    rows = make_breakdown(plan, work.parameter_bytes, work.optimizer_bytes, work.accumulated_bytes)
    if arguments.save is not None:
        replace(plan, notes=(*plan.notes, f"{PLANNED_FROM}{work.source.words}")).save(arguments.save)
    formula = _formula(plan, work, arguments) if arguments.formula else None
    if arguments.json:
        record = {"fits": True, "model": work.source.words, "breakdown": asdict(rows), "plan": _record(plan)}
        _print_json(record if formula is None else {**record, "formula": json.loads(formula.to_json())})
    else:
        shown = plan if formula is None else formula
        print(f"{work.source.words}\n\n{format_breakdown(rows)}\n\n{shown}")
    return EXIT_FITS


def run_explain(arguments: argparse.Namespace) -> int:
    """`rematpass explain`."""
    from ..report.explain import explain_plan, explain_record

    try:
        plan = _load_or_plan(arguments)
    except BudgetTooSmall as error:
        return _say_too_small(error, None, arguments)
    if arguments.json:
        _print_json(explain_record(plan, arguments.module))
    else:
        print(explain_plan(plan, arguments.module))
    return EXIT_FITS


def run_frontier(arguments: argparse.Namespace) -> int:
    """`rematpass frontier`."""
    curve = _curve(arguments)
    print(curve.to_json() if arguments.json else curve)
    return EXIT_FITS


def run_plot(arguments: argparse.Namespace) -> int:
    """`rematpass plot`."""
    from ..report.plot import check_plot

    check_plot(arguments.out)
    if arguments.curve:
        path = _curve(arguments).plot(arguments.out)
    else:
        try:
            path = _load_or_plan(arguments).plot(arguments.out)
        except BudgetTooSmall as error:
            return _say_too_small(error, None, arguments)
    print(json.dumps({"path": str(path)}) if arguments.json else f"plot: {path}")
    return EXIT_FITS


def run_report(arguments: argparse.Namespace) -> int:
    """`rematpass report`."""
    from ..plan_file import load_plan
    from ..report.page import check_page, write_page

    check_page(arguments.out)
    if _is_plan_file(arguments.model):
        path = write_page(load_plan(arguments.model), arguments.out)
    else:
        work = read_work(arguments)
        try:
            plan = _plan(work, arguments)
        except BudgetTooSmall as error:
            return _say_too_small(error, work, arguments)
        path = write_page(plan, arguments.out, _trace_curve(work, arguments), work.source.words)
    print(json.dumps({"path": str(path)}) if arguments.json else f"report: {path}")
    return EXIT_FITS


def run_max_size(arguments: argparse.Namespace) -> int:
    """`rematpass max-size`."""
    from ..sources.source import Sizes

    if arguments.budget == "none":
        raise OptionError("--budget none has no largest size. Try: bytes, 80% or auto")
    work: Work | None = None

    def plan_at(size: int) -> Plan:
        nonlocal work
        sizes = {"batch": arguments.batch, "sequence": arguments.sequence, arguments.vary: size}
        work = read_work(arguments, Sizes(**sizes))
        return _plan(work, arguments)

    most = arguments.most
    if arguments.vary == "sequence":
        first = Sizes(arguments.batch, arguments.sequence or arguments.step)
        most = min(most, read_work(arguments, first).source.longest or most)
    try:
        found = _search(plan_at, arguments, most)
    except BudgetTooSmall as error:
        return _say_too_small(error, work, arguments)
    is_cut = most < arguments.most and found.above is None
    if arguments.json:
        _print_json({**_size_record(found), "longest": most if is_cut else None})
    else:
        print(found)
    if is_cut:
        print(
            f"longer ones were not tried: the configuration has max_position_embeddings={most}. Try: --set "
            f"max_position_embeddings={2 * most}",
            file=sys.stderr if arguments.json else sys.stdout,
        )
    return EXIT_FITS


def _search(plan_at: Any, arguments: argparse.Namespace, most: int) -> MaxSize:
    from ..report.sizes import format_bytes
    from ..sizing import find_max_size

    def say(tried: Tried) -> None:
        words = "fits" if tried.fits else "does not fit"
        text = f"{arguments.vary} {tried.size}: at least {format_bytes(tried.smallest_peak_bytes)}, {words}"
        print(text, file=sys.stderr, flush=True)

    start = getattr(arguments, arguments.vary) or arguments.step
    return find_max_size(plan_at, arguments.vary, start=start, step=arguments.step, most=most, on_tried=say)


def _size_record(found: MaxSize) -> dict[str, Any]:
    return {
        "vary": found.vary,
        "size": found.size,
        "above": found.above,
        "above_minimum_bytes": found.above_minimum_bytes,
        "budget_bytes": found.plan.budget_bytes,
        "peak_bytes": found.plan.peak_bytes,
        "recompute_fraction": found.plan.recompute_fraction,
        "tried": [asdict(tried) | {"fits": tried.fits} for tried in found.tried],
    }


def _plan(work: Work, arguments: argparse.Namespace) -> Plan:
    import rematpass

    from ..report.progress import show_busy

    with show_busy(sys.stderr, f"tracing and planning {arguments.model}"):
        return rematpass.plan(**work.arguments, memory_budget=work.graph_budget())


def _formula(plan: Plan, work: Work, arguments: argparse.Namespace) -> PeakFormula:
    """Of the graph, which the optimizer's state is beside."""
    from ..sized.planned import PlannedStep
    from .rebuilding import rebuilt_steps

    assert isinstance(plan.sized, PlannedStep), "the plan was just made"
    return replace(plan, sized=plan.sized.built_by(lambda: rebuilt_steps(work, arguments))).formula


def _load_or_plan(arguments: argparse.Namespace) -> Plan:
    """A plan file, or a model."""
    from ..plan_file import load_plan

    if _is_plan_file(arguments.model):
        return load_plan(arguments.model)
    return _plan(read_work(arguments), arguments)


def _is_plan_file(text: str) -> bool:
    if not text.endswith(".json") or text.startswith("hf:"):
        return False
    if not Path(text).exists():
        raise OptionError(f"there is no plan file {text}")
    return True


def _curve(arguments: argparse.Namespace) -> Curve:
    return _trace_curve(read_work(arguments), arguments)


def _trace_curve(work: Work, arguments: argparse.Namespace) -> Curve:
    import rematpass

    return rematpass.frontier(**work.arguments, count=arguments.count)


def _say_too_small(error: BudgetTooSmall, work: Work | None, arguments: argparse.Namespace) -> int:
    beside = work.beside_bytes if work is not None else 0
    if arguments.json:
        _print_json(
            {
                "fits": False,
                "budget_bytes": error.budget_bytes + beside,
                "minimum_bytes": error.minimum_bytes + beside,
                "optimizer_bytes": work.optimizer_bytes if work is not None else 0,
                "accumulated_bytes": work.accumulated_bytes if work is not None else 0,
            }
        )
    else:
        whole = error.minimum_bytes + beside
        extra = (
            f"\nWith {_beside_words(work)} of {beside} bytes beside the step: --budget {whole}."
            if work and beside
            else ""
        )
        print(f"it does not fit: {error}{extra}")
    return EXIT_TOO_SMALL


def _beside_words(work: Work) -> str:
    words = ["the optimizer's state"] if work.optimizer_bytes else []
    words += ["gradients of earlier backwards"] if work.accumulated_bytes else []
    return " and ".join(words)


def _record(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan.to_json())
    return found


def _print_json(record: object) -> None:
    print(json.dumps(record, indent=1, sort_keys=True))
