"""Files that others read are whole, whoever fails while writing them."""

import os
import time

import pytest

from rematpass import files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("write", [files.write_whole, files.write_first])
def test_text_and_bytes_are_written(tmp_path, write):
    write(tmp_path / "a", "grün")
    write(tmp_path / "b", b"\x00\xff")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "grün"
    assert (tmp_path / "b").read_bytes() == b"\x00\xff"
    assert names(tmp_path) == ["a", "b"]


def test_the_last_or_the_first_stays(tmp_path):
    for text in ("one", "two"):
        files.write_whole(tmp_path / "last", text)
        files.write_first(tmp_path / "first", text)
    assert (tmp_path / "last").read_text() == "two"
    assert (tmp_path / "first").read_text() == "one"
    assert names(tmp_path) == ["first", "last"]


def test_without_hard_links_the_last_stays(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    for text in ("one", "two"):
        files.write_first(tmp_path / "file", text)
    assert (tmp_path / "file").read_text() == "two"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step, error):
    path = tmp_path / "file"
    files.write_whole(path, "old")

    def fail(*_):
        raise error

    monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (type(path), "replace")}[step], fail)
    with pytest.raises(type(error)):
        files.write_whole(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_read_only_file_is_not_replaced(tmp_path, monkeypatch):
    """Asked of the system, which lets an administrator write anything."""
    path = tmp_path / "file"
    files.write_whole(path, "old")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match="read-only"):
        files.write_whole(path, "new")
    assert path.read_text() == "old"


def test_what_killed_processes_left_is_removed_later(tmp_path):
    old, young, foreign = (tmp_path / f"{prefix}{files.SUFFIX}" for prefix in (".rematpass-1", ".rematpass-2", "mine"))
    for path in (old, young, foreign):
        path.write_text("half")
    long_ago = time.time() - files.STALE_SECONDS - 10
    os.utime(old, (long_ago, long_ago))
    os.utime(foreign, (long_ago, long_ago))
    files.write_whole(tmp_path / "file", "x")
    assert names(tmp_path) == sorted(["file", young.name, foreign.name])
