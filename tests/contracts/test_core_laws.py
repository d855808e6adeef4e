"""The laws of the compiled core, read from its text as far as that goes without a parser."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rematpass.solve import _core

CORE = Path(__file__).parents[2] / "rematpass" / "solve" / "core"
MAX_FUNCTION, MAX_FILE = 60, 400


@dataclass(frozen=True)
class Source:
    """A C++ file of the core: its name and its text."""

    name: str
    text: str

    @property
    def functions(self) -> Iterator[tuple[int, int]]:
        """(first line, lines) of what stands between a line that opens a body and the brace at its indentation."""
        opened: list[tuple[int, int]] = []
        for number, line in enumerate(self.text.splitlines(), 1):
            indentation = len(line) - len(line.lstrip())
            if re.search(r"\)( const)?( \{|.* \{)$", line) and not re.match(r"\s*(if|for|while|switch|} )", line):
                opened.append((indentation, number))
            elif opened and line.strip().startswith("}") and indentation == opened[-1][0]:
                yield opened[-1][1], number - opened.pop()[1] + 1


def load_sources() -> list[Source]:
    files = sorted(CORE.iterdir())
    return [Source(path.name, path.read_text()) for path in files]


def breaks_the_laws_of_the_core(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > MAX_FILE:
        yield f"{source.name}: {lines} lines"
    yield from (f"{source.name}:{at} {n} lines" for at, n in source.functions if n > MAX_FUNCTION)
    head = source.text.split("#", 1)[0]
    if source.name.endswith(".hpp") and source.name != "work.hpp":
        yield from (f"{source.name}: no {word!r} in its first words" for word in ("In: ", "Out: ") if word not in head)
    if re.search(r"#include [<\"](torch|ATen|c10)", source.text):
        yield f"{source.name}: includes torch"


def test_laws_of_the_core():
    assert [offence for source in load_sources() for offence in breaks_the_laws_of_the_core(source)] == []


def test_the_core_at_hand_is_made_of_these_sources():
    """Else `pip install -e .` is due: cache keys, too, hold what the core was made from."""
    files = sorted(path for path in CORE.iterdir() if path.suffix in (".cpp", ".hpp"))
    assert hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest() == _core.SOURCES


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.cpp", "\n" * 401, "401 lines"),
        ("a.cpp", "int f(int x) {\n" + "    ++x;\n" * 60 + "}\n", "a.cpp:1 62 lines"),
        ("a.cpp", "struct A {\n    int f(int x) const {\n" + "        ++x;\n" * 60 + "    }\n};\n", "a.cpp:2 62 lines"),
        ("a.hpp", "// In: x.\n#pragma once\n", "no 'Out: '"),
        ("a.cpp", "#include <torch/torch.h>\n", "includes torch"),
    ],
)
def test_the_laws_of_the_core_find_what_breaks_them(name, text, what):
    assert any(what in offence for offence in breaks_the_laws_of_the_core(Source(name, text)))
