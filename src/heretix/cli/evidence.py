"""`heretix evidence`, `corpus` and `policy`: documents, bundles, and the class of a source."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json, print_json_text
from heretix.core.event_loop import run_async
from heretix.core.lenses import needs_documents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.evidence.bundle import Bundle
    from heretix.evidence.document import Document
    from heretix.evidence.policy.policy import Policy, Problem
    from heretix.evidence.reliability import Assessment

# `heretix evidence`: bundles, and how far a document can be relied on.

evidence_app = typer.Typer(help="Bundles of evidence.", no_args_is_help=True)

BundleArgument = Annotated[
    str, typer.Argument(help="A bundle file, or the id of a stored bundle (a part will do).")
]
_NO_BUNDLE = (
    'no bundle was stored here yet; make one with `heretix evidence build "A claim."` first'
)


@evidence_app.command(
    "build", short_help="Search and select documents for a claim; store the bundles."
)
def build(
    claim: Annotated[str, typer.Argument(help="The claim.")],
    lenses: opt.LensOption = "MEL,HEL",
    corpus: opt.CorpusOption = None,
    search: opt.SearchOption = None,
    policy: opt.PolicyOption = None,
    document: opt.DocumentOption = None,
    as_of: opt.AsOfOption = None,
    judge: opt.JudgeOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write the bundles to.")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Search, classify and select documents for a claim, and store the bundles."""
    import stamina.instrumentation

    from heretix.config import Claim, check_claim
    from heretix.core.errors import UsageError
    from heretix.core.settings import Settings
    from heretix.evidence.bundle import Bundle, dump_bundle
    from heretix.measurement.gather import gather_bundles, searches_demo
    from heretix.store import Store
    from heretix.store.documents import save_bundle

    options = opt.evidence_options(lenses, corpus, search, policy, document, as_of, judge)
    config = opt.read_config(None, None, **options)
    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db)
    claims = [Claim(check_claim(claim))]
    if not needs_documents(config.lenses):
        named = ", ".join(config.lenses)
        raise UsageError(f"`--lens` must name MEL, HEL or SEL, got {named}; others show nothing")
    if out is not None:
        _make_folder(out)
    stamina.instrumentation.set_on_retry_hooks([])
    with opt.err_console().status("searching and reading documents"):
        found = run_async(gather_bundles(claims, config.lenses, config.evidence, settings))
    bundles = [bundle for bundle in found.values() if isinstance(bundle, Bundle)]
    lacking = [bundle for bundle in found.values() if not isinstance(bundle, Bundle)]
    with Store.open(settings.db) as store:
        stored_in = store.name
        for bundle in bundles:
            store.write(
                save_bundle, bundle.bundle_id, bundle.claim, bundle.lens, dump_bundle(bundle)
            )
            if out is not None:
                file = out / f"{bundle.lens}-{bundle.bundle_id[:16]}.json"
                file.write_text(dump_bundle(bundle), encoding="utf-8")
    if as_json:
        print_json([bundle.to_json() for bundle in bundles], indent=None)
    else:
        _show_bundles(bundles, stored_in, out)
    for reason in lacking:
        opt.err_console().print(str(reason), style="yellow", markup=False)
    if lacking and searches_demo(config.evidence):
        opt.err_console().print(opt.DEMO_CORPUS_NOTE, style="yellow", markup=False)
    if lacking:
        raise typer.Exit(1)


