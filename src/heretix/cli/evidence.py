"""`heretix evidence`, `corpus` and `policy`: documents, bundles, and the class of a source."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from heretix.cli import options as opt
from heretix.cli import output
from heretix.cli.output import say, warn
from heretix.core.event_loop import STOP_SIGNALS, interrupt, run_async
from heretix.core.lenses import SEARCHED, SHOWING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.config import Claim, RunConfig
    from heretix.core.settings import Settings
    from heretix.evidence.bundle import Bundle
    from heretix.evidence.reliability import Assessment
    from heretix.measurement.gather import Bundles

evidence_app = typer.Typer(help="Bundles of evidence.", no_args_is_help=True)
corpus_app = typer.Typer(help="Documents on this machine, to search.", no_args_is_help=True)
policy_app = typer.Typer(
    help="Source policies: membership in the canon, not quality.", no_args_is_help=True
)

BundleArgument = Annotated[
    str, typer.Argument(help="A bundle file, or the id of a stored bundle (a part will do).")
]
NameOption = Annotated[str, typer.Option("--corpus", help="The corpus's name.")]
PolicyArgument = Annotated[
    str, typer.Argument(help="A policy file, or `default`.", metavar="POLICY")
]
_NO_BUNDLE: Final = (
    'no bundle was stored here yet; make one with `heretix evidence build "A claim."` first'
)
_SEARCHED: Final = ",".join(SEARCHED)
_DOI: Final = re.compile(r"10\.\d{4,9}/\S+")


@dataclass(frozen=True, kw_only=True)
class BundleOptions(opt.EvidenceOptions):
    """Sources of documents; by default for the lenses that search for them."""

    lenses: opt.LensOption = _SEARCHED


@evidence_app.command(
    "build", short_help="Search and select documents for a claim; store the bundles."
)
@opt.takes_options
def build(
    *,
    claim: Annotated[str, typer.Argument(help="The claim.")],
    options: BundleOptions,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write the bundles to.")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Search, classify and select documents for a claim, and store the bundles."""
    from heretix.config import Claim, check_claim
    from heretix.core.errors import UsageError
    from heretix.evidence.bundle import Bundle
    from heretix.measurement.gather import searches_demo

    config = opt.read_config(None, None, opt.SamplingOptions(), options)
    claims = [Claim(check_claim(claim))]
    if set(config.lenses).isdisjoint(SHOWING):
        named = ", ".join(config.lenses)
        raise UsageError(
            f"`--lens` must name one of {', '.join(SHOWING)}, got {named}; others show nothing"
        )
    if out is not None:
        # Made before anything is searched for.
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise UsageError(f"`--out` must be a folder, got {out}: {exc.strerror}") from exc
    output.silence_retries()
    with output.err_console().status("searching and reading documents"):
        gathering = _gather(claims, config, opt.read_settings(db))
        found = run_async(gathering, stop=interrupt, signals=STOP_SIGNALS)
    bundles = [bundle for bundle in found.values() if isinstance(bundle, Bundle)]
    lacking = [bundle for bundle in found.values() if not isinstance(bundle, Bundle)]
    where = _store_bundles(bundles, db, out)
    if as_json:
        output.print_json([bundle.to_json() for bundle in bundles], indent=None)
    elif bundles:
        from heretix.report.terminal import bundle_view

        console = output.console()
        for bundle in bundles:
            console.print(bundle_view(bundle.to_json()))
            console.print()
        say(where, style="dim")
    for reason in lacking:
        warn(reason)
    if lacking and searches_demo(config.evidence):
        warn(opt.DEMO_CORPUS_NOTE)
    if lacking:
        raise typer.Exit(1)


async def _gather(claims: Sequence[Claim], config: RunConfig, settings: Settings) -> Bundles:
    """Gather bundles; models that are asked for them are paid from the store's budget."""
    from heretix.measurement.gather import gather_bundles
    from heretix.measurement.service import asking, list_asked_models

    given = claims, config.lenses, config.evidence, settings
    async with asking(settings, list_asked_models(config.evidence)) as opener:
        return await gather_bundles(*given, opener=opener)


def _store_bundles(bundles: Sequence[Bundle], db: str | None, out: Path | None = None) -> str:
    """Store bundles, write them to a folder if there is one, and say where they are now."""
    from heretix.evidence.bundle import dump_bundle
    from heretix.store.bundles import save_bundle

    with opt.open_store(db, create=True) as store:
        for bundle in bundles:
            text = dump_bundle(bundle)
            store.write(save_bundle, bundle.bundle_id, bundle.claim, bundle.lens, text)
            if out is not None:
                file = out / f"{bundle.lens}-{bundle.bundle_id[:16]}.json"
                file.write_text(text, encoding="utf-8")
        return f"stored in {store.name}" + (f", written to {out}" if out else "")


