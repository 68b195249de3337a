"""`heretix episode`: open one, bring evidence, have it judged, settle, dispute, redo it."""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heretix.cli import acting
from heretix.cli import options as opt
from heretix.cli.output import print_json
from heretix.core.canonical import encode
from heretix.core.clock import parse_duration_ms
from heretix.core.errors import ConfigError, RecordError, RefusedError, UsageError
from heretix.core.lenses import HEL, SHOWING
from heretix.economy.episode.challenges import SECRET_BYTES
from heretix.economy.episode.sealed_file import Secret, dump_secret, load_secret
from heretix.economy.episode.state import Parameters, State
from heretix.economy.judging.gate import Direction
from heretix.economy.moves import (
    BEGIN,
    COMMIT,
    JUDGE,
    MOVES,
    OPEN,
    REVEAL,
    STAKE,
    Actor,
    parse_amount,
    reach_ppm,
    reveal_fields,
)

if TYPE_CHECKING:
    from heretix.economy.episode.state import Episode
    from heretix.economy.judging.inputs import Recheck
    from heretix.economy.judging.workflow import JudgedChallenge, Proposal
    from heretix.evidence.bundle import Bundle

# The file that a challenger keeps between committing and revealing.


def write_secret(path: Path, secret: Secret) -> None:
    """Write the file so that only its owner can read it. One that exists is kept as it is."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(dump_secret(secret))
    except FileExistsError as exc:
        raise RecordError(
            f"`{path}` exists; a reveal file is never overwritten: choose another"
        ) from exc
    except OSError as exc:
        raise RecordError(f"`{path}` can't be written: {exc.strerror}") from exc


def read_secret(path: Path) -> Secret:
    """Read the file; every hash of its bundle is checked."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise RecordError(f"`{path}` can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise RecordError(
            f"`{path}` isn't UTF-8 text; give what `heretix episode challenge` wrote"
        ) from exc
    return load_secret(text, str(path))


# Evidence as a person brings it to an episode: documents, or a bundle of them.


def lens_of(actor: Actor, lens: str, bundle: str | None, claim: str) -> str:
    """The lens of the terms, with the bundle that is shown from the start."""
    from heretix.economy.judging.panel import EpisodeLens, read_lens
    from heretix.evidence.bundle import dump_bundle
    from heretix.store.documents import save_bundle

    clause = read_lens(lens).clause
    if bundle is None:
        return clause
    found = brought_by(actor, claim.strip(), None, bundle)
    actor.store.write(save_bundle, found.bundle_id, found.claim, found.lens, dump_bundle(found))
    return str(EpisodeLens(clause=clause, bundle_id=found.bundle_id))


def brought_by(actor: Actor, claim: str, documents: list[str] | None, bundle: str | None) -> Bundle:
    """The documents, or the bundle, that a person brings."""
    from heretix.economy.judging.panel import arrange, find_objection

    if bool(documents) == (bundle is not None):
        raise UsageError("`--document` or `--bundle` is needed, and only one of them")
    brought = _loaded(actor, bundle) if bundle is not None else _built(claim, documents or [])
    refused = find_objection(brought, claim)
    if refused is not None:
        raise UsageError(f"`evidence` can't be brought: {refused}")
    shown = arrange([brought])
    for item in shown.left_out:
        opt.err_console().print(f"{item.item} won't be shown: {item.reason}", style="yellow")
    if not shown.items:
        raise UsageError("`evidence` has no document that can be shown; bring another")
    return brought


def _loaded(actor: Actor, ref: str) -> Bundle:
    from heretix.evidence.bundle import bundle_in_file, load_bundle
    from heretix.store.documents import find_bundle

    return bundle_in_file(ref) or load_bundle(actor.store.read(find_bundle, ref), ref)


def _built(claim: str, documents: list[str]) -> Bundle:
    from heretix.evidence.bundle import Bundle
    from heretix.evidence.retrieval import retrieve_provided
    from heretix.measurement.gather import provided_documents

    found = retrieve_provided(claim, provided_documents(documents))
    if not isinstance(found, Bundle):
        raise found
    return found


# `heretix episode list`, `show`, `export` and `verify`: look at episodes, and redo them.

_RECORD_WANTED = "give what `heretix episode export --out` wrote"

app = typer.Typer(help="Adjudication episodes: evidence, judges, settlement.", no_args_is_help=True)


