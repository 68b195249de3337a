"""Budgets of a process: money for each call is set aside before it is made, and settled after."""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from heretix.core.errors import (
    BudgetReachedError,
    ConfigError,
    RateLimitedError,
    RejectedError,
    ServerError,
    StoreError,
)
from heretix.core.event_loop import in_thread
from heretix.providers.prices import Price, PriceTable, cost_micros
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
    from collections.abc import AsyncIterator, Mapping

    from heretix.providers.base import Reply, Request
    from heretix.providers.catalog import ModelId
    from heretix.store import Store

_OVERHEAD_TOKENS: Final = 512
"""Room for what a provider puts around a prompt: roles, separators, the answer's schema."""
_SLICE_CALLS: Final = 32
"""Calls whose money is held at a time, at the most: a transaction for each would be too many."""
_POLL_S: Final = 0.25


class Spending:
    """The running total of all lanes, from the providers' own token counts.

    An unknown price makes the total unknown, not zero; a budget then can't be kept and is refused
    at the door.
    """

    def __init__(
        self, prices: PriceTable, models: tuple[ModelId, ...], *, budget_usd: float | None = None
    ) -> None:
        self._prices = {model: prices.find(model) for model in models}
        self.budget_usd = budget_usd
        self._tokens = dict.fromkeys(models, (0, 0))
        """Read and written, per model: a sum of many small costs is rounded once, not each."""
        self._unknown = False
        self.calls = 0
        """Calls that were made, those that failed or were made again included."""
        self.cut_off = 0
        """Calls of which nobody knows whether they were billed."""
        self.presumed_micros = 0
        """The most that those can have cost."""
        if budget_usd is not None:
            self.require_prices("budget_usd")

    def require_prices(self, name: str) -> None:
        """Refuse a budget that can't be kept."""
        unpriced = [model for model, price in self._prices.items() if price is None]
        if unpriced:
            raise ConfigError(
                f"`{name}` can't be kept: the price of {unpriced[0]} isn't known; "
                "put it into a table of yours and name that with HERETIX_PRICES"
            )

    def price_of(self, model: ModelId) -> Price | None:
        """The price of a model; None where it isn't known."""
        return self._prices[model]

    def bound_micros(self, model: ModelId, request: Request) -> int:
        """The most that a call can cost. No tokeniser makes more tokens than there are bytes."""
        price = self._prices[model]
        if price is None or price.is_free:
            return 0
        sent = len(request.system.encode()) + len(request.user.encode())
        sent += len(str(request.answer_schema or "").encode())
        return cost_micros(price, sent + _OVERHEAD_TOKENS, request.max_output_tokens)

    def charge(self, model: ModelId, tokens_in: int | None, tokens_out: int | None) -> Decimal:
        """Add a call that was answered; what it cost, in millionths of a dollar."""
        price = self._prices[model]
        read, written = self._tokens[model]
        self._tokens[model] = (read + (tokens_in or 0), written + (tokens_out or 0))
        told = tokens_in is not None and tokens_out is not None
        if price is None or not (told or price.is_free):
            self._unknown = True
            return Decimal(0)
        return price.input_usd_per_mtok * (tokens_in or 0) + price.output_usd_per_mtok * (
            tokens_out or 0
        )

    def presume(self, bound_micros: int) -> None:
        """Count a call that was cut off: it may have been billed."""
        self.cut_off += 1
        self.presumed_micros += bound_micros

    @property
    def totals(self) -> dict[str, int]:
        """Calls made, and tokens read and written as far as the providers told."""
        read, written = zip(*self._tokens.values(), strict=True)
        return {"calls": self.calls, "tokens_in": sum(read), "tokens_out": sum(written)}

    @property
    def spent_usd(self) -> float | None:
        """Dollars spent so far on answers; None once a call's cost couldn't be told."""
        if self._unknown:
            return None
        priced = [(model, price) for model, price in self._prices.items() if price is not None]
        return sum(cost_micros(price, *self._tokens[model]) for model, price in priced) / 1e6


@dataclass(slots=True)
class Hold:
    """The most that one call can cost, and what became of it."""

    bound_micros: int
    sent: bool = False
    reply: Reply | None = None


