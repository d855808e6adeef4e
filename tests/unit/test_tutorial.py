"""The tutorial: its commands exist, and what is replaced in it is only what they print."""

import re

from bench.tutorial import PAGE, PICTURES, exit_codes, run_page
from rematpass.cli import make_parser


def test_every_command_exists_and_every_picture_is_there():
    text = PAGE.read_text()
    known = set(make_parser()._subparsers._group_actions[0].choices)
    used = {command.split()[1] for command, _ in exit_codes(text) if command.startswith("rematpass ")}
    assert {"plan", "explain", "frontier", "plot", "max-size", "report", "verify", "diff", "devices"} <= used <= known
    pictures = re.findall(r"\]\(pictures/(\S+)\)", text)
    assert pictures
    assert [name for name in pictures if not (PICTURES / name).exists()] == []


def test_outputs_and_exit_codes_are_replaced(tmp_path):
    page = "```python\n# a.py\nprint(7)\n```\ntext\n```console\n$ python a.py\nold\n```\n```console\n$ exit 3\n```\nend"
    new = run_page(page, tmp_path)
    assert "$ python a.py\n7\n```" in new
    assert "$ exit 3\n(exit code 3)\n```" in new
    assert new.endswith("end")
    assert exit_codes(new) == [("python a.py", "0"), ("exit 3", "3")]
