"""The `heretix` command: its table of subcommands, and what every one of them shares. A subcommand
is imported when it is called: `heretix --help` imports none of them."""

from __future__ import annotations

import contextlib
import errno
import inspect
import io
import json
import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from heretix.core.errors import HeretixError
from heretix.core.plugins import Registry
from heretix.version import VERSION

_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Failures of writing to a terminal, a pipe or a file, besides nobody reading any more."""
_LACKING: Final = (
    "`{}` isn't installed. An extra brings it: `uv sync --extra web`, or `pip install '.[web]'` in "
    "the clone, has what the web app, its sites and its accounts need; `heretix --version` lists "
    "the extras"
)

# Name, `module:attribute` under `heretix.cli`, and the line that `--help` shows.
_COMMANDS: Final = {
    "run": ("run:run", "Measure a claim, or many."),
    "resume": ("run:resume", "Go on with an execution that was stopped."),
    "lens": ("lens:lens", "Measure a claim with and without evidence, and compare."),
    "describe": ("run:describe", "Print the plan, calls, tokens and cost; call nothing."),
    "design": ("studies:design", "Find the cheapest plan for an interval of some width."),
    "study": ("studies:app", "Calibration, coherence and variance over many claims."),
    "card": ("studies:card", "Hold a model against four standards for belief."),
    "check": ("studies:check", "Check expectations on beliefs, for CI."),
    "show": ("records:show", "Show a stored run or an artifact."),
    "verify": ("records:verify", "Derive everything in a record again, from the record alone."),
    "runs": ("records:runs", "List stored runs, newest first."),
    "diff": ("records:diff", "Compare two runs."),
    "report": ("records:report", "Write a report: a page, a picture or a PDF."),
    "anomalies": ("lens:anomalies", "Rank stored claims by how far evidence moves the belief."),
    "doctor": ("doctor:doctor", "Check keys, store and embedded model; say what to put right."),
    "schema": ("doctor:schema", "Print the JSON Schema of a configuration or an artifact."),
    "plugins": ("doctor:plugins", "List what other packages add, and what is wrong with it."),
    "serve": ("serve:serve", "Serve the web app: measure, look and take part in a browser."),
    "publish": ("serve:publish", "Write a static, searchable site of a store."),
    "demo": ("serve:demo", "Fill a fresh store with a demonstration."),
    "worker": ("serve:worker", "Work on the jobs of a store until stopped."),
    "simulate": (
        "simulate:simulate",
        "Play episodes with honest players and attackers: who gains?",
    ),
    "models": ("doctor:models_app", "Model files that run here, without a key."),
    "panel": ("panel:app", "Panels: the same claims in waves, and what moved."),
    "batch": ("batch:app", "Batches at providers: half the price, within a day."),
    "claims": ("claims:app", "Propose other forms of claims, for you to confirm."),
    "corpus": ("evidence:corpus_app", "Documents on this machine, to search."),
    "evidence": ("evidence:evidence_app", "Bundles of evidence."),
    "export": ("records:export_app", "Tables for other tools: CSV, JSON Lines or Parquet."),
    "lake": ("lake:lake_app", "A lake of samples: sealed Parquet files, asked in SQL."),
    "store": ("lake:store_app", "The database: move old samples to a lake."),
    "policy": ("evidence:policy_app", "Source policies: membership in the canon, not quality."),
    "ledger": ("economy:ledger_app", "Play money: accounts, transfers, verification."),
    "market": ("economy:market_app", "Claim markets: quote, buy, positions."),
    "episode": ("episode:app", "Adjudication episodes: evidence, judges, settlement."),
    "rewards": ("economy:rewards_app", "Rewards, explained."),
    "explore": ("economy:explore_app", "The exploration track: credits, standing, feed."),
    "jobs": ("serve:jobs_app", "Jobs that workers measure (`heretix worker`)."),
    "users": ("users:app", "Accounts of the web app: who may do what, and who did what."),
}


def _as_command(found: Any) -> Any:
    if isinstance(found, typer.Typer) or callable(found):
        return found
    raise TypeError(f"a command must be a typer.Typer or a function, got {found!r}")


COMMANDS: Final[Registry[Any]] = Registry(
    "commands",
    {name: f"heretix.cli.{target}" for name, (target, _) in _COMMANDS.items()},
    _as_command,
)


class _Subcommands(MutableMapping[str, Any]):
    """Commands by name, imported when one is looked up."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _make_command(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS.names())

    def __len__(self) -> int:
        return len(COMMANDS.names())

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]


