"""`heretix evidence`: bundles, and how far a document can be relied on."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json, print_json_text
from heretix.running import run_async

if TYPE_CHECKING:
    from heretix.evidence.bundle import Bundle
    from heretix.evidence.document import Document
    from heretix.evidence.reliability import Assessment

__all__ = ["app"]

app = typer.Typer(help="Bundles of evidence.", no_args_is_help=True)

BundleArgument = Annotated[
    str, typer.Argument(help="A bundle file, or the id of a stored bundle (a part will do).")
]
_NO_BUNDLE = (
    'no bundle was stored here yet; make one with `heretix evidence build "A claim."` first'
)


@app.command("build", short_help="Search and select documents for a claim; store the bundles.")
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
    from heretix.errors import UsageError
    from heretix.evidence.bundle import Bundle
    from heretix.evidence.bundlefile import dump_bundle
    from heretix.measurement.lenses import gather_bundles, searches_demo
    from heretix.settings import Settings
    from heretix.store import Store

    options = opt.evidence_options(lenses, corpus, search, policy, document, as_of, judge)
    config = opt.read_config(None, None, **options)
    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db)
    claims = [Claim(check_claim(claim))]
    if all(lens in {"RPL", "NUL"} for lens in config.lenses):
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
            store.save_bundle(bundle.bundle_id, bundle.claim, bundle.lens, dump_bundle(bundle))
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


@app.command("show", short_help="Show a bundle: its documents, and what was dropped.")
def show(bundle: BundleArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Show a bundle: class, reliability, stance and quote of each document, and what was dropped.

    A stance is what the document's own record declares, or what a judge said (--judge); – is a
    document that nobody has judged.
    """
    from heretix.evidence.bundlefile import dump_bundle
    from heretix.report.lenses import bundle_view

    found = _bundle(bundle, db)
    if as_json:
        print_json_text(dump_bundle(found), nl=False)
    else:
        opt.console().print(bundle_view(found.to_json()))


@app.command("add")
def add(
    file: Annotated[
        Path, typer.Argument(help="A bundle file.", exists=True, dir_okay=False, readable=True)
    ],
    db: opt.DbOption = None,
) -> None:
    """Check a bundle from elsewhere and store it."""
    from heretix.evidence.bundlefile import dump_bundle
    from heretix.settings import Settings
    from heretix.store import Store

    found = _bundle(str(file), db)
    with Store.open(db or Settings.from_env().db) as store:
        store.save_bundle(found.bundle_id, found.claim, found.lens, dump_bundle(found))
    typer.echo(found.bundle_id)


@app.command("verify")
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


@app.command("score", short_help="Say how far a document can be relied on.")
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
    from heretix.evidence.intake import read_file
    from heretix.evidence.reliability import assess

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
    from heretix.report.lenses import bundle_view

    console = opt.console()
    for bundle in bundles:
        console.print(bundle_view(bundle.to_json()))
        console.print()
    if bundles:
        written = "" if out is None else f", written to {out}"
        console.print(f"stored in {stored_in}{written}", style="dim", markup=False)


def _make_folder(folder: Path) -> None:
    """Make the folder before anything is searched for, or say why it can't be."""
    from heretix.errors import UsageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"`--out` must be a folder, got {folder}: {exc.strerror}") from exc


async def _judged(document: Document, model: str) -> Assessment:
    from heretix.measurement.judging import judged_assessment
    from heretix.settings import Settings

    return await judged_assessment(document, model, Settings.from_env())


def _bundle(ref: str, db: str | None) -> Bundle:
    from heretix.evidence.bundlefile import bundle_in_file, load_bundle
    from heretix.settings import Settings
    from heretix.store import Store

    if (found := bundle_in_file(ref)) is not None:
        return found
    with Store.open(db or Settings.from_env().db, create=False, absent=_NO_BUNDLE) as store:
        return load_bundle(store.bundle(ref), ref)


def _plain(value: Any) -> Any:
    return getattr(value, "name", str(value))
