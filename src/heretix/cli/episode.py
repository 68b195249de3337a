"""`heretix episode`: open one, bring evidence, have it judged, settle, dispute, redo it."""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heretix.cli import economy as eco
from heretix.cli import options as opt
from heretix.cli import output
from heretix.cli.output import say
from heretix.core.clock import parse_duration_ms
from heretix.core.errors import ConfigError, RecordError, RefusedError, UsageError
from heretix.core.lenses import HEL, SHOWING
from heretix.economy import moves
from heretix.economy.episode.challenges import SECRET_BYTES
from heretix.economy.episode.secret_file import Secret, dump_secret, load_secret
from heretix.economy.episode.state import Direction, Parameters, State
from heretix.economy.ledger import parse_amount
from heretix.economy.sentences import sentence

if TYPE_CHECKING:
    from heretix.economy.episode.state import Episode
    from heretix.economy.judging.inputs import Recheck
    from heretix.economy.judging.workflow import JudgedChallenge, Proposal
    from heretix.evidence.bundle import Bundle

app = typer.Typer(help="Adjudication episodes: evidence, judges, settlement.", no_args_is_help=True)

_EPISODE_ID: Final = re.compile(r"ep-[0-9a-f]+")
_RECORD_WANTED: Final = "give what `heretix episode export --out` wrote"

BundleOption = Annotated[
    str | None,
    typer.Option("--bundle", help="A bundle file, or the id of a stored bundle.", metavar="REF"),
]


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """The terms of an episode, as they are typed."""

    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="A model of the lens. Repeat it for several.", metavar="MODEL"
        ),
    ] = None
    judge_pool: Annotated[
        list[str] | None,
        typer.Option(
            "--judge", help="A model that may be drawn to judge. Give at least J.", metavar="MODEL"
        ),
    ] = None
    practice: Annotated[
        bool, typer.Option("--practice", help="Simulated models that evidence moves up: no key.")
    ] = False
    lens: Annotated[
        str, typer.Option("--lens", help=f"How evidence is shown: {', '.join(SHOWING)}.")
    ] = HEL
    bundle: BundleOption = None
    K: Annotated[int, typer.Option("-K", help="Paraphrase slots.", min=1)] = 16
    R: Annotated[int, typer.Option("-R", help="Replicates per slot.", min=1)] = 2
    T: Annotated[int, typer.Option("-T", help="Templates.", min=1)] = 16
    B: Annotated[int, typer.Option("-B", help="Bootstrap replicas.", min=100)] = 5000
    judges: Annotated[int, typer.Option("--judges", help="J: how many are drawn.", min=3)] = 5
    seed_stake: Annotated[
        str, typer.Option("--seed-stake", help="What the house stakes on both sides.")
    ] = "1000"
    base_rate: Annotated[
        float, typer.Option("--base-rate", help="How often heretics win: splits the seed.")
    ] = 0.5
    begin_after: Annotated[
        str | None,
        typer.Option(
            "--begin-after", help="Only bets until then (else 0s; a draft 1d, to be opened in)."
        ),
    ] = None
    challenge_for: Annotated[
        str, typer.Option("--challenge-for", help="How long bets and evidence are taken.")
    ] = "7d"
    candle: Annotated[
        str | None, typer.Option("--candle", help="The last part, in which the close is drawn.")
    ] = None
    freeze_after: Annotated[
        str | None, typer.Option("--freeze-after", help="How long evidence can be revealed then.")
    ] = None
    durability: Annotated[
        str, typer.Option("--durability", help="From the freeze to the second measurement.")
    ] = "7d"
    dispute_for: Annotated[
        str, typer.Option("--dispute-for", help="How long a result can be disputed.")
    ] = "48h"
    draft: Annotated[
        bool, typer.Option("--draft", help="Measure and write it down, but don't open it yet.")
    ] = False

    def propose(self, claim: str, lens: str) -> Proposal:
        """Read the terms for a claim, shown as `lens` says."""
        from heretix.economy.judging.workflow import PRACTICE_JUDGES, PRACTICE_MODELS, Proposal

        models = self.models or (PRACTICE_MODELS if self.practice else ())
        judge_pool = self.judge_pool or (PRACTICE_JUDGES if self.practice else ())
        if not models or not judge_pool:
            raise ConfigError(
                "`--model` and `--judge` are missing: name the models of the lens and those that "
                "may judge, or play with --practice"
            )
        if not 0 < self.base_rate < 1:
            raise ConfigError(f"`--base-rate` must lie between 0 and 1, got {self.base_rate:g}")

        length = parse_duration_ms("--challenge-for", self.challenge_for)
        begin_after = self.begin_after or ("1d" if self.draft else "0s")
        candle_ms, reveal_for_ms = (
            length // 7 if text is None else parse_duration_ms(option, text)
            for option, text in (("--candle", self.candle), ("--freeze-after", self.freeze_after))
        )
        return Proposal(
            claim=claim,
            models=tuple(models),
            judge_pool=tuple(judge_pool),
            lens=lens,
            K=self.K,
            R=self.R,
            T=self.T,
            B=self.B,
            seed_stake=parse_amount(self.seed_stake),
            seed_heretic_ppm=round(self.base_rate * 1_000_000),
            challenge_after_ms=parse_duration_ms("--begin-after", begin_after),
            challenge_for_ms=length,
            candle_ms=candle_ms,
            reveal_for_ms=reveal_for_ms,
            parameters=Parameters(
                judges=self.judges,
                durability_ms=parse_duration_ms("--durability", self.durability),
                dispute_window_ms=parse_duration_ms("--dispute-for", self.dispute_for),
            ),
        )


