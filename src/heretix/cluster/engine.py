"""Ray: places work on the nodes of a cluster, and starts it again when a machine dies.

It places and nothing else: samples, leases, rates and budgets are the store's. What goes through
Ray is a part's claims on the way out, and counts and the names of executions on the way back. This
is the one module that imports `ray`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from heretix.core.errors import ClusterError, ConfigError, HeretixError, MissingPartError
from heretix.core.event_loop import run_async
from heretix.core.plugins import import_target

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

# Both are read when Ray is imported. It would start workers through `uv run`, which looks for
# packages again, and it would report to its makers.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

try:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as exc:
    raise MissingPartError(
        "`--on` needs Ray, which isn't installed: `uv sync --extra ray`, or "
        "`pip install '.[ray]'` in the clone; without `--on` this machine measures alone"
    ) from exc

HERE: Final = "ray"
"""A cluster that this machine is part of, or else one that is started for the run, of this machine
alone."""
_ARENA_BYTES: Final = 100_000_000
"""Shared memory of a cluster that we start: hardly anything goes through it."""
_QUEUED_PER_CPU: Final = 2
"""Tasks that are submitted for each processor: one that runs, one that it finds when done."""
_LOOK_S: Final = 2.0
"""Time between two looks for nodes that came or went."""
_HEAR_S: Final = 0.4
_ANSWER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, or a share of one."""

    node_id: str
    host: str
    cpus: float
    gpus: float

    @property
    def name(self) -> str:
        return f"{self.host}/{self.node_id[:6]}"


class Ended(NamedTuple):
    """A part that came to its end, or couldn't."""

    number: int
    attempt: str
    result: Any
    error: HeretixError | None


class Step(NamedTuple):
    """News of a placement: parts that ended, and what attempts at others told last."""

    ended: list[Ended]
    told: dict[tuple[int, str], Any]


# Connections: one a process, shared by whoever measures in it at the same time.

_lock = threading.Lock()
_users = 0
_address: str | None = None
_found = False
"""True where somebody else had connected this process: then it isn't ours to close."""


@contextlib.contextmanager
def connected(on: str) -> Iterator[Engine]:
    """Connect to a cluster, or start one of this machine alone; a second user shares it."""
    global _users, _address, _found  # noqa: PLW0603
    with _lock:
        if _users and _address != on:
            raise ConfigError(
                f"`on` {on}: this process is connected to {_address}; a process has one cluster"
            )
        if not _users:
            _found = ray.is_initialized()
            if not _found:
                _connect(on)
            _address = on
        _users += 1
    try:
        yield Engine()
    finally:
        with _lock:
            _users -= 1
            if not _users and not _found:
                ray.shutdown()


def _connect(on: str) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    try:
        if on != HERE:
            # Ray would try for minutes, and then end the process.
            host, _, port = on.removeprefix("ray://").rpartition(":")
            if port.isdigit():
                socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
            ray.init(on, **quiet)
            return
        try:
            ray.init("auto", **quiet)
        except ConnectionError:
            if os.environ.get("RAY_ADDRESS"):
                raise
            ray.init(
                "local",
                include_dashboard=False,
                object_store_memory=_ARENA_BYTES,
                _node_ip_address="127.0.0.1",
                **quiet,
            )
    except ImportError as exc:
        raise MissingPartError(f"`on` {on}: {exc}; `uv sync --extra ray` installs it") from exc
    except Exception as exc:
        # A start that takes Ray longer than its 30 s is an `Exception` and nothing narrower.
        known = OSError | RuntimeError | ValueError | ray.exceptions.RayError
        if type(exc) is not Exception and not isinstance(exc, known):
            raise
        told = str(exc).strip().partition("\n")[0]
        raise ClusterError(
            f"`on` {on}: no cluster could be reached or started ({type(exc).__name__}: {told}); "
            "start one with `ray start --head` and see docs/cluster.md, or leave `on` out"
        ) from exc


