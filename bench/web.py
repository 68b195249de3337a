"""Measure the web app: how fast it answers, how many streams it holds, and its memory.

    python bench/web.py [--runs 10000] [--requests 20000] [--rounds 5] [--store FILE] [--json]

`heretix serve` runs in a process of its own over a store of real, mocked measurements; requests
come from another, over loopback. Every request is for one of the runs at random, so most of them
find nothing in the server's memory. `--store` keeps the store for the next time. The exit code
says whether the goals were met; on a machine that is busy elsewhere they mean little, and how
busy it was is told.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heretix.store.runs import count_runs, select_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LEAST_PER_S: Final = 300.0
MOST_P99_MS: Final = 100.0
MOST_START_S: Final = 1.2
MOST_GROWTH: Final = 0.10
"""Of the memory in the second half of the requests, when everything that is kept is there."""
EXPORTS: Final = 24
MOST_SLOWER: Final = 2.0
"""What so many exports by one reader may make of the time that another's page takes."""
STREAMS: Final = 200
CONNECTIONS: Final = 32
HERETIX: Final = (sys.executable, "-c", "from heretix.cli import main; main()")
_NO_BYTECODE: Final = frozenset({"PYTHONDONTWRITEBYTECODE"})
_SEED: Final = 7
_POLL_S: Final = 0.005
_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Result of many requests to one kind of address."""

    name: str
    requests: int
    wrong: int
    """Answers that weren't a success."""
    per_s: float
    p50_ms: float
    p99_ms: float

    @property
    def met(self) -> bool:
        """Tell whether it was as many and as quick as is asked for."""
        return self.wrong == 0 and self.per_s >= LEAST_PER_S and self.p99_ms <= MOST_P99_MS


