"""The commands of docs/tutorial.md, run anew, with what they print.

In: the page. Out: the same page with the output of every command replaced, and the pictures it shows: those that the
commands draw, and of each HTML page that they write what a browser shows of it. Never writes a word of its own.

    python -m bench.tutorial            rewrite docs/tutorial.md and docs/pictures; needs a Chromium
    python -m bench.tutorial --check    say whether the commands still end as the page says
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .screenshot import EXIT_REFUSED, MISSING, find_browser, take_picture

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/tutorial.md"
PICTURES = ROOT / "docs/pictures"
# A block is a command after "$ ", its output, and, if it is not 0, its exit code in the last line.
_BLOCK = re.compile(r"```console\n\$ (?P<command>.*)\n(?P<output>(?:(?!```).*\n)*)```")
_CODE = re.compile(r"```python\n# (?P<name>\w+\.py)\n(?P<text>(?:(?!```).*\n)*)```")
# Longer lines end where a screen does, and of long outputs both ends stay.
_WIDTH, _HEAD, _TAIL = 150, 26, 6


def run_page(text: str, folder: Path) -> str:
    """The page with outputs replaced; files that it shows are made in `folder` first."""
    for code in _CODE.finditer(text):
        (folder / code["name"]).write_text(code["text"])
    return _BLOCK.sub(lambda block: _run(block["command"], folder), text)


def _run(command: str, folder: Path) -> str:
    python = f'"{sys.executable}"'
    shell = f'rematpass() {{ {python} -m rematpass "$@"; }}\npython() {{ {python} "$@"; }}\n'
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "COLUMNS": "120"}
    done = subprocess.run(
        ["bash", "-c", shell + command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    lines = [
        line[:_WIDTH].rstrip() for line in (done.stdout + (done.stderr if done.returncode == 2 else "")).splitlines()
    ]
    if len(lines) > _HEAD + _TAIL + 1:
        lines = [*lines[:_HEAD], f"... {len(lines) - _HEAD - _TAIL} lines ...", *lines[-_TAIL:]]
    if done.returncode:
        lines.append(f"(exit code {done.returncode})")
    return "\n".join(["```console", f"$ {command}", *lines, "```"])


def exit_codes(text: str) -> list[tuple[str, str]]:
    """Every command with the exit code that the page shows."""
    found = []
    for block in _BLOCK.finditer(text):
        code = re.search(r"\(exit code (\d+)\)\n$", block["output"])
        found.append((block["command"], code[1] if code else "0"))
    return found


def main() -> None:
    """Rewrite the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where an exit code differs")
    arguments = parser.parse_args()
    if not arguments.check and find_browser() is None:
        print(f"bench.tutorial: error: {MISSING}", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    old = PAGE.read_text()
    with tempfile.TemporaryDirectory() as name:
        new = run_page(old, Path(name))
        if arguments.check:
            differing = [pair for pair in zip(exit_codes(old), exit_codes(new), strict=True) if pair[0] != pair[1]]
            sys.exit(f"exit codes differ: {differing}" if differing else 0)
        PICTURES.mkdir(exist_ok=True)
        for picture in Path(name).glob("*.png"):
            shutil.copy(picture, PICTURES / picture.name)
        for page in Path(name).glob("*.html"):
            take_picture(page, PICTURES / f"{page.stem}.png")
    PAGE.write_text(new)


if __name__ == "__main__":
    main()
