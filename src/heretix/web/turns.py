"""Turns in the event loop: for pages that are asked for often and take a moment to make.

Such a page is a millisecond of work. In a thread it takes twice that: the thread and the loop take
the interpreter from each other at every look-up. In the loop, one after the other, all are sooner
done; `bench/web.py` tells how soon.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["Turns"]


class Turns:
    """One at a time, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def next(self) -> AsyncIterator[None]:
        """Wait for a turn. What is done inside must be short: everybody waits for it."""
        async with self._turn:
            # Answers that are ready leave first, and whoever asked meanwhile gets into the line.
            await asyncio.sleep(0)
            yield
