"""`heretix panel`: the same claims in waves, and what moved between them."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heretix.cli import options as opt
from heretix.cli import output
from heretix.core.errors import ConfigError, HeretixError, ProviderError, RecordError
from heretix.core.event_loop import STOP_SIGNALS, interrupt, run_async

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heretix.store.panels import Wave
    from heretix.studies.panel import PanelReport

app = typer.Typer(
    help="Panels: the same claims in waves, and what moved.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_WEBHOOK_S: Final = 20.0
_NO_WAVE: Final = "no wave was measured here yet; `heretix panel run FILE` measures one"


class Every(StrEnum):
    """Spacing of the waves of a panel."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


_TIMES: Final = {
    Every.HOUR: "23 * * * *",
    Every.DAY: "23 5 * * *",
    Every.WEEK: "23 5 * * 1",
    Every.MONTH: "23 5 1 * *",
}
"""Cron's minute, hour, day, month and weekday, off the full hour: that is when everybody calls."""
_RECIPE: Final = """\
name: panel
on:
  schedule:
    - cron: "{when}"
  workflow_dispatch:
concurrency: panel
jobs:
  wave:
    runs-on: ubuntu-latest
    env:
      # A database that outlives the job; with keys of your providers, kept as secrets.
      HERETIX_DB: ${{{{ secrets.HERETIX_DB }}}}
      OPENAI_API_KEY: ${{{{ secrets.OPENAI_API_KEY }}}}
    steps:
      - uses: actions/checkout@v4
      - run: pip install '.[postgres]'
      - name: {panel}
        run: {command}
      - if: always()
        uses: actions/upload-artifact@v4
        with:
          name: panel
          path: panel.xml
"""

FileArgument = Annotated[Path, typer.Argument(help="The panel file.", metavar="FILE")]
JunitOption = Annotated[
    Path | None, typer.Option("--junit", help="Write the findings as JUnit XML.", metavar="FILE")
]


@app.command()
def init(
    file: FileArgument = Path("panel.yaml"),
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A model; several are allowed.")
    ] = None,
    claims: Annotated[
        Path | None, typer.Option("--claims", help="Claims: .txt, .csv or .jsonl.", metavar="FILE")
    ] = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Write a panel file to begin with.

    It has example claims, and 20 anchors of known truth.
    """
    from heretix.providers.catalog import default_model, parse_model
    from heretix.studies.panel import load_panel

    if file.exists():
        raise ConfigError(f"`{file}` is there already; choose another name, or edit it")
    models = model or [default_model(opt.read_settings(None)).identity]
    for name in models:
        parse_model(name)
    text = resources.files("heretix.studies").joinpath("panel.yaml").read_text(encoding="utf-8")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-._") or "panel"
    text = text.replace("NAME\n", f"{stem}\n", 1)
    text = text.replace("  - MODEL\n", "".join(f'  - "{name}"\n' for name in models))
    if claims is not None:
        listed = text[text.index("claims:\n") : text.index("# Claims of known truth")]
        # From the panel file's folder, wherever the command was given.
        text = text.replace(listed, f'claims_file: "{claims.resolve().as_posix()}"\n\n')
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"`{file}` can't be written: {exc.strerror}; choose another") from exc
    try:
        panel = load_panel(file)
    except ConfigError:
        file.unlink()
        raise
    if as_json:
        output.print_json(
            {"file": str(file), "claims": len(panel.claims), "anchors": len(panel.anchors)}
        )
        return
    output.say(f"wrote {file}: {len(panel.claims)} claims, {len(panel.anchors)} anchors")
    output.say(f"heretix panel run {shlex.quote(str(file))} measures the first wave", style="dim")


@app.command()
def run(
    file: FileArgument = Path("panel.yaml"),
    junit: JunitOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Measure the next wave, or go on with a stopped one.

    Then say what moved.

    Every answer of a wave is new: none comes from the cache. Ctrl-C loses nothing; the same
    command goes on with the wave.

    Exit codes: 0 nothing moved, 1 something did, 2 something to put right first, 3 a model couldn't
    be read or findings couldn't be sent, 130 stopped.
    """
    from heretix.cli.run import measure
    from heretix.measurement.record import check_target
    from heretix.report.panel import unmeasured_junit
    from heretix.store import Store
    from heretix.studies.panel import keep_wave, load_panel, prepare_panel, prepare_wave, read_panel

    panel = load_panel(file)
    if junit is not None:
        check_target(junit, option="--junit")
    settings = opt.read_settings(db)
    webhook = panel.webhook_address(settings.env)
    measurement = prepare_panel(panel, settings)
    try:
        with Store.open(settings.db) as store:
            preparing = prepare_wave(panel, measurement, store)
            wave, measurement = run_async(preparing, stop=interrupt, signals=STOP_SIGNALS)
            if not as_json:
                begun = f"wave {wave.wave} of {panel.name}, begun {wave.started_at}"
                output.warn(begun, style="dim")
            results = measure(measurement, store, out=None, many=True, as_json=as_json)
            keep_wave(panel, store, wave, results.executions.values())
            report = read_panel(store, panel.name)
    except HeretixError as exc:
        if junit is not None:
            # Else the findings of the wave before would pass for those of this one.
            _write_junit(junit, unmeasured_junit(panel.name, str(exc)))
        if exc.exit_code != 1:
            raise
        # A spent budget or a pending batch is no drift, which 1 means here.
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(3) from exc
    unsent = _send(webhook, report) if webhook and report.news else None
    _deliver(report, junit=junit, as_json=as_json)
    if unsent is not None:
        output.warn(f"findings weren't sent: {unsent}. The wave is stored")
    raise typer.Exit(report.exit_code or (3 if unsent else 0))


