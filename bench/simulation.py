"""Simulate thousands of episodes: does honest evidence earn, and attacks don't?

    python bench/simulation.py [--episodes 2000] [--seed 1] [--alone] [--json]

First all attacks take turns; with `--alone`, each then has all the episodes to itself, which
shows smaller gains. Means are minor units for a seat and an episode, with 99% intervals.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from heretix.economy.simulation.agents import ATTACKERS, Kind
from heretix.economy.simulation.play import Report, Setup, simulate

REGULARS = {"honest": 4, "noise": 4}


def play(episodes: int, seed: int, attack: str | None) -> Report:
    """All attacks in turn, or one of them alone."""
    if attack is None:
        return simulate(episodes, Setup(seed=seed))
    return simulate(episodes, Setup(seed=seed, agents={**REGULARS, attack: 1}))


def lines_of(report: Report, setting: str) -> list[dict[str, Any]]:
    """The lines that a setting is about: everyone, or the attack that was alone."""
    lines: list[dict[str, Any]] = report.as_dict()["standings"]
    shown = lines if setting == "in turn" else lines[-1:]
    return [{"setting": setting, **line} for line in shown]


def print_table(rows: list[dict[str, Any]]) -> None:
    """Show the lines to a person."""
    table = Table("setting", "strategy", "episodes", "mean", "99% interval", "total", "")
    for row in rows:
        interval = "—" if row["lo99"] is None else f"{row['lo99']:,.1f} to {row['hi99']:,.1f}"
        table.add_row(
            row["setting"],
            row["strategy"],
            f"{row['episodes']:,}",
            "—" if row["mean"] is None else f"{row['mean']:,.1f}",
            interval,
            f"{row['total']:,}",
            row["verdict"],
        )
    Console().print(table)


def main() -> int:
    """Run from the command line; ends with 1 when the claim doesn't hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="each attack by itself, too")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.episodes < 2:
        parser.error(f"`--episodes` must be at least 2, got {options.episodes}")
    settings: list[str | None] = [None]
    if options.alone:
        settings += [agent.strategy for agent in ATTACKERS]
    begun, rows, hashes = time.perf_counter(), [], {}
    with ProcessPoolExecutor(options.workers) as pool:
        runs = [pool.submit(play, options.episodes, options.seed, name) for name in settings]
        for name, run in track(
            list(zip(settings, runs, strict=True)), console=Console(file=sys.stderr)
        ):
            report = run.result()
            rows += lines_of(report, "alone" if name else "in turn")
            hashes[name or "in turn"] = report.ledger_hash
    seconds = time.perf_counter() - begun
    gaining = [
        f"{row['strategy']} ({row['setting']})"
        for row in rows
        if row["kind"] == Kind.ATTACK.value and row["verdict"] == "gains"
    ]
    honest = rows[0]["verdict"] == "gains"
    if options.json:
        found = {"rows": rows, "ledgers": hashes, "gaining_attacks": gaining, "seconds": seconds}
        print(json.dumps(found, indent=2))
    else:
        print_table(rows)
        print(f"honest evidence earns: {honest}; attacks that gain: {', '.join(gaining) or 'none'}")
        print(f"{seconds:,.0f} s; ledger {hashes['in turn']}")
    return 0 if honest and not gaining else 1


if __name__ == "__main__":
    raise SystemExit(main())
