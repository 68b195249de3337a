"""`heretix market`: bet on whether a belief will move, and know beforehand what it can cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from heretix.cli import acting
from heretix.cli import options as opt
from heretix.cli.output import print_json

__all__ = ["app"]

app = typer.Typer(help="Claim markets: quote, buy, positions.", no_args_is_help=True)

SideArgument = Annotated[
    str, typer.Argument(help="heretic: the belief goes up; orthodox: down.", metavar="SIDE")
]
_SLIPPAGE = 99, 100


@app.command("list")
def list_markets(
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that can't be bet on any more.")
    ] = False,
    limit: acting.LimitOption = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List markets that take bets."""
    from heretix.economy.codec import encode
    from heretix.economy.episode import State
    from heretix.report.economy import episodes_table

    with acting.counter(db, create=False) as counter:
        states = (None,) if everything else (State.OPEN, State.CHALLENGE)
        found = [
            item for state in states for item in counter.exchange.episodes(state=state, limit=limit)
        ]
    found = sorted(found, key=lambda item: -item.created_ms)[:limit]
    if as_json:
        print_json(encode(tuple(found)))
    elif found:
        opt.console().print(episodes_table(found))
    else:
        acting.say('no market is open; `heretix episode open "A claim." --practice` opens one')


@app.command("show", short_help="Show the two pools of an episode: prices and stakes.")
def show(
    episode: acting.EpisodeArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Show the two pools of an episode: prices, what they imply, what is staked."""
    from heretix.economy.codec import encode
    from heretix.economy.market import Side, price_ppm
    from heretix.report.economy import market_view

    with acting.counter(db, create=False) as counter:
        episode = counter.named(episode)
        found = counter.exchange.episode(episode)
        positions = counter.exchange.positions(episode)
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


@app.command("quote", short_help="Say what a bet would buy now, win at least, lose at most.")
def quote(
    episode: acting.EpisodeArgument,
    side: SideArgument,
    amount: acting.AmountArgument,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Say what a bet would buy now, the gain it is sure of if it wins, and the most it can lose."""
    from heretix.report.economy import quote_view

    with acting.counter(db, create=False) as counter:
        episode = counter.named(episode)
        currency = counter.exchange.episode(episode).terms.currency
        offer = counter.exchange.quote(
            episode, acting.side_of(side), acting.amount_of(amount, currency)
        )
    if as_json:
        print_json(_plain(offer))
    else:
        opt.console().print(quote_view(offer, currency))


@app.command("buy")
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
    from heretix.economy.codec import encode
    from heretix.report.economy import money, quote_view

    chosen = acting.key_of(key)
    with acting.counter(db, at, create=False) as counter:
        episode = counter.named(episode)
        exchange = counter.exchange
        currency = exchange.episode(episode).terms.currency
        wanted, stake = acting.side_of(side), acting.amount_of(amount, currency)
        exchange.join(person, currency)
        # A retry under a key of one's own must ask for the same thing, whatever the price is now.
        offer = None if key is not None else exchange.quote(episode, wanted, stake)
        if min_shares is None:
            min_shares = 0 if offer is None else offer.shares * _SLIPPAGE[0] // _SLIPPAGE[1]
        position = exchange.stake(episode, person, wanted, stake, min_shares=min_shares, key=chosen)
        left = exchange.balance(person, currency)
    if as_json:
        print_json({"key": chosen, "position": encode(position), "balance": left})
        return
    if offer is not None:
        opt.console().print(quote_view(offer, currency))
    acting.say(f"bet {position.number} taken; {person} has {money(left, currency)} left")
    acting.say_key(chosen, given=key)


@app.command("positions")
def positions(
    person: acting.AsOption = "me", db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """List a person's bets, newest first."""
    from heretix.economy.accounts import user_account
    from heretix.economy.codec import encode
    from heretix.report.economy import positions_table

    user_account(person, "PLAY")  # A name that can't be anybody's is a mistake, not a newcomer.
    with acting.counter(db, create=False) as counter:
        found = counter.exchange.positions_of(person)
    if as_json:
        print_json(encode(tuple(found)))
    elif found:
        opt.console().print(positions_table(found, "PLAY"))
    else:
        acting.say(f"{person} has no bets; `heretix market list` shows what can be bet on")


def _plain(offer: Any) -> dict[str, Any]:
    from heretix.economy.market import price_ppm

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
