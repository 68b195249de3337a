"""`heretix market`, `rewards`, `ledger` and `explore`; and what all commands of the economy share:
the actor, the clock, keys, and moves as commands."""

from __future__ import annotations

import contextlib
import inspect
import uuid
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heretix.cli import options as opt
from heretix.cli import output
from heretix.cli.output import say
from heretix.core.canonical import encode
from heretix.core.errors import RecordError, RefusedError, UsageError
from heretix.core.lenses import EARNING
from heretix.economy.episode.state import State
from heretix.economy.ledger import parse_amount, user_account
from heretix.economy.market import Side, price_ppm
from heretix.economy.moves import STAKE, Actor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from heretix.core.clock import Clock
    from heretix.economy.episode.state import Episode
    from heretix.economy.exchange import TypicalRate
    from heretix.economy.exploration_service import ExplorationService
    from heretix.economy.market import Quote
    from heretix.economy.moves import Field, Move

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
KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="Idempotency key: the same one never acts twice. Else random."),
]
EpisodeArgument = Annotated[
    str, typer.Argument(help="The episode's id, or `latest`.", metavar="EPISODE")
]
AmountArgument = Annotated[str, typer.Argument(help="Play money, such as 25 or 12.50.")]

NO_EPISODE: Final = (  # Said where there is no store, to those who look for episodes
    "no episode was opened here yet; open one with "
    '`heretix episode open "A claim." --practice` first'
)
NO_ACCOUNT: Final = (
    "nobody has an account here yet; give somebody one with `heretix ledger join NAME` first"
)
_WAYS_ON: Final = {
    "wrong_state": "; `heretix episode show EPISODE` says what comes next",
    "insufficient_funds": "; `heretix ledger balances --person NAME` shows what there is",
}


@contextlib.contextmanager
def open_economy(
    db: str | None, at: str | None = None, *, create: bool = False, absent: str = NO_EPISODE
) -> Iterator[Actor]:
    """Open the store for business. The operator's accounts are made on first use.

    Without `create` there must be one; `absent` says what to do first where there is none. One
    that can only be read is good for looking.
    """
    from heretix.economy.exchange import Exchange

    clock, settings = read_clock(at), opt.read_settings(db)
    with opt.open_store(db, create=create, absent=absent) as store:
        exchange = Exchange(store, clock=clock)
        if store.writable:
            exchange.ensure_house()
        try:
            yield Actor(store=store, exchange=exchange, clock=clock, settings=settings)
        except RefusedError as exc:
            way_on = _WAYS_ON.get(exc.status, "")
            raise RefusedError(f"{exc}{way_on}", status=exc.status, reason=exc.reason) from exc


def resolve_episode(actor: Actor, ref: str) -> str:
    """Return the id of the episode that `ref` means: an id, or the newest one."""
    if ref != "latest":
        return ref
    newest = actor.exchange.episodes(limit=1)
    if not newest:
        raise RecordError(f"`latest` names no episode: {NO_EPISODE}")
    return newest[0].id


def read_clock(text: str | None) -> Clock:
    """Return the machine's clock, or one that is held at the time `text` names, now or later.

    Held earlier, it would let somebody bet or reveal after the time for it.
    """
    from heretix.core.clock import CENTURY_MS, ManualClock, SystemClock, parse_duration_ms

    if text is None:
        return SystemClock()
    now_ms = SystemClock().now_ms()
    if text.startswith("+"):
        return ManualClock(now_ms + parse_duration_ms("--at", text[1:]))
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
    return ManualClock(at_ms)


def make_key(given: str | None) -> str:
    """Return the key that was given, or a new one."""
    return uuid.uuid4().hex if given is None else given


def say_key(key: str, *, given: str | None) -> None:
    """Say what a key that was made up is good for; whoever gave one knows."""
    if given is None:
        say(f"run again with --key {key} it would be this same move, not another", style="dim")


