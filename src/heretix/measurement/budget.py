"""Escrow of a process: money for each call is set aside before it is made, and settled after."""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import BudgetReachedError, StoreError
from heretix.core.event_loop import run_in_thread
from heretix.store import new_owner
from heretix.store.budgets import (
    HOLD_S,
    STORE_BUDGET,
    Budget,
    Draw,
    cap_budget,
    close_holds,
    draw,
    extend_holds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from heretix.store import Store

_SLICE_CALLS: Final = 32
"""Calls whose money is held at a time, at the most: a transaction for each would be too many."""
_POLL_S: Final = 0.25


class Escrow:
    """Money of several budgets for the calls of one process. Belongs to one event loop.

    A few calls' worth is held at a time, so that most calls wait for no transaction.
    """

    def __init__(self, store: Store, caps: Mapping[str, int], *, lease_s: float = HOLD_S) -> None:
        """`caps` are the budgets that every call counts against, in millionths of a dollar."""
        self._store = store
        self._caps = dict(sorted(caps.items()))
        self._lease_s = lease_s
        self._owner = new_owner()
        self._credit = 0
        """Money that the store holds for this process."""
        self._out = 0
        """Of it, what calls in flight may cost."""
        self._calls_out = self._calls_ended = 0
        self._paid = Decimal(0)
        """Cost of all calls together; rounded up once."""
        self._presumed = 0
        self._settled = (0, 0)
        """Of what was paid and presumed, what the store knows."""
        self._unfinished: dict[str, Any] | None = None
        """A stroke of which nobody knows whether the store has it: it is made again first."""
        self._drawing = asyncio.Lock()
        self._freed = asyncio.Event()

    async def open(self) -> None:
        """Make the budgets known to the store, or change their caps."""

        def write(connection: Connection) -> None:
            for budget_id, cap in self._caps.items():
                cap_budget(connection, budget_id, cap)

        await run_in_thread(self._store.write, write)

    @property
    def _unsettled(self) -> tuple[int, int]:
        paid, presumed = self._settled
        return math.ceil(self._paid) + self._presumed - paid, self._presumed - presumed

    @property
    def _available(self) -> int:
        return self._credit - self._out - self._unsettled[0]

    async def reserve(self, bound: int) -> None:
        """Set money aside for a call, or raise `BudgetReachedError`.

        Where there isn't enough, calls in flight are waited for: they cost less than they may.
        """
        while self._available < bound:
            self._freed.clear()
            async with self._drawing:
                if self._available >= bound:
                    break
                ended = self._calls_ended
                found = await self._draw(bound)
            if found.short is None or self._calls_ended != ended:
                # There is more, or a call has come home meanwhile: what it left isn't told yet.
                continue
            if self._calls_out:
                await self._freed.wait()
            elif found.held_elsewhere_micros:
                # Other processes hold the rest, and may give it back; if they die, it is spent.
                await asyncio.sleep(_POLL_S)
            else:
                raise make_reached_error(found.short, bound)
        self._out += bound
        self._calls_out += 1

    def settle(self, bound: int, cost: Decimal, *, presumed: bool = False) -> None:
        """End a reservation with what the call cost; `presumed` is all that it may have."""
        self._out -= bound
        self._calls_out -= 1
        self._calls_ended += 1
        if presumed:
            self._presumed += bound
        else:
            self._paid += cost
        self._freed.set()

    async def keep(self) -> None:
        """Tell again and again that this process is alive, until cancelled."""
        while True:
            await asyncio.sleep(self._lease_s / 4)
            with contextlib.suppress(StoreError):
                await asyncio.to_thread(
                    self._store.write, extend_holds, self._owner, lease_s=self._lease_s
                )

    async def close(self) -> None:
        """Settle, and give back what is left. Calls in flight count at the most they can cost."""
        if self._unfinished is not None:
            await self._draw(0)
        self._presumed += self._out
        self._out = 0
        paid, presumed = self._unsettled
        await run_in_thread(
            self._store.write, close_holds, self._owner, paid=paid, presumed=presumed
        )
        self._note(paid, presumed)
        self._credit = 0

    async def _draw(self, bound: int) -> Draw:
        stroke = self._unfinished = self._unfinished or self._stroke(bound)

        def make(connection: Connection) -> Draw:
            return draw(connection, self._owner, list(self._caps), **stroke)

        found = await run_in_thread(self._store.write, make)
        self._unfinished = None
        self._credit += found.granted_micros
        return found

    def _stroke(self, bound: int) -> dict[str, Any]:
        paid, presumed = self._unsettled
        self._note(paid, presumed)
        self._credit -= min(self._credit, paid)
        spare = max(0, self._credit - self._out)
        # What is left over is given back with the same stroke: others may need it more.
        back = spare if spare < bound else 0
        self._credit -= back
        return {
            "paid": paid,
            "presumed": presumed,
            "back": back,
            "least": bound,
            "most": bound * min(_SLICE_CALLS, 1 + self._calls_out),
            "lease_s": self._lease_s,
            "stroke": uuid.uuid4().hex,
        }

    def _note(self, paid: int, presumed: int) -> None:
        told = self._settled
        self._settled = told[0] + paid, told[1] + presumed


def make_reached_error(
    budget: Budget, bound: int, *, of: str = "the next call"
) -> BudgetReachedError:
    """Make the error of who asked a budget for more than it has left."""
    cap, spent = budget.cap_micros / 1e6, budget.spent_micros / 1e6
    name, remedy = f"`budget_usd` {cap:g}", "the same command with a larger budget continues"
    if budget.budget_id == STORE_BUDGET:
        name = f"`HERETIX_BUDGET_USD` {cap:g}, which all runs of this store share,"
        remedy = "a larger one continues"
    held = f", ${budget.held_micros / 1e6:.4f} is set aside" if budget.held_micros else ""
    if not spent and not held and of == "the next call":
        return BudgetReachedError(
            f"{name} covers no call: one may cost ${bound / 1e6:.4f}. Nothing was paid; {remedy}, "
            "and a lower `max_output_tokens` makes calls cost less"
        )
    guessed = budget.presumed_micros / 1e6
    untold = f", ${guessed:.4f} of it for calls whose cost wasn't told" if guessed else ""
    return BudgetReachedError(
        f"{name} is spent: ${spent:.4f} was paid{untold}{held}, and {of} may cost "
        f"${bound / 1e6:.4f}. Everything that was answered is stored; {remedy}"
    )