@dataclass(slots=True, kw_only=True)
class Figures:
    """Figures of all measurements."""

    runs: int
    cores: int | None
    busy: float
    """Processes that wanted a core, on average over a minute, before anything was measured."""
    start_s: list[float] = field(default_factory=list)
    """From the command to the first answer."""
    start_cpu_s: list[float] = field(default_factory=list)
    """What the server itself worked for in that time: the least that it could take."""
    loads: list[Load] = field(default_factory=list)
    streams: int = 0
    """Event streams that were open at once, each with its first event."""
    page_with_streams_ms: float | None = None
    page_alone_ms: float | None = None
    page_with_exports_ms: float | None = None
    memory_mb: list[float] = field(default_factory=list)
    """Resident memory as the requests went on, the first value before any."""

    @property
    def growth(self) -> float | None:
        """Growth of memory in the second half of the requests; None when none were made."""
        if len(self.memory_mb) < 3:
            return None
        return self.memory_mb[-1] / self.memory_mb[len(self.memory_mb) // 2] - 1

    def goals(self) -> dict[str, bool]:
        """Goals, and whether each was met."""
        goals = {
            f"{load.name}: {LEAST_PER_S:.0f}/s, p99 {MOST_P99_MS:.0f} ms": load.met
            for load in self.loads
        }
        goals[f"{STREAMS} event streams"] = self.streams >= STREAMS
        goals[f"an answer within {MOST_START_S:g} s"] = min(self.start_s) <= MOST_START_S
        if self.page_alone_ms and self.page_with_exports_ms:
            slower = self.page_with_exports_ms / self.page_alone_ms
            goals[f"{EXPORTS} exports slow a page by {MOST_SLOWER:g} at most"] = (
                slower <= MOST_SLOWER
            )
        if self.growth is not None:
            goals["stable memory"] = self.growth <= MOST_GROWTH
        return goals


def main() -> int:
    """Measure, and print a table or JSON; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description="How the web app bears load.")
    parser.add_argument("--runs", type=int, default=10_000, help="runs in the store")
    parser.add_argument("--requests", type=int, default=20_000, help="requests for memory")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each load lasts")
    parser.add_argument("--rounds", type=int, default=1, help="how often each load is measured")
    parser.add_argument("--starts", type=int, default=3, help="how often the start is timed")
    parser.add_argument("--store", type=Path, help="where the store is kept, or made")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = Figures(runs=options.runs, cores=os.cpu_count(), busy=round(os.getloadavg()[0], 1))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = options.store or folder / "heretix.sqlite"
        ids = fill_store(path, options.runs)
        for _ in range(options.starts):
            with serving(path, figures):
                pass
        with serving(path, figures, "--no-worker") as (port, process):
            measure(figures, port, process, ids, options)
    if options.json:
        print(json.dumps(asdict(figures) | {"goals": figures.goals()}, indent=2))
    else:
        show(figures)
    return 0 if all(figures.goals().values()) else 1


def fill_store(path: Path, runs: int) -> list[tuple[str, str]]:
    """Make the store if it isn't there; the ids of its runs and of their executions."""
    from heretix.config import RunConfig
    from heretix.core.settings import Settings
    from heretix.measurement.service import prepare
    from heretix.store import Store

    with Store.open(str(path)) as store:
        missing = runs - store.read(count_runs)
        if missing > 0:
            say(f"measuring {missing:,} claims with a mock")
            config = RunConfig.parse({"models": ("mock:bench",), "K": 8, "R": 1, "B": 100})
            claims = [f"Of all things, number {n} is heavier than {n + 1}." for n in range(runs)]
            asyncio.run(prepare(config, Settings(), claims=claims).run(store))
        found = []
        for start in range(0, runs, 1000):
            page = store.read(select_runs, limit=min(1000, runs - start), offset=start)
            found += [(run.run_id, run.execution_id) for run in page]
    return [(run_id, execution_id) for run_id, execution_id in found if execution_id]


@contextlib.contextmanager
def serving(
    path: Path, figures: Figures, *more: str
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A server in a process of its own; how long its first answer took is noted."""
    port = free_port()
    began = time.perf_counter()
    command = (*HERETIX, "serve", "--db", str(path), "--port", str(port), *more)
    # Compiled modules are kept, as they are for users: from the second start on they are there.
    env = {name: value for name, value in os.environ.items() if name not in _NO_BYTECODE}
    env["PYTHONPYCACHEPREFIX"] = str(path.parent / "pycache")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=env) as process:
        try:
            wait_for_answer(port)
            figures.start_s.append(round(time.perf_counter() - began, 2))
            figures.start_cpu_s.append(cpu_s(process.pid))
            yield port, process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_for_answer(port: int) -> None:
    """Ask for the start page until there is one."""
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            if is_answered(port):
                return
        time.sleep(_POLL_S)
    raise SystemExit("the server gave no answer")


def is_answered(port: int) -> bool:
    """Tell whether the start page comes."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(request_for("/", close=True))
        return connection.recv(16).startswith(b"HTTP/1.1 200")


def measure(
    figures: Figures,
    port: int,
    process: subprocess.Popen[bytes],
    ids: Sequence[tuple[str, str]],
    options: argparse.Namespace,
) -> None:
    """Every load on one running server."""
    rng = random.Random(_SEED)
    pages = [f"/runs/{run_id}" for run_id, _ in ids]
    records = [f"/api/v1/executions/{execution_id}" for _, execution_id in ids]
    # What is made once is made before anything is counted.
    asyncio.run(request_all(port, rng.choices(pages + records, k=1000)))
    for name, addresses in options.rounds * (("claim page", pages), ("API record", records)):
        say(f"{name}: {CONNECTIONS} connections for {options.seconds:g} s")
        many = rng.choices(addresses, k=200_000)
        figures.loads.append(asyncio.run(load_pages(name, port, many, options.seconds)))
    say(f"{STREAMS} event streams")
    figures.streams, figures.page_with_streams_ms = asyncio.run(stream_events(port, pages))
    say(f"a page beside {EXPORTS} exports")
    pairs = [asyncio.run(time_exports(port, rng.sample(pages, 50))) for _ in range(5)]
    alone, beside = (statistics.median(times) for times in zip(*pairs, strict=True))
    figures.page_alone_ms, figures.page_with_exports_ms = alone, beside
    if options.requests:
        say(f"memory over {options.requests:,} requests")
        step = max(1, options.requests // 10)
        figures.memory_mb.append(memory_mb(process.pid))
        for _ in range(10):
            asyncio.run(request_all(port, rng.choices(pages + records, k=step)))
            figures.memory_mb.append(memory_mb(process.pid))


async def load_pages(name: str, port: int, addresses: Sequence[str], seconds: float) -> Load:
    """Ask over many connections, each for the next as soon as it has its answer."""
    took_ms: list[float] = []
    wrong = 0
    waiting = iter(addresses)
    began = time.perf_counter()

    async def ask() -> None:
        nonlocal wrong
        async with connect(port) as (reader, writer):
            for address in waiting:
                sent = time.perf_counter()
                if sent - began > seconds:
                    return
                status = await read_status(reader, writer, address)
                took_ms.append(1000 * (time.perf_counter() - sent))
                wrong += status != 200

    await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))
    elapsed = time.perf_counter() - began
    cuts = statistics.quantiles(took_ms, n=100)
    return Load(
        name=name,
        requests=len(took_ms),
        wrong=wrong,
        per_s=round(len(took_ms) / elapsed, 1),
        p50_ms=round(cuts[49], 1),
        p99_ms=round(cuts[98], 1),
    )


async def request_all(port: int, addresses: Sequence[str]) -> None:
    """Ask for all of these; an answer that isn't a success ends it."""
    waiting = iter(addresses)

    async def ask() -> None:
        async with connect(port) as (reader, writer):
            for address in waiting:
                status = await read_status(reader, writer, address)
                if status != 200:
                    raise SystemExit(f"{address}: status {status}")

    await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))


