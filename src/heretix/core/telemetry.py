"""Events, told to whoever watches: nobody by default, and then they cost nothing.

`watchers` are called with every event, `spanners` around what has a beginning and an end, and
`queues` when somebody wants to know. The command line's `-v` and `heretix.observability` watch.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded:
    """A request to a provider, answered or failed; a sample may take several."""

    model: str
    cache_key: str
    attempt: int
    """From 1; more than that is a retry."""
    latency_ms: int
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_usd: float | None = None
    """None where nobody told, or the price isn't known."""
    response_id: str | None = None
    error: str | None = None
    """The kind of error, and its message."""

    def __str__(self) -> str:
        retry = f" try {self.attempt}" if self.attempt > 1 else ""
        head = f"{self.model} {self.cache_key[:12]}{retry} {self.latency_ms:,} ms"
        if self.error is not None:
            return f"{head} {self.error}"
        tokens = f"{self.tokens_in or 0:,} tokens in, {self.tokens_out or 0:,} out"
        return f"{head} {tokens}{f' {self.response_id}' if self.response_id else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded:
    """A transaction of the store, its wait for a connection or a lock included."""

    kind: Literal["read", "write"]
    seconds: float
    error: str | None = None
    """The kind of error alone: its message names the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """A worker let go of a job: it ended, or waits for another worker."""

    job_id: str
    kind: str
    state: str
    seconds: float
    """That this worker had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnded:
    """A request to the server, answered."""

    request_id: str
    method: str
    route: str
    """Its pattern, as `/runs/{execution_id}`: addresses may carry what is nobody's business."""
    status: int
    seconds: float


Event: TypeAlias = CallEnded | TransactionEnded | JobEnded | RequestEnded

watchers: Final[list[Callable[[Event], None]]] = []
spanners: Final[list[Callable[[str, Mapping[str, str]], AbstractContextManager[object]]]] = []
queues: Final[list[Callable[[], Mapping[str, int]]]] = []
"""Count jobs by state: `queued` and `running`."""


@contextmanager
def watched_by(watcher: Callable[[Event], None]) -> Iterator[None]:
    """Let a watcher be told for as long as the block takes."""
    watchers.append(watcher)
    try:
        yield
    finally:
        watchers.remove(watcher)


def tell(event: Event) -> None:
    """Tell everybody who watches."""
    for watch in watchers:
        watch(event)


@contextmanager
def span(name: str, **attributes: str) -> Iterator[None]:
    """Let what happens inside belong together for those who trace."""
    with ExitStack() as stack:
        for begin in spanners:
            stack.enter_context(begin(name, attributes))
        yield