@evidence_app.command("show", short_help="Show a bundle: its documents, and what was dropped.")
def show(bundle: BundleArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Show a bundle: class, reliability, stance and quote of each document, and what was dropped.

    A stance is what the document's own record declares, or what a judge said (--judge); – is a
    document that nobody has judged.
    """
    from heretix.evidence.bundle import dump_bundle
    from heretix.report.terminal import bundle_view

    found = _read_bundle(bundle, db)
    if as_json:
        output.print_json_text(dump_bundle(found), nl=False)
    else:
        output.console().print(bundle_view(found.to_json()))


@evidence_app.command("add")
def add_evidence(
    file: Annotated[
        Path, typer.Argument(help="A bundle file.", exists=True, dir_okay=False, readable=True)
    ],
    db: opt.DbOption = None,
) -> None:
    """Check a bundle from elsewhere and store it."""
    found = _read_bundle(str(file), db)
    _store_bundles([found], db)
    typer.echo(found.bundle_id)


@evidence_app.command("verify")
def verify(
    bundle: BundleArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Check every hash, span and quote of a bundle. Ends with 2 and the place where one is off."""
    found = _read_bundle(bundle, db)
    items, dropped = len(found.items), len(found.dropped)
    if as_json:
        counts = {"items": items, "dropped": dropped}
        output.print_json({"bundle_id": found.bundle_id, **counts}, indent=None)
    else:
        say(f"{found.bundle_id} verified: {items} items, {dropped} dropped", style="green")


@evidence_app.command("score", short_help="Say how far a document can be relied on.")
def score(
    file: Annotated[
        Path, typer.Argument(help="A document.", exists=True, dir_okay=False, readable=True)
    ],
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every signal that was looked for.")
    ] = False,
    judge: Annotated[
        str | None,
        typer.Option("--judge", help="A model that places the values, blind to the source."),
    ] = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Say how far a document can be relied on, blind to who published it."""
    from heretix.evidence.reliability import assess, reliability_ends
    from heretix.evidence.sources.intake import read_file
    from heretix.measurement.gather import assess_judged
    from heretix.measurement.service import asking
    from heretix.report.words import NOT_ASSESSED, reliability_text

    document = read_file(file)
    if judge:
        settings = opt.read_settings(None)

        async def grade() -> Assessment:
            async with asking(settings, [judge]) as opener:
                return await assess_judged(document, judge, settings, opener)

        found = run_async(grade(), stop=interrupt, signals=STOP_SIGNALS)
    else:
        found = assess(document)
    if as_json:
        record = found.record()
        interval = reliability_ends(record["parts"])
        output.print_json({**record, "interval": interval, "explanation": found.explain()})
        return
    placed = found.judged is not None
    suffix = "" if placed else f", {NOT_ASSESSED}"
    say(f"reliability {reliability_text(found.record())}{suffix}", style="bold")
    for part in found.explain():
        score = f"{part.score:.2f} in " if placed else ""
        say(
            f"  {part.primitive.name} {part.primitive.value}: {score}"
            f"[{part.interval.lo:.2f}, {part.interval.hi:.2f}], weight {part.weight:.2f}"
        )
        for reading in part.signals if explain else ():
            mark = "+" if reading.contribution else " "
            found_text = f"{reading.count} found, adds {reading.contribution:.2f}"
            say(f"    {mark} {reading.signal.name}: {found_text}", style="dim")


def _read_bundle(ref: str, db: str | None) -> Bundle:
    from heretix.evidence.bundle import bundle_in_file, load_bundle
    from heretix.store.bundles import find_bundle

    if (found := bundle_in_file(ref)) is not None:
        return found
    with opt.open_store(db, absent=_NO_BUNDLE) as store:
        return load_bundle(store.read(find_bundle, ref), ref)


@corpus_app.command("add")
def add_to_corpus(
    sources: Annotated[
        list[str],
        typer.Argument(help="Folders, files (HTML, PDF, Markdown, text, JSONL), addresses."),
    ],
    corpus: NameOption = "main",
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Fetch from private and loopback addresses too.")
    ] = False,
    as_json: opt.JsonOption = False,
) -> None:
    """Add documents. What is there already is skipped; what changed is replaced."""
    from rich.progress import SpinnerColumn

    from heretix.evidence.sources.corpus import Corpus
    from heretix.evidence.sources.intake import check_sources, read_documents
    from heretix.measurement.gather import Network

    path = _corpus_file(corpus)
    # Before the corpus is opened: a slip of the pen shouldn't leave an empty one behind.
    check_sources(sources)
    fetch = replace(
        Network().make_fetch_options(opt.read_settings(None)), allow_private=allow_private
    )
    columns = (SpinnerColumn(), "{task.description}")
    with Corpus.open(path) as opened, output.progress(*columns) as progress:
        task = progress.add_task("reading")
        report = opened.add(
            read_documents(sources, fetch=fetch),
            progress=lambda seen: progress.update(task, description=f"{seen:,} documents"),
        )
    if as_json:
        output.print_json(report)
    else:
        say(
            f"{report.added:,} added, {report.replaced:,} replaced, "
            f"{report.unchanged:,} unchanged, "
            f"{report.duplicates:,} duplicates, {len(report.failed):,} failed"
        )
        for failure in report.failed[:20]:
            say(f"  {failure.source}: {failure.reason}", style="yellow")
        if report.total == 0:
            read = "no document there: HTML, PDF, Markdown, text, JSON and JSONL files are read"
            say(read, style="yellow")
    if report.failed and report.total == len(report.failed):
        raise typer.Exit(1)


@corpus_app.command("list")
def list_corpora(as_json: opt.JsonOption = False) -> None:
    """List the corpora and what they hold."""
    from heretix.evidence.sources.corpus import Corpus, corpus_path, find_corpora
    from heretix.measurement.gather import corpora_folder
    from heretix.report.terminal import plain_table

    folder = corpora_folder(opt.read_settings(None))
    found = {}
    for name in find_corpora(folder):
        with Corpus.open(corpus_path(folder, name), create=False) as corpus:
            found[name] = corpus.stats()
    table = plain_table("~corpus", "~documents", "~hosts", "~undated", "~from", "~to", "~size")
    for name, stats in found.items():
        counts = (f"{count:,}" for count in (stats.documents, stats.hosts, stats.undated))
        days = (str(day or "—") for day in (stats.earliest, stats.latest))
        table.add_row(name, *counts, *days, f"{stats.file_bytes / 1e6:,.1f} MB")
    nothing = "no corpora yet: heretix corpus add FILES --corpus NAME"
    output.show(found, lambda _: table, as_json=as_json, empty=nothing)


@corpus_app.command("search")
def search(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    corpus: NameOption = "main",
    k: Annotated[int, typer.Option("-k", help="At most this many.", min=1)] = 10,
    as_json: opt.JsonOption = False,
) -> None:
    """Search a corpus."""
    from heretix.evidence.sources.corpus import Corpus

    with Corpus.open(_corpus_file(corpus), create=False) as opened:
        hits = opened.search(query, k)
    if as_json:
        names = ("url", "title", "snippet", "published", "score")
        output.print_json([{name: getattr(hit, name) for name in names} for hit in hits])
        return
    for hit in hits:
        say(f"{hit.title}  ({hit.published or 'undated'})", style="bold")
        say(f"  {hit.url or 'a file'}", style="dim")
        say(f"  {hit.snippet}")
    if not hits:
        say("nothing found")


def _corpus_file(name: str) -> Path:
    from heretix.evidence.sources.corpus import corpus_path
    from heretix.measurement.gather import corpora_folder

    return corpus_path(corpora_folder(opt.read_settings(None)), name)


@policy_app.command("explain", short_help="Say which rule gives an address its class, and why.")
def explain(
    url: Annotated[str, typer.Argument(help="An address, or a domain like example.org.")],
    policy: opt.PolicyOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Say which rule gives an address its class, and on which facts it rests."""
    from heretix.core.errors import UsageError
    from heretix.evidence.policy.file import load_policy
    from heretix.evidence.policy.publisher import is_address

    if not is_address(url):
        doi = _DOI.search(url)
        remedy = f"; a DOI is written https://doi.org/{doi[0]}" if doi else ""
        raise UsageError(
            "`URL` must be an address like https://example.org/page, or a domain like example.org, "
            f"got {url!r}{remedy}"
        )
    found = load_policy(policy or "default").explain(url)
    given = found.classification
    if as_json:
        output.print_json(
            {
                "url": url,
                "class": given.cls,
                "rule": given.rule_id,
                "facts": list(given.facts),
                "publisher": given.publisher,
                "compared": [rule.id for rule in found.compared],
                "later": [match.rule.id for match in found.later],
            }
        )
        return
    say(f"{given.cls}  {url}", style="bold")
    say(f"publisher  {given.publisher}")
    say(f"rule       {given.rule_id or 'none: unknown is an answer'}")
    for fact in given.facts:
        say(f"fact       {fact}")
    for match in found.later:
        say(f"later      {match.rule.id} would have said {match.cls}", style="dim")


@policy_app.command("diff")
def diff(
    a: PolicyArgument,
    b: PolicyArgument,
    urls: Annotated[
        Path,
        typer.Option(
            "--urls",
            help="A file of addresses, one a line.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ],
    as_json: opt.JsonOption = False,
) -> None:
    """List the addresses whose class differs between two policies."""
    from heretix.core.errors import UsageError
    from heretix.evidence.policy.file import load_policy
    from heretix.evidence.policy.policy import diff as policy_diff

    try:
        lines = urls.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as exc:
        raise UsageError(f"`--urls` must be a text file in UTF-8, got {urls}") from exc
    addresses = [line.strip() for line in lines if line.strip()]
    flips = policy_diff(load_policy(a), load_policy(b), addresses)
    if as_json:
        output.print_json(
            [
                {"url": flip.url, "before": flip.before.cls, "after": flip.after.cls}
                for flip in flips
            ]
        )
        return
    for flip in flips:
        say(f"{flip.before.cls} → {flip.after.cls}  {flip.url}")
    say(f"{len(flips)} of {len(addresses)} differ", style="dim")


@policy_app.command("coverage")
def coverage(
    urls: Annotated[
        typer.FileText,
        typer.Argument(help="A file of addresses or domains, one a line; - reads standard input."),
    ],
    policy: opt.PolicyOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Count addresses by class and rule; name those that none covers."""
    from collections import Counter

    from heretix.core.errors import UsageError
    from heretix.evidence.policy.file import load_policy
    from heretix.evidence.policy.policy import SourceClass
    from heretix.evidence.policy.publisher import is_address

    try:
        lines = [line.strip() for line in urls]
    except UnicodeDecodeError as exc:
        raise UsageError(f"`URLS` must be text in UTF-8, got {urls.name}") from exc
    addresses = [(place, line) for place, line in enumerate(lines, start=1) if line]
    for place, line in addresses:
        if not is_address(line):
            raise UsageError(
                f"`URLS` line {place} must be an address or a domain like example.org, got {line!r}"
            )
    if not addresses:
        raise UsageError("`URLS` must hold at least one address, got none")
    loaded = load_policy(policy or "default")
    found = [(line, loaded.classify(line)) for _, line in addresses]
    total = len(found)
    classes = Counter(str(given.cls) for _, given in found)
    rules = Counter(given.rule_id or "none" for _, given in found)
    unknown = [line for line, given in found if given.cls is SourceClass.UNKNOWN]
    if as_json:
        counted = {
            name: {key: {"n": n, "share": n / total} for key, n in counts.most_common()}
            for name, counts in (("classes", classes), ("rules", rules))
        }
        head = {"policy": loaded.version, "sha256": loaded.sha256, "n": total}
        output.print_json({**head, **counted, "unknown": unknown})
        return
    for name, counts in (("class", classes), ("rule", rules)):
        for key, n in counts.most_common():
            say(f"{name:<5}  {n:>6}  {n / total:>6.1%}  {key}")
    for line in unknown:
        say(f"unknown  {line}", style="dim")
    known = total - len(unknown)
    say(f"{known} of {total} classified ({known / total:.1%}) by {loaded.version}", style="bold")


@policy_app.command("check")
def check(policy: PolicyArgument = "default", as_json: opt.JsonOption = False) -> None:
    """Look for rules that can never apply, contradictions and slips. Ends with 1 on errors."""
    from heretix.evidence.policy.file import check_file
    from heretix.evidence.policy.policy import Level

    loaded, problems = check_file(policy)
    if as_json:
        output.print_json(
            {
                "version": loaded and loaded.version,
                "sha256": loaded and loaded.sha256,
                "rules": loaded and len(loaded.rules),
                "problems": [{"level": one.level, "message": str(one)} for one in problems],
            }
        )
    else:
        for problem in problems:
            say(f"{problem.level}: {problem}")
        if loaded is not None:
            say(f"{loaded.version}: {len(loaded.rules)} rules, sha256 {loaded.sha256[:16]}")
    if loaded is None or any(problem.level is Level.ERROR for problem in problems):
        raise typer.Exit(1)