@evidence_app.command("show", short_help="Show a bundle: its documents, and what was dropped.")
def show(bundle: BundleArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Show a bundle: class, reliability, stance and quote of each document, and what was dropped.

    A stance is what the document's own record declares, or what a judge said (--judge); – is a
    document that nobody has judged.
    """
    from heretix.evidence.bundle import dump_bundle
    from heretix.report.terminal import bundle_view

    found = _bundle(bundle, db)
    if as_json:
        print_json_text(dump_bundle(found), nl=False)
    else:
        opt.console().print(bundle_view(found.to_json()))


@evidence_app.command("add")
def add_evidence(
    file: Annotated[
        Path, typer.Argument(help="A bundle file.", exists=True, dir_okay=False, readable=True)
    ],
    db: opt.DbOption = None,
) -> None:
    """Check a bundle from elsewhere and store it."""
    from heretix.core.settings import Settings
    from heretix.evidence.bundle import dump_bundle
    from heretix.store import Store
    from heretix.store.documents import save_bundle

    found = _bundle(str(file), db)
    with Store.open(db or Settings.from_env().db) as store:
        store.write(save_bundle, found.bundle_id, found.claim, found.lens, dump_bundle(found))
    typer.echo(found.bundle_id)


@evidence_app.command("verify")
def verify(
    bundle: BundleArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False
) -> None:
    """Check every hash, span and quote of a bundle. Ends with 2 and the place where one is off."""
    found = _bundle(bundle, db)
    if as_json:
        counts = {"items": len(found.items), "dropped": len(found.dropped)}
        print_json({"bundle_id": found.bundle_id, **counts}, indent=None)
        return
    opt.console().print(
        f"{found.bundle_id} verified: {len(found.items)} items, {len(found.dropped)} dropped",
        style="green",
    )


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
    from heretix.evidence.reliability import assess
    from heretix.evidence.sources.intake import read_file

    document = read_file(file)
    found = run_async(_judged(document, judge)) if judge else assess(document)
    if as_json:
        content = {**found.record(), "explanation": [asdict(part) for part in found.explain()]}
        print_json(content, default=_plain)
        return
    console = opt.console()
    console.print(f"reliability {found.r:.2f}", style="bold")
    for part in found.explain():
        console.print(
            f"  {part.primitive.name} {part.primitive.value}: {part.score:.2f} "
            f"in [{part.interval.lo:.2f}, {part.interval.hi:.2f}], weight {part.weight:.2f}"
        )
        for reading in part.signals if explain else ():
            mark = "+" if reading.contribution else " "
            found_text = f"{reading.count} found, adds {reading.contribution:.2f}"
            console.print(f"    {mark} {reading.signal.name}: {found_text}", style="dim")


def _show_bundles(bundles: list[Bundle], stored_in: str, out: Path | None) -> None:
    """What was found, and where it is now."""
    from heretix.report.terminal import bundle_view

    console = opt.console()
    for bundle in bundles:
        console.print(bundle_view(bundle.to_json()))
        console.print()
    if bundles:
        written = "" if out is None else f", written to {out}"
        console.print(f"stored in {stored_in}{written}", style="dim", markup=False)


def _make_folder(folder: Path) -> None:
    """Make the folder before anything is searched for, or say why it can't be."""
    from heretix.core.errors import UsageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"`--out` must be a folder, got {folder}: {exc.strerror}") from exc


async def _judged(document: Document, model: str) -> Assessment:
    from heretix.core.settings import Settings
    from heretix.measurement.gather import judged_assessment

    return await judged_assessment(document, model, Settings.from_env())


def _bundle(ref: str, db: str | None) -> Bundle:
    from heretix.core.settings import Settings
    from heretix.evidence.bundle import bundle_in_file, load_bundle
    from heretix.store import Store
    from heretix.store.documents import find_bundle

    if (found := bundle_in_file(ref)) is not None:
        return found
    with Store.open(db or Settings.from_env().db, create=False, absent=_NO_BUNDLE) as store:
        return load_bundle(store.read(find_bundle, ref), ref)


def _plain(value: Any) -> Any:
    return getattr(value, "name", str(value))


# `heretix corpus`: documents on this machine, to search for evidence in.

corpus_app = typer.Typer(help="Documents on this machine, to search.", no_args_is_help=True)

