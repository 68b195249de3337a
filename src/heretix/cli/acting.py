"""Who acts, when, and under which key: what the commands of the economy share."""

from __future__ import annotations

import contextlib
import re
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heretix.cli import options as opt

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from heretix.core.clock import Clock
    from heretix.core.settings import Settings
    from heretix.economy.exchange import Exchange
    from heretix.economy.judging.panel import Panel
    from heretix.economy.judging.workflow import EpisodeWorkflow
    from heretix.economy.market import Side
    from heretix.measurement.runner import Observer, Tally
    from heretix.store import Store

__all__ = [
    "Counter",
    "amount_of",
    "clock_at",
    "counter",
    "measured",
    "say",
    "side_of",
]

AsOption = Annotated[
    str, typer.Option("--as", help="Who acts. Play money: a name is all it takes.", metavar="NAME")
]
AtOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        help="Hold the clock: a UTC time (2026-11-15T12:00) or +7d from now.",
        metavar="TIME",
    ),
]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", help="At most this many.", min=1, max=1_000_000)
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="Idempotency key: the same one never acts twice. Else random."),
]
EpisodeArgument = Annotated[
    str, typer.Argument(help="The episode's id, or `latest`.", metavar="EPISODE")
]
AmountArgument = Annotated[str, typer.Argument(help="Play money, such as 25 or 12.50.")]

LATEST = "latest"
NO_EPISODE = (
    "no episode was opened here yet; open one with "
    '`heretix episode open "A claim." --practice` first'
)
"""What the lack of a store means to somebody who looks for episodes."""
NO_ACCOUNT = (
    "nobody has an account here yet; give somebody one with `heretix ledger join NAME` first"
)
_MOMENT = re.compile(r"(?<![\w.])1\d{12}(?![\w.])")
_KEYED = re.compile(r"`by:[^`]+`")
_WAYS_ON = {
    "wrong_state": "; `heretix episode show EPISODE` says what comes next",
    "insufficient_funds": "; `heretix ledger balances --person NAME` shows what there is",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """Where business is done: a store, its exchange, and the time."""

    store: Store
    exchange: Exchange
    clock: Clock
    settings: Settings

    def named(self, ref: str) -> str:
        """The id of the episode that `ref` means: an id, or the newest one."""
        from heretix.core.errors import RecordError

        if ref != LATEST:
            return ref
        newest = self.exchange.episodes(limit=1)
        if not newest:
            raise RecordError(f"`latest` names no episode: {NO_EPISODE}")
        return newest[0].id

    def held(self, at_ms: int) -> Counter:
        """The same counter at a moment that has just passed."""
        from heretix.core.clock import HeldClock
        from heretix.economy.exchange import Exchange

        clock = HeldClock(at_ms)
        return replace(self, clock=clock, exchange=Exchange(self.store, clock=clock))

    def panel(self, observer: Observer | None = None) -> Panel:
        """The panel that measures into this store."""
        from heretix.economy.judging.panel import Panel

        return Panel(self.store, self.settings, observer=observer)

    def workflow(self, observer: Observer | None = None) -> EpisodeWorkflow:
        """The workflow that has things measured."""
        from heretix.economy.judging.workflow import EpisodeWorkflow

        return EpisodeWorkflow(
            self.store,
            self.exchange,
            self.panel(observer),
            clock=self.clock,
            settings=self.settings,
        )


@contextlib.contextmanager
def counter(
    db: str | None, at: str | None = None, *, create: bool = True, absent: str = NO_EPISODE
) -> Iterator[Counter]:
    """Open the store for business. The operator's accounts are made on first use.

    Without `create` there must be one; `absent` says what to do first where there is none. One
    that can only be read is good for looking.
    """
    from heretix.core.errors import RefusedError
    from heretix.core.settings import Settings
    from heretix.economy.exchange import Exchange
    from heretix.store import Store

    clock = clock_at(at)
    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db)
    with Store.open(settings.db, create=create, absent=absent) as store:
        exchange = Exchange(store, clock=clock)
        if store.writable:
            exchange.ensure_house()
        try:
            yield Counter(store=store, exchange=exchange, clock=clock, settings=settings)
        except RefusedError as exc:
            raise RefusedError(_readable(str(exc), exc.status), status=exc.status) from exc


