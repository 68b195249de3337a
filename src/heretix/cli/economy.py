"""`heretix market`, `rewards`, `ledger` and `explore`: bets, payouts, money and findings."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heretix.cli import acting
from heretix.cli import options as opt
from heretix.cli.output import print_json, print_json_text
from heretix.core.canonical import encode
from heretix.core.errors import RecordError
from heretix.economy.episode.state import State
from heretix.economy.ledger import user_account
from heretix.economy.market import Side, price_ppm
from heretix.economy.moves import STAKE, Actor, parse_amount

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from heretix.economy.episode.settlement import Settlement
    from heretix.economy.exchange import StoredStatement
    from heretix.economy.exploration_service import ExplorationService
    from heretix.economy.sentences import Surface

# `heretix market`: bet on whether a belief will move, and know beforehand what it can cost.

market_app = typer.Typer(help="Claim markets: quote, buy, positions.", no_args_is_help=True)

SideArgument = Annotated[
    str, typer.Argument(help="heretic: the belief goes up; orthodox: down.", metavar="SIDE")
]
_SLIPPAGE = 99, 100


@market_app.command("list")
def list_markets(
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that can't be bet on any more.")
    ] = False,
    limit: acting.LimitOption = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List markets that take bets."""
    from heretix.report.terminal_economy import episodes_table

    with acting.open_economy(db, create=False) as actor:
        states = (None,) if everything else (State.OPEN, State.CHALLENGE)
        found = [
            item for state in states for item in actor.exchange.episodes(state=state, limit=limit)
        ]
    found = sorted(found, key=lambda item: -item.created_ms)[:limit]
    if as_json:
        print_json(encode(tuple(found)))
    elif found:
        opt.console().print(episodes_table(found))
    else:
        acting.say('no market is open; `heretix episode open "A claim." --practice` opens one')


