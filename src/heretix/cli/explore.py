"""`heretix explore`: credits for finding where evidence moves a belief, and who found most."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import acting
from heretix.cli import options as opt
from heretix.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from heretix.economy.track import Track

__all__ = ["app"]

app = typer.Typer(help="The exploration track: credits, standing, feed.", no_args_is_help=True)


@app.command("credit", short_help="Claim the credits of a finding.")
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
    from heretix.economy.codec import encode
    from heretix.report.economy import credited_view

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


@app.command("leaderboard", short_help="Rank everybody by reputation, then by credits.")
def leaderboard(
    limit: acting.LimitOption = 20,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Rank everybody who challenged or explored, by reputation and then by credits."""
    from heretix.report.economy import leaderboard_table

    with _track(db, at) as track:
        found = track.leaderboard(limit=limit)
    if as_json:
        print_json([asdict(standing) for standing in found])
    elif found:
        opt.console().print(leaderboard_table(found))
    else:
        acting.say("nobody yet; rewards of episodes count here, and `heretix explore credit`")


@app.command("reputation")
def reputation(
    person: Annotated[str, typer.Argument(help="Whose.", metavar="NAME")],
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show one person's standing: reputation, challenges, credits."""
    from heretix.economy.accounts import user_account
    from heretix.errors import RecordError
    from heretix.report.economy import standing_view

    user_account(person, "XC")  # A name that can't be anybody's is a mistake, not a newcomer.
    with _counter(db, at) as counter:
        found = _track_of(counter).standing(person)
        # Whoever challenged or explored has an account; so has a newcomer, who did nothing yet.
        if not counter.exchange.balances(person=person):
            raise RecordError(
                f"`{person}` names nobody who has taken part here; "
                "`heretix explore leaderboard` shows who has"
            )
    if as_json:
        print_json(asdict(found))
    else:
        opt.console().print(standing_view(found))


@app.command("decay")
def decay(
    at: acting.AtOption = None, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Burn the credits that have decayed by today. Safe to run every day, or never."""
    from heretix.report.economy import burns_table

    with _track(db, at) as track:
        found = track.decay()
    if as_json:
        print_json([asdict(burn) for burn in found])
    elif found:
        opt.console().print(burns_table(found))
    else:
        acting.say("nothing has decayed since the last time")


@app.command("feed")
def feed(
    limit: acting.LimitOption = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List the anomaly feed, and whose each claim is already."""
    from heretix.report.economy import prospects_table

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
def _track(db: str | None, at: str | None) -> Iterator[Track]:
    with _counter(db, at) as counter:
        yield _track_of(counter)


def _counter(db: str | None, at: str | None) -> AbstractContextManager[acting.Counter]:
    return acting.counter(db, at, create=False, absent=opt.NOTHING_SHOWN)


def _track_of(counter: acting.Counter) -> Track:
    from heretix.economy.track import Track

    return Track(counter.store, clock=counter.clock)
