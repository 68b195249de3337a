"""`heretix corpus`: documents on this machine, to search for evidence in."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json

__all__ = ["app"]

app = typer.Typer(help="Documents on this machine, to search.", no_args_is_help=True)

NameOption = Annotated[str, typer.Option("--corpus", help="The corpus's name.")]


@app.command("add")
def add(
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

    from heretix.evidence.corpus import Corpus, corpus_path
    from heretix.evidence.intake import check_sources, documents_from
    from heretix.measurement.lenses import Network, corpora_folder
    from heretix.settings import Settings

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


@app.command("list")
def list_corpora(as_json: opt.JsonOption = False) -> None:
    """List the corpora and what they hold."""
    from rich.table import Table

    from heretix.evidence.corpus import Corpus, corpus_names, corpus_path
    from heretix.measurement.lenses import corpora_folder
    from heretix.settings import Settings

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


@app.command("search")
def search(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    corpus: NameOption = "main",
    k: Annotated[int, typer.Option("-k", help="At most this many.", min=1)] = 10,
    as_json: opt.JsonOption = False,
) -> None:
    """Search a corpus."""
    from heretix.evidence.corpus import Corpus, corpus_path
    from heretix.measurement.lenses import corpora_folder
    from heretix.settings import Settings

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