def run_measurement(
    measure: Callable[[Actor], Coroutine[Any, Any, Any]],
    actor: Actor,
    samples: int,
    *,
    as_json: bool,
) -> Any:
    """Run a measurement to its end under a display; Ctrl-C says that nothing was decided."""
    from heretix.cli.run import watching
    from heretix.core.event_loop import run_async

    output.silence_retries()
    with watching(output.err_console(), samples, as_json=as_json) as tally:
        try:
            return run_async(measure(replace(actor, observer=tally)))
        except KeyboardInterrupt:
            output.err_console().print(
                "Stopped. Nothing was decided; the same command begins anew."
            )
            raise typer.Exit(130) from None


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
        with open_economy(given["db"], given["at"]) as opened:
            key = make_key(given.get("key"))
            actor = replace(opened, person=given.get("person", ""), key=key)
            episode = resolve_episode(actor, given["episode"])
            made = _make_move(actor, move, episode, given)
            show(actor, episode, made, given["as_json"])

    command.__doc__ = move.help
    app.command(move.name, short_help=move.brief or None)(opt.set_parameters(command, parameters))


def _make_move(actor: Actor, move: Move, episode_id: str, given: Mapping[str, Any]) -> Any:
    episode = actor.exchange.episode(episode_id)
    values = {field.name: _read_option(field, given[field.name], episode) for field in move.fields}
    if move.make is not None:
        return move.make(actor, episode_id, values)
    measure = move.measure
    assert move.plan is not None, "it is made or measured"
    assert measure is not None, "it is made or measured"
    step, terms = move.plan(actor, episode_id), episode.terms
    samples = terms.K * terms.R * len(step.models) * step.times
    return run_measurement(
        lambda watched: measure(watched, episode_id, values),
        actor,
        samples,
        as_json=given["as_json"],
    )


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


# `heretix market`: bet on whether a belief will move, and know beforehand what it can cost.

market_app = typer.Typer(help="Claim markets: quote, buy, positions.", no_args_is_help=True)

SideArgument = Annotated[
    str, typer.Argument(help="heretic: the belief goes up; orthodox: down.", metavar="SIDE")
]
_SLIPPAGE: Final = 99, 100


@market_app.command("list")
def list_markets(
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that can't be bet on any more.")
    ] = False,
    limit: opt.LimitOption = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List markets that take bets."""
    from heretix.report.terminal_economy import episodes_table

    states = (None,) if everything else (State.OPEN, State.CHALLENGE)
    with open_economy(db) as actor:
        found = [
            one for state in states for one in actor.exchange.episodes(state=state, limit=limit)
        ]
    nothing = 'no market is open; `heretix episode open "A claim." --practice` opens one'
    found = sorted(found, key=lambda item: -item.created_ms)[:limit]
    output.show(found, episodes_table, as_json=as_json, empty=nothing)


@market_app.command("show", short_help="Show the two pools of an episode: prices and stakes.")
def show(
    episode: EpisodeArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Show the two pools of an episode: prices, what they imply, what is staked."""
    from heretix.report.terminal_economy import market_view

    with open_economy(db) as actor:
        found = actor.exchange.episode(resolve_episode(actor, episode))
        positions = actor.exchange.positions(found.id)
    if not as_json:
        output.console().print(market_view(found, positions))
        return
    market = found.market
    prices = {
        side.value: None
        if market is None
        else {
            "price_ppm": price_ppm(market.price(side)),
            "implied_ppm": price_ppm(market.probability(side)),
        }
        for side in Side
    }
    state = {"episode": found.id, "state": found.state, "market": market}
    output.print_json({**state, "sides": prices, "positions": positions})


def _read_bet(actor: Actor, episode: str, side: str, amount: str) -> tuple[str, Side, int]:
    """Read the currency of an episode, the side that a word or its first letter names, a stake."""
    currency = actor.exchange.episode(episode).terms.currency
    word = side.strip().lower()
    found = [one for one in Side if word and one.value.startswith(word)]
    if len(found) != 1:
        raise UsageError(f"`side` must be heretic or orthodox, got {side!r}")
    return currency, found[0], parse_amount(amount, currency)


