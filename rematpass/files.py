"""Files that others read: written whole or not at all.

In: a path and what it shall hold. Out: the file, or an OSError and the old file as it was. Never leaves half a file
where a reader looks, never takes a lock.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What a killed process leaves behind is called so, and the next writer to the folder removes it.
PREFIX, SUFFIX = ".rematpass-", ".tmp"
# Older temporaries belong to nobody: no write takes an hour (2026-11). At half, a process stopped for that long loses
# its file; at twice, a job that is killed often leaves twice as many behind.
STALE_SECONDS = 3600


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `path`; a reader sees the old file or the new one, whatever happens in between.

    A link stays one: the file it leads to is replaced.

    Raises:
        OSError: what the system refuses; the old file, if any, is as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(f"{target} is read-only")
    with written_beside(target, content) as temporary:
        temporary.replace(target)


def write_first(path: Path, content: str | bytes) -> None:
    """Write `path` unless it is there. Of several processes that try at once, one succeeds, and all may read its file.

    Where the file system has no hard links, the last one stays.

    Raises:
        OSError: what the system refuses.
    """
    with written_beside(path, content) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
        except OSError:
            temporary.replace(path)


@contextmanager
def written_beside(path: Path, content: str | bytes = b"") -> Iterator[Path]:
    """A finished file in the folder of `path`, to be renamed; removed at the end if it was not."""
    remove_leftovers(path.parent)
    temporary = path.parent / f"{PREFIX}{secrets.token_hex(8)}{SUFFIX}"
    try:
        with temporary.open("xb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())  # or a crash of the machine could leave the new name on an empty file
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove temporaries of processes that were killed; those of living ones are younger than `STALE_SECONDS`."""
    for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):  # another process was quicker, or it is another user's
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()
