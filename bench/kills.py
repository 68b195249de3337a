"""Kill clients, workers and PostgreSQL with -9, and count what is left of bets and episodes.

    python bench/kills.py [--kills 210] [--pace 1.0] [--open 3] [--seed 1] [--json]

Two people bet and bring evidence, two workers make the moves that are due, on a PostgreSQL with its
usual settings, and at random moments one of them, or all of PostgreSQL, is killed and begun again.
Whoever bets writes down in a file of its own what it asks for and what was answered. In the end
each bet that was asked for must be there once, each episode must have ended by itself with each
move made once, and the chains must verify. The exit code says whether they do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from faults import Postgres
from heretix.accounts import LOCAL
from heretix.core.canonical import encode
from heretix.core.clock import SystemClock
from heretix.core.errors import RefusedError
from heretix.core.settings import Settings
from heretix.economy.audit import verify_episode
from heretix.economy.episode.challenges import evidence_commitment
from heretix.economy.episode.state import ENDED, Direction, Fate, Parameters, State
from heretix.economy.exchange import Exchange
from heretix.economy.judging.workflow import Proposal
from heretix.economy.ledger import user_account
from heretix.economy.market import Side
from heretix.evidence.bundle import Bundle, dump_bundle
from heretix.evidence.retrieval import retrieve_provided
from heretix.evidence.sources.extract import make_document, read_stated_fields
from heretix.jobs import EpisodeRequest, Job, Jobs, Worker
from heretix.store import Store
from heretix.store.bundles import save_bundle
from heretix.store.schema import events, statements

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.context import ForkServerProcess

PEOPLE: Final = ("ann", "bob")
WORKERS: Final = 2
LEASE_S: Final = 2.0
"""At a pace of 1. It grows with the pace: workers of slow machines say late that they live."""
WAIT_S: Final = 900.0
CONTEXT: Final = multiprocessing.get_context("forkserver")


def main() -> int:
    """Kill, begin again, and count; 1 if anything was lost, doubled, left out or changed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=210)
    parser.add_argument("--pace", type=float, default=1.0, help="most seconds between two kills")
    parser.add_argument("--open", type=int, default=3, help="episodes under way at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    CONTEXT.set_forkserver_preload(["kills", "psycopg"])
    with tempfile.TemporaryDirectory(prefix="hx-kills-") as folder:
        server = Postgres(tempfile.mkdtemp(prefix="hx-pg-"))
        try:
            found = play(server, Path(folder), options)
        finally:
            server.close()
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:20} {value}")
    return 0 if found["held"] else 1


