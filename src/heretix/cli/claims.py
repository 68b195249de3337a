"""`heretix claims`: other forms of a claim, proposed by a model and confirmed by the user."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heretix.cli import options as opt
from heretix.cli import output
from heretix.core.event_loop import STOP_SIGNALS, interrupt, run_async

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.proposals import Proposal, Proposer

app = typer.Typer(
    help="Propose other forms of claims, for you to confirm.",
    no_args_is_help=True,
)
_COLUMNS: Final = ("claim", "of", "form", "model")


def _add(command: str, summary: str) -> None:
    def propose(
        claim: opt.ClaimArgument = None,
        claims_file: Annotated[
            str | None,
            typer.Option("--claims-file", help="A file of claims, or `-`.", metavar="FILE"),
        ] = None,
        column: Annotated[
            str | None,
            typer.Option("--column", help="The column with the claim.", metavar="NAME"),
        ] = None,
        model: Annotated[
            str | None,
            typer.Option("--model", "-m", help="The model that proposes.", metavar="MODEL"),
        ] = None,
        as_of: Annotated[
            str | None,
            typer.Option("--as-of", help="The present, if not today (YYYY-MM-DD)."),
        ] = None,
        record_to: Annotated[
            Path | None,
            typer.Option("--record-to", help="Keep answers here; those kept aren't asked again."),
        ] = None,
        replay_from: Annotated[
            Path | None,
            typer.Option("--replay-from", help="Take answers from here; ask nobody."),
        ] = None,
        out: Annotated[
            Path | None,
            typer.Option("--out", "-o", help="The file of claims to write (.csv, .tsv, .jsonl)."),
        ] = None,
        as_json: opt.JsonOption = False,
    ) -> None:
        from heretix.config import RunConfig
        from heretix.core.errors import ConfigError
        from heretix.measurement.proposals import Proposer
        from heretix.providers.catalog import default_model, resolve_model
        from heretix.report.export import format_of

        if record_to is not None and replay_from is not None:
            raise ConfigError("`--record-to` and `--replay-from` can't both be given")
        wanted = format_of(out) if out is not None else "csv"
        if wanted == "parquet":
            raise ConfigError("`--out` must be .csv, .tsv or .jsonl: you are to edit it")
        asked = {"claim": claim, "claims_file": claims_file, "claims_column": column}
        config = RunConfig.parse({name: value for name, value in asked.items() if value})
        texts = list(dict.fromkeys(one.text for one in config.claims()))
        settings = opt.read_settings(None)
        proposer = Proposer(
            command=command,
            model=resolve_model(model, settings) if model else default_model(settings),
            settings=settings,
            day=_day(as_of),
            record_to=record_to,
            replay_from=replay_from,
        )
        rows = _ask(proposer, texts)
        _deliver(rows, wanted, out, as_json=as_json)

    propose.__doc__ = f"""{summary}

    One call a claim. The result is a file of claims (claim, of, form, model): read it, correct it,
    delete what is wrong, and measure it with `heretix run --claims-file FILE`.
    """
    app.command(command, short_help=summary, cls=opt.ClaimCommand)(propose)


def _ask(proposer: Proposer, texts: Sequence[str]) -> list[dict[str, str]]:
    from heretix.measurement.proposals import as_rows
    from heretix.measurement.service import asking

    output.silence_retries()
    done = 0
    with output.err_console().status(f"asking {proposer.model}: 0 of {len(texts):,}") as status:

        def count() -> None:
            nonlocal done
            done += 1
            status.update(f"asking {proposer.model}: {done:,} of {len(texts):,}")

        async def propose() -> list[Proposal]:
            asked = [] if proposer.replay_from else [str(proposer.model)]
            async with asking(proposer.settings, asked) as opener:
                return await replace(proposer, opener=opener).propose(texts, count)

        return as_rows(run_async(propose(), stop=interrupt, signals=STOP_SIGNALS))


def _day(as_of: str | None) -> date:
    from heretix.core.errors import ConfigError

    try:
        return date.fromisoformat(as_of) if as_of else datetime.now(UTC).date()
    except ValueError as exc:
        raise ConfigError(f"`--as-of` must be a day like 2026-11-15, got {as_of!r}") from exc


def _deliver(rows: list[dict[str, str]], wanted: Any, out: Path | None, *, as_json: bool) -> None:
    from heretix.report.export import write_export, write_rows

    if out is not None:
        write_export(out, write_rows(wanted, SimpleNamespace(names=_COLUMNS), iter([rows])))
        output.warn(
            f"{len(rows):,} proposals in {out}: read and correct them, then "
            f"heretix run --claims-file {out}",
            style="dim",
        )
    if as_json:
        output.print_json(rows)
    elif out is None:
        pieces = write_rows(wanted, SimpleNamespace(names=_COLUMNS), iter([rows]))
        typer.echo(b"".join(pieces).decode("utf-8"), nl=False)


_add("split", "Split claims into atomic ones.")
_add("normalise", "Write claims so that they stand by themselves, with their date.")
_add("negate", "Write the negation of claims.")
_add("paraphrase", "Write other wordings of claims.")