def may_be_billed(exc: BaseException) -> bool:
    """Tell a call that a provider may have answered, and billed, though no answer came."""
    if isinstance(exc, RateLimitedError | RejectedError):
        return False
    return not (isinstance(exc, ServerError) and exc.status is not None)


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
        """What the store holds for this process."""
        self._out = 0
        """Of it, what calls in flight may cost."""
        self._calls_out = self._calls_ended = 0
        self._paid = Decimal(0)
        """What calls did cost, all in all; rounded up once."""
        self._presumed = 0
        self._settled = (0, 0)
        """Of what was paid and presumed, what the store knows."""
        self._drawing = asyncio.Lock()
        self._freed = asyncio.Event()

    async def open(self) -> None:
        """Make the budgets known to the store, or change their caps."""

        def write() -> None:
            with self._store.writing() as connection:
                for budget_id, cap in self._caps.items():
                    cap_budget(connection, budget_id, cap)

        await in_thread(write)

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
                raise _reached(found.short, bound)
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

    def close(self) -> None:
        """Settle, and give back what is left. Calls in flight count at the most they can cost."""
        self._presumed += self._out
        self._out = 0
        paid, presumed = self._unsettled
        self._store.write(close_holds, self._owner, paid=paid, presumed=presumed)
        self._note(paid, presumed)
        self._credit = 0

    async def _draw(self, bound: int) -> Draw:
        paid, presumed = self._unsettled
        self._note(paid, presumed)
        self._credit -= min(self._credit, paid)
        spare = max(0, self._credit - self._out)
        # What is left over is given back with the same stroke: others may need it more.
        back = spare if spare < bound else 0
        self._credit -= back
        wanted = bound * min(_SLICE_CALLS, 1 + self._calls_out)
        found = await in_thread(
            self._store.write,
            draw,
            self._owner,
            list(self._caps),
            paid=paid,
            presumed=presumed,
            back=back,
            least=bound,
            most=wanted,
            lease_s=self._lease_s,
        )
        self._credit += found.granted_micros
        return found

    def _note(self, paid: int, presumed: int) -> None:
        told = self._settled
        self._settled = told[0] + paid, told[1] + presumed


def _reached(budget: Budget, bound: int) -> BudgetReachedError:
    cap, spent = budget.cap_micros / 1e6, budget.spent_micros / 1e6
    name, remedy = f"`budget_usd` {cap:g}", "the same command with a larger budget continues"
    if budget.budget_id == STORE_BUDGET:
        name = f"`HERETIX_BUDGET_USD` {cap:g}, which all runs of this store share,"
        remedy = "a larger one continues"
    guessed = budget.presumed_micros / 1e6
    cut_off = f", ${guessed:.4f} of it for calls that were cut off" if guessed else ""
    return BudgetReachedError(
        f"{name} is spent: ${spent:.4f} was paid{cut_off}, and the next call may cost "
        f"${bound / 1e6:.4f}. Everything that was answered is stored; {remedy}"
    )


def run_budget() -> str:
    """Name the budget of one run."""
    return f"run:{uuid.uuid4()}"


@contextlib.asynccontextmanager
async def holding(
    spending: Spending, escrow: Escrow | None, model: ModelId, request: Request
) -> AsyncIterator[Hold]:
    """Hold the most that a call can cost while it is made; then count what it did cost."""
    hold = Hold(spending.bound_micros(model, request))
    if escrow is not None:
        await escrow.reserve(hold.bound_micros)
    cost, presumed = Decimal(0), False
    try:
        yield hold
    except BaseException as exc:
        presumed = hold.sent and hold.reply is None and may_be_billed(exc)
        raise
    finally:
        if hold.reply is not None:
            cost = spending.charge(model, hold.reply.tokens_in, hold.reply.tokens_out)
            untold = hold.reply.tokens_in is None or hold.reply.tokens_out is None
            presumed = untold and bool(hold.bound_micros)
        if presumed:
            spending.presume(hold.bound_micros)
        if escrow is not None:
            escrow.settle(hold.bound_micros, cost, presumed=presumed)
