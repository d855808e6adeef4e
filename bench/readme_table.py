"""Put the demo's result into the README.

In: a result of `rematpass demo --json`. Out: README.md with the table between its two markers.
Never measures and never invents a figure.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rematpass.files import write_whole

START, END = "<!-- demo table -->", "<!-- end -->"
README = Path(__file__).parents[1] / "README.md"


def main(argv: list[str] | None = None) -> int:
    """Write the table, or with --check only say whether it is up to date (code 1 when not)."""
    parser = argparse.ArgumentParser(description="Put the result of `rematpass demo --json` into the README.")
    parser.add_argument("result", type=Path)
    parser.add_argument("--readme", type=Path, default=README)
    parser.add_argument("--check", action="store_true", help="write nothing; code 1 when the README is not up to date")
    arguments = parser.parse_args(argv)
    old = arguments.readme.read_text()
    new = replace_table(old, format_markdown(json.loads(arguments.result.read_text())))
    if arguments.check:
        print("up to date" if new == old else f"{arguments.readme} differs from {arguments.result}")
        return int(new != old)
    write_whole(arguments.readme, new)
    return 0


def replace_table(text: str, table: str) -> str:
    """`text` with `table` between the markers; exits with a message when they are missing."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        sys.exit(f"the markers {START} and {END} are missing")
    return f"{before}{START}\n{table}\n{END}{after}"


def format_markdown(result: dict[str, Any]) -> str:
    """Conditions, the table, the verdict."""
    titles = ("", "budget MiB", "measured peak MiB", "predicted peak MiB", "ms per step", "loss at the last step")
    rows = [format_row(row) for row in result["rows"]]
    rule = ["---", *["---:"] * (len(titles) - 1)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rule, *rows))
    return f"{format_conditions(result)}\n\n{table}\n\n{format_verdict(result)}"


def format_row(row: dict[str, Any]) -> tuple[str, ...]:
    """The cells of one run."""
    return (
        row["label"],
        _mib(row["budget_bytes"]),
        _mib(row["measured_peak_bytes"]),
        _mib(row["predicted_peak_bytes"]),
        f"{row['step_ms']:.0f}",
        f"{row['losses'][-1]:.4f}",
    )


def format_conditions(result: dict[str, Any]) -> str:
    """Where, when and with what."""
    settings, hardware, versions = result["settings"], result["hardware"], result["versions"]
    shape = settings["shape"]
    device = "" if hardware["device"] == "cpu" else f"{hardware['device']}, "
    return (
        f"{result['model']['parameters'] / 1e6:.1f} million parameters, {shape['layers']} layers, width "
        f"{shape['width']}, {settings['batch']} sequences of {shape['context']} bytes, {settings['steps']} steps, "
        f"float32; {device}{hardware['cpu']}, {hardware['threads']} threads, torch {versions['torch']}, "
        f"{result['date']}."
    )


def format_verdict(result: dict[str, Any]) -> str:
    """How far the losses differ, and what went wrong if anything did."""
    if result["problems"]:
        return "Problems: " + "; ".join(result["problems"]) + "."
    worst = max(row["loss_difference"] for row in result["rows"])
    return (
        f"The losses of all runs agree at every step within {worst:.1e} of eager's, and every peak stayed within 1 % "
        "of its budget."
    )


def _mib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 2**20:.1f}"


if __name__ == "__main__":
    sys.exit(main())