def clock_at(text: str | None) -> Clock:
    """The machine's clock, or one that is held at the time `text` names, which isn't over.

    Held earlier, it would let somebody bet or reveal after the time for it.
    """
    from heretix.core.clock import CENTURY_MS, HeldClock, SystemClock, parse_duration_ms

    if text is None:
        return SystemClock()
    now_ms = SystemClock().now_ms()
    if text.startswith("+"):
        return HeldClock(now_ms + parse_duration_ms("--at", text[1:]))
    from datetime import UTC, datetime

    from heretix.core.errors import UsageError

    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise UsageError(
            f"`--at` must be a time like 2026-11-15T12:00 or +7d, got {text!r}"
        ) from exc
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    at_ms = int(moment.timestamp() * 1000)
    if not now_ms <= at_ms <= now_ms + CENTURY_MS:
        raise UsageError(
            f"`--at` must lie within a century from now, got {text!r}; time only runs forwards, "
            "and +0s is now"
        )
    return HeldClock(at_ms)


def amount_of(text: str, currency: str = "PLAY") -> int:
    """Minor units of an amount as people write it."""
    from decimal import Decimal, DecimalException

    from heretix.core.errors import UsageError
    from heretix.economy.exchange import require_currency
    from heretix.economy.ledger import MAX_AMOUNT

    exponent = require_currency(currency).exponent
    try:
        minor = Decimal(text).scaleb(exponent)
        # Compared before it is spelt out: 1e999999999 is short as it is written, and only so.
        if not (minor.is_finite() and 0 < minor <= MAX_AMOUNT and minor == int(minor)):
            raise DecimalException
    except DecimalException as exc:
        raise UsageError(
            f"`amount` must be above 0 with at most {exponent} decimals, and at most "
            f"{MAX_AMOUNT // 10**exponent}, got {text[:40]!r}"
        ) from exc
    return int(minor)


def side_of(text: str) -> Side:
    """The side that a word or its first letter names."""
    from heretix.core.errors import UsageError
    from heretix.economy.market import Side

    word = text.strip().lower()
    found = [side for side in Side if word and side.value.startswith(word)]
    if len(found) != 1:
        raise UsageError(f"`side` must be heretic or orthodox, got {text!r}")
    return found[0]


def key_of(text: str | None) -> str:
    """The key that was given, or a new one."""
    return uuid.uuid4().hex if text is None else text


def say_key(key: str, *, given: str | None) -> None:
    """Say what a key that was made up is good for; whoever gave one knows."""
    if given is None:
        say(f"run again with --key {key} it would be this same move, not another", style="dim")


def say(text: str, style: str | None = None) -> None:
    """Print a line as it is: a name may hold what would otherwise be markup or an emoji."""
    opt.console().print(text, style=style, markup=False, emoji=False)


def measured(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a measurement to its end; Ctrl-C says that nothing was decided."""
    import stamina.instrumentation

    from heretix.core.event_loop import run_async

    # The retry library's log lines would run into the display.
    stamina.instrumentation.set_on_retry_hooks([])
    try:
        return run_async(work)
    except KeyboardInterrupt:
        opt.err_console().print("Stopped. Nothing was decided; the same command begins anew.")
        raise typer.Exit(130) from None


@contextlib.contextmanager
def watched(samples: int, *, as_json: bool) -> Iterator[Tally]:
    """A display of how far a measurement is."""
    from heretix.cli.progress import watching

    with watching(opt.err_console(), samples, as_json=as_json) as tally:
        yield tally


def _readable(message: str, status: str) -> str:
    """A refusal with its moments as people write them, rules count milliseconds; and a way on."""
    from heretix.report.terminal_economy import moment

    said = _MOMENT.sub(lambda found: moment(int(found[0])), message)
    # A move is named by its idempotency key, which tells a person nothing.
    said = _KEYED.sub("the move", said)
    return said + _WAYS_ON.get(status, "")