@market_app.command("show", short_help="Show the two pools of an episode: prices and stakes.")
def show(
    episode: acting.EpisodeArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Show the two pools of an episode: prices, what they imply, what is staked."""
    from heretix.report.terminal_economy import market_view

    with acting.open_economy(db, create=False) as actor:
        episode = acting.resolve_episode(actor, episode)
        found = actor.exchange.episode(episode)
        positions = actor.exchange.positions(episode)
    if not as_json:
        opt.console().print(market_view(found, positions))
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
    print_json(
        {
            "episode": found.id,
            "state": found.state.value,
            "market": encode(market),
            "sides": prices,
            "positions": encode(tuple(positions)),
        }
    )


@market_app.command("quote", short_help="Say what a bet would buy now, win at least, lose at most.")
def quote(
    episode: acting.EpisodeArgument,
    side: SideArgument,
    amount: acting.AmountArgument,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Say what a bet would buy now, the gain it is sure of if it wins, and the most it can lose."""
    from heretix.report.terminal_economy import quote_view

    with acting.open_economy(db, create=False) as actor:
        episode = acting.resolve_episode(actor, episode)
        currency = actor.exchange.episode(episode).terms.currency
        offer = actor.exchange.quote(episode, acting.side_of(side), parse_amount(amount, currency))
    if as_json:
        print_json(_plain(offer))
    else:
        opt.console().print(quote_view(offer, currency))


@market_app.command("buy")
def buy(
    episode: acting.EpisodeArgument,
    side: SideArgument,
    amount: acting.AmountArgument,
    person: acting.AsOption = "me",
    min_shares: Annotated[
        int | None,
        typer.Option(
            "--min-shares",
            help="Micro-shares to get at least (else 99% of what is quoted at this moment).",
            min=0,
        ),
    ] = None,
    key: acting.KeyOption = None,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Bet. The stake is locked until the episode ends, and can lose 35% of itself at most."""
    from heretix.report.terminal_economy import money, quote_view

    chosen = acting.key_of(key)
    with acting.open_economy(db, at, create=False) as opened:
        actor = replace(opened, person=person, key=chosen)
        episode = acting.resolve_episode(actor, episode)
        exchange = actor.exchange
        currency = exchange.episode(episode).terms.currency
        wanted, stake = acting.side_of(side), parse_amount(amount, currency)
        # A retry under a key of one's own must ask for the same thing, whatever the price is now.
        offer = None if key is not None else exchange.quote(episode, wanted, stake)
        if min_shares is None:
            min_shares = 0 if offer is None else offer.shares * _SLIPPAGE[0] // _SLIPPAGE[1]
        given = {"side": wanted, "amount": stake, "min_shares": min_shares}
        position: Any = STAKE.run(actor, episode, given)
        left = exchange.balance(person, currency)
    if as_json:
        print_json({"key": chosen, "position": encode(position), "balance": left})
        return
    if offer is not None:
        opt.console().print(quote_view(offer, currency))
    acting.say(f"bet {position.number} taken; {person} has {money(left, currency)} left")
    acting.say_key(chosen, given=key)


@market_app.command("positions")
def positions(
    person: acting.AsOption = "me", db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """List a person's bets, newest first."""
    from heretix.report.terminal_economy import positions_table

    user_account(person, "PLAY")  # A name that can't be anybody's is a mistake, not a newcomer.
    with acting.open_economy(db, create=False) as actor:
        found = actor.exchange.positions_of(person)
    if as_json:
        print_json(encode(tuple(found)))
    elif found:
        opt.console().print(positions_table(found, "PLAY"))
    else:
        acting.say(f"{person} has no bets; `heretix market list` shows what can be bet on")


def _plain(offer: Any) -> dict[str, Any]:

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
        "worst_case": offer.worst_case,
    }


# `heretix rewards`: what was paid to whom in an episode, and why, line by line.

rewards_app = typer.Typer(help="Rewards, explained.", no_args_is_help=True)


@rewards_app.callback()
def _group() -> None:
    """Rewards, explained."""


@rewards_app.command("explain", short_help="Explain every payment of an episode.")
def explain(
    episode: acting.EpisodeArgument,
    person: Annotated[
        str | None, typer.Option("--person", help="Only what concerns this person.", metavar="NAME")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Explain every payment of an episode, and each reward down to the numbers it is made of."""

    with acting.open_economy(db, create=False) as actor:
        episode = acting.resolve_episode(actor, episode)
        found = actor.exchange.episode(episode)
        account = None if person is None else user_account(person, found.terms.currency).id
        statements = actor.exchange.statements(episode)
        settlement = actor.exchange.settlement(episode)
    if as_json:
        print_json(_rewards_plain(statements, settlement, account, found.terms.currency))
        return
    from heretix.economy.sentences import Surface, sentence
    from heretix.report.terminal_economy import moment, money

    shown, surface = 0, Surface(found.terms.currency)
    for statement in statements:
        lines = [line for line in statement.lines if account in {None, line.account}]
        if lines:
            acting.say(f"{moment(statement.at_ms)}  {statement.move}", style="bold")
        for line in lines:
            shown += 1
            amount = money(line.amount, found.terms.currency)
            acting.say(f"  {amount} to {line.account}: {sentence(line.reason, surface)}")
    _show_rewards(settlement, account, surface)
    if not shown:
        acting.say(f"nothing was paid to {person} in {episode}" if person else "nothing paid yet")


def _show_rewards(settlement: Settlement | None, account: str | None, surface: Surface) -> None:
    from heretix.economy.rewards import explain as lines_of
    from heretix.economy.sentences import sentence

    if settlement is None:
        acting.say("not settled yet: rewards are known when the durable belief is", style="dim")
        return
    outcome = settlement.outcome
    if outcome.void is not None:
        acting.say(f"void ({outcome.void.value}): everything went back whole", style="yellow")
    for item in settlement.rewards.rewards if settlement.rewards else ():
        if account in {None, item.step.account}:
            acting.say("")
            for line in lines_of(item):
                acting.say(sentence(line, surface))


def _rewards_plain(
    statements: list[StoredStatement],
    settlement: Settlement | None,
    account: str | None,
    currency: str,
) -> dict[str, object]:
    from heretix.economy.rewards import explain as lines_of
    from heretix.economy.sentences import Surface, sentence

    surface = Surface(currency)
    book = settlement.rewards if settlement else None
    return {
        "payments": [
            {
                "move": statement.move,
                "at_ms": statement.at_ms,
                **encode(line),
                "text": sentence(line.reason, surface),
            }
            for statement in statements
            for line in statement.lines
            if account in {None, line.account}
        ],
        "outcome": None if settlement is None else encode(settlement.outcome),
        "rewards": [
            {
                **encode(item),
                "amount": item.amount,
                "explained": [sentence(line, surface) for line in lines_of(item)],
            }
            for item in (book.rewards if book else ())
            if account in {None, item.step.account}
        ],
    }


# `heretix ledger`: who holds what, every transfer, and whether it all adds up.

ledger_app = typer.Typer(
    help="Play money: accounts, transfers, verification.", no_args_is_help=True
)

PersonOption = Annotated[
    str | None, typer.Option("--person", help="Only this person's accounts.", metavar="NAME")
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

    with acting.open_economy(db) as actor:
        holding = actor.exchange.join(name)
    if as_json:
        print_json(encode(holding))
    else:
        opt.console().print(balances_table([holding]))


@ledger_app.command("issue")
def issue(
    who: Annotated[str, typer.Argument(help="A person, or one of the operator's accounts.")],
    amount: acting.AmountArgument,
    key: acting.KeyOption = None,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
) -> None:
    """Make play money and give it to someone."""
    chosen = acting.key_of(key)
    with acting.open_economy(db, at) as actor:
        (transfer,) = actor.exchange.issue(who, parse_amount(amount), key=chosen)
    typer.echo(f"{transfer.amount} minor units to {transfer.credit}")
    acting.say_key(chosen, given=key)


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

    with acting.open_economy(db, create=False, absent=acting.NO_ACCOUNT) as actor:
        found = actor.exchange.balances(person=person, episode=episode, currency=currency)
    if as_json:
        print_json(encode(tuple(found)))
    elif found:
        opt.console().print(balances_table(found))
    else:
        acting.say("no account fits; `heretix ledger join NAME` gives a person one")


@ledger_app.command("history")
def history(
    person: PersonOption = None,
    account: Annotated[
        str | None, typer.Option("--account", help="Only this account.", metavar="ID")
    ] = None,
    episode: OfEpisodeOption = None,
    limit: acting.LimitOption = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List transfers, newest first."""
    from heretix.report.terminal_economy import history_table

    if person is not None and account is None:
        account = user_account(person, "PLAY").id
    with acting.open_economy(db, create=False, absent=acting.NO_ACCOUNT) as actor:
        found = actor.exchange.history(account=account, episode=episode, limit=limit)
    if as_json:
        print_json(encode(tuple(found)))
    elif found:
        console = opt.console()
        console.print(history_table(found, width=console.width))
    else:
        acting.say("no transfer fits")


@ledger_app.command("verify")
def verify(db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Replay every transfer from the first: hashes, balances, pots. Ends with 1 if one is off."""
    from heretix.report.terminal_economy import ledger_view

    with acting.open_economy(db, create=False, absent=acting.NO_ACCOUNT) as actor:
        report = actor.exchange.verify()
    if as_json:
        print_json({**encode(report), "ok": report.ok})
    else:
        opt.console().print(ledger_view(report))
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

    with acting.open_economy(db, create=False, absent=acting.NO_ACCOUNT) as actor:
        lines = actor.exchange.export()
        if out is None:
            for line in lines:
                print_json_text(line)
            return
        count = 0
        try:
            with out.open("w", encoding="utf-8") as file:
                for line in lines:
                    file.write(f"{line}\n")
                    count += 1
        except OSError as exc:
            raise RecordError(f"`{out}` can't be written: {exc.strerror}") from exc
    acting.say(f"{count:,} transfers written to {out}")


# `heretix explore`: credits for finding where evidence moves a belief, and who found most.

explore_app = typer.Typer(
    help="The exploration track: credits, standing, feed.", no_args_is_help=True
)


@explore_app.command("credit", short_help="Claim the credits of a finding.")
def credit(
    claim: Annotated[str, typer.Argument(help="A claim that `heretix lens` measured.")],
    person: acting.AsOption = "me",
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model, if several measured it.")
    ] = None,
    lens: Annotated[
        str | None, typer.Option("--lens", help="HEL or SEL, if both were measured.")
    ] = None,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Accept planted models: for practice.")
    ] = False,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Claim the credits of a finding: a lens and the raw prior whose intervals lie apart.

    A claim is credited once, to whoever asks first. Ends with 1 when it earns nothing.
    """
    from heretix.config import check_claim
    from heretix.report.terminal_economy import credited_view

    with _track(db, at) as track:
        found = track.credit(
            person, check_claim(claim), model=model, lens=lens, simulated=simulated
        )
    if as_json:
        print_json(encode(found))
    else:
        opt.console().print(credited_view(found))
    if found.crediting.amount == 0:
        raise typer.Exit(1)


@explore_app.command("leaderboard", short_help="Rank everybody by reputation, then by credits.")
def leaderboard(
    limit: acting.LimitOption = 20,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Rank everybody who challenged or explored, by reputation and then by credits."""
    from heretix.report.terminal_economy import leaderboard_table

    with _track(db, at) as track:
        found = track.leaderboard(limit=limit)
    if as_json:
        print_json([asdict(standing) for standing in found])
    elif found:
        opt.console().print(leaderboard_table(found))
    else:
        acting.say("nobody yet; rewards of episodes count here, and `heretix explore credit`")


@explore_app.command("reputation")
def reputation(
    person: Annotated[str, typer.Argument(help="Whose.", metavar="NAME")],
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show one person's standing: reputation, challenges, credits."""
    from heretix.report.terminal_economy import standing_view

    user_account(person, "XC")  # A name that can't be anybody's is a mistake, not a newcomer.
    with _counter(db, at) as actor:
        found = _track_of(actor).standing(person)
        # Whoever challenged or explored has an account; so has a newcomer, who did nothing yet.
        if not actor.exchange.balances(person=person):
            raise RecordError(
                f"`{person}` names nobody who has taken part here; "
                "`heretix explore leaderboard` shows who has"
            )
    if as_json:
        print_json(asdict(found))
    else:
        opt.console().print(standing_view(found))


@explore_app.command("decay")
def decay(
    at: acting.AtOption = None, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Burn the credits that have decayed by today. Safe to run every day, or never."""
    from heretix.report.terminal_economy import burns_table

    with _track(db, at) as track:
        found = track.decay()
    if as_json:
        print_json([asdict(burn) for burn in found])
    elif found:
        opt.console().print(burns_table(found))
    else:
        acting.say("nothing has decayed since the last time")


@explore_app.command("feed")
def feed(
    limit: acting.LimitOption = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List the anomaly feed, and whose each claim is already."""
    from heretix.report.terminal_economy import prospects_table

    with _track(db, None) as track:
        found = track.prospects(limit=limit)
    if as_json:
        content = [
            {
                "claim": prospect.anomaly.claim,
                "model": prospect.anomaly.model,
                "shock_index": None
                if prospect.anomaly.shock_index is None
                else prospect.anomaly.shock_index.model_dump(),
                "credited_to": prospect.credited_to,
            }
            for prospect in found
        ]
        print_json(content)
    elif found:
        opt.console().print(prospects_table(found))
    else:
        acting.say("no anomaly stands out yet; `heretix lens` measures claims")


@contextmanager
def _track(db: str | None, at: str | None) -> Iterator[ExplorationService]:
    with _counter(db, at) as actor:
        yield _track_of(actor)


def _counter(db: str | None, at: str | None) -> AbstractContextManager[Actor]:
    return acting.open_economy(db, at, create=False, absent=opt.NOTHING_SHOWN)


def _track_of(actor: Actor) -> ExplorationService:
    from heretix.economy.exploration_service import ExplorationService

    return ExplorationService(actor.store, clock=actor.clock)