def say_where(actor: Actor, episode: Episode, *, as_json: bool, whole: bool = False) -> None:
    """Show an episode as a move left it; the whole of it, terms and times too, if asked."""
    from heretix.report.terminal_economy import episode_view

    exchange = actor.exchange
    if as_json:
        print_json(encode(episode))
        return
    told = exchange.measurements(episode.id)
    positions = exchange.positions(episode.id)
    opt.console().print(episode_view(episode, positions, told, whole=whole))
    _say_outcome(actor, episode)


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
    from heretix.report.terminal_economy import episodes_table

    if state is not None and state not in {item.value for item in State}:
        known = ", ".join(item.value for item in State)
        raise UsageError(f"`--state` must be one of {known}, got {state!r}")
    with acting.open_economy(db, create=False) as actor:
        wanted = None if state is None else State(state)
        found = actor.exchange.episodes(state=wanted, limit=limit)
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
    with acting.open_economy(db, create=False) as actor:
        episode = acting.resolve_episode(actor, episode)
        say_where(actor, actor.exchange.episode(episode), as_json=as_json, whole=True)


@app.command("export")
def export(
    episode: acting.EpisodeArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write here (.json), else to the screen.")
    ] = None,
    db: opt.DbOption = None,
) -> None:
    """Write everything that is needed to redo an episode elsewhere."""

    with acting.open_economy(db, create=False) as actor:
        episode = acting.resolve_episode(actor, episode)
        record = actor.exchange.record(episode)
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
    from heretix.economy.judging.inputs import recheck
    from heretix.report.terminal_economy import breaches_view

    again: list[Recheck] = []
    if Path(ref).is_file() or ref.endswith(".json"):
        record = _read(Path(ref))
    else:
        with acting.open_economy(db, create=False) as actor:
            ref = acting.resolve_episode(actor, ref)
            record = actor.exchange.record(ref)
            told = actor.exchange.measurements(ref)
            again = recheck(actor.store, actor.exchange.episode(ref), told)
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


def _say_outcome(actor: Actor, episode: Episode) -> None:
    """Who won, what q is, or why it is void."""
    settlement = actor.exchange.settlement(episode.id)
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


# `heretix episode`: open one, bring evidence, have it judged, settle, dispute.

_EPISODE_ID = re.compile(r"ep-[0-9a-f]+")

FinalOption = Annotated[
    bool,
    typer.Option(
        "--final", help="Let failed calls stand: what can't be reached counts as missing."
    ),
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model", "-m", help="A model of the lens. Repeat it for several.", metavar="MODEL"
    ),
]
JudgeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--judge", help="A model that may be drawn to judge. Give at least J.", metavar="MODEL"
    ),
]
PracticeOption = Annotated[
    bool, typer.Option("--practice", help="Simulated models that evidence moves up: no key.")
]
DocumentOption = Annotated[
    list[str] | None,
    typer.Option(
        "--document", help="Evidence: a file, folder or address. Repeat it.", metavar="SOURCE"
    ),
]
BundleOption = Annotated[
    str | None,
    typer.Option("--bundle", help="A bundle file, or the id of a stored bundle.", metavar="REF"),
]


