"""`heretix ledger`: who holds what, every transfer, and whether it all adds up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heretix.cli import acting
from heretix.cli import options as opt
from heretix.cli.output import print_json, print_json_text

__all__ = ["app"]

app = typer.Typer(help="Play money: accounts, transfers, verification.", no_args_is_help=True)

PersonOption = Annotated[
    str | None, typer.Option("--person", help="Only this person's accounts.", metavar="NAME")
]
OfEpisodeOption = Annotated[
    str | None, typer.Option("--episode", help="Only what belongs to this episode.", metavar="ID")
]


@app.command("join")
def join(
    name: Annotated[str, typer.Argument(help="A name without a colon.")],
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Give a person an account and a purse of play money. Betting does it too."""
    from heretix.economy.codec import encode
    from heretix.report.economy import balances_table

    with acting.counter(db) as counter:
        holding = counter.exchange.join(name)
    if as_json:
        print_json(encode(holding))
    else:
        opt.console().print(balances_table([holding]))


@app.command("issue")
def issue(
    who: Annotated[str, typer.Argument(help="A person, or one of the operator's accounts.")],
    amount: acting.AmountArgument,
    key: acting.KeyOption = None,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
) -> None:
    """Make play money and give it to someone."""
    chosen = acting.key_of(key)
    with acting.counter(db, at) as counter:
        (transfer,) = counter.exchange.issue(who, acting.amount_of(amount), key=chosen)
    typer.echo(f"{transfer.amount} minor units to {transfer.credit}")
    acting.say_key(chosen, given=key)


@app.command("balances")
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
    from heretix.economy.codec import encode
    from heretix.report.economy import balances_table

    with acting.counter(db, create=False, absent=acting.NO_ACCOUNT) as counter:
        found = counter.exchange.balances(person=person, episode=episode, currency=currency)
    if as_json:
        print_json(encode(tuple(found)))
    elif found:
        opt.console().print(balances_table(found))
    else:
        acting.say("no account fits; `heretix ledger join NAME` gives a person one")


@app.command("history")
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
    from heretix.economy.accounts import user_account
    from heretix.economy.codec import encode
    from heretix.report.economy import history_table

    if person is not None and account is None:
        account = user_account(person, "PLAY").id
    with acting.counter(db, create=False, absent=acting.NO_ACCOUNT) as counter:
        found = counter.exchange.history(account=account, episode=episode, limit=limit)
    if as_json:
        print_json(encode(tuple(found)))
    elif found:
        console = opt.console()
        console.print(history_table(found, width=console.width))
    else:
        acting.say("no transfer fits")


@app.command("verify")
def verify(db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Replay every transfer from the first: hashes, balances, pots. Ends with 1 if one is off."""
    from heretix.economy.codec import encode
    from heretix.report.economy import ledger_view

    with acting.counter(db, create=False, absent=acting.NO_ACCOUNT) as counter:
        report = counter.exchange.verify()
    if as_json:
        print_json({**encode(report), "ok": report.ok})
    else:
        opt.console().print(ledger_view(report))
    if not report.ok:
        raise typer.Exit(1)


@app.command("export")
def export(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write here (.jsonl), else to the screen.")
    ] = None,
    db: opt.DbOption = None,
) -> None:
    """Write the chain of transfers as JSON lines, first to last."""
    from heretix.errors import RecordError

    with acting.counter(db, create=False, absent=acting.NO_ACCOUNT) as counter:
        lines = counter.exchange.export()
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
