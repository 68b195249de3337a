"""`heretix episode`: open one, bring evidence, have it judged, settle, dispute, redo it."""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heretix.cli import acting
from heretix.cli import options as opt
from heretix.cli.output import print_json
from heretix.core.errors import RecordError
from heretix.core.lenses import HEL, SHOWING
from heretix.economy.episode.sealed_file import Secret, dump_secret, load_secret

if TYPE_CHECKING:
    from heretix.economy.episode.state import Episode
    from heretix.economy.judging.inputs import Recheck
    from heretix.economy.judging.workflow import Proposal
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


def lens_of(counter: acting.Counter, lens: str, bundle: str | None, claim: str) -> str:
    """The lens of the terms, with the bundle that is shown from the start."""
    from heretix.economy.judging.panel import EpisodeLens, read_lens
    from heretix.evidence.bundle import dump_bundle
    from heretix.store.documents import save_bundle

    clause = read_lens(lens).clause
    if bundle is None:
        return clause
    found = brought_by(counter, claim.strip(), None, bundle)
    counter.store.write(save_bundle, found.bundle_id, found.claim, found.lens, dump_bundle(found))
    return str(EpisodeLens(clause=clause, bundle_id=found.bundle_id))


def brought_by(
    counter: acting.Counter, claim: str, documents: list[str] | None, bundle: str | None
) -> Bundle:
    """The documents, or the bundle, that a person brings."""
    from heretix.core.errors import UsageError
    from heretix.economy.judging.panel import arrange, find_objection

    if bool(documents) == (bundle is not None):
        raise UsageError("`--document` or `--bundle` is needed, and only one of them")
    brought = _loaded(counter, bundle) if bundle is not None else _built(claim, documents or [])
    refused = find_objection(brought, claim)
    if refused is not None:
        raise UsageError(f"`evidence` can't be brought: {refused}")
    shown = arrange([brought])
    for item in shown.left_out:
        opt.err_console().print(f"{item.item} won't be shown: {item.reason}", style="yellow")
    if not shown.items:
        raise UsageError("`evidence` has no document that can be shown; bring another")
    return brought


def _loaded(counter: acting.Counter, ref: str) -> Bundle:
    from heretix.evidence.bundle import bundle_in_file, load_bundle
    from heretix.store.documents import find_bundle

    return bundle_in_file(ref) or load_bundle(counter.store.read(find_bundle, ref), ref)


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


def say_where(
    counter: acting.Counter, episode: Episode, *, as_json: bool, whole: bool = False
) -> None:
    """Show an episode as a move left it; the whole of it, terms and times too, if asked."""
    from heretix.core.canonical import encode
    from heretix.report.terminal_economy import episode_view

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
    from heretix.core.canonical import encode
    from heretix.core.errors import UsageError
    from heretix.economy.episode.state import State
    from heretix.report.terminal_economy import episodes_table

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
    from heretix.core.errors import RecordError

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
    from heretix.core.canonical import encode
    from heretix.economy.audit import verify_episode
    from heretix.economy.judging.inputs import recheck
    from heretix.report.terminal_economy import breaches_view

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
    from heretix.core.errors import RecordError

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
    with acting.counter(db, at) as counter:
        held = counter
        claim = counter.named(claim)
        if not _is_draft(counter, claim):
            lens = lens_of(counter, lens, bundle, claim)
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
                drafted = acting.measured(counter.workflow(tally).draft(proposal))
            # Terms count from the moment they were written: that is when it opens, too.
            held = counter.held(drafted.at_ms)
            claim = drafted.episode
        found = held.exchange.episode(claim) if draft_only else _opened(held, claim)
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
    from heretix.core.canonical import encode
    from heretix.core.errors import RecordError, RefusedError, UsageError
    from heretix.economy.episode.challenges import SECRET_BYTES
    from heretix.economy.judging.gate import Direction
    from heretix.economy.judging.panel import Question
    from heretix.report.terminal_economy import money

    chosen = acting.key_of(key)
    if out.exists():
        raise RecordError(f"`{out}` exists; a reveal file is never overwritten: choose another")
    with acting.counter(db, at, create=False) as counter:
        episode = counter.named(episode)
        exchange = counter.exchange
        found = _begun(counter, episode)
        terms = found.terms
        brought = brought_by(counter, terms.claim, document, bundle)
        exchange.join(person, terms.currency)
        cost = counter.panel().compute_cost(Question.of(found.id, terms), terms.models) or 0
        least = exchange.min_stake(episode, person, compute_cost=cost)
        amount = least if stake is None else acting.amount_of(stake, terms.currency)
        if amount < least:
            said = f"{money(least, terms.currency)}, got {money(amount, terms.currency)}"
            raise UsageError(f"`--stake` must be at least {said}")
        nonce = secrets.token_bytes(SECRET_BYTES)
        secret = Secret(episode=episode, number=None, person=person, nonce=nonce, bundle=brought)
        # The file first: a commitment whose nonce is lost can never be revealed.
        write_secret(out, secret)
        try:
            taken = exchange.commit(
                episode,
                person,
                direction=Direction.DOWN if down else Direction.UP,
                commitment=secret.commitment(person, terms.currency),
                amount=amount,
                key=chosen,
                compute_cost=cost,
            )
        except RefusedError:
            # Only now is it sure that nothing was taken. After anything else it may have been.
            out.unlink(missing_ok=True)
            raise
    if as_json:
        print_json({"key": chosen, "challenge": encode(taken), "reveal": str(out)})
        return
    acting.say(
        f"challenge {taken.number} committed: {money(taken.stake, terms.currency)} that the belief "
        f"goes {taken.direction.value}"
    )
    acting.say(_reach(found, taken.stake, down=down), style="dim")
    acting.say(f"keep {out} secret, then: heretix episode reveal {out}")