@app.command("open", cls=opt.ClaimCommand, short_help="Measure the belief and open the market.")
def open_episode(
    claim: Annotated[str, typer.Argument(help="The claim; or the id of a draft.")],
    model: ModelsOption = None,
    judge: JudgeOption = None,
    practice: PracticeOption = False,
    lens: Annotated[
        str, typer.Option("--lens", help=f"How evidence is shown: {', '.join(SHOWING)}.")
    ] = HEL,
    bundle: BundleOption = None,
    K: Annotated[int, typer.Option("-K", help="Paraphrase slots.", min=1)] = 16,
    R: Annotated[int, typer.Option("-R", help="Replicates per slot.", min=1)] = 2,
    T: Annotated[int, typer.Option("-T", help="Templates.", min=1)] = 16,
    B: Annotated[int, typer.Option("-B", help="Bootstrap replicas.", min=100)] = 5000,
    judges: Annotated[int, typer.Option("--judges", help="J: how many are drawn.", min=3)] = 5,
    seed_stake: Annotated[
        str, typer.Option("--seed-stake", help="What the house stakes on both sides.")
    ] = "1000",
    base_rate: Annotated[
        float, typer.Option("--base-rate", help="How often heretics win: splits the seed.")
    ] = 0.5,
    begin_after: Annotated[
        str | None,
        typer.Option(
            "--begin-after", help="Only bets until then (else 0s; a draft 1d, to be opened in)."
        ),
    ] = None,
    challenge_for: Annotated[
        str, typer.Option("--challenge-for", help="How long bets and evidence are taken.")
    ] = "7d",
    candle: Annotated[
        str | None, typer.Option("--candle", help="The last part, in which the close is drawn.")
    ] = None,
    freeze_after: Annotated[
        str | None, typer.Option("--freeze-after", help="How long evidence can be revealed then.")
    ] = None,
    durability: Annotated[
        str, typer.Option("--durability", help="From the freeze to the second measurement.")
    ] = "7d",
    dispute_for: Annotated[
        str, typer.Option("--dispute-for", help="How long a result can be disputed.")
    ] = "48h",
    draft_only: Annotated[
        bool, typer.Option("--draft", help="Measure and write it down, but don't open it yet.")
    ] = False,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Measure what the models believe now, fix the terms, and open the market.

    With --practice everything runs here and costs nothing.
    """
    from heretix.core.clock import HeldClock
    from heretix.economy.exchange import Exchange

    with acting.open_economy(db, at) as actor:
        held = actor
        claim = acting.resolve_episode(actor, claim)
        if not _is_draft(actor, claim):
            lens = lens_of(actor, lens, bundle, claim)
            proposal = _proposal(
                claim,
                lens=lens,
                models=model,
                judge_pool=judge,
                practice=practice,
                sizes={"K": K, "R": R, "T": T, "B": B},
                judges=judges,
                seed_stake=seed_stake,
                base_rate=base_rate,
                begin_after=begin_after or ("1d" if draft_only else "0s"),
                times=(challenge_for, candle, freeze_after, durability, dispute_for),
            )
            samples = K * R * len(proposal.models)
            with acting.watched(samples, as_json=as_json) as tally:
                workflow = replace(actor, observer=tally).workflow
                drafted = acting.run_measurement(workflow.draft(proposal))
            # Terms count from the moment they were written: that is when it opens, too.
            clock = HeldClock(drafted.at_ms)
            held = replace(actor, clock=clock, exchange=Exchange(actor.store, clock=clock))
            claim = drafted.episode
        if not draft_only:
            held.exchange.open(claim)
            held.begin_if_due(claim)
        found = held.exchange.episode(claim)
        say_where(held, found, as_json=as_json, whole=True)


@app.command("challenge")
def challenge(
    episode: acting.EpisodeArgument,
    document: DocumentOption = None,
    bundle: BundleOption = None,
    down: Annotated[
        bool, typer.Option("--down", help="It moves the belief down. Else up.")
    ] = False,
    stake: Annotated[
        str | None,
        typer.Option("--stake", help="What is put behind it (else the least that is asked)."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to reveal with. Keep it secret.")
    ] = Path("reveal.json"),
    person: acting.AsOption = "me",
    key: acting.KeyOption = None,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Commit to evidence without showing it. The stake pays for the attempt if it fails.

    A larger stake lets the credited belief move further, and earn more; it is the bond as well.
    """
    from heretix.report.terminal_economy import money

    direction = Direction.DOWN if down else Direction.UP
    if out.exists():
        raise RecordError(f"`{out}` exists; a reveal file is never overwritten: choose another")
    with acting.open_economy(db, at, create=False) as opened:
        actor = replace(opened, person=person, key=acting.key_of(key))
        episode = acting.resolve_episode(actor, episode)
        found = actor.begin_if_due(episode)
        currency = found.terms.currency
        brought = brought_by(actor, found.terms.claim, document, bundle)
        least = actor.least_challenge(found)
        amount = least if stake is None else parse_amount(stake, currency)
        if amount < least:
            said = f"{money(least, currency)}, got {money(amount, currency)}"
            raise UsageError(f"`--stake` must be at least {said}")
        nonce = secrets.token_bytes(SECRET_BYTES)
        secret = Secret(episode=episode, number=None, person=person, nonce=nonce, bundle=brought)
        commitment = secret.commitment(person, currency)
        given = {"direction": direction, "commitment": commitment, "amount": amount}
        # The file first: a commitment whose nonce is lost can never be revealed.
        write_secret(out, secret)
        try:
            taken: Any = COMMIT.run(actor, episode, given)
        except RefusedError:
            # Only now is it sure that nothing was taken. After anything else it may have been.
            out.unlink(missing_ok=True)
            raise
    if as_json:
        print_json({"key": actor.key, "challenge": encode(taken), "reveal": str(out)})
        return
    acting.say(
        f"challenge {taken.number} committed: {money(taken.stake, currency)} that the belief "
        f"goes {taken.direction.value}"
    )
    start, end = found.belief_ppm / 1e6, reach_ppm(found, taken.stake, direction) / 1e6
    acting.say(f"as a bond it covers a move from {start:.2%} to {end:.2%}", style="dim")
    acting.say(f"keep {out} secret, then: heretix episode reveal {out}")


@app.command("reveal")
def reveal(
    file: Annotated[Path, typer.Argument(help="What `episode challenge` wrote.")],
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show the evidence that was committed to. Reveals end with the freeze."""

    secret = read_secret(file)
    with acting.open_economy(db, at, create=False) as opened:
        actor = replace(opened, person=secret.person)
        # A file is made before its commitment is taken, so it is known by the commitment.
        given = reveal_fields(secret, actor.exchange.episode(secret.episode), secret.person)
        shown: Any = REVEAL.run(actor, secret.episode, given)
    if as_json:
        print_json(encode(shown))
    else:
        count = len(secret.bundle.items)
        documents = "1 document" if count == 1 else f"{count} documents"
        name = secret.bundle.bundle_id[:16]
        acting.say(f"challenge {shown.number} revealed: {documents}, bundle {name}")


def _show_after(actor: Actor, episode: str, made: Any, as_json: bool) -> None:
    """Show the episode as a move left it."""
    del made
    say_where(actor, actor.exchange.episode(episode), as_json=as_json)


def _show_judged(actor: Actor, episode: str, made: list[JudgedChallenge], as_json: bool) -> None:
    """Show how each challenge was judged, then the episode."""
    if as_json:
        print_json(
            [
                {"number": it.number, "fate": it.fate.value, "hearing": encode(it.inputs)}
                for it in made
            ]
        )
        return
    for item in made:
        gate = item.inputs.evidence
        why = item.inputs.reason or ""
        if gate is not None:
            p_up, width = gate.gate.p_up_ppm / 1e6, gate.gate.ci_width_ppm / 1e6
            why = f"P(up) {p_up:.4f}, interval {width:.3f} wide"
        acting.say(f"challenge {item.number} {item.fate.value}: {why}")
    _show_after(actor, episode, made, as_json)


_BY_HAND = (STAKE, COMMIT, REVEAL, OPEN, BEGIN)
"""Moves with a command of their own, above or in `heretix market`, or with none: evidence may be
committed as soon as its time has come."""
for _move in MOVES:
    if _move not in _BY_HAND:
        _show = _show_judged if _move is JUDGE else _show_after
        acting.add_move_command(app, _move, _show)


def _is_draft(actor: Actor, ref: str) -> bool:
    """Whether `ref` names an episode rather than stating a claim."""

    try:
        actor.exchange.episode(ref)
    except RefusedError:
        # A mistyped id isn't measured as if it were a claim: that would cost money.
        if _EPISODE_ID.fullmatch(ref):
            raise
        return False
    return True


def _proposal(
    claim: str,
    *,
    lens: str,
    models: list[str] | None,
    judge_pool: list[str] | None,
    practice: bool,
    sizes: dict[str, int],
    judges: int,
    seed_stake: str,
    base_rate: float,
    begin_after: str,
    times: tuple[str, str | None, str | None, str, str],
) -> Proposal:
    from heretix.economy.judging.workflow import PRACTICE_JUDGES, PRACTICE_MODELS, Proposal

    if practice:
        models = models or list(PRACTICE_MODELS)
        judge_pool = judge_pool or list(PRACTICE_JUDGES)
    if not models or not judge_pool:
        raise ConfigError(
            "`--model` and `--judge` are missing: name the models of the lens and those that may "
            "judge, or play with --practice"
        )
    if not 0 < base_rate < 1:
        raise ConfigError(f"`--base-rate` must lie between 0 and 1, got {base_rate:g}")
    challenge_for, candle, freeze_after, durability, dispute_for = times
    length = parse_duration_ms("--challenge-for", challenge_for)
    return Proposal(
        claim=claim,
        models=tuple(models),
        judge_pool=tuple(judge_pool),
        lens=lens,
        K=sizes["K"],
        R=sizes["R"],
        T=sizes["T"],
        B=sizes["B"],
        seed_stake=parse_amount(seed_stake),
        seed_heretic_ppm=round(base_rate * 1_000_000),
        challenge_after_ms=parse_duration_ms("--begin-after", begin_after),
        challenge_for_ms=length,
        candle_ms=length // 7 if candle is None else parse_duration_ms("--candle", candle),
        reveal_for_ms=length // 7
        if freeze_after is None
        else parse_duration_ms("--freeze-after", freeze_after),
        parameters=Parameters(
            judges=judges,
            durability_ms=parse_duration_ms("--durability", durability),
            dispute_window_ms=parse_duration_ms("--dispute-for", dispute_for),
        ),
    )