class Engine:
    """A cluster that this process is connected to."""

    @property
    def nodes(self) -> list[Node]:
        """The machines that are alive."""
        found = []
        for row in ray.nodes():
            if row["Alive"]:
                has = row["Resources"]
                host = row["NodeManagerHostname"] or row["NodeManagerAddress"]
                found.append(Node(row["NodeID"], host, has.get("CPU", 0.0), has.get("GPU", 0.0)))
        return sorted(found, key=lambda node: node.node_id)

    def survey(
        self, target: str, *args: Any, timeout_s: float
    ) -> list[tuple[Node, Any, str | None]]:
        """Call a function once on every node: what it gave, or why it gave nothing."""
        nodes = self.nodes
        refs = [
            _remote(_call, max_retries=0, **_pin_to(node, num_cpus=0)).remote(target, args)
            for node in nodes
        ]
        ray.wait(refs, num_returns=len(refs), timeout=timeout_s)
        found: list[tuple[Node, Any, str | None]] = []
        for node, ref in zip(nodes, refs, strict=True):
            try:
                found.append((node, ray.get(ref, timeout=0), None))
            except ray.exceptions.GetTimeoutError:
                ray.cancel(ref, force=True)
                found.append((node, None, f"no answer in {timeout_s:g} s"))
            except ray.exceptions.RayError as exc:
                found.append((node, None, _cause(exc)))
        return found

    def place(self, target: str, parts: Iterator[Any], homes: Iterator[Any]) -> Placement:
        """Call a coroutine function with each part, wherever there is room.

        `homes` are parts that want a process which stays: one a node, with what it has loaded.
        """
        return Placement(self, target, parts, homes)


class Placement:
    """Parts under way. One thread at a time may ask it to go a step."""

    def __init__(
        self, engine: Engine, target: str, parts: Iterator[Any], homes: Iterator[Any]
    ) -> None:
        self._engine = engine
        self._target = target
        self._parts, self._homes = parts, homes
        self._number = 0
        self._again: deque[tuple[int, Any]] = deque()
        """Parts whose process died with its node: another node's takes them."""
        self._running: dict[Any, tuple[int, Any, str | None]] = {}
        self._residents: dict[str, Any] = {}
        self._busy: set[str] = set()
        self._nodes: list[Node] = []
        self._looked = self._heard = float("-inf")
        self._stopped = False
        # It holds nothing that can't be told again, so it may die with its node.
        self._board = _remote(_Board, num_cpus=0, max_restarts=-1).remote()

    def step(self, timeout_s: float) -> Step | None:
        """Submit what there is room for, wait a moment, and say what happened; None at the end."""
        self._look()
        if not self._stopped:
            self._fill()
        if not self._running and (self._stopped or not self._again):
            return None
        ended = self._wait(timeout_s) if self._running else []
        return Step(ended, self._read())

    def stop(self) -> None:
        """Start nothing new, and ask what runs to come to an end."""
        self._stopped = True
        with contextlib.suppress(ray.exceptions.RayError):
            self._board.stop.remote()

    def close(self) -> None:
        """Release everything; what still runs is ended."""
        with contextlib.suppress(ray.exceptions.RayError):
            for ref, (_, _, home) in self._running.items():
                if home is None:
                    ray.cancel(ref, force=True)
            for actor in (*self._residents.values(), self._board):
                ray.kill(actor)

    @property
    def width(self) -> int:
        """Nodes that are alive, as far as is known."""
        return len(self._nodes)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            self._nodes = self._engine.nodes
            alive = {node.node_id for node in self._nodes}
            self._residents = {n: actor for n, actor in self._residents.items() if n in alive}

    def _fill(self) -> None:
        room = max(2, int(sum(node.cpus for node in self._nodes)) * _QUEUED_PER_CPU)
        while sum(home is None for *_, home in self._running.values()) < room:
            part = next(self._parts, None)
            if part is None:
                break
            self._number += 1
            self._submit(self._number, part, None)
        for node in self._nodes:
            if node.node_id in self._busy or node.cpus < 1:
                continue
            if self._again:
                number, part = self._again.popleft()
            elif (part := next(self._homes, None)) is not None:
                self._number += 1
                number = self._number
            else:
                break
            self._submit(number, part, node)

    def _submit(self, number: int, part: Any, node: Node | None) -> None:
        args = (self._target, part, self._board, number)
        if node is None:
            task = _remote(_work, num_cpus=1, max_retries=-1, scheduling_strategy="SPREAD")
            self._running[task.remote(*args)] = number, part, None
            return
        home = node.node_id
        if home not in self._residents:
            takes = {"num_cpus": min(2, node.cpus), "num_gpus": min(1, node.gpus)}
            self._residents[home] = _remote(_NodeWorker, **_pin_to(node, **takes)).remote()
        self._busy.add(home)
        self._running[self._residents[home].work.remote(*args)] = number, part, home

    def _wait(self, timeout_s: float) -> list[Ended]:
        refs = list(self._running)
        ready, _ = ray.wait(refs, num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        ended = []
        for ref in ready:
            number, part, home = self._running.pop(ref)
            if home is not None:
                self._busy.discard(home)
            try:
                attempt, result = ray.get(ref)
            except ray.exceptions.RayActorError:
                assert home is not None, "only a resident is an actor"
                self._residents.pop(home, None)
                self._looked = float("-inf")
                self._again.append((number, part))
            except ray.exceptions.RayError as exc:
                ended.append(Ended(number, "", None, ClusterError(_cause(exc))))
            else:
                ended.append(Ended(number, attempt, result, None))
        return ended

    def _read(self) -> dict[tuple[int, str], Any]:
        now = time.monotonic()
        if now - self._heard < _HEAR_S:
            return {}
        self._heard = now
        try:
            told: dict[tuple[int, str], Any] = ray.get(self._board.read.remote(), timeout=_ANSWER_S)
        except ray.exceptions.RayError:
            # It was on a node that died, and is being started anew: everybody tells again.
            return {}
        return told


# What runs on the nodes.


def _remote(what: Any, **options: Any) -> Any:
    return ray.remote(**options)(what) if options else ray.remote(what)


def _pin_to(node: Node, **more: Any) -> dict[str, Any]:
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node.node_id, soft=False), **more}


