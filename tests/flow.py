"""The files that a command goes through."""

import os
import subprocess
import sys

# The files of the package whose functions a command calls, threads included. What runs while a
# module is imported, migrations and comprehensions aside.
PROFILE = """
import atexit, os, sys, threading
from pathlib import Path
import heretix

root, found, left = str(Path(heretix.__file__).parent) + os.sep, set(), os._exit

def note(frame, event, _):
    code = frame.f_code
    name = code.co_filename
    if event != "call" or name in found or not name.startswith(root):
        return
    if code.co_name.startswith("<") or "migrations" in name:
        return
    back = frame.f_back
    while back is not None:
        if back.f_code.co_name == "<module>" and back.f_code.co_filename.startswith(root):
            return
        back = back.f_back
    found.add(name)

def leave(code):
    sys.setprofile(None)
    Path("flow").write_text("\\n".join(sorted(name.removeprefix(root) for name in found)))
    left(code)

os._exit = leave
from heretix.cli import main
threading.setprofile(note)
sys.setprofile(note)
main()
"""


def flow(folder, *args):
    """Run a command in a process of its own; its exit code, and the files that it went through."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HERETIX_")}
    ended = subprocess.run(
        [sys.executable, "-c", PROFILE, *args],
        cwd=folder,
        env=env | {"COLUMNS": "100"},
        capture_output=True,
        check=False,
    )
    return ended.returncode, (folder / "flow").read_text().splitlines()
