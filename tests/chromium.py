"""A real browser for tests: Chromium as it is found, or installed where that is possible."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_STARTED = "NOT TESTED in a browser"
"""Stands in every reason for skipping, so that the summary can count them."""

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
# Read when tests are collected: while they run, variables of ours are hidden from them.
GIVEN = os.environ.get("HERETIX_CHROMIUM")
INSTALL_S = 300
LAUNCH_MS = 180_000


class NoBrowserError(Exception):
    """There is no browser, and none can be had here."""


def find_chromium() -> str | None:
    """The browser that `HERETIX_CHROMIUM` names, or the first on the path."""
    return GIVEN or next((found for name in NAMES if (found := shutil.which(name))), None)


def ensure_chromium() -> str:
    """Find a browser; as root on a system with `apt-get`, install one first if there is none."""
    found = find_chromium()
    if found:
        return found
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NoBrowserError(
            f"{NOT_STARTED}: none of {', '.join(NAMES)} is on the path and this isn't root on a "
            "system with apt-get; install Chromium, or name it in HERETIX_CHROMIUM"
        )
    import fcntl

    # One of several workers installs it, and the others wait; a failure isn't tried again.
    folder = Path(tempfile.gettempdir())
    tried = folder / f"heretix-chromium-failed-{os.getppid()}"
    with (folder / "heretix-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not find_chromium() and not tried.exists():
            _install(tried)
    found = find_chromium()
    if not found:
        said = tried.read_text() if tried.exists() else "nothing was said"
        raise NoBrowserError(f"{NOT_STARTED}: apt-get couldn't install chromium ({said})")
    return found


def _install(tried: Path) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (("apt-get", "update"), ("apt-get", "install", "-y", "chromium")):
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=INSTALL_S, check=False
            )
        except subprocess.TimeoutExpired:
            tried.write_text(f"`{' '.join(command)}` took longer than {INSTALL_S} s")
            return
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()
            tried.write_text(f"`{' '.join(command)}`: {last[-1] if last else done.returncode}")
            return


@contextlib.contextmanager
def running_chromium() -> Iterator[Any]:
    """A headless browser, until the block ends."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as exc:
        raise NoBrowserError(f"{NOT_STARTED}: playwright isn't installed") from exc
    path = ensure_chromium()
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=path, args=list(ARGUMENTS), timeout=LAUNCH_MS
            )
        except Error as exc:
            said = exc.message.splitlines()[0]
            raise NoBrowserError(f"{NOT_STARTED}: {path} doesn't start ({said})") from exc
        try:
            yield browser
        finally:
            browser.close()
