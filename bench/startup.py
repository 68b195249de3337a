"""Measure how long commands take to start, against an interpreter that does nothing.

    python bench/startup.py [--repeat 7] [--json]

Every command is a process of its own. All of them run once in each round, so that a machine that
is busy elsewhere slows them alike; the shortest of each counts. The exit code says whether the
goals were met.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

HERETIX: Final = "from heretix.cli import main; main()"
RUN: Final = ("run", "Coffee beans are seeds.", "--mock")
EMPTY: Final = "empty interpreter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: how it is started, how it must end, and the most seconds it may take."""

    name: str
    code: str
    arguments: tuple[str, ...] = ()
    exit_code: int = 0
    limit_s: float | None = None


COMMANDS: Final = (
    Command(name=EMPTY, code="pass"),
    Command(name="import heretix", code="import heretix", limit_s=0.05),
    Command(name="heretix --help", code=HERETIX, arguments=("--help",), limit_s=0.25),
    Command(
        name="a usage error",
        code=HERETIX,
        arguments=("run", "--no-such-option"),
        exit_code=2,
        limit_s=0.7,
    ),
    # The first round fills the store; from then on every sample is found in it.
    Command(name="heretix run --mock, warm", code=HERETIX, arguments=RUN, limit_s=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The shortest run of one command."""

    name: str
    wall_s: float
    cpu_s: float
    added_s: float
    """Beyond the empty interpreter's."""
    per_empty: float
    """As a multiple of the empty interpreter's."""
    limit_s: float | None
    met: bool


def run_once(command: Command, folder: str, env: dict[str, str]) -> tuple[float, float]:
    """Run a command to its end; its wall and CPU seconds."""
    begun_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", command.code, *command.arguments],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - begun_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != command.exit_code:
        raise SystemExit(f"`{command.name}` ended with {process.returncode}")
    return wall_s, usage.ru_utime + usage.ru_stime


def measure(repeat: int) -> list[Figures]:
    """Run all commands in rounds; the shortest of each."""
    ours = ("HERETIX_", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    taken: dict[str, list[tuple[float, float]]] = {command.name: [] for command in COMMANDS}
    with tempfile.TemporaryDirectory(prefix="heretix-bench-") as folder:
        env["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        for number in range(repeat + 1):
            for command in COMMANDS:
                spent = run_once(command, folder, env)
                # The first round compiles, and fills the disk's cache and the store.
                if number:
                    taken[command.name].append(spent)
    empty_s = min(taken[EMPTY])[0]
    return [figures_of(command, min(taken[command.name]), empty_s) for command in COMMANDS]


def figures_of(command: Command, spent: tuple[float, float], empty_s: float) -> Figures:
    """Compare a command with the empty interpreter."""
    wall_s, cpu_s = spent
    # What `import` takes is what it adds; a command is judged as a person waits for it.
    judged_s = wall_s - empty_s if command.name.startswith("import") else wall_s
    return Figures(
        name=command.name,
        wall_s=wall_s,
        cpu_s=cpu_s,
        added_s=wall_s - empty_s,
        per_empty=wall_s / empty_s,
        limit_s=command.limit_s,
        met=command.limit_s is None or judged_s <= command.limit_s,
    )


def print_table(figures: list[Figures]) -> None:
    """Show a person what was found."""
    table = Table("command", "wall s", "÷ empty", "added s", "CPU s", "at most s", "")
    for f in figures:
        verdict = "" if f.limit_s is None else "met" if f.met else "[bold red]MISSED"
        table.add_row(
            *(f.name, f"{f.wall_s:.3f}", f"{f.per_empty:.1f}", f"{f.added_s:.3f}"),
            *(f"{f.cpu_s:.3f}", "—" if f.limit_s is None else f"{f.limit_s:g}", verdict),
        )
    Console().print(table)


def main() -> int:
    """Run from the command line; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=7, help="rounds; the shortest counts")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error(f"`--repeat` must be a positive integer, got {options.repeat}")
    figures = measure(options.repeat)
    if options.json:
        print(json.dumps([asdict(f) for f in figures], indent=2))
    else:
        print_table(figures)
    return 0 if all(f.met for f in figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