@app.command()
def status(
    file: FileArgument = Path("panel.yaml"),
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Say which waves there are, and what moved.

    Also what the next wave will cost.
    """
    from heretix.report.panel import advice, findings
    from heretix.store.panels import select_waves
    from heretix.studies.panel import load_panel, prepare_panel, read_panel

    panel = load_panel(file)
    settings = opt.read_settings(db)
    estimate = prepare_panel(panel, settings, calls=False).estimate(None)
    waves: list[Wave] = []
    report = None
    # Looking creates no store.
    with contextlib.suppress(RecordError), opt.open_store(db) as store:
        waves = store.read(select_waves, panel.name)
        report = read_panel(store, panel.name) if waves else None
    if as_json:
        found = list(findings(report)) if report else []
        output.print_json(
            {"panel": panel.name, "waves": waves, "next": estimate, "findings": found}
        )
        return
    for wave in waves:
        output.say(f"wave {wave.wave}  {wave.started_at}  {wave.finished_at or 'not finished'}")
    cost = "cost unknown" if estimate.cost_usd is None else f"${estimate.cost_usd:,.4f}"
    output.say(f"next wave: {estimate.attempts:,} calls, {cost}")
    if report is None:
        output.say("no wave yet", style="dim")
        return
    for line in (*findings(report), *advice(report)):
        output.say(line)


@app.command()
def report(
    file: FileArgument = Path("panel.yaml"),
    junit: JunitOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Say what moved, since when and by how much. Calls no model; exits like `run`."""
    found = _read(file, db)
    _deliver(found, junit=junit, as_json=as_json)
    raise typer.Exit(found.exit_code)


@app.command()
def publish(
    folder: Annotated[Path, typer.Argument(help="Where the site goes.", metavar="DIR")],
    file: FileArgument = Path("panel.yaml"),
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Write the panel as a static site.

    A page that opens offline, its data, and JUnit XML.
    """
    from heretix.report.charts.output import write_file
    from heretix.report.panel import panel_site

    made = panel_site(_read(file, db))
    for name, content in made.items():
        write_file(folder / name, content)
    if as_json:
        output.print_json({"folder": str(folder), "files": list(made)})
        return
    output.say(f"wrote {', '.join(str(folder / name) for name in made)}")


@app.command()
def schedule(
    file: FileArgument = Path("panel.yaml"),
    every: Annotated[
        Every, typer.Option("--every", help="How often a wave is measured.", case_sensitive=False)
    ] = Every.WEEK,
    as_json: opt.JsonOption = False,
) -> None:
    """Print a cron line and a CI recipe that measure a wave on time. Changes nothing."""
    from heretix.studies.panel import load_panel

    panel = load_panel(file)
    when = _TIMES[every]
    command = f"panel run {shlex.quote(str(file))} --junit panel.xml"
    # Here, where this command finds the store and `.env`; cron's own path holds no environment.
    program = Path(sys.executable).with_name("heretix")
    heretix = shlex.quote(str(program)) if program.exists() else "heretix"
    line = f"cd {shlex.quote(str(Path.cwd()))} && {heretix} {command} >>panel.log 2>&1"
    # In a crontab a percent sign ends the command.
    cron = f"{when} {line}".replace("%", "\\%")
    said = {"panel": panel.name, "command": f"heretix {command}"}
    recipe = _RECIPE.format(when=when, **{name: json.dumps(text) for name, text in said.items()})
    if as_json:
        output.print_json({"cron": cron, "ci": recipe})
        return
    output.say("# crontab -e")
    output.say(cron)
    output.say("\n# .github/workflows/panel.yml")
    output.say(recipe)


def _read(file: Path, db: str | None) -> PanelReport:
    from heretix.studies.panel import load_panel, read_panel

    panel = load_panel(file)
    with opt.open_store(db, absent=_NO_WAVE) as store:
        return read_panel(store, panel.name)


def _deliver(report: PanelReport, *, junit: Path | None, as_json: bool) -> None:
    from heretix.report.panel import panel_content, panel_junit, panel_view

    if junit is not None:
        _write_junit(junit, panel_junit(report))
    if as_json:
        output.print_json(panel_content(report))
        return
    output.console().print(panel_view(report))


def _write_junit(path: Path, content: bytes) -> None:
    from heretix.report.charts.output import write_file

    write_file(path, content)


def _send(address: str, report: PanelReport) -> str | None:
    """Post the findings; returns why they couldn't be, or None."""
    from heretix.report.panel import notice

    try:
        run_async(_post(address, notice(report)))
    except ProviderError as exc:
        return str(exc)
    return None


async def _post(address: str, content: Mapping[str, Any]) -> None:
    import aiohttp

    # The path of such an address is often a secret: only the host is ever named.
    host = re.sub(r"^(https?://)(?:[^/@]*@)?([^/?#]*).*$", r"\1\2", address)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_WEBHOOK_S)) as session,
            session.post(address, json=content, allow_redirects=False) as response,
        ):
            if response.status >= 300:
                raise ProviderError(f"`webhook` {host} answered {response.status}")
    except (TimeoutError, aiohttp.ClientError, OSError) as exc:
        raise ProviderError(f"`webhook` {host} can't be reached ({type(exc).__name__})") from exc
