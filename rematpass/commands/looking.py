"""The commands that look at what is there: devices, diff.

In: arguments. Out: text or JSON on stdout, an exit code. Never traces a model.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from .arguments import add_json_argument

EXIT_EQUAL, EXIT_DIFFERENT = 0, 1

_DEVICES = """examples:
  rematpass devices
  rematpass devices --json
"""
_DIFF = """examples:
  rematpass diff before.json after.json

exit code: 0 when the plans are equal, 1 when they are not, 2 when one cannot be read.
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of both."""
    parser = commands.add_parser(
        "devices",
        help="the devices that can be planned for",
        description="Lists the declared devices with their figures; what is planned for them needs none of them here.",
        epilog=_DEVICES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_json_argument(parser)
    parser.set_defaults(run=run_devices)
    parser = commands.add_parser(
        "diff",
        help="compare two plan files, in words and bytes",
        description="Says what is different in the second of two plan files.",
        epilog=_DIFF,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", metavar="A", help="a plan file")
    parser.add_argument("after", metavar="B", help="another")
    add_json_argument(parser)
    parser.set_defaults(run=run_diff)


def run_devices(arguments: argparse.Namespace) -> int:
    """`rematpass devices`."""
    from ..cost.device_model import DECLARED
    from ..report.table import align_columns

    models = [DECLARED[name] for name in sorted(DECLARED)]
    if arguments.json:
        print(json.dumps([asdict(m) | {"flops_per_second": dict(m.flops_per_second)} for m in models], indent=1))
        return EXIT_EQUAL
    head = ("name", "memory", "bandwidth", "bfloat16", "float32", "source")
    rows = [
        (
            m.name,
            f"{m.memory_bytes / 1e9:.0f} GB",
            f"{m.bandwidth_bytes_per_second / 1e12:.2f} TB/s",
            f"{m.peak_flops('bfloat16') / 1e12:.0f} TFLOP/s",
            f"{m.peak_flops('float32') / 1e12:.0f} TFLOP/s",
            m.source,
        )
        for m in models
    ]
    print("\n".join(align_columns([head, *rows], right=(1, 2, 3, 4))))
    return EXIT_EQUAL


def run_diff(arguments: argparse.Namespace) -> int:
    """`rematpass diff`."""
    from ..plan_file import load_plan
    from ..report.diff import diff_record

    found = load_plan(arguments.before).diff(load_plan(arguments.after))
    print(json.dumps(diff_record(found), indent=1, sort_keys=True) if arguments.json else found)
    return EXIT_EQUAL if found.is_empty else EXIT_DIFFERENT
