"""`heretix rewards`: what was paid to whom in an episode, and why, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import acting
from heretix.cli import options as opt
from heretix.cli.output import print_json

if TYPE_CHECKING:
    from heretix.economy.records import StoredStatement
    from heretix.economy.settlement import Settlement

__all__ = ["app"]

app = typer.Typer(help="Rewards, explained.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Rewards, explained."""


@app.command("explain", short_help="Explain every payment of an episode.")
def explain(
    episode: acting.EpisodeArgument,
    person: Annotated[
        str | None, typer.Option("--person", help="Only what concerns this person.", metavar="NAME")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Explain every payment of an episode, and each reward down to the numbers it is made of."""
    from heretix.economy.accounts import user_account

    with acting.counter(db, create=False) as counter:
        episode = counter.named(episode)
        found = counter.exchange.episode(episode)
        account = None if person is None else user_account(person, found.terms.currency).id
        statements = counter.exchange.statements(episode)
        settlement = counter.exchange.settlement(episode)
    if as_json:
        print_json(_plain(statements, settlement, account))
        return
    from heretix.report.economy import moment, money

    shown = 0
    for statement in statements:
        lines = [line for line in statement.lines if account in {None, line.account}]
        if lines:
            acting.say(f"{moment(statement.at_ms)}  {statement.move}", style="bold")
        for line in lines:
            shown += 1
            amount = money(line.amount, found.terms.currency)
            acting.say(f"  {amount} to {line.account}: {line.text}")
    _show_rewards(settlement, account)
    if shown:
        unit = money(100, found.terms.currency)
        acting.say(f"\nNumbers in a reason are whole minor units: 100 is {unit}.", style="dim")
    else:
        acting.say(f"nothing was paid to {person} in {episode}" if person else "nothing paid yet")


def _show_rewards(settlement: Settlement | None, account: str | None) -> None:
    from heretix.economy.rewards import explain as lines_of

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
                acting.say(line)


def _plain(
    statements: list[StoredStatement], settlement: Settlement | None, account: str | None
) -> dict[str, object]:
    from heretix.economy.codec import encode
    from heretix.economy.rewards import explain as lines_of

    book = settlement.rewards if settlement else None
    return {
        "payments": [
            {"move": statement.move, "at_ms": statement.at_ms, **encode(line)}
            for statement in statements
            for line in statement.lines
            if account in {None, line.account}
        ],
        "outcome": None if settlement is None else encode(settlement.outcome),
        "rewards": [
            {**encode(item), "amount": item.amount, "explained": list(lines_of(item))}
            for item in (book.rewards if book else ())
            if account in {None, item.step.account}
        ],
    }
