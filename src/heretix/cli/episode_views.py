"""`heretix episode list`, `show`, `export` and `verify`: look at episodes, and redo them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heretix.cli import acting
from heretix.cli import options as opt
from heretix.cli.output import print_json

if TYPE_CHECKING:
    from heretix.economy.episode import Episode
    from heretix.economy.recheck import Recheck

__all__ = ["app", "say_where"]

_RECORD_WANTED = "give what `heretix episode export --out` wrote"

app = typer.Typer(help="Adjudication episodes: evidence, judges, settlement.", no_args_is_help=True)


def say_where(
    counter: acting.Counter, episode: Episode, *, as_json: bool, whole: bool = False
) -> None:
    """Show an episode as a move left it; the whole of it, terms and times too, if asked."""
    from heretix.economy.codec import encode
    from heretix.report.economy import episode_view

    exchange = counter.exchange
    if as_json:
        print_json(encode(episode))
        return
    told = exchange.measurements(episode.id)
    positions = exchange.positions(episode.id)
    opt.console().print(episode_view(episode, positions, told, whole=whole))
    _say_outcome(counter, episode)


@app.command("list")
def list_episodes(
    state: Annotated[
        str | None, typer.Option("--state", help="Only those in this state, such as frozen.")
    ] = None,
    limit: acting.LimitOption = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List episodes, newest first."""
    from heretix.economy.codec import encode
    from heretix.economy.episode import State
    from heretix.errors import UsageError
    from heretix.report.economy import episodes_table

    if state is not None and state not in {item.value for item in State}:
        known = ", ".join(item.value for item in State)
        raise UsageError(f"`--state` must be one of {known}, got {state!r}")
    with acting.counter(db, create=False) as counter:
        wanted = None if state is None else State(state)
        found = counter.exchange.episodes(state=wanted, limit=limit)
    if as_json:
        print_json(encode(tuple(found)))
    elif found:
        opt.console().print(episodes_table(found))
    else:
        acting.say('no episode yet; `heretix episode open "A claim." --practice` opens one')


@app.command("show", short_help="Show where an episode stands, and what comes next.")
def show(
    episode: acting.EpisodeArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Show an episode: market, times, challenges, measurements, and what comes next."""
    with acting.counter(db, create=False) as counter:
        episode = counter.named(episode)
        say_where(counter, counter.exchange.episode(episode), as_json=as_json, whole=True)


@app.command("export")
def export(
    episode: acting.EpisodeArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write here (.json), else to the screen.")
    ] = None,
    db: opt.DbOption = None,
) -> None:
    """Write everything that is needed to redo an episode elsewhere."""
    from heretix.errors import RecordError

    with acting.counter(db, create=False) as counter:
        episode = counter.named(episode)
        record = counter.exchange.record(episode)
    if out is None:
        print_json(record)
        return
    try:
        out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as exc:
        raise RecordError(f"`{out}` can't be written: {exc.strerror}") from exc
    acting.say(f"written to {out}; anyone can check it: heretix episode verify {out}")


@app.command("verify", short_help="Redo an episode from its record alone.")
def verify(
    ref: Annotated[str, typer.Argument(help="An exported record, or an episode's id.")],
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Redo an episode from its record alone: bets, draws, gates, settlement, every transfer.

    Of an episode in the store, the measurements are worked out again from their samples too.
    Ends with 1 when something doesn't follow.
    """
    from heretix.economy.audit import verify_episode
    from heretix.economy.codec import encode
    from heretix.economy.recheck import recheck
    from heretix.report.economy import breaches_view

    again: list[Recheck] = []
    if Path(ref).is_file() or ref.endswith(".json"):
        record = _read(Path(ref))
    else:
        with acting.counter(db, create=False) as counter:
            ref = counter.named(ref)
            record = counter.exchange.record(ref)
            told = counter.exchange.measurements(ref)
            again = recheck(counter.store, counter.exchange.episode(ref), told)
    audit = verify_episode(record)
    ok = audit.ok and all(item.ok for item in again)
    if as_json:
        content = {
            "episode": audit.episode.id,
            "ok": ok,
            "outcome": encode(audit.outcome),
            "breaches": encode(audit.breaches),
            "measurements": encode(tuple(again)),
        }
        print_json(content)
    else:
        console = opt.console()
        if audit.ok:
            state = audit.episode.state.value
            acting.say(f"{audit.episode.id} ({state}): everything follows", style="green")
        else:
            console.print(breaches_view(audit.episode.id, audit.breaches))
        for item in again:
            for problem in item.problems:
                acting.say(f"{item.stage}: {problem}", style="red")
        if again and all(item.ok for item in again):
            count = sum(item.executions for item in again)
            acting.say(f"{len(again)} measurements follow from {count} executions")
    if not ok:
        raise typer.Exit(1)


def _read(path: Path) -> dict[str, Any]:
    from heretix.errors import RecordError

    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise RecordError(f"`{path}` can't be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        what = "UTF-8 text" if isinstance(exc, UnicodeDecodeError) else f"JSON ({exc})"
        raise RecordError(f"`{path}` isn't {what}; {_RECORD_WANTED}") from exc
    if not isinstance(record, dict):
        raise RecordError(f"`{path}` must hold an episode's record; {_RECORD_WANTED}")
    return record


def _say_outcome(counter: acting.Counter, episode: Episode) -> None:
    """Who won, what q is, or why it is void."""
    settlement = counter.exchange.settlement(episode.id)
    if settlement is None:
        return
    outcome = settlement.outcome
    if outcome.void is not None:
        said = f"void: {outcome.void.value}; everything went back whole"
    elif outcome.winner is None:
        said = "held: neither side could show that it was right; stakes went back whole"
    else:
        said = f"{outcome.winner.value} won; {outcome.tau_ppm / 1e6:.2%} of losing stakes moved"
    if outcome.q_ppm is not None:
        said += f"; durable belief {outcome.q_ppm / 1e6:.2%}"
    acting.say(said, style="bold")