async def stream_events(port: int, pages: Sequence[str]) -> tuple[int, float]:
    """Follow one waiting job over many connections, and ask for a page beside them."""
    job = await submit_job(port)
    async with contextlib.AsyncExitStack() as stack:
        followed = []
        for _ in range(STREAMS):
            reader, writer = await stack.enter_async_context(connect(port))
            writer.write(request_for(f"/jobs/{job}/events"))
            followed.append(first_event(reader))
        got = await asyncio.gather(*followed)
        reader, writer = await stack.enter_async_context(connect(port))
        took_ms = []
        for address in pages[:50]:
            sent = time.perf_counter()
            await read_status(reader, writer, address)
            took_ms.append(1000 * (time.perf_counter() - sent))
    return sum(got), round(statistics.median(took_ms), 1)


async def time_exports(port: int, pages: Sequence[str]) -> tuple[float, float]:
    """Time a page by itself, and again while one reader keeps so many exports under way."""

    async def time_pages() -> float:
        took_ms = []
        async with connect(port) as (reader, writer):
            for address in pages:
                sent = time.perf_counter()
                await read_status(reader, writer, address)
                took_ms.append(1000 * (time.perf_counter() - sent))
        return statistics.median(took_ms)

    async def keep_exporting() -> None:
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(request_for("/api/v1/export/samples.csv", close=True))
                while await reader.read(1 << 16):
                    pass
            finally:
                writer.close()

    alone = await time_pages()
    readers = [asyncio.create_task(keep_exporting()) for _ in range(EXPORTS)]
    await asyncio.sleep(1)  # until those that have a place are under way
    try:
        beside = await time_pages()
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return round(alone, 1), round(beside, 1)


async def submit_job(port: int) -> str:
    """The id of a job that nobody takes up: the server has no worker."""
    body = json.dumps({"claims": ["Somebody waits for this."], "models": ["mock:bench"]}).encode()
    head = (
        "POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: bench-{time.time_ns()}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with connect(port) as (reader, writer):
        writer.write(head.encode() + body)
        status, content = await read_answer(reader)
    if status not in {200, 201, 202}:
        raise SystemExit(f"the job was refused: {status} {content[:300]!r}")
    job: dict[str, Any] = json.loads(content)
    return str(job["id"])


async def first_event(reader: asyncio.StreamReader) -> bool:
    """Tell whether a stream has begun and told of the job."""
    try:
        async with asyncio.timeout(_WAIT_S):
            while line := await reader.readline():
                if line.startswith(b"data:"):
                    return True
    except TimeoutError:
        pass
    return False


@contextlib.asynccontextmanager
async def connect(port: int) -> Any:
    """A connection that is kept alive."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_status(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str
) -> int:
    """Ask, read the whole answer, and say what its status was."""
    writer.write(request_for(address))
    return (await read_answer(reader))[0]


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """A status and a body whose length is told, as all of the app's are but streams."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    _, _, length = head.partition("content-length:")
    body = await reader.readexactly(int(length.split("\r\n", 1)[0])) if length else b""
    return int(head.split(" ", 2)[1]), body


def request_for(address: str, *, close: bool = False) -> bytes:
    """A request as a program sends it."""
    ending = "Connection: close\r\n" if close else ""
    return f"GET {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n{ending}\r\n".encode()


def cpu_s(pid: int) -> float:
    """Processor time that a process has had."""
    values = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise SystemExit(f"process {pid} has no memory to speak of")


def show(figures: Figures) -> None:
    """The figures for people."""
    print(f"{figures.runs:,} runs, {figures.cores} cores, {figures.busy} busy before")
    print(f"{'load':<12} {'requests':>9} {'per s':>8} {'p50 ms':>8} {'p99 ms':>8} {'wrong':>6}")
    for load in figures.loads:
        print(
            f"{load.name:<12} {load.requests:>9,} {load.per_s:>8,.0f} {load.p50_ms:>8.1f} "
            f"{load.p99_ms:>8.1f} {load.wrong:>6}"
        )
    pairs = zip(figures.start_s, figures.start_cpu_s, strict=True)
    starts = ", ".join(f"{took:.2f} ({worked:.2f} of work)" for took, worked in pairs)
    print(f"first answer after {starts} s")
    print(
        f"{figures.streams} event streams; a page beside them in {figures.page_with_streams_ms} ms"
    )
    print(
        f"a page in {figures.page_alone_ms} ms, beside {EXPORTS} exports by one reader in "
        f"{figures.page_with_exports_ms} ms"
    )
    if figures.memory_mb:
        print(f"memory {' '.join(f'{mb:.0f}' for mb in figures.memory_mb)} MB")
    for goal, met in figures.goals().items():
        print(f"{'met   ' if met else 'MISSED'} {goal}")


def say(text: str) -> None:
    """Progress, beside the results."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
