"""What a batch provider is: something that takes many requests at once and answers within a day.

A batch costs half. It is submitted once, asked about until it has ended, and then read. Whether a
submission that got no answer was taken can't be told from the error alone, and a second one would
be paid as well: such an error is an `UnconfirmedError`, and `find` looks for what it left behind.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

import aiohttp

from heretix.errors import ProviderError, RetryableError, UnconfirmedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from heretix.providers.base import Reply, Request

__all__ = [
    "CLOCK_SKEW",
    "SUBMISSION_WINDOW",
    "BatchCounts",
    "BatchLimits",
    "BatchProvider",
    "BatchResult",
    "BatchState",
    "Sighting",
    "encode_entry",
    "marking_unconfirmed",
]

CLOCK_SKEW: Final = timedelta(minutes=5)
"""How far a provider's clock may be from ours."""
SUBMISSION_WINDOW: Final = timedelta(minutes=15)
"""A submission that the provider hasn't made a batch of after this long never reached it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The largest batch that is submitted as one."""

    requests: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """How many requests of a batch came how far, as the provider tells it."""

    total: int
    succeeded: int
    failed: int
    """Rejected, expired or cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """How a batch is doing."""

    status: str
    """The provider's own word for it."""
    ended: bool
    """Nothing more will come; what there is can be read."""
    counts: BatchCounts | None
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    problem: str | None = None
    """Why there are no results, when the batch failed as a whole."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of one request."""

    custom_id: str | None
    """None when the line that came can't be assigned to a request."""
    outcome: Reply | ProviderError


@dataclass(frozen=True, slots=True)
class Sighting:
    """A batch at the provider that may be the one looked for."""

    provider_batch_id: str
    certain: bool
    """It bears our name. Otherwise only size and time fit, and its results must decide."""


class BatchProvider(Protocol):
    """A member of `heretix.providers` that takes batches."""

    @property
    def limits(self) -> BatchLimits:
        """The largest batch that may be submitted."""
        ...

    def encode(self, custom_id: str, request: Request) -> bytes:
        """One entry of a batch, as it is sent: its length counts against the limit."""
        ...

    async def submit(self, batch_id: str, entries: Sequence[bytes]) -> str:
        """Submit a batch under our name for it, and return the provider's.

        A `ProviderError` means that no batch was made; an `UnconfirmedError`, that one may be.
        """
        ...

    async def find(self, batch_id: str, *, size: int, since: datetime) -> list[Sighting]:
        """What a submission of `size` entries, begun at `since`, may have left behind."""
        ...

    async def status(self, provider_batch_id: str) -> BatchState:
        """How a batch is doing."""
        ...

    def results(self, provider_batch_id: str) -> AsyncGenerator[BatchResult, None]:
        """The results of a batch that has ended, in any order."""
        ...

    async def cancel(self, provider_batch_id: str) -> None:
        """Ask for an early end. What was answered until then stays, and is paid."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


def encode_entry(entry: Mapping[str, Any]) -> bytes:
    """An entry as one line of JSON."""
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()


@contextlib.contextmanager
def marking_unconfirmed() -> Iterator[None]:
    """Around the one call that makes a batch: tell "refused" from "who knows"."""
    try:
        yield
    except RetryableError as exc:
        # Nothing was sent without a connection, and 429 is said before anything is done.
        if exc.status == 429 or isinstance(exc.__cause__, aiohttp.ClientConnectorError):
            raise
        raise UnconfirmedError(str(exc), status=exc.status) from exc
