"""`heretix report`: what was measured, as a page or a picture to pass on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json
from heretix.cli.records import artifacts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.record import Artifact

__all__ = ["report"]


def report(
    refs: Annotated[
        list[str],
        typer.Argument(
            help="Run or execution ids (a unique part will do), or artifact files.",
            metavar="ID|FILE...",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to: .html, .png, .svg or .pdf.")],
    dark: Annotated[
        bool, typer.Option("--dark", help="Pictures on dark paper; pages follow their reader.")
    ] = False,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Write a report of one or more records: charts, how the numbers were made, where from.

    .html is the whole report in one file: it opens offline, runs no script, prints, and holds
    every answer. .png, .svg and .pdf are one sheet with the charts and the method; the PDF has a
    single page of the sheet's own size (for pages of paper, print the HTML). Several records
    stand side by side: models, lenses, claims, or one recipe over time.
    """
    from heretix.measurement.artifact import check_target

    _check_format(out)
    artifacts = [artifact for ref in refs for artifact in artifacts_of(ref, db)]
    check_target(out, lines=False)
    with opt.err_console().status("drawing …"):
        content = _content(artifacts, out.suffix.lower(), dark=dark)
    from heretix.report.charts.output import write_file

    write_file(out, content)
    runs = sum(len(artifact.runs) for artifact in artifacts)
    if as_json:
        print_json({"out": str(out), "runs": runs, "bytes": len(content)}, indent=None)
    else:
        typer.echo(f"{runs} run{'' if runs == 1 else 's'}, written to {out}")


def _check_format(out: Path) -> None:
    from heretix.errors import ConfigError

    if out.suffix.lower() not in {".html", ".png", ".svg", ".pdf"}:
        raise ConfigError(f"`--out` must end in .html, .png, .svg or .pdf, got {out.name!r}")


def _content(artifacts: Sequence[Artifact], suffix: str, *, dark: bool) -> bytes:
    from heretix.report.charts.output import drawing_bytes
    from heretix.report.document import report_html
    from heretix.report.sheet import report_svg
    from heretix.report.theme import DARK, LIGHT

    if suffix == ".html":
        return report_html(artifacts).encode()
    return drawing_bytes(report_svg(artifacts, theme=DARK if dark else LIGHT), suffix)
