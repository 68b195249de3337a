"""Measure how many bets a second the exchange takes, and check that all of the money is there.

    python bench/exchange.py [--bets 5000] [--processes 2] [--postgres URL] [--json]
    python bench/exchange.py --growth 1000 10000

Every process bets on the same market, as fast as it can. `--growth` tells what else is done with an
episode of so many bets, in one process on SQLite: seconds of CPU, which other work on the machine
changes little, and the longest turn that any of it keeps others waiting for. Without `--postgres` a
server with its usual settings is started for the occasion, where the test tools are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heretix.core.clock import ManualClock, SystemClock
from heretix.economy.episode.settlement import JudgeReading, Measurement
from heretix.economy.episode.state import Parameters, Terms
from heretix.economy.exchange import UNDRAWN, Exchange
from heretix.economy.market import Side
from heretix.store import Store
from postgres import measure_both

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from heretix.economy.exchange import LedgerTransaction

TARGETS: Final = {"sqlite": 500, "postgresql": 300}
"""Bets a second that two processes on two cores should reach."""
DAY_MS: Final = 86_400_000


def main() -> int:
    """Measure, check, and print a table or JSON; 1 if any money or any transfer is wrong."""
    parser = argparse.ArgumentParser(description="How fast the exchange is.")
    parser.add_argument("--bets", type=int, default=5_000, help="bets of each process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--postgres", metavar="URL", help="an empty database to use")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--growth", type=int, nargs="+", metavar="BETS")
    options = parser.parse_args()
    if options.growth:
        return print_growth({bets: measure_growth(bets) for bets in options.growth}, options)
    figures = measure_both(measure, options)
    if options.json:
        print(json.dumps({"bets": options.bets, "processes": options.processes} | figures))
    else:
        print_table(figures)
    return 0 if all(found["wrong"] == [] for found in figures.values()) else 1


def print_table(figures: dict[str, dict[str, Any]]) -> None:
    """One line a database."""
    print(f"{'database':<11} {'bets':>7} {'bets/s':>7} {'target':>7} {'p50 ms':>7} {'p99 ms':>7}")
    for database, found in figures.items():
        print(
            f"{database:<11} {found['bets']:>7,} {found['per_s']:>7,.0f} {TARGETS[database]:>7} "
            f"{found['p50_ms']:>7.1f} {found['p99_ms']:>7.1f}  checked in {found['verify_s']:.1f} s"
        )
        for wrong in found["wrong"]:
            print(f"  WRONG: {wrong}")


def print_growth(found: dict[int, dict[str, float]], options: argparse.Namespace) -> int:
    """Seconds of CPU of each part, one column a number of bets."""
    if options.json:
        print(json.dumps(found))
        return 0
    print("CPU seconds           " + "".join(f"{bets:>10,}" for bets in found))
    for part in next(iter(found.values())):
        print(f"{part:<22}" + "".join(f"{parts[part]:>10.3f}" for parts in found.values()))
    return 0


class TimedExchange(Exchange):
    """Remembers its longest turn as the one writer, in seconds of CPU."""

    longest_s = 0.0

    @contextlib.contextmanager
    def transaction(self, *of: str) -> Iterator[LedgerTransaction]:
        begun = time.process_time()
        with super().transaction(*of) as transaction:
            yield transaction
        self.longest_s = max(self.longest_s, time.process_time() - begun)


def measure_growth(bets: int) -> dict[str, float]:
    """Play an episode of so many bets to its end: seconds of each part."""
    found: dict[str, float] = {}

    def time_turns(part: str, action: Callable[[], Any], *, turns: bool = False) -> Any:
        exchange.longest_s, begun = 0.0, time.process_time()
        result = action()
        found[part] = time.process_time() - begun
        if turns:
            found[f"{part}, longest turn"] = exchange.longest_s
        return result

    clock = ManualClock(SystemClock().now_ms())
    with (
        tempfile.TemporaryDirectory() as directory,
        Store.open(str(Path(directory) / "heretix.sqlite")) as store,
    ):
        exchange = TimedExchange(store, clock=clock)
        exchange.ensure_house()
        for number in range(2):
            exchange.join(f"better-{number}", purse=10 * bets)
        episode = exchange.draft(make_terms())
        exchange.open(episode)
        time_commitments(exchange, clock, time_turns)

        def bet() -> None:
            for n in range(bets):
                who, side = f"better-{n % 2}", list(Side)[n % 2]
                exchange.stake(episode, who, side, 10, min_shares=0, key=f"{n}")

        time_turns("bets", bet)
        time_turns("page, open", lambda: exchange.snapshot(episode, person="cat"))
        clock.advance(2 * DAY_MS)
        exchange.begin_challenge(episode)
        judges = time_turns("freeze", lambda: exchange.freeze(episode), turns=True).judges
        told = make_measurement(judges)
        exchange.measure(episode, told, stage="first")
        clock.advance(8 * DAY_MS)
        exchange.measure(episode, told, stage="second")
        clock.advance(3 * DAY_MS)
        time_turns("settle", lambda: exchange.close(episode), turns=True)
        time_turns("page, ended", lambda: exchange.snapshot(episode, person="cat"))
        time_turns("page, ended, again", lambda: exchange.snapshot(episode, person="cat"))
        time_turns("export", lambda: exchange.record(episode))
        report = time_turns("verify", exchange.verify)
    assert report.ok, report.breaches
    return found


def time_commitments(exchange: Exchange, clock: ManualClock, timed: Callable[..., Any]) -> None:
    """Commit to evidence in an episode of its own: the first time, and after 100 and 400 others."""
    exchange.join("cat", purse=10**7)
    now = clock.now_ms()
    terms = replace(make_terms(), claim="Bees sleep.", challenge_from_ms=now)
    episode = exchange.draft(terms)
    exchange.open(episode)
    exchange.begin_challenge(episode)
    for number in range(401):
        commit = partial(
            exchange.commit,
            episode,
            "cat",
            commitment=f"{number:064x}",
            amount=2_000,
            key=f"c{number}",
        )
        if number in {0, 100, 400}:
            timed(f"commit after {number}", commit)
        else:
            commit()


def make_measurement(judges: Sequence[str]) -> Measurement:
    """A measurement in which every judge went up."""
    readings = tuple(
        JudgeReading(
            model=judge,
            provider_model_ids=(judge,),
            before=Decimal(0),
            after=Decimal(1),
            attempted=32,
            compliant=32,
            from_cache=0,
        )
        for judge in judges
    )
    lo, hi = Decimal("0.8"), Decimal("1.2")
    return Measurement(readings=readings, p_up_ppm=999_000, shift_lo=lo, shift_hi=hi)


def measure(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run all processes on one market, then look for anything lost or doubled."""
    total = options.bets * options.processes
    with Store.open(url) as store:
        exchange = Exchange(store, clock=SystemClock())
        exchange.ensure_house()
        for number in range(options.processes):
            exchange.join(f"better-{number}", purse=10 * options.bets)
        episode_id = exchange.draft(make_terms())
        exchange.open(episode_id)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(options.processes)
    with context.Pool(options.processes, _remember, (barrier,)) as pool:
        jobs = [(url, episode_id, number, options.bets) for number in range(options.processes)]
        results = pool.map(bet_away, jobs, chunksize=1)
    begun, ended = min(r[0] for r in results), max(r[1] for r in results)
    waits_ms = sorted(wait for r in results for wait in r[2])
    with Store.open(url) as store:
        checking = time.perf_counter()
        wrong = find_wrong(Exchange(store, clock=SystemClock()), episode_id, options)
        verify_s = time.perf_counter() - checking
    return {
        "bets": total,
        "per_s": total / (ended - begun),
        "p50_ms": statistics.median(waits_ms),
        "p99_ms": waits_ms[len(waits_ms) * 99 // 100],
        "verify_s": verify_s,
        "wrong": wrong,
    }


def find_wrong(exchange: Exchange, episode_id: str, options: argparse.Namespace) -> list[str]:
    """Find what isn't as it must be: every bet once, all of the money, an unbroken chain."""
    report = exchange.verify()
    wrong = [f"{b.rule} {b.subject}: {b.detail}" for b in report.breaches]
    counts: dict[str, int] = {}
    for position in exchange.positions(episode_id):
        counts[position.account] = counts.get(position.account, 0) + 1
    for number in range(options.processes):
        name = f"better-{number}"
        made, left = counts.get(f"user:{name}:PLAY", 0), exchange.balance(name)
        if (made, left) != (options.bets, 0):
            wrong.append(f"{name} made {made} bets of {options.bets} and has {left} left")
    if sum(holding.balance for holding in exchange.balances(limit=10_000)) != 0:
        wrong.append("the balances don't add up to 0")
    return wrong


_barrier: Any = None


def _remember(barrier: Any) -> None:
    global _barrier  # noqa: PLW0603
    _barrier = barrier


def bet_away(job: tuple[str, str, int, int]) -> tuple[float, float, list[float]]:
    """One process: its bets one after another; when it began and ended, and each wait in ms."""
    url, episode_id, number, bets = job
    waits_ms = []
    with Store.open(url, busy_timeout_ms=60_000) as store:
        exchange = Exchange(store, clock=SystemClock())
        exchange.episode(episode_id)
        _barrier.wait()
        begun = last = time.monotonic()
        for bet in range(bets):
            side = Side.HERETIC if (bet + number) % 2 else Side.ORTHODOX
            exchange.stake(episode_id, f"better-{number}", side, 10, min_shares=0, key=f"{bet}")
            now = time.monotonic()
            waits_ms.append(1_000 * (now - last))
            last = now
    return begun, last, waits_ms


def make_terms() -> Terms:
    """Terms of an episode that takes bets until tomorrow."""
    now = SystemClock().now_ms()
    return Terms(
        claim="Tariffs don't cause inflation.",
        currency="PLAY",
        lens="MEL",
        bank="rpl_v1",
        bank_sha256="0" * 64,
        models=("gpt-5",),
        judge_pool=tuple(f"judge-{n}" for n in range(12)),
        K=16,
        R=2,
        T=16,
        B=5_000,
        c0_ppm=500_000,
        seed_stake=10_000,
        seed_heretic_ppm=500_000,
        seed_commitment=UNDRAWN,
        challenge_from_ms=now + DAY_MS,
        close_from_ms=now + DAY_MS,
        close_until_ms=now + DAY_MS,
        freeze_at_ms=now + DAY_MS,
        parameters=Parameters(),
    )


if __name__ == "__main__":
    sys.exit(main())