NameOption = Annotated[str, typer.Option("--corpus", help="The corpus's name.")]


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
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from heretix.core.settings import Settings
    from heretix.evidence.sources.corpus import Corpus, corpus_path
    from heretix.evidence.sources.intake import check_sources, documents_from
    from heretix.measurement.gather import Network, corpora_folder

    settings = Settings.from_env()
    path = corpus_path(corpora_folder(settings), corpus)
    # Before the corpus is opened: a slip of the pen shouldn't leave an empty one behind.
    check_sources(sources)
    fetch = replace(Network().fetching(settings), allow_private=allow_private)
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with (
        Corpus.open(path) as opened,
        Progress(*columns, console=opt.err_console(), transient=True) as progress,
    ):
        task = progress.add_task("reading")
        report = opened.add(
            documents_from(sources, fetch=fetch),
            progress=lambda seen: progress.update(task, description=f"{seen:,} documents"),
        )
    if as_json:
        print_json(asdict(report))
    else:
        console = opt.console()
        console.print(
            f"{report.added:,} added, {report.replaced:,} replaced, "
            f"{report.unchanged:,} unchanged, "
            f"{report.duplicates:,} duplicates, {len(report.failed):,} failed"
        )
        for failure in report.failed[:20]:
            console.print(f"  {failure.source}: {failure.reason}", style="yellow", markup=False)
        if report.total == 0:
            said = "no document there: HTML, PDF, Markdown, text, JSON and JSONL files are read"
            console.print(said, style="yellow")
    if report.failed and report.total == len(report.failed):
        raise typer.Exit(1)


@corpus_app.command("list")
def list_corpora(as_json: opt.JsonOption = False) -> None:
    """List the corpora and what they hold."""
    from rich.table import Table

    from heretix.core.settings import Settings
    from heretix.evidence.sources.corpus import Corpus, corpus_names, corpus_path
    from heretix.measurement.gather import corpora_folder

    folder = corpora_folder(Settings.from_env())
    found = {}
    for name in corpus_names(folder):
        with Corpus.open(corpus_path(folder, name), create=False) as corpus:
            found[name] = corpus.stats()
    if as_json:
        content = {name: asdict(stats) for name, stats in found.items()}
        print_json(content, default=str)
        return
    if not found:
        opt.console().print("no corpora yet: heretix corpus add FILES --corpus NAME")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("corpus", "documents", "hosts", "undated", "from", "to", "size"):
        table.add_column(column)
    for name, stats in found.items():
        table.add_row(
            name,
            f"{stats.documents:,}",
            f"{stats.hosts:,}",
            f"{stats.undated:,}",
            str(stats.earliest or "—"),
            str(stats.latest or "—"),
            f"{stats.file_bytes / 1e6:,.1f} MB",
        )
    opt.console().print(table)


@corpus_app.command("search")
def search(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    corpus: NameOption = "main",
    k: Annotated[int, typer.Option("-k", help="At most this many.", min=1)] = 10,
    as_json: opt.JsonOption = False,
) -> None:
    """Search a corpus."""
    from heretix.core.settings import Settings
    from heretix.evidence.sources.corpus import Corpus, corpus_path
    from heretix.measurement.gather import corpora_folder

    path = corpus_path(corpora_folder(Settings.from_env()), corpus)
    with Corpus.open(path, create=False) as opened:
        hits = opened.search(query, k)
    if as_json:
        content = [
            {
                "url": hit.url,
                "title": hit.title,
                "snippet": hit.snippet,
                "published": hit.published,
                "score": hit.score,
            }
            for hit in hits
        ]
        print_json(content, default=str)
        return
    console = opt.console()
    for hit in hits:
        console.print(f"{hit.title}  ({hit.published or 'undated'})", style="bold", markup=False)
        console.print(f"  {hit.url or 'a file'}", style="dim", markup=False)
        console.print(f"  {hit.snippet}", markup=False)
    if not hits:
        console.print("nothing found")


