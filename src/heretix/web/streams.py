"""Event streams that are open: so many for each person, and no more.

An open stream costs a connection, a task and a place among those that wait for news. Nobody reads
more than a few; whoever opens hundreds takes them from everybody else.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from starlette.responses import StreamingResponse

from heretix.errors import TooManyRequestsError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.types import Receive, Scope, Send

    from heretix.people import Person

__all__ = ["MOST", "MOST_LOCAL", "EventStream", "OpenStreams"]

MOST: Final = 20
"""Of a person with an account: every tab that a browser may hold open, in three browsers."""
MOST_LOCAL: Final = 1_000
"""Of the one user of a machine, whose programs share nothing with anybody: a bound on mistakes."""
_RETRY_S: Final = 5.0
"""A stream ends with its job or its page; nobody knows when that is."""


class OpenStreams:
    """How many streams each person has open. Only the event loop touches it."""

    def __init__(self, *, most: int = MOST, most_local: int = MOST_LOCAL) -> None:
        self._most = most
        self._most_local = most_local
        self._open: Counter[str] = Counter()

    def count(self, person: Person) -> int:
        """How many a person has open."""
        return self._open[person.id]

    @contextmanager
    def one_more(self, person: Person) -> Iterator[None]:
        """Have a stream open, for as long as this lasts."""
        most = self._most_local if person.is_local else self._most
        if self._open[person.id] >= most:
            raise TooManyRequestsError(
                f"`{person.name}` may have {most:,} event streams open at a time, and has; close "
                "one, or ask for the job itself instead",
                retry_after_s=_RETRY_S,
            )
        self._open[person.id] += 1
        try:
            yield
        finally:
            self._open[person.id] -= 1
            if not self._open[person.id]:
                del self._open[person.id]


class EventStream(StreamingResponse):
    """Server-sent events. It counts from its first byte until its reader has left or it ends."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], *, streams: OpenStreams, person: Person
    ) -> None:
        super().__init__(events, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self._streams = streams
        self._person = person

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, unless there are too many: nothing was sent by then, so that can be said."""
        with self._streams.one_more(self._person):
            await super().__call__(scope, receive, send)
