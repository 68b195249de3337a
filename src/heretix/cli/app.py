"""The `heretix` command and what every subcommand shares.

Nothing heavy is imported before a command needs it: `heretix --help` answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Annotated, Final, NoReturn

import typer

from heretix.cli import (
    batch,
    doctor,
    economy,
    episode,
    evidence,
    lens,
    records,
    run,
    serve,
    simulate,
    users,
)
from heretix.cli.options import ClaimCommand
from heretix.core.errors import HeretixError
from heretix.version import VERSION

__all__ = ["app", "main"]

_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""How writing to a terminal, a pipe or a file can fail, besides nobody reading any more."""

app = typer.Typer(
    name="heretix",
    help="Measure what AI models believe: a probability, an interval, a stability, a record.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", cls=ClaimCommand)(run.run)
app.command("resume", short_help="Go on with an execution that was stopped.")(run.resume)
app.command(
    "lens",
    cls=ClaimCommand,
    short_help="Measure a claim with and without evidence, and compare.",
)(lens.lens)
app.command(
    "describe",
    cls=ClaimCommand,
    short_help="Print the plan, calls, tokens and cost; call nothing.",
)(run.describe)
app.command("show", short_help="Show a stored run or an artifact.")(records.show)
app.command("verify", short_help="Derive everything in a record again, from the record alone.")(
    records.verify
)
app.command("runs")(records.runs)
app.command("diff", short_help="Compare two runs.")(records.diff)
app.command("report", short_help="Write a report: a page, a picture or a PDF.")(records.report)
app.command("anomalies", short_help="Rank stored claims by how far evidence moves the belief.")(
    lens.anomalies
)
app.command("doctor", short_help="Check keys, store and embedded model; say what to put right.")(
    doctor.doctor
)
app.command("serve", short_help="Serve the web app: measure, look and take part in a browser.")(
    serve.serve
)
app.command("demo", short_help="Fill a fresh store with a demonstration.")(serve.demo)
app.command("worker")(serve.worker)
app.command("simulate", short_help="Play episodes with honest players and attackers: who gains?")(
    simulate.simulate
)
app.add_typer(doctor.models_app, name="models")
app.add_typer(batch.app, name="batch")
app.add_typer(evidence.corpus_app, name="corpus")
app.add_typer(evidence.evidence_app, name="evidence")
app.add_typer(records.export_app, name="export")
app.add_typer(evidence.policy_app, name="policy")
app.add_typer(economy.ledger_app, name="ledger")
app.add_typer(economy.market_app, name="market")
app.add_typer(episode.app, name="episode")
app.add_typer(economy.rewards_app, name="rewards")
app.add_typer(economy.explore_app, name="explore")
app.add_typer(serve.jobs_app, name="jobs")
app.add_typer(users.app, name="users")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"heretix {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    del version


def main() -> None:
    """Entry point: a user's mistake ends with a message and its exit code, not a traceback."""
    _prepare_output()
    try:
        app()
    except HeretixError as exc:
        typer.echo(f"error: {exc}", err=True)
        _leave(exc.exit_code)
    except SystemExit as exc:
        # The libraries that print end with 1 when the reader of a pipe went away.
        if isinstance(exc.__context__, BrokenPipeError):
            _leave(0)
        _leave(exc.code if isinstance(exc.code, int) else int(exc.code is not None))
    except BrokenPipeError:
        _leave(0)
    except OSError as exc:
        # A file that can't be written has a name, and whoever wrote it has said so.
        if exc.errno not in _UNWRITABLE or exc.filename is not None:
            raise
        _leave(_unwritten(exc))


def _prepare_output() -> None:
    """A character that a terminal can't show becomes a question mark, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _leave(code: int) -> NoReturn:
    """End at once. Everything is stored and closed by now; taking the interpreter apart, module by
    module, would only keep the user waiting."""
    try:
        # There is none when it was closed (`>&-`).
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of a pipe went away (`heretix runs | head`); that isn't a failure.
        code = 0
    except OSError as exc:
        # Said before, if the command itself failed to write.
        code = code or _unwritten(exc)
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.flush()
    os._exit(code)


def _unwritten(exc: OSError) -> int:
    """Say that the output is lost; the exit code for it."""
    with contextlib.suppress(OSError):
        typer.echo(f"error: standard output can't be written: {exc.strerror}", err=True)
    return 3
