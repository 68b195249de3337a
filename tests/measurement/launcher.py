"""Measures in processes of their own, which can be killed at any moment.

Run as a program it is a launcher: everything is imported once, and each line of its input, a
`Job`, becomes a forked process. What a process does is reported through a pipe, event by event,
and it is killed after exactly so many events: by itself, because whoever reads of an event may
come to it when the process is long past it. Nothing that it did before is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a process measures, and after how many events it is killed."""

    url: str
    claims: tuple[str, ...]
    plan: dict[str, int]
    concurrency: int = 4
    kill_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a process did, and whether it came to its end."""

    events: list[list[Any]]
    killed: bool

    @property
    def asked(self) -> list[tuple[Any, ...]]:
        """The calls that were made: claim, wording, repeat."""
        return [tuple(event[1:]) for event in self.events if event[0] == "asked"]

    @property
    def answered(self) -> list[tuple[Any, ...]]:
        """The calls that came back."""
        return [tuple(event[1:]) for event in self.events if event[0] == "answered"]

    @property
    def beliefs(self) -> dict[str, Any]:
        """What was concluded, by claim."""
        return {event[1]: event[2] for event in self.events if event[0] == "finished"}


class Launcher:
    """The other end of a launcher."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, job: Job) -> None:
        """Start a job; `end` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()

    def end(self) -> Outcome:
        """Wait for the job that was begun."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the launcher broke off; its message stands above"
        return Outcome(**json.loads(line))

    def run(self, job: Job) -> Outcome:
        """Do a job."""
        self.begin(job)
        return self.end()


@contextlib.contextmanager
def launcher() -> Iterator[Launcher]:
    """A launcher, ended at the end."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Launcher(process)
        process.stdin.close()


def _serve() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # The first measurement compiles statements and loads what is loaded late, once for all.
        _measure(Job(url=f"{folder}/warm.sqlite", claims=("x",), plan={"B": 100}), lambda *_: None)
    for line in sys.stdin:
        values = json.loads(line)
        job = Job(**values | {"claims": tuple(values["claims"])})
        print(json.dumps(asdict(_launch(job))), flush=True)


def _launch(job: Job) -> Outcome:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        report = _Reporting(writing, job.kill_after)
        failed = 1
        try:
            _measure(job, report)
            failed = 0
        finally:
            if failed:
                traceback.print_exc()
            # Not by returning: the rest of the program is the launcher's.
            os._exit(failed)
    os.close(writing)
    events = []
    with os.fdopen(reading, encoding="utf-8") as lines:
        events += [json.loads(line) for line in lines]
    _, status = os.waitpid(pid, 0)
    assert status in {0, signal.SIGKILL}, f"the process ended by itself, with {status}"
    return Outcome(events=events, killed=status == signal.SIGKILL)


class _Reporting:
    """Tells of events, whichever thread they come from, and ends the process after the last."""

    def __init__(self, pipe: int, last: int | None) -> None:
        self._pipe = pipe
        self._left = last
        self._one_at_a_time = threading.Lock()
        self._die_in_time()

    def __call__(self, *event: object) -> None:
        with self._one_at_a_time:
            os.write(self._pipe, json.dumps(event).encode() + b"\n")
            if self._left is not None:
                self._left -= 1
                self._die_in_time()

    def _die_in_time(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _measure(job: Job, report: Any) -> None:
    from lanes_support import Keeping, Watching, belief, plans, register, runner
    from sqlalchemy import event

    from heretix.store import Store

    class Reporting(Watching):
        async def ask(self, request: Any) -> Any:
            call = (request.claim, request.paraphrase_idx, request.replicate_idx)
            report("asked", *call)
            reply = await super().ask(request)
            report("answered", *call)
            return reply

    class Telling(Keeping):
        def on_finished(self, record: Any) -> None:
            report("finished", record.claim, _plain(belief(record)))

    async def shortly(_count: int) -> None:
        # Long enough for some answers to be stored while others are still on their way.
        await asyncio.sleep(0.001)

    with Store.open(job.url, busy_timeout_ms=120_000) as store:
        event.listen(
            store._engine, "before_cursor_execute", lambda *args: report("sql", args[2][:20])
        )
        event.listen(store._engine, "commit", lambda *_: report("commit"))
        register(store)
        asyncio.run(
            runner(store, concurrency=job.concurrency, observer=Telling()).run(
                [(Reporting(before=shortly), plans(*job.claims, **job.plan))]
            )
        )


def _plain(conclusion: tuple[Any, ...]) -> Any:
    """A belief as JSON has it."""
    aggregates, aggregation, diagnostics = conclusion
    return json.loads(
        json.dumps([aggregates, aggregation.model_dump(), diagnostics and diagnostics.model_dump()])
    )


def plain_belief(record: Any) -> Any:
    """What a record concludes, as a process reports it."""
    from lanes_support import belief

    return _plain(belief(record))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    _serve()