@app.command("reveal")
def reveal(
    file: Annotated[Path, typer.Argument(help="What `episode challenge` wrote.")],
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show the evidence that was committed to. Reveals end with the freeze."""
    from heretix.core.canonical import encode
    from heretix.economy.episode.sealed_file import find_commitment
    from heretix.evidence.bundle import dump_bundle
    from heretix.store.documents import save_bundle

    secret = read_secret(file)
    bundle = secret.bundle
    with acting.counter(db, at, create=False) as counter:
        # A file is made before its commitment is taken, so it is known by the commitment.
        found = counter.exchange.episode(secret.episode)
        shown = counter.exchange.reveal(
            secret.episode,
            find_commitment(secret, found, secret.person),
            secret.person,
            nonce=secret.nonce,
            bundle_sha256=bundle.bundle_id,
        )
        counter.store.write(
            save_bundle, bundle.bundle_id, bundle.claim, bundle.lens, dump_bundle(bundle)
        )
    if as_json:
        print_json(encode(shown))
    else:
        count = len(bundle.items)
        documents = "1 document" if count == 1 else f"{count} documents"
        name = bundle.bundle_id[:16]
        acting.say(f"challenge {shown.number} revealed: {documents}, bundle {name}")


@app.command("freeze", short_help="Reveal the seed; draw the close and the judges.")
def freeze(
    episode: acting.EpisodeArgument,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Reveal the seed, draw the close and the judges; stakes after the close come back."""
    with acting.counter(db, at, create=False) as counter:
        episode = counter.named(episode)
        _begun(counter, episode)
        say_where(counter, counter.exchange.freeze(episode), as_json=as_json)


@app.command("judge", short_help="Measure the lens with and without each challenge's evidence.")
def judge(
    episode: acting.EpisodeArgument,
    final: FinalOption = False,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Measure the lens with and without each challenge's evidence, in the order of commitment."""
    from heretix.core.canonical import encode

    heard = []
    with acting.counter(db, at, create=False) as counter:
        episode = counter.named(episode)
        exchange = counter.exchange
        found = exchange.episode(episode)
        terms = found.terms
        pending = counter.workflow().pending(found)
        samples = 2 * terms.K * terms.R * len(terms.models) * len(pending)
        with acting.watched(samples, as_json=as_json) as tally:
            workflow = counter.workflow(tally)
            while (
                result := acting.measured(workflow.judge_next(episode, final=final))
            ) is not None:
                heard.append(result)
        found = exchange.episode(episode)
        if as_json:
            print_json([encode(item) for item in heard])
            return
        for item in heard:
            gate = item.inputs.evidence
            why = item.inputs.reason or ""
            if gate is not None:
                p_up, width = gate.gate.p_up_ppm / 1e6, gate.gate.ci_width_ppm / 1e6
                why = f"P(up) {p_up:.4f}, interval {width:.3f} wide"
            acting.say(f"challenge {item.number} {item.fate.value}: {why}")
        say_where(counter, found, as_json=False)


@app.command("measure", short_help="Have the judges measured: now, and a window later.")
def measure(
    episode: acting.EpisodeArgument,
    final: FinalOption = False,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Have the judges measured: at the freeze, and again after the durability window."""
    with acting.counter(db, at, create=False) as counter:
        episode = counter.named(episode)
        found = counter.exchange.episode(episode)
        samples = 2 * found.terms.K * found.terms.R * len(found.judges)
        if counter.workflow().next_stage(episode) is None:
            samples = 0
        with acting.watched(samples, as_json=as_json) as tally:
            after = acting.measured(counter.workflow(tally).measure(episode, final=final))
        say_where(counter, after, as_json=as_json)


@app.command("settle")
def settle(
    episode: acting.EpisodeArgument,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Pay everybody, once the result can't be disputed any more. It happens once."""
    with acting.counter(db, at, create=False) as counter:
        episode = counter.named(episode)
        say_where(counter, counter.exchange.close(episode), as_json=as_json)


@app.command("dispute", short_help="Put a bond against the result: a larger panel measures.")
def dispute(
    episode: acting.EpisodeArgument,
    ground: Annotated[
        str,
        typer.Option(
            "--ground", help="recomputation_mismatch, wrong_lens_or_model or artifact_fraud."
        ),
    ] = "recomputation_mismatch",
    bond: Annotated[
        str | None, typer.Option("--bond", help="What is put behind it (else the least).")
    ] = None,
    person: acting.AsOption = "me",
    key: acting.KeyOption = None,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Put a bond against the result: a larger panel is drawn and measures again."""
    from heretix.core.errors import UsageError
    from heretix.economy.episode.disputes import dispute_bond
    from heretix.economy.episode.state import Ground

    if ground not in {item.value for item in Ground}:
        known = ", ".join(item.value for item in Ground)
        raise UsageError(f"`--ground` must be one of {known}, got {ground!r}")
    with acting.counter(db, at, create=False) as counter:
        episode = counter.named(episode)
        found = counter.exchange.episode(episode)
        terms = found.terms
        counter.exchange.join(person, terms.currency)
        staked = found.market.money if found.market else 0
        amount = (
            dispute_bond(staked, terms.parameters)
            if bond is None
            else acting.amount_of(bond, terms.currency)
        )
        counter.exchange.dispute(
            episode, person, ground=Ground(ground), bond=amount, key=acting.key_of(key)
        )
        say_where(counter, counter.exchange.episode(episode), as_json=as_json)


@app.command("rule")
def rule(
    episode: acting.EpisodeArgument,
    confirmed: Annotated[
        bool | None,
        typer.Option(
            "--confirmed/--not-confirmed",
            help="Whether the ground was right; a recomputation is checked by itself.",
        ),
    ] = None,
    final: FinalOption = False,
    at: acting.AtOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Have the larger panel measure, and let its word stand."""
    with acting.counter(db, at, create=False) as counter:
        episode = counter.named(episode)
        found = counter.exchange.episode(episode)
        samples = 4 * found.terms.K * found.terms.R * len(found.judges)
        with acting.watched(samples, as_json=as_json) as tally:
            work = counter.workflow(tally).rule(episode, ground_confirmed=confirmed, final=final)
            after = acting.measured(work)
        say_where(counter, after, as_json=as_json)


def _is_draft(counter: acting.Counter, ref: str) -> bool:
    """Whether `ref` names an episode rather than stating a claim."""
    from heretix.core.errors import RefusedError

    try:
        counter.exchange.episode(ref)
    except RefusedError:
        # A mistyped id isn't measured as if it were a claim: that would cost money.
        if _EPISODE_ID.fullmatch(ref):
            raise
        return False
    return True


def _opened(counter: acting.Counter, episode: str) -> Episode:
    """Open a draft, and let challenges begin if their time has come."""
    counter.exchange.open(episode)
    return _begun(counter, episode)


def _begun(counter: acting.Counter, episode: str) -> Episode:
    """The episode; nobody has to announce that the time for challenges has come."""
    from heretix.economy.episode.state import State

    found = counter.exchange.episode(episode)
    due = found.terms.challenge_from_ms <= counter.clock.now_ms()
    if found.state is State.OPEN and due:
        return counter.exchange.begin_challenge(episode)
    return found


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
    from heretix.core.clock import parse_duration_ms
    from heretix.core.errors import ConfigError
    from heretix.economy.episode.state import Parameters
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
        seed_stake=acting.amount_of(seed_stake),
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


def _reach(episode: Episode, stake: int, *, down: bool) -> str:
    """How far the credited belief can move on a stake."""
    from heretix.economy.rewards import BELIEF_MAX, BELIEF_MIN, farthest

    scale = episode.terms.parameters.reward_scale
    end = farthest(scale, episode.belief_ppm, BELIEF_MIN if down else BELIEF_MAX, stake)
    start = episode.belief_ppm
    return f"as a bond it covers a move from {start / 1e6:.2%} to {end / 1e6:.2%}"
