"""Shared parts of the economy's commands: the actor, the clock, keys, and moves as commands."""

from __future__ import annotations

import contextlib
import inspect
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heretix.cli import options as opt
from heretix.core.errors import RecordError, UsageError
from heretix.economy.moves import Actor, parse_amount

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from heretix.core.clock import Clock
    from heretix.economy.episode.state import Episode
    from heretix.economy.market import Side
    from heretix.economy.moves import Field, Move
    from heretix.measurement.runner import Tally

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
_WAYS_ON = {
    "wrong_state": "; `heretix episode show EPISODE` says what comes next",
    "insufficient_funds": "; `heretix ledger balances --person NAME` shows what there is",
}
_LONGEST_MS = 36_500 * 86_400_000
"""A century: what comes of longer times is no date any more."""


def resolve_episode(actor: Actor, ref: str) -> str:
    """Return the id of the episode that `ref` means: an id, or the newest one."""
    if ref != LATEST:
        return ref
    newest = actor.exchange.episodes(limit=1)
    if not newest:
        raise RecordError(f"`latest` names no episode: {NO_EPISODE}")
    return newest[0].id


@contextlib.contextmanager
def open_economy(
    db: str | None, at: str | None = None, *, create: bool = True, absent: str = NO_EPISODE
) -> Iterator[Actor]:
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
            yield Actor(store=store, exchange=exchange, clock=clock, settings=settings)
        except RefusedError as exc:
            way_on = _WAYS_ON.get(exc.status, "")
            raise RefusedError(f"{exc}{way_on}", status=exc.status, reason=exc.reason) from exc


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


def side_of(text: str) -> Side:
    """The side that a word or its first letter names."""
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


def run_measurement(work: Coroutine[Any, Any, Any]) -> Any:
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
    from heretix.cli.run import watching

    with watching(opt.err_console(), samples, as_json=as_json) as tally:
        yield tally


# Moves as commands, made from their definitions.


def add_move_command(
    app: typer.Typer, move: Move, show: Callable[[Actor, str, Any, bool], None]
) -> None:
    """Add the command of a move; `show` prints what came of it, as JSON if asked."""
    parameters: dict[str, tuple[Any, Any]] = {"episode": (EpisodeArgument, inspect.Parameter.empty)}
    parameters |= {field.name: _option(field) for field in move.fields}
    if move.role == "explorer":
        parameters |= {"person": (AsOption, "me"), "key": (KeyOption, None)}
    parameters |= {
        "at": (AtOption, None),
        "db": (opt.DbOption, None),
        "as_json": (opt.JsonOption, False),
    }

    def command(**given: Any) -> None:
        with open_economy(given["db"], given["at"], create=False) as opened:
            key = key_of(given.get("key"))
            actor = replace(opened, person=given.get("person", ""), key=key)
            episode = resolve_episode(actor, given["episode"])
            made = _make_move(actor, move, episode, given)
            show(actor, episode, made, given["as_json"])

    command.__doc__ = move.help
    command.__annotations__ = {name: kind for name, (kind, _) in parameters.items()}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value)
            for name, (kind, value) in parameters.items()
        ]
    )
    app.command(move.name, short_help=move.brief or None)(command)


def _make_move(actor: Actor, move: Move, episode_id: str, given: Mapping[str, Any]) -> Any:
    episode = actor.exchange.episode(episode_id)
    values = {field.name: _read_option(field, given[field.name], episode) for field in move.fields}
    if move.make is not None:
        return move.make(actor, episode_id, values)
    assert move.plan is not None, "it is made or measured"
    assert move.measure is not None, "it is made or measured"
    step, terms = move.plan(actor, episode_id), episode.terms
    samples = terms.K * terms.R * len(step.models) * step.times
    with watched(samples, as_json=given["as_json"]) as tally:
        return run_measurement(move.measure(replace(actor, observer=tally), episode_id, values))


def _option(field: Field) -> tuple[Any, Any]:
    """Make the option of a field, by its kind, and its default."""
    flag, default = f"--{field.label.replace('_', '-')}", inspect.Parameter.empty
    match field.kind:
        case "flag":
            return Annotated[bool, typer.Option(flag, help=field.help)], False
        case "yes_no":
            both = f"{flag}/--not-{flag.removeprefix('--')}"
            return Annotated[bool | None, typer.Option(both, help=field.help)], None
        case "choice":
            assert field.choices is not None, "a choice has choices"
            names = [choice.value for choice in field.choices]
            said = f"{', '.join(names[:-1])} or {names[-1]}."
            return Annotated[str, typer.Option(flag, help=said)], names[0]
        case "bond":
            said = "What is put behind it (else the least)."
            return Annotated[str | None, typer.Option(flag, help=said)], None
        case "whole":
            option = typer.Option(flag, help=field.help, min=field.least, max=field.most)
            return Annotated[int, option], default
        case _:
            return Annotated[str, typer.Option(flag, help=field.help)], default


def _read_option(field: Field, value: Any, episode: Episode) -> Any:
    match field.kind:
        case "choice":
            assert field.choices is not None, "a choice has choices"
            known = {choice.value: choice for choice in field.choices}
            if value not in known:
                raise UsageError(
                    f"`--{field.label}` must be one of {', '.join(known)}, got {value!r}"
                )
            return known[value]
        case "bond" | "amount" if value is not None:
            return parse_amount(value, episode.terms.currency, most=field.most)
        case "bond":
            assert field.least_of is not None, "a bond has a least"
            return field.least_of(episode)
        case _:
            return value
