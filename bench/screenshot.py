"""A page of this project as a picture, drawn by Chromium without a window.

In: an HTML file. Out: what the browser made of it: a PNG file, or the page as it stands after its scripts have run.
Never lets the page use a network.

    python -m bench.screenshot report.html report.png
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    f"no Chromium is here: none of {', '.join(BROWSERS)} is on PATH. Try: apt-get install chromium, or Google Chrome"
)
EXIT_REFUSED = 2
# The start of a browser and a page of 0.2 MB took 3 s on two busy cores (2026-11).
_SECONDS = 120
# Of the page's own time, for what its scripts put off; it passes at once where nothing is pending.
_PATIENCE_MS = 2000
# A name cannot be resolved with these rules, so nothing can be fetched; a profile of its own leaves nobody's touched.
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr"),
)


class BrowserError(Exception):
    """There is no browser, or it did not do what it was told."""


def find_browser() -> str | None:
    """The first browser on PATH, None where there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def take_picture(page: Path, picture: Path, width: int = 1280, height: int = 1600) -> str:
    """Draw the first `height` pixels of `page` into `picture`; returns what its scripts said, errors above all.

    Raises:
        BrowserError: no browser, or no picture.
    """
    picture.unlink(missing_ok=True)
    _, said = _browse(page, f"--window-size={width},{height}", f"--screenshot={picture.resolve()}")
    if not picture.exists():
        raise BrowserError(f"the browser made no picture of {page}")
    return said


def drawn_page(page: Path) -> tuple[str, str]:
    """The text of `page` after its scripts have run, and what they said.

    Raises:
        BrowserError: no browser, or it failed.
    """
    return _browse(page, "--window-size=1280,1600", f"--virtual-time-budget={_PATIENCE_MS}", "--dump-dom")


def _browse(page: Path, *flags: str) -> tuple[str, str]:
    browser = find_browser()
    if browser is None:
        raise BrowserError(MISSING)
    with tempfile.TemporaryDirectory(prefix="rematpass-browser-", ignore_cleanup_errors=True) as profile:
        command = [browser, *_FLAGS, f"--user-data-dir={profile}", *flags, page.resolve().as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise BrowserError(f"the browser did not end within {_SECONDS} s") from error
    if done.returncode:
        raise BrowserError(f"the browser ended with exit code {done.returncode}: {done.stderr[-500:]}")
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def main() -> None:
    """Take a picture of a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="an HTML file")
    parser.add_argument("picture", type=Path, help="a .png file")
    parser.add_argument("--width", type=int, default=1280, help="pixels (default: %(default)s)")
    parser.add_argument("--height", type=int, default=1600, help="pixels (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        if not arguments.page.is_file():
            raise BrowserError(f"there is no page {arguments.page}")
        print(take_picture(arguments.page, arguments.picture, arguments.width, arguments.height), end="")
    except BrowserError as error:
        print(f"bench.screenshot: error: {error}", file=sys.stderr)
        sys.exit(EXIT_REFUSED)


if __name__ == "__main__":
    main()