def _cause(exc: BaseException) -> str:
    cause = getattr(exc, "cause", None) or exc
    return f"{type(cause).__name__}: {str(cause).strip().splitlines()[-1] if str(cause) else ''}"


def _call(target: str, args: tuple[Any, ...]) -> Any:
    return import_target(target)(*args)


def _work(target: str, part: Any, board: Any, number: int) -> tuple[str, Any]:
    attempt = uuid.uuid4().hex
    return attempt, run_async(
        import_target(target)(part, _ProgressReporter(board, number, attempt))
    )


class _NodeWorker:
    """A process that stays, one a node: what it loads is loaded once."""

    async def work(self, target: str, part: Any, board: Any, number: int) -> tuple[str, Any]:
        attempt = uuid.uuid4().hex
        work: Coroutine[Any, Any, Any] = import_target(target)(
            part, _ProgressReporter(board, number, attempt)
        )
        return attempt, await work


class _ProgressReporter:
    """Tells the board how an attempt is doing, and hears whether to stop."""

    def __init__(self, board: Any, number: int, attempt: str) -> None:
        self._board = board
        self._key = number, attempt

    def __call__(self, news: Any) -> bool:
        try:
            stop: bool = ray.get(self._board.tell.remote(self._key, news), timeout=_ANSWER_S)
        except ray.exceptions.RayError:
            return False
        return stop


class _Board:
    """Last news of every attempt, for the one who watches all of them."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str], Any] = {}
        self._stopped = False

    def tell(self, key: tuple[int, str], news: Any) -> bool:
        self._told[key] = news
        return self._stopped

    def read(self) -> dict[tuple[int, str], Any]:
        told, self._told = self._told, {}
        return told

    def stop(self) -> None:
        self._stopped = True


def versions() -> dict[str, str]:
    """The versions that have to be the same on every node."""
    from heretix.version import VERSION

    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, "ray": ray.__version__, "heretix": VERSION}
