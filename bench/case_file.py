"""Result files with one record per case, which grow case by case and run by run.

In: a path, records that carry their conditions. Out: the file, whole after every case. Never mixes devices, sizes or
ways to choose plans: every figure is a ratio inside one run, so cases may come from several machines; each says which.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rematpass.files import write_whole

Case = dict[str, Any]


def merge_cases(old: Sequence[Case], new: Case) -> list[Case]:
    """`new` in place of the case of its name, or behind all others.

    Raises:
        ValueError: the others ran on another device, in another size, or with plans spread over something else.
    """
    _require_kind(old, new)
    if new["name"] not in [case["name"] for case in old]:
        return [*old, new]
    return [new if case["name"] == new["name"] else case for case in old]


def _require_kind(old: Sequence[Case], new: Case) -> None:
    for case in old:
        if _kind_of(case) != _kind_of(new):
            ran = "on another device, in another size, or with plans spread over something else"
            raise ValueError(f"{case['name']} ran {ran}; one result file holds one kind")


def _kind_of(case: Case) -> tuple[str | None, str, str]:
    settings = case["settings"]
    return case["hardware"].get("device"), settings["size"], settings.get("spread", "bytes")


def read_cases(path: Path | None, schema: int, conditions: Case | None = None) -> list[Case]:
    """The cases of a result file; none where there is no file.

    Args:
        path: of the file.
        schema: what the file must have.
        conditions: what cases will be merged with, if any are to be: known before anything is measured.

    Raises:
        ValueError: the file has another schema, or its cases are of another kind (see `merge_cases`).
    """
    if path is None or not path.exists():
        return []
    result = json.loads(path.read_text())
    if result.get("schema") != schema:
        raise ValueError(f"{path} has schema {result.get('schema')!r}, not {schema}")
    cases: list[Case] = result["cases"]
    if conditions is not None:
        _require_kind(cases, conditions)
    return cases


def write_cases(path: Path, cases: Sequence[Case], schema: int, summary: Any) -> None:
    """The result file: what the cases come to, then the cases."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"schema": schema, "summary": summary, "cases": cases}, indent=1) + "\n")