def _make_command(name: str) -> Any:
    from heretix.cli.options import ClaimCommand

    if name in _COMMANDS:
        module, _, attribute = _COMMANDS[name][0].partition(":")
        found = getattr(import_module(f"heretix.cli.{module}"), attribute)
    else:
        found = COMMANDS.load(name)
    carrier = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        carrier.add_typer(found, name=name)
    else:
        takes_claim = "claim" in inspect.signature(found).parameters
        summary = _COMMANDS[name][1] if name in _COMMANDS else None
        command_class = ClaimCommand if takes_claim else None
        carrier.command(name, cls=command_class, short_help=summary)(found)
    return typer.main.get_group(carrier).commands[name]


class CommandGroup(TyperGroup):
    """The top of the command line; its help is made from the table alone."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Subcommands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with its line; a plug-in's says who brings it."""
        rows = [(name, summary) for name, (_, summary) in _COMMANDS.items()]
        rows += [(name, f"(plug-in {found})") for name, found in COMMANDS.plugins().items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


app = typer.Typer(
    name="heretix",
    cls=CommandGroup,
    help="Measure what AI models believe: a probability, an interval, a stability, a record.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from heretix.core.plugins import find_extras

        python = ".".join(map(str, sys.version_info[:3]))
        typer.echo(f"heretix {VERSION}\nPython {python} on {sys.platform}")
        extras = find_extras()
        for word, there in (("with", True), ("without", False)):
            if names := ", ".join(name for name, found in extras.items() if found is there):
                typer.echo(f"{word} {names}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show what is installed."
        ),
    ] = False,
) -> None:
    del version


def main() -> None:
    """Entry point: a user's mistake ends with a message and its exit code, not a traceback."""
    _prepare_output()
    as_json = "--json" in sys.argv
    try:
        # Programs get mistakes as JSON, too, those of the command line itself included.
        with _pushing():
            code = app(standalone_mode=not as_json)
        _leave(code if isinstance(code, int) else 0)
    except HeretixError as exc:
        _tell(str(exc), type(exc).__name__, exc.exit_code, as_json=as_json)
        _leave(exc.exit_code)
    except typer.TyperException as exc:
        _tell(_message_of(exc), "UsageError", getattr(exc, "exit_code", 2), as_json=True)
        _leave(getattr(exc, "exit_code", 2))
    except ModuleNotFoundError as exc:
        if not exc.name or exc.name.partition(".")[0] == "heretix":
            raise
        _tell(_LACKING.format(exc.name), "MissingPartError", 2, as_json=as_json)
        _leave(2)
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
        _leave(_report_lost_output(exc))


def _pushing() -> AbstractContextManager[None]:
    """Push what happens by OpenTelemetry, where its variables say where to."""
    if not any(name.startswith("OTEL_EXPORTER_OTLP") for name in os.environ):
        return contextlib.nullcontext()
    from heretix.observability import pushing

    return pushing()


def _tell(message: str, kind: str, code: int, *, as_json: bool) -> None:
    if not as_json:
        typer.echo(f"error: {message}", err=True)
        return
    from heretix.cli.output import fit_json

    event = {"event": "error", "type": kind, "message": message, "exit_code": code}
    text = json.dumps(event, ensure_ascii=False)
    typer.echo(fit_json(text, getattr(sys.stderr, "encoding", None)), err=True)


def _message_of(exc: typer.TyperException) -> str:
    told = getattr(exc, "format_message", None)
    return str(told() if told else exc)


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
        code = code or _report_lost_output(exc)
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.flush()
    os._exit(code)


def _report_lost_output(exc: OSError) -> int:
    """Say that the output is lost; the exit code for it."""
    with contextlib.suppress(OSError):
        typer.echo(f"error: standard output can't be written: {exc.strerror}", err=True)
    return 3
