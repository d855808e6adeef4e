"""Plans as files: written whole, and read back only if they are what was written.

In: plans and a path. Out: a file a person can read, and equal plans from it, or `PlanFileError` saying what is wrong
with the file. Never repairs, never loads a part.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from .errors import PlanFileError
from .files import write_whole
from .plan_types import PLAN_SCHEMA, Plan
from .typed_json import FieldError, read_json, read_record, wrong
from .version import __version__

FORMAT = "rematpass plans"
# Of SHA-256, for each field: against accidents and hands, not against attackers. At half, one edit in 2^32 would pass;
# at twice, files are longer for nothing.
DIGEST_DIGITS = 16
_AGAIN = "Try: plan again, and plan.save(path)"


def load_plan(path: str | PathLike[str]) -> Plan:
    """Read a plan that `plan.save(path)` wrote.

    Raises:
        PlanFileError: no such file, no plan, truncated, edited, of another schema, or a field that is missing or
            impossible; the message says which.
    """
    path = Path(path)
    try:
        plans = parse_plans(_read_text(path))
        if len(plans) != 1:
            raise _ContentError(f"it holds {len(plans)} plans, not one")
    except _ContentError as refused:
        raise PlanFileError(f"{path} is not loaded: {refused}. {_AGAIN}") from refused
    return plans[0]


def save_plan(plan: Plan, path: str | PathLike[str]) -> Path:
    """Write `plan` so that `load_plan` gives an equal one; an existing file is replaced whole, or left as it was.

    Returns:
        The path.

    Raises:
        PlanFileError: the system refuses, or the plan is no valid one.
    """
    path = Path(path)
    try:
        if _read_plan(_to_record(plan), "plan") != plan:
            raise _ContentError("it would be read back as another plan")
    except _ContentError as refused:
        raise PlanFileError(f"the plan is not saved to {path}: {refused}. Try: a plan that rematpass made") from refused
    try:
        write_whole(path, format_plans([plan]))
    except OSError as error:
        raise PlanFileError(
            f"the plan is not saved to {path}: {error}. Try: an existing folder that you may write to"
        ) from error
    return path


def plan_from_json(text: str) -> Plan:
    """Read what `Plan.to_json` wrote.

    Raises:
        PlanFileError: not JSON, another schema, or a field that is missing or impossible.
    """
    try:
        record = _read_object(text)
        if "schema" not in record:
            raise _ContentError("it is not a plan: it names no schema")
        _check_schema(record.pop("schema"), None)
        return _read_plan(record, "plan")
    except _ContentError as refused:
        raise PlanFileError(f"this text is not read: {refused}. Try: what plan.to_json() gave") from refused


def format_plans(plans: Sequence[Plan], key: str = "") -> str:
    """The text of a plan file.

    Args:
        plans: what it holds.
        key: what the plans are stored under; `parse_plans` wants it back.
    """
    records = [_to_record(plan) for plan in plans]
    about = {
        "digests": [_digests(record) for record in records],
        "format": FORMAT,
        "key": key,
        "rematpass_version": __version__,
        "schema": PLAN_SCHEMA,
    }
    return json.dumps({"about": about, "plans": records}, indent=1, sort_keys=True) + "\n"


def parse_plans(text: str, key: str = "") -> tuple[Plan, ...]:
    """The plans of a plan file.

    Raises:
        PlanFileError: anything that `format_plans` did not write, or wrote for another key.
    """
    found = _read_object(text)
    about = found.get("about")
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        hint = "this is what plan.to_json() gives" if "schema" in found else f"its keys are {_list(found)}"
        raise _ContentError(f"it is no plan file: {hint}")
    _check_schema(about.get("schema"), about.get("rematpass_version"))
    if about.get("key") != key:
        raise _ContentError(f"it was stored under {about.get('key')!r}, not under {key!r}")
    digests, records = about.get("digests"), found.get("plans")
    if not isinstance(records, list) or not isinstance(digests, list) or len(records) != len(digests):
        raise _ContentError("its content was edited: plans and digests are not two lists of one length")
    for i, (record, digest) in enumerate(zip(records, digests, strict=True)):
        _check_digests(record, digest, f"plans[{i}]")
    return tuple(_read_plan(record, f"plans[{i}]") for i, record in enumerate(records))


class _ContentError(PlanFileError):
    """Why a text is no plan; whoever knows where it came from says so."""


def _to_record(plan: Plan) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(plan.to_json())
    del record["schema"]
    return record


def _digests(record: dict[str, Any]) -> dict[str, str]:
    """Per field, a digest of its canonical JSON."""
    texts = {name: json.dumps(value, sort_keys=True, separators=(",", ":")) for name, value in record.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS] for name, text in texts.items()}


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise _ContentError("it is a folder")
    if path.exists() and not path.is_file():
        raise _ContentError("it is no regular file")
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise _ContentError(f"it is no text: byte {error.start} is {error.object[error.start]:#04x}") from error
    except OSError as error:
        raise _ContentError(f"it cannot be read ({error.strerror})") from error


def _read_object(text: str) -> dict[str, Any]:
    if not text.strip():
        raise _ContentError("it is empty")
    try:
        found = read_json(text)
    except json.JSONDecodeError as error:
        raise _ContentError(_explain_syntax(text, error)) from error
    except ValueError as error:
        raise _ContentError(f"it is not a plan: {error}") from error
    if not isinstance(found, dict):
        raise _ContentError(f"it is not a plan: its JSON is a {type(found).__name__}, not an object")
    return found


def _explain_syntax(text: str, error: json.JSONDecodeError) -> str:
    """Whether the text ends too early, breaks inside, or never was JSON."""
    place = f"character {error.pos} (line {error.lineno}): {error.msg}"
    if not text.lstrip().startswith("{"):
        return f"it is not a plan: no JSON object, {place}"
    if text.rstrip().endswith("}"):
        return f"it is damaged at {place}"
    return f"it is truncated: it ends after {len(text)} characters, {place}"


def _check_schema(schema: object, version: object) -> None:
    if type(schema) is int and schema == PLAN_SCHEMA:
        return
    writer = "" if version is None else f" written by rematpass {version}"
    age = "an older" if type(schema) is int and schema < PLAN_SCHEMA else "another"
    raise _ContentError(
        f"it has schema {schema!r}{writer}, {age} one; rematpass {__version__} reads schema {PLAN_SCHEMA}"
    )


def _check_digests(record: object, digests: object, where: str) -> None:
    """Compare each field with its digest, and name those that differ."""
    if not isinstance(record, dict) or not isinstance(digests, dict):
        raise _ContentError(f"its content was edited: {where} is no object")
    now = _digests(record)
    edited = sorted(name for name in now.keys() | digests.keys() if now.get(name) != digests.get(name))
    if edited:
        raise _ContentError(f"its content was edited: {', '.join(f'{where}.{name}' for name in edited)}")


def _read_plan(record: dict[str, Any], where: str) -> Plan:
    try:
        plan = read_record(Plan, record, where)
        _check_peaks(plan, where)
        _check_timeline(plan, where)
        _check_values(plan, where)
    except FieldError as error:
        raise _ContentError(f"it is damaged: {error}") from error
    return plan


def _check_peaks(plan: Plan, where: str) -> None:
    peaks = ("bound_peak_bytes", "smallest_peak_bytes", "peak_bytes", "fastest_peak_bytes")
    for low, high in itertools.pairwise(peaks):
        if getattr(plan, low) > getattr(plan, high):
            raise wrong(f"{where}.{low}", getattr(plan, low), f"at most {high}, which is {getattr(plan, high)}")


def _check_timeline(plan: Plan, where: str) -> None:
    """The peak is the highest row; forward rows come before backward rows."""
    timeline, at = plan.timeline, plan.peak_position
    if not 0 <= at < max(1, len(timeline)):
        raise wrong(f"{where}.peak_position", at, f"a place in the timeline of {len(timeline)} rows")
    phases = [row.phase for row in timeline]
    if phases != sorted(phases, reverse=True):
        raise FieldError(f"{where}.timeline has a forward row after a backward one")
    highest = max((row.live_bytes for row in timeline), default=plan.peak_bytes)
    if plan.peak_bytes != highest:
        raise wrong(f"{where}.peak_bytes", plan.peak_bytes, f"the highest of the timeline, {highest}")
    if timeline and timeline[at].live_bytes != highest:
        raise wrong(f"{where}.peak_position", at, "where the timeline is highest")


def _check_values(plan: Plan, where: str) -> None:
    twice = [name for name, count in Counter(value.name for value in plan.values).items() if count > 1]
    if twice:
        raise FieldError(f"{where}.values has {twice[0]!r} twice")
    for i, value in enumerate(plan.values):
        for size in value.shape:
            if isinstance(size, int) and size < 0:
                raise wrong(f"{where}.values[{i}].shape", value.shape, "sizes of at least zero")


def _list(found: dict[str, Any]) -> str:
    names = sorted(found)
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "") if names else "none"