@app.command("list")
def list_episodes(
    state: Annotated[
        str | None, typer.Option("--state", help="Only those in this state, such as frozen.")
    ] = None,
    limit: opt.LimitOption = 20,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List episodes, newest first."""
    from heretix.report.terminal_economy import episodes_table

    if state is not None and state not in {item.value for item in State}:
        known = ", ".join(item.value for item in State)
        raise UsageError(f"`--state` must be one of {known}, got {state!r}")
    with eco.open_economy(db) as actor:
        wanted = None if state is None else State(state)
        found = actor.exchange.episodes(state=wanted, limit=limit)
    nothing = 'no episode yet; `heretix episode open "A claim." --practice` opens one'
    output.show(found, episodes_table, as_json=as_json, empty=nothing)


@app.command("show", short_help="Show where an episode stands, and what comes next.")
def show(
    episode: eco.EpisodeArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Show an episode: market, times, challenges, measurements, and what comes next."""
    with eco.open_economy(db) as actor:
        found = actor.exchange.episode(eco.resolve_episode(actor, episode))
        _show_episode(actor, found, as_json=as_json, whole=True)


def _show_episode(
    actor: moves.Actor, episode: Episode, *, as_json: bool, whole: bool = False
) -> None:
    """Show an episode as a move left it; the whole of it, terms and times too, if asked."""
    from heretix.report.terminal_economy import episode_view

    if as_json:
        output.print_json(episode)
        return
    exchange = actor.exchange
    measured = exchange.measurements(episode.id)
    positions, now_ms = exchange.positions(episode.id), actor.clock.now_ms()
    view = episode_view(episode, positions, measured, now_ms=now_ms, whole=whole)
    output.console().print(view)
    _, outcome = exchange.outcome(episode.id)
    if outcome is None:
        return
    if outcome.void is not None:
        said = f"void: {outcome.void.value}; everything went back whole"
    elif outcome.winner is None:
        said = "held: neither side could show that it was right; stakes went back whole"
        if outcome.one_sided:
            said = "nobody bet on one side: stakes went back whole, evidence was paid"
    else:
        said = f"{outcome.winner.value} won; {outcome.tau_ppm / 1e6:.2%} of losing stakes moved"
    if outcome.q_ppm is not None:
        said += f"; durable belief {outcome.q_ppm / 1e6:.2%}"
    say(said, style="bold")


@app.command("export")
def export(
    episode: eco.EpisodeArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write here (.json), else to the screen.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", help="A head to prove it for, besides the latest.")
    ] = None,
    db: opt.DbOption = None,
) -> None:
    """Write everything that is needed to redo an episode elsewhere."""
    from heretix.economy.heads import read_head

    seq = None if against is None else read_head(against).seq
    with eco.open_economy(db) as actor:
        record = actor.exchange.record(eco.resolve_episode(actor, episode), against=seq)
    if out is None:
        output.print_json(record)
        return
    try:
        out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as exc:
        raise RecordError(f"`{out}` can't be written: {exc.strerror}") from exc
    say(f"written to {out}; anyone can check it: heretix episode verify {out}")