@market_app.command("quote", short_help="Say what a bet would buy now, win at least, lose at most.")
def quote(
    episode: EpisodeArgument,
    side: SideArgument,
    amount: AmountArgument,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Say what a bet would buy now, the gain it is sure of if it wins, and the most it can lose."""
    from heretix.report.terminal_economy import quote_view

    with open_economy(db) as actor:
        episode = resolve_episode(actor, episode)
        currency, wanted, stake = _read_bet(actor, episode, side, amount)
        offer = actor.exchange.quote(episode, wanted, stake)
        typical = actor.exchange.typical_rate()
    if as_json:
        output.print_json(_quote_content(offer, typical))
    else:
        output.console().print(quote_view(offer, currency, typical))


@market_app.command("buy")
def buy(
    episode: EpisodeArgument,
    side: SideArgument,
    amount: AmountArgument,
    person: AsOption = "me",
    min_shares: Annotated[
        int | None,
        typer.Option(
            "--min-shares",
            help="Micro-shares to get at least (else 99% of what is quoted at this moment).",
            min=0,
        ),
    ] = None,
    key: KeyOption = None,
    at: AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Bet. The stake is locked until the episode ends, and can lose 35% of itself at most."""
    from heretix.report.terminal_economy import money, quote_view

    chosen = make_key(key)
    with open_economy(db, at) as opened:
        actor = replace(opened, person=person, key=chosen)
        episode = resolve_episode(actor, episode)
        currency, wanted, stake = _read_bet(actor, episode, side, amount)
        # A retry under a key of one's own must ask for the same thing, whatever the price is now.
        offer = None if key is not None else actor.exchange.quote(episode, wanted, stake)
        if min_shares is None:
            min_shares = 0 if offer is None else offer.shares * _SLIPPAGE[0] // _SLIPPAGE[1]
        given = {"side": wanted, "amount": stake, "min_shares": min_shares}
        position: Any = STAKE.run(actor, episode, given)
        left = actor.exchange.balance(person, currency)
        typical = None if offer is None or as_json else actor.exchange.typical_rate()
    if as_json:
        output.print_json({"key": chosen, "position": position, "balance": left})
        return
    if offer is not None:
        output.console().print(quote_view(offer, currency, typical))
    say(f"bet {position.number} taken; {person} has {money(left, currency)} left")
    say_key(chosen, given=key)


@market_app.command("positions")
def positions(
    person: AsOption = "me", db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """List a person's bets, newest first."""
    from heretix.report.terminal_economy import positions_table

    user_account(person, "PLAY")  # A name that can't be anybody's is a mistake, not a newcomer.
    with open_economy(db) as actor:
        found = actor.exchange.positions_of(person)
    nothing = f"{person} has no bets; `heretix market list` shows what can be bet on"
    output.show(found, positions_table, as_json=as_json, empty=nothing)


def _quote_content(offer: Quote, typical: TypicalRate | None) -> dict[str, Any]:
    tau = offer.tau_max_ppm
    return {
        "side": offer.side.value,
        "stake": offer.stake,
        "shares": offer.shares,
        "average_price_ppm": price_ppm(offer.average_price),
        "marginal_price_ppm": price_ppm(offer.marginal_price),
        "implied_ppm": price_ppm(offer.probability),
        "tau_max_ppm": tau,
        "fee_ppm": offer.fee_ppm,
        "floor": offer.floor(tau),
        "floor_after_fee": offer.floor_after_fee(tau),
        "typical_rate_ppm": None if typical is None else typical.rate_ppm,
        "typical_gain": None if typical is None else offer.floor_after_fee(typical.rate_ppm),
        "worst_case": offer.worst_case,
    }


# `heretix rewards`: what was paid to whom in an episode, and why, line by line.

rewards_app = typer.Typer(help="Rewards, explained.", no_args_is_help=True)


@rewards_app.callback()
def _group() -> None:
    """Rewards, explained."""


_ALL: Final = 2**31


@rewards_app.command("explain", short_help="Explain an episode and every payment of it.")
def explain(
    episode: EpisodeArgument,
    person: Annotated[
        str | None, typer.Option("--person", help="Only what concerns this person.", metavar="NAME")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Explain an episode in short, then every payment, and each reward down to its numbers.

    In short are the credited path, q₁, q₂ and q, the rate, and what each account came to by what.
    """
    from heretix.economy.episode.settlement import summarize, summarize_accounts
    from heretix.economy.rewards import explain as explain_reward
    from heretix.economy.sentences import Surface, sentence
    from heretix.report.terminal_economy import moment, money

    with open_economy(db) as actor:
        snapshot = actor.exchange.snapshot(resolve_episode(actor, episode))
        statements = actor.exchange.statements(snapshot.episode.id)
        entries = actor.exchange.history(episode=snapshot.episode.id, limit=_ALL)
    settlement, currency = snapshot.settlement, snapshot.episode.terms.currency
    account = None if person is None else user_account(person, currency).id
    surface = Surface(currency)
    short = []
    if settlement is not None:
        came = summarize_accounts(entry.transfer for entry in entries)
        # What there is to say of others isn't asked for.
        came = tuple(one for one in came if account in {None, one.parameters["account"]})
        short = [*summarize(snapshot.episode, settlement), *came]
    payments = [
        {"move": statement.move, "at_ms": statement.at_ms}
        | encode(line)
        | {"text": sentence(line.reason, surface)}
        for statement in statements
        for line in statement.lines
        if account in {None, line.account}
    ]
    book = settlement.rewards if settlement else None
    rewards = [
        {
            **encode(item),
            "amount": item.amount,
            "explained": [sentence(line, surface) for line in explain_reward(item)],
        }
        for item in (book.rewards if book else ())
        if account in {None, item.step.account}
    ]
    if as_json:
        outcome = settlement and settlement.outcome
        summary = [encode(line) | {"text": sentence(line, surface)} for line in short]
        told = {"payments": payments, "outcome": outcome, "rewards": rewards}
        output.print_json({"summary": summary, **told})
        return
    if settlement is None:
        say("not settled yet: rewards are known when the durable belief is", style="dim")
    for line in short:
        say(sentence(line, surface))
    for (at_ms, move), lines in groupby(payments, key=itemgetter("at_ms", "move")):
        say(f"\n{moment(at_ms)}  {move}", style="bold")
        for line in lines:
            say(f"  {money(line['amount'], currency)} to {line['account']}: {line['text']}")
    for reward in rewards:
        say("\n".join(["", *reward["explained"]]))
    if not payments:
        say(f"nothing was paid to {person} in {episode}" if person else "nothing paid yet")


# `heretix ledger`: who holds what, every transfer, and whether it all adds up.

ledger_app = typer.Typer(
    help="Play money: accounts, transfers, verification.", no_args_is_help=True
)

PersonOption = Annotated[
    str | None, typer.Option("--person", help="Only this person's accounts.", metavar="NAME")
]
AgainstOption = Annotated[
    Path | None,
    typer.Option("--against", help="A head that was kept: history up to it is as it was."),
]
OfEpisodeOption = Annotated[
    str | None, typer.Option("--episode", help="Only what belongs to this episode.", metavar="ID")
]


@ledger_app.command("join")
def join(
    name: Annotated[str, typer.Argument(help="A name without a colon.")],
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Give a person an account and a purse of play money. Betting does it too."""
    from heretix.report.terminal_economy import balances_table

    with open_economy(db, create=True) as actor:
        holding = actor.exchange.join(name)
    output.show(holding, lambda one: balances_table([one]), as_json=as_json)


@ledger_app.command("issue")
def issue(
    who: Annotated[str, typer.Argument(help="A person, or one of the operator's accounts.")],
    amount: AmountArgument,
    key: KeyOption = None,
    at: AtOption = None,
    db: opt.DbOption = None,
) -> None:
    """Make play money and give it to someone."""
    chosen = make_key(key)
    with open_economy(db, at, create=True) as actor:
        (transfer,) = actor.exchange.issue(who, parse_amount(amount), key=chosen)
    typer.echo(f"{transfer.amount} minor units to {transfer.credit}")
    say_key(chosen, given=key)


@ledger_app.command("balances")
def balances(
    person: PersonOption = None,
    episode: OfEpisodeOption = None,
    currency: Annotated[
        str | None, typer.Option("--currency", help="PLAY, or XC for exploration credits.")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show accounts and what they hold."""
    from heretix.report.terminal_economy import balances_table

    with open_economy(db, absent=NO_ACCOUNT) as actor:
        found = actor.exchange.balances(person=person, episode=episode, currency=currency)
    nothing = "no account fits; `heretix ledger join NAME` gives a person one"
    output.show(found, balances_table, as_json=as_json, empty=nothing)


@ledger_app.command("history")
def history(
    person: PersonOption = None,
    account: Annotated[
        str | None, typer.Option("--account", help="Only this account.", metavar="ID")
    ] = None,
    episode: OfEpisodeOption = None,
    limit: opt.LimitOption = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List transfers, newest first."""
    from heretix.report.terminal_economy import history_table

    if person is not None and account is None:
        account = user_account(person, "PLAY").id
    with open_economy(db, absent=NO_ACCOUNT) as actor:
        found = actor.exchange.history(account=account, episode=episode, limit=limit)
    width = output.console().width
    output.show(
        found,
        lambda entries: history_table(entries, width=width),
        as_json=as_json,
        empty="no transfer fits",
    )


@ledger_app.command("head", short_help="Sign all that has happened, for others to keep.")
def head(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write here (.json), else to the screen.")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Sign the last event and all before it with this machine's key, which is made on first use.

    Publish it or give it away: `heretix ledger verify --against` finds any history rewritten since.
    """
    from heretix.economy.heads import dump_head, key_file_of

    with open_economy(db, absent=NO_ACCOUNT) as actor:
        signed = actor.exchange.sign_head(key_file_of(actor.settings.env))
    if out is not None:
        try:
            out.write_text(dump_head(signed), encoding="utf-8")
        except OSError as exc:
            raise RecordError(f"`{out}` can't be written: {exc.strerror}") from exc
    if as_json:
        output.print_json(signed)
    else:
        say(f"event {signed.seq:,} and all before: {signed.root}")
        say(f"every chain then: {signed.chains}")
        say(f"signed by {signed.key}: {signed.signature}")
        if out is not None:
            say(f"written to {out}; check later: heretix ledger verify --against {out}")


@ledger_app.command("verify")
def verify(
    episode: OfEpisodeOption = None,
    against: AgainstOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Replay everything from the first event: hashes, rows, balances. Ends with 1 if one is off.

    With `--episode` its own chain alone is read, and all that is kept of it is held against that.
    """
    from heretix.economy.heads import read_head
    from heretix.report.terminal_economy import ledger_view

    kept = None if against is None else read_head(against)
    with open_economy(db, absent=NO_ACCOUNT) as actor:
        of = None if episode is None else resolve_episode(actor, episode)
        report = actor.exchange.verify(episode=of, against=kept)
    if as_json:
        output.print_json({**encode(report), "ok": report.ok})
    else:
        output.console().print(ledger_view(report))
    if not report.ok:
        raise typer.Exit(1)


@ledger_app.command("export")
def export(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write here (.jsonl), else to the screen.")
    ] = None,
    db: opt.DbOption = None,
) -> None:
    """Write the chain of transfers as JSON lines, first to last."""
    with open_economy(db, absent=NO_ACCOUNT) as actor:
        lines = actor.exchange.export()
        if out is None:
            for line in lines:
                output.print_json_text(line)
            return
        count = 0
        try:
            with out.open("w", encoding="utf-8") as file:
                for count, line in enumerate(lines, 1):  # noqa: B007
                    file.write(f"{line}\n")
        except OSError as exc:
            raise RecordError(f"`{out}` can't be written: {exc.strerror}") from exc
    say(f"{count:,} transfers written to {out}")


# `heretix explore`: credits for finding where evidence moves a belief, and who found most.

explore_app = typer.Typer(
    help="The exploration track: credits, standing, feed.", no_args_is_help=True
)


@explore_app.command("credit", short_help="Claim the credits of a finding.")
def credit(
    claim: Annotated[str, typer.Argument(help="A claim that `heretix lens` measured.")],
    person: AsOption = "me",
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model, if several measured it.")
    ] = None,
    lens: Annotated[
        str | None, typer.Option("--lens", help=f"{' or '.join(EARNING)}, if both were measured.")
    ] = None,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Accept planted models: for practice.")
    ] = False,
    at: AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Claim the credits of a finding: a lens and the raw prior whose intervals lie apart.

    A claim is credited once, to whoever asks first. Ends with 1 when it earns nothing.
    """
    from heretix.config import check_claim
    from heretix.report.terminal_economy import credited_view

    claim = check_claim(claim)
    with _open_exploration(db, at) as (_, service):
        found = service.credit(person, claim, model=model, lens=lens, simulated=simulated)
    output.show(found, credited_view, as_json=as_json)
    if found.crediting.amount == 0:
        raise typer.Exit(1)


@explore_app.command("leaderboard", short_help="Rank everybody by reputation, then by credits.")
def leaderboard(
    limit: opt.LimitOption = 20,
    at: AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Rank everybody who challenged or explored, by reputation and then by credits."""
    from heretix.report.terminal_economy import leaderboard_table

    with _open_exploration(db, at) as (_, service):
        found = service.leaderboard(limit=limit)
    nothing = "nobody yet; rewards of episodes count here, and `heretix explore credit`"
    output.show(found, leaderboard_table, as_json=as_json, empty=nothing)


@explore_app.command("reputation")
def reputation(
    person: Annotated[str, typer.Argument(help="Whose.", metavar="NAME")],
    at: AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show one person's standing: reputation, challenges, credits."""
    from heretix.report.terminal_economy import standing_view

    user_account(person, "XC")  # A name that can't be anybody's is a mistake, not a newcomer.
    with _open_exploration(db, at) as (actor, service):
        found = service.standing(person)
        # Whoever challenged or explored has an account; so has a newcomer, who did nothing yet.
        if not actor.exchange.balances(person=person):
            raise RecordError(
                f"`{person}` names nobody who has taken part here; "
                "`heretix explore leaderboard` shows who has"
            )
    output.show(found, standing_view, as_json=as_json)


@explore_app.command("decay")
def decay(at: AtOption = None, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Burn the credits that have decayed by today. Safe to run every day, or never."""
    from heretix.report.terminal_economy import burns_table

    with _open_exploration(db, at) as (_, service):
        found = service.decay()
    nothing = "nothing has decayed since the last time"
    output.show(found, burns_table, as_json=as_json, empty=nothing)


@explore_app.command("feed")
def feed(
    limit: opt.LimitOption = 20, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """List the anomaly feed, and whose each claim is already."""
    from heretix.report.terminal_economy import prospects_table

    with _open_exploration(db, None) as (_, service):
        found = service.prospects(limit=limit)
    if as_json:
        output.print_json(
            [
                {
                    "claim": prospect.anomaly.claim,
                    "model": prospect.anomaly.model,
                    "shock_index": prospect.anomaly.shock_index,
                    "credited_to": prospect.credited_to,
                }
                for prospect in found
            ]
        )
        return
    nothing = "no anomaly stands out yet; `heretix lens` measures claims"
    output.show(found, prospects_table, as_json=False, empty=nothing)


@contextlib.contextmanager
def _open_exploration(db: str | None, at: str | None) -> Iterator[tuple[Actor, ExplorationService]]:
    from heretix.economy.exploration_service import ExplorationService

    with open_economy(db, at, absent=opt.NOTHING_SHOWN) as actor:
        yield actor, ExplorationService(actor.exchange)