# `heretix policy`: which side of the canon a source stands on, and why.

policy_app = typer.Typer(
    help="Source policies: membership in the canon, not quality.", no_args_is_help=True
)

_DOI: Final = re.compile(r"10\.\d{4,9}/\S+")

PolicyArgument = Annotated[
    str, typer.Argument(help="A policy file, or `default`.", metavar="POLICY")
]


@policy_app.command("explain", short_help="Say which rule gives an address its class, and why.")
def explain(
    url: Annotated[str, typer.Argument(help="An address, or a domain like example.org.")],
    policy: opt.PolicyOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Say which rule gives an address its class, and on which facts it rests."""
    _require_address(url)
    found = _load(policy or "default").explain(url)
    given = found.classification
    if as_json:
        content = {
            "url": url,
            "class": given.cls,
            "rule": given.rule_id,
            "facts": list(given.facts),
            "publisher": given.publisher,
            "compared": [c.rule_id for c in found.compared],
            "later": [match.rule.id for match in found.later],
        }
        print_json(content)
        return
    console = opt.console()
    console.print(f"{given.cls}  {url}", style="bold", markup=False)
    console.print(f"publisher  {given.publisher}", markup=False)
    rule = given.rule_id or "none: unknown is an answer"
    console.print(f"rule       {rule}", markup=False)
    for fact in given.facts:
        console.print(f"fact       {fact}", markup=False)
    for match in found.later:
        console.print(f"later      {match.rule.id} would have said {match.cls}", style="dim")


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
    from heretix.evidence.policy.policy import diff as policy_diff

    try:
        addresses = [line.strip() for line in urls.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as exc:
        raise UsageError(f"`--urls` must be a text file in UTF-8, got {urls}") from exc
    addresses = [line for line in addresses if line]
    flips = policy_diff(_load(a), _load(b), addresses)
    if as_json:
        content = [
            {"url": flip.url, "before": flip.before.cls, "after": flip.after.cls} for flip in flips
        ]
        print_json(content)
        return
    console = opt.console()
    for flip in flips:
        console.print(f"{flip.before.cls} → {flip.after.cls}  {flip.url}", markup=False)
    console.print(f"{len(flips)} of {len(addresses)} differ", style="dim")


@policy_app.command("check")
def check(policy: PolicyArgument = "default", as_json: opt.JsonOption = False) -> None:
    """Look for rules that can never apply, contradictions and slips. Ends with 1 on errors."""
    from heretix.evidence.policy.file import check_file
    from heretix.evidence.policy.policy import Level

    loaded, problems = check_file(policy)
    if as_json:
        content = {
            "version": loaded and loaded.version,
            "sha256": loaded and loaded.sha256,
            "rules": loaded and len(loaded.rules),
            "problems": [{"level": one.level, "message": str(one)} for one in problems],
        }
        print_json(content)
    else:
        _print_check(loaded, problems)
    if loaded is None or any(problem.level is Level.ERROR for problem in problems):
        raise typer.Exit(1)


def _print_check(loaded: Policy | None, problems: Sequence[Problem]) -> None:
    console = opt.console()
    for problem in problems:
        console.print(f"{problem.level}: {problem}", markup=False)
    if loaded is not None:
        console.print(f"{loaded.version}: {len(loaded.rules)} rules, sha256 {loaded.sha256[:16]}")


def _require_address(url: str) -> None:
    from heretix.core.errors import UsageError
    from heretix.evidence.policy.publisher import is_address

    if is_address(url):
        return
    doi = _DOI.search(url)
    remedy = f"; a DOI is written https://doi.org/{doi[0]}" if doi else ""
    raise UsageError(
        "`URL` must be an address like https://example.org/page, or a domain like example.org, "
        f"got {url!r}{remedy}"
    )


def _load(name: str) -> Policy:
    from heretix.evidence.policy.file import load_policy

    return load_policy(name)