@app.command("verify", short_help="Redo an episode from its record alone.")
def verify(
    ref: Annotated[str, typer.Argument(help="An exported record, or an episode's id.")],
    against: eco.AgainstOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Redo an episode from its record alone: bets, draws, gates, settlement, every transfer.

    Of an episode in the store, the measurements are worked out again from their samples too.
    Whoever makes a record up as a whole, events and all, is found against a signed head. Ends with
    1 when something doesn't follow.
    """
    from heretix.economy.audit import verify_episode
    from heretix.economy.heads import prove, read_head
    from heretix.economy.judging.inputs import recheck
    from heretix.report.terminal_economy import breaches_view

    kept = None if against is None else read_head(against)
    again: list[Recheck] = []
    if Path(ref).is_file() or ref.endswith(".json"):
        record = _read_record(Path(ref))
    else:
        with eco.open_economy(db) as actor:
            ref = eco.resolve_episode(actor, ref)
            record = actor.exchange.record(ref, against=None if kept is None else kept.seq)
            measured = actor.exchange.measurements(ref)
            again = recheck(actor.store, actor.exchange.episode(ref), measured)
    audit = verify_episode(record)
    audit = audit if kept is None else prove(audit, kept)
    sound = all(item.ok for item in again)
    ok = audit.ok and sound
    if as_json:
        output.print_json(
            {
                "episode": audit.episode.id,
                "ok": ok,
                "outcome": audit.outcome,
                "breaches": audit.breaches,
                "events": len(audit.chain.events),
                "last_hash": audit.chain.hash,
                "measurements": again,
            }
        )
    else:
        if audit.ok:
            state = audit.episode.state.value
            say(f"{audit.episode.id} ({state}): everything follows", style="green")
            proven = "" if kept is None else f"; up to event {kept.seq:,} of all as the head says"
            said = f"its {len(audit.chain.events):,} events end in {audit.chain.hash}"
            say(said + proven)
        else:
            output.console().print(breaches_view(audit.episode.id, audit.breaches))
        for item in again:
            for problem in item.problems:
                say(f"{item.stage}: {problem}", style="red")
        if again and sound:
            count = sum(item.executions for item in again)
            say(f"{len(again)} measurements follow from {count} executions")
    if not ok:
        raise typer.Exit(1)


def _read_record(path: Path) -> dict[str, Any]:
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


@app.command("open", cls=opt.ClaimCommand, short_help="Measure the belief and open the market.")
@opt.takes_options
def open_episode(
    *,
    claim: Annotated[str, typer.Argument(help="The claim; or the id of a draft.")],
    options: DraftOptions,
    at: eco.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Measure what the models believe now, fix the terms, and open the market.

    With --practice everything runs here and costs nothing.
    """
    from heretix.core.clock import ManualClock
    from heretix.economy.exchange import Exchange

    with eco.open_economy(db, at, create=True) as opened:
        actor = opened
        claim = eco.resolve_episode(actor, claim)
        if not _is_draft(actor, claim):
            proposal = options.propose(claim, _store_lens(actor, options, claim))
            drafted = eco.run_measurement(
                lambda watched: watched.workflow.draft(proposal),
                actor,
                proposal.K * proposal.R * len(proposal.models),
                as_json=as_json,
            )
            # Terms count from the moment they were written: that is when it opens, too.
            clock = ManualClock(drafted.at_ms)
            actor = replace(actor, clock=clock, exchange=Exchange(actor.store, clock=clock))
            claim = drafted.episode
        if not options.draft:
            actor.exchange.open(claim)
            actor.begin_if_due(claim)
        _show_episode(actor, actor.exchange.episode(claim), as_json=as_json, whole=True)


def _is_draft(actor: moves.Actor, ref: str) -> bool:
    """Tell the name of an episode from the statement of a claim."""
    try:
        actor.exchange.episode(ref)
    except RefusedError:
        # A mistyped id isn't measured as if it were a claim: that would cost money.
        if _EPISODE_ID.fullmatch(ref):
            raise
        return False
    return True


def _store_lens(actor: moves.Actor, options: DraftOptions, claim: str) -> str:
    """Return the lens of the terms, after storing the bundle that is shown from the start."""
    from heretix.economy.judging.panel import EpisodeLens, read_lens
    from heretix.evidence.bundle import dump_bundle
    from heretix.store.bundles import save_bundle

    clause = read_lens(options.lens).clause
    if options.bundle is None:
        return clause
    found = _read_evidence(actor, claim.strip(), None, options.bundle)
    actor.store.write(save_bundle, found.bundle_id, found.claim, found.lens, dump_bundle(found))
    return str(EpisodeLens(clause=clause, bundle_id=found.bundle_id))


def _read_evidence(
    actor: moves.Actor, claim: str, documents: list[str] | None, bundle: str | None
) -> Bundle:
    """Read the documents, or the bundle, that a person brings to an episode."""
    from heretix.economy.judging.panel import arrange, find_objection
    from heretix.evidence.bundle import Bundle, bundle_in_file, load_bundle
    from heretix.evidence.retrieval import retrieve_provided
    from heretix.measurement.gather import read_provided_documents
    from heretix.store.bundles import find_bundle

    if bool(documents) == (bundle is not None):
        raise UsageError("`--document` or `--bundle` is needed, and only one of them")
    if bundle is None:
        found = retrieve_provided(claim, read_provided_documents(documents or []))
        if not isinstance(found, Bundle):
            raise found
    else:
        stored = bundle_in_file(bundle)
        found = stored or load_bundle(actor.store.read(find_bundle, bundle), bundle)
    refused = find_objection(found, claim)
    if refused is not None:
        raise UsageError(f"`evidence` can't be brought: {sentence(refused)}")
    shown = arrange([found])
    for item in shown.left_out:
        output.warn(f"{item.item} won't be shown: {sentence(item.reason)}")
    if not shown.items:
        raise UsageError("`evidence` has no document that can be shown; bring another")
    return found


StakeOption = Annotated[
    str | None,
    typer.Option("--stake", help="What is put behind it (else the least that is asked)."),
]


@app.command("quote", short_help="Say how far a challenge's stake would reach.")
def quote(
    episode: eco.EpisodeArgument,
    stake: StakeOption = None,
    person: eco.AsOption = "me",
    at: eco.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Say how far a challenge's stake would reach either way, and commit nothing."""
    from heretix.report.terminal_economy import money

    with eco.open_economy(db, at) as opened:
        actor = replace(opened, person=person)
        found = actor.exchange.episode(eco.resolve_episode(actor, episode))
        if found.state not in {State.OPEN, State.CHALLENGE}:
            raise RefusedError(
                f"`{found.id}` must be open or challenge to be challenged, it is {found.state}"
            )
        least, amount = actor.least_challenge(found), _read_stake(actor, found, stake)
    reach = {way.value: moves.reach_ppm(found, amount, way) for way in Direction}
    if as_json:
        given = {"stake": amount, "least": least, "from_ppm": found.belief_ppm}
        output.print_json(given | {f"{way}_ppm": end for way, end in reach.items()})
        return
    currency, start = found.terms.currency, f"{found.belief_ppm / 1e6:.2%}"
    ways = " or ".join(f"{way} from {start} to {end / 1e6:.2%}" for way, end in reach.items())
    say(f"{money(amount, currency)} covers, as a bond, a move {ways}")
    say("if the lens goes further, the stake comes back whole and nothing is paid")
    say(f"{money(least, currency)} of it is lost if the challenge fails")


@app.command("challenge")
def challenge(
    episode: eco.EpisodeArgument,
    document: Annotated[
        list[str] | None,
        typer.Option(
            "--document", help="Evidence: a file, folder or address. Repeat it.", metavar="SOURCE"
        ),
    ] = None,
    bundle: BundleOption = None,
    down: Annotated[
        bool, typer.Option("--down", help="It moves the belief down. Else up.")
    ] = False,
    stake: StakeOption = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to reveal with. Keep it secret.")
    ] = Path("reveal.json"),
    person: eco.AsOption = "me",
    key: eco.KeyOption = None,
    at: eco.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Commit to evidence and its direction, and show neither.

    Both stay sealed until betting ends. The least stake pays for the attempt if it fails. A larger
    one lets the credited belief move further, and earn more: it is the bond as well.
    """
    from heretix.economy.sentences import Surface
    from heretix.report.terminal_economy import money

    direction = Direction.DOWN if down else Direction.UP
    if out.exists():
        raise RecordError(f"`{out}` exists; a reveal file is never overwritten: choose another")
    with eco.open_economy(db, at) as opened:
        actor = replace(opened, person=person, key=eco.make_key(key))
        episode = eco.resolve_episode(actor, episode)
        found = actor.begin_if_due(episode)
        currency = found.terms.currency
        brought = _read_evidence(actor, found.terms.claim, document, bundle)
        amount = _read_stake(actor, found, stake)
        if not as_json:
            # Before anything is staked: a bond that is too short earns nothing.
            start, end = found.belief_ppm / 1e6, moves.reach_ppm(found, amount, direction) / 1e6
            reach = f"as a bond it covers a move from {start:.2%} to {end:.2%}; if the lens goes "
            say(reach + "further, the stake comes back whole and nothing is paid", style="dim")
        nonce = secrets.token_bytes(SECRET_BYTES)
        secret = Secret(
            episode=episode,
            number=None,
            person=person,
            nonce=nonce,
            direction=direction,
            bundle=brought,
        )
        taken = _commit(actor, secret, amount, currency, out)
    if as_json:
        output.print_json({"key": actor.key, "challenge": taken, "reveal": str(out)})
        return
    say(
        f"challenge {taken.number} committed: {money(taken.stake, currency)} that the belief "
        f"goes {direction.value}; {money(taken.least, currency)} of it is lost if it fails"
    )
    begin, until = (
        Surface().moment(at) for at in (found.terms.close_until_ms, found.terms.freeze_at_ms)
    )
    say(f"keep {out} secret; after {begin}, by {until}: heretix episode reveal {out}")


def _read_stake(actor: moves.Actor, episode: Episode, stake: str | None) -> int:
    """Read what is put behind evidence: the least that is asked if nothing is said."""
    from heretix.report.terminal_economy import money

    currency, least = episode.terms.currency, actor.least_challenge(episode)
    amount = least if stake is None else parse_amount(stake, currency)
    if amount < least:
        said = f"{money(least, currency)}, got {money(amount, currency)}"
        raise UsageError(f"`--stake` must be at least {said}")
    return amount


def _commit(actor: moves.Actor, secret: Secret, amount: int, currency: str, out: Path) -> Any:
    """Write the file to reveal with, then commit."""
    given = {"commitment": secret.commitment(secret.person, currency), "amount": amount}
    # In this order: a commitment whose nonce is lost can never be revealed.
    _write_secret(out, secret)
    try:
        return moves.COMMIT.run(actor, secret.episode, given)
    except RefusedError:
        # Only now is it sure that nothing was taken. After anything else it may have been.
        out.unlink(missing_ok=True)
        raise


def _write_secret(path: Path, secret: Secret) -> None:
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


@app.command("reveal")
def reveal(
    file: Annotated[Path, typer.Argument(help="What `episode challenge` wrote.")],
    at: eco.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show what was committed to, between last bet and freeze."""
    try:
        secret = load_secret(file.read_text(encoding="utf-8"), str(file))
    except OSError as exc:
        raise RecordError(f"`{file}` can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise RecordError(
            f"`{file}` isn't UTF-8 text; give what `heretix episode challenge` wrote"
        ) from exc
    with eco.open_economy(db, at) as opened:
        actor = replace(opened, person=secret.person)
        # A file is made before its commitment is taken, so it is known by the commitment.
        found = actor.exchange.episode(secret.episode)
        given = moves.reveal_fields(secret, found, secret.person)
        shown: Any = moves.REVEAL.run(actor, secret.episode, given)
    if as_json:
        output.print_json(shown)
    else:
        count, name = len(secret.bundle.items), secret.bundle.bundle_id[:16]
        documents = "1 document" if count == 1 else f"{count} documents"
        say(f"challenge {shown.number} revealed: {documents}, bundle {name}")


def _show_after(actor: moves.Actor, episode: str, _made: Any, as_json: bool) -> None:
    _show_episode(actor, actor.exchange.episode(episode), as_json=as_json)


def _show_judged(
    actor: moves.Actor, episode: str, made: list[JudgedChallenge], as_json: bool
) -> None:
    """Show how each challenge was judged, then the episode."""
    if as_json:
        output.print_json(
            [
                {
                    "number": one.number,
                    "fate": one.fate,
                    "inputs": one.inputs,
                    "text": None if one.inputs.reason is None else sentence(one.inputs.reason),
                }
                for one in made
            ]
        )
        return
    for item in made:
        gate = item.inputs.evidence
        why = "" if item.inputs.reason is None else sentence(item.inputs.reason)
        if gate is not None:
            p_up, width = gate.gate.p_up_ppm / 1e6, gate.gate.ci_width_ppm / 1e6
            why = f"P(up) {p_up:.4f}, interval {width:.3f} wide"
        say(f"challenge {item.number} {item.fate.value}: {why}")
    _show_after(actor, episode, made, as_json)


_BY_HAND: Final = (moves.STAKE, moves.COMMIT, moves.REVEAL, moves.OPEN, moves.BEGIN)
"""Moves with a command of their own, above or in `heretix market`, or with none: evidence may be
committed as soon as its time has come."""
for _move in moves.MOVES:
    if _move not in _BY_HAND:
        _show = _show_judged if _move is moves.JUDGE else _show_after
        eco.add_move_command(app, _move, _show)