class Crew:
    """The processes, each of which is begun again when it was killed."""

    def __init__(self, tasks: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
        self.tasks = list(tasks)
        self.processes = [self._begin(number) for number in range(len(self.tasks))]

    def _begin(self, number: int) -> ForkServerProcess:
        target, args = self.tasks[number]
        process = CONTEXT.Process(target=target, args=args, daemon=True)
        process.start()
        return process

    def kill(self, number: int) -> None:
        """Kill one, and begin it again."""
        self.processes[number].kill()
        self.processes[number].join()
        self.processes[number] = self._begin(number)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def play(server: Postgres, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Play while everybody is killed; then wait until all episodes ended, and count."""
    url, rng = server.url, random.Random(options.seed)
    with Store.open(url) as store:
        exchange = Exchange(store, clock=SystemClock())
        exchange.ensure_house()
        for person in PEOPLE:
            exchange.join(person)
        jobs = Jobs(store, Settings())
        logs = [folder / f"{person}.jsonl" for person in PEOPLE]
        betting = [(bet_on, (url, p, str(log))) for p, log in zip(PEOPLE, logs, strict=True)]
        crew = Crew([*betting, *[(work, (url, LEASE_S * options.pace))] * WORKERS])
        drafted, killed = 0, Counter[str]()
        try:
            for number in range(options.kills):
                kind = ("client", "worker", "postgresql")[number % 3]
                drafted = retry(keep_open, exchange, jobs, drafted, options)
                time.sleep(rng.uniform(0.02, options.pace))
                if kind == "postgresql":
                    server.kill()
                    time.sleep(rng.uniform(0.0, 0.3))
                    server.start()
                else:
                    first = 0 if kind == "client" else len(PEOPLE)
                    crew.kill(first + rng.randrange(2))
                killed[kind] += 1
            until = time.monotonic() + WAIT_S
            while retry(is_under_way, exchange, jobs) and time.monotonic() < until:
                time.sleep(0.5)
        finally:
            crew.end()
        return {"kills": dict(killed), "drafted": drafted} | count(exchange, logs)


def retry(action: Callable[..., Any], *args: Any) -> Any:
    """Do something as often as it takes while the database comes and goes."""
    until = time.monotonic() + 120
    while True:
        try:
            return action(*args)
        except RefusedError:
            raise
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def find_live(exchange: Exchange) -> list[str]:
    """Find the episodes that haven't ended."""
    listed = exchange.episodes(limit=10_000)
    return [item.id for item in listed if item.state not in {*ENDED, State.DRAFT}]


def is_under_way(exchange: Exchange, jobs: Jobs) -> bool:
    """Tell whether there is anything left that workers have to do."""
    return bool(find_live(exchange) or find_waiting(jobs))


def find_waiting(jobs: Jobs) -> list[Job]:
    """Find the jobs that haven't ended."""
    return [job for job in jobs.list(by=LOCAL) if not job.state.ended]


def keep_open(exchange: Exchange, jobs: Jobs, drafted: int, options: argparse.Namespace) -> int:
    """Keep episodes drafted and opened, so that there is always something to do."""
    coming = sum(getattr(job.request, "move", "") == "draft" for job in find_waiting(jobs))
    if len(find_live(exchange)) + coming >= options.open:
        return drafted
    proposal = Proposal(
        claim=f"Tin whiskers cause short circuits in satellite {drafted}.",
        models=("sim:lens?prior=0.4&hel=1.0&any_text=0",),
        judge_pool=tuple(f"sim:judge{n}?prior=0.{n}&hel=0.9&any_text=0" for n in range(2, 9)),
        R=1,
        B=300,
        # Where kills are further apart, machines are slow.
        challenge_for_ms=int(5_000 * options.pace),
        candle_ms=int(1_000 * options.pace),
        reveal_for_ms=int(4_000 * options.pace),
        parameters=Parameters(judges=3, durability_ms=1_500, dispute_window_ms=1_500),
    )
    request = EpisodeRequest(
        move="draft",
        claim=proposal.claim,
        models=proposal.models,
        proposal=encode(proposal),
        opens=True,
    )
    jobs.submit(LOCAL, request, key=f"episode {drafted}")
    return drafted + 1


def work(url: str, lease_s: float) -> None:
    """Make the moves that are due, as one of the workers."""
    with retry(Store.open, url) as store:
        while True:
            with contextlib.suppress(Exception):
                worker = Worker(store, Settings(), lease_s=lease_s, keeps=True)
                asyncio.run(worker.run_until_idle())
            time.sleep(0.1)


def bet_on(url: str, person: str, path: str) -> None:
    """Bet and bring evidence until killed; what was asked for and not answered is asked again."""
    log = Path(path)
    told = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    with retry(Store.open, url) as store, log.open("a") as file:
        exchange = Exchange(store, clock=SystemClock())

        def tell(what: str, asked: list[Any]) -> None:
            # With one write to the kernel, which outlives this process.
            file.write(json.dumps([what, asked]) + "\n")
            file.flush()

        def ask(asked: list[Any]) -> None:
            number, episode, side, amount = asked
            try:
                retry(
                    lambda: exchange.stake(
                        episode, person, Side(side), amount, min_shares=0, key=f"bet {number}"
                    )
                )
                tell("taken", asked)
            except RefusedError:
                tell("refused", asked)

        what, asked = told[-1] if told else ("none", [-1])
        if what == "asked":
            ask(asked)
        number = asked[0] + 1
        while True:
            live = retry(find_live, exchange)
            for episode in live:
                bring(store, exchange, episode, person)
                found = retry(exchange.episode, episode)
                open_ = found.state in {State.OPEN, State.CHALLENGE}
                if not open_ or SystemClock().now_ms() > found.terms.close_until_ms:
                    continue
                asked = [number, episode, list(Side)[number % 2].value, 10 + number % 90]
                tell("asked", asked)
                ask(asked)
                number += 1
            if not live:
                time.sleep(0.1)


def bring(store: Store, exchange: Exchange, episode: str, person: str) -> None:
    """Commit to a paper of one's own, and show it when it may be shown."""
    found = retry(exchange.episode, episode)
    if found.state is not State.CHALLENGE:
        return
    text = f"{person.title()} found that tin whiskers shorted a satellite: {found.terms.claim}"
    fields = read_stated_fields({"title": person}, text=text)
    paper = make_document(fields, raw=text.encode(), url=None, retrieved_at="2026-11-01")
    bundle = retrieve_provided(found.terms.claim, [paper])
    assert isinstance(bundle, Bundle), "a paper is evidence enough"
    account, nonce = user_account(person, "PLAY").id, person.encode().ljust(32, b".")
    own = [challenge for challenge in found.challenges if challenge.account == account]
    shown, up = bundle.bundle_id, Direction.UP
    with contextlib.suppress(RefusedError):
        if own and own[0].fate is Fate.COMMITTED:
            number = own[0].number
            retry(
                lambda: exchange.reveal(
                    episode, number, person, nonce=nonce, bundle_sha256=shown, direction=up
                )
            )
        elif not own:
            row = (shown, found.terms.claim, bundle.lens, dump_bundle(bundle))
            retry(lambda: store.write(save_bundle, *row))
            sealed = evidence_commitment(nonce, shown, up, account)
            retry(
                lambda: exchange.commit(
                    episode, person, commitment=sealed, amount=90_000, key=f"paper {episode}"
                )
            )


def count(exchange: Exchange, logs: Sequence[Path]) -> dict[str, Any]:
    """Hold what people were told against what is stored, and moves against what was due."""
    lost, doubled, made, asked = [], [], Counter[str](), 0
    with exchange.store.reading() as connection:
        rows = connection.execute(select(statements.c.group_id).where(statements.c.move == "stake"))
        stored = {row.group_id for row in rows}
    for person, log in zip(PEOPLE, logs, strict=True):
        told = [json.loads(line) for line in log.read_text().splitlines()]
        asked += sum(what == "asked" for what, _ in told)
        for what, (number, episode, *_) in told:
            key = f"by:{user_account(person, 'PLAY').id}:bet {number}"
            made[episode] += what == "taken"
            lost += [key] * (what == "taken" and key not in stored)
            doubled += [key] * (what == "refused" and key in stored)
    ended, wrong = Counter[str](), []
    for item in exchange.episodes(limit=10_000):
        if item.state is State.DRAFT:
            continue
        ended[item.state.value] += 1
        record = exchange.record(item.id)
        wrong += [f"{item.id}: {b.rule} {b.detail}" for b in verify_episode(record).breaches]
        counts = count_moves(exchange, item.id)
        if item.state not in ENDED or counts != expect_moves(exchange, item.id):
            wrong.append(f"{item.id} is {item.state.value}, moves {dict(counts)}")
        bets = item.position_count - len(Side)
        (lost if bets < made[item.id] else doubled).extend([item.id] * (bets != made[item.id]))
    report = exchange.verify()
    wrong += [f"{b.rule} {b.subject}: {b.detail}" for b in report.breaches]
    return {
        "held": not (lost or doubled or wrong) and bool(ended) and made.total() > 0,
        "episodes": dict(ended),
        "bets_asked": asked,
        "bets_taken": made.total(),
        "lost": lost,
        "doubled": doubled,
        "wrong": wrong,
        "transfers": report.count,
    }


def count_moves(exchange: Exchange, episode: str) -> Counter[str]:
    """Count how often each move that nobody decides on changed an episode, by the chain."""
    found: Counter[str] = Counter()
    own = {"begin_challenge", "freeze", "judge", "measure", "conclude", "settle"}
    with exchange.store.reading() as connection:
        for row in connection.execute(select(events.c.move, events.c.rows_json)):
            changed = json.loads(row.rows_json).get("episodes", ())
            if row.move in own and any(it["episode_id"] == episode for it in changed):
                found[row.move] += 1
    return found


def expect_moves(exchange: Exchange, episode: str) -> Counter[str]:
    """Count what was due: each challenge that wasn't late, two measurements unless one was void or
    there was nothing to measure for, and the rest once."""
    found = exchange.episode(episode)
    judged = sum(challenge.fate is not Fate.LATE for challenge in found.challenges)
    once = Counter(begin_challenge=1, freeze=1, settle=1, judge=judged)
    once["measure" if found.measurements else "conclude"] = len(found.measurements) or 1
    return +once


if __name__ == "__main__":
    # Children import this file by its name, so they must find it as it is called here.
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    sys.exit(main())
