"""`heretix simulate`: who gains when thousands of episodes are played by the real rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt
from heretix.cli import output

if TYPE_CHECKING:
    from rich.table import Table

    from heretix.economy.simulation.play import Report, Simulation


def simulate(
    episodes: Annotated[
        int, typer.Option("--episodes", "-n", help="Episodes.", min=1, max=1_000_000_000)
    ] = 2_000,
    seed: Annotated[int, typer.Option("--seed", help="The same seed, the same ledger.")] = 1,
    agents: Annotated[
        str | None,
        typer.Option("--agents", help="Who plays, like honest=4,noise=4,wash=1.", metavar="LIST"),
    ] = None,
    attacks_at_once: Annotated[
        int, typer.Option("--attacks-at-once", help="Attacks at one table; they take turns.", min=1)
    ] = 1,
    search: Annotated[
        bool, typer.Option("--search", help="Look for an attack that pays, instead.")
    ] = False,
    attacks: Annotated[
        int, typer.Option("--attacks", help="Attacks that are searched.", min=1)
    ] = 2_000,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the report as JSON.", metavar="FILE")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", help="Draw wealth by strategy: .svg, .png, .pdf, .html.", metavar="FILE"
        ),
    ] = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Play episodes with honest explorers, noise traders and attackers, and say who gains.

    Every move goes through the economy's own rules and ledger. Ctrl-C ends the simulation and
    reports the episodes that were finished.

    With --search, attacks are drawn, crossed and changed among careful and careless honest players,
    and the best found are played on fresh seeds.
    """
    from heretix.core.errors import UsageError
    from heretix.economy.simulation.play import DEFAULT_AGENTS, Setup, Simulation, read_agents

    _check_outputs(out, plot)
    if search:
        if plot is not None or agents is not None:
            raise UsageError(
                "`--search` seats its own players and draws nothing; leave out "
                "`--agents` and `--plot`"
            )
        _search(seed, attacks, out, as_json=as_json)
        return
    setup = Setup(
        seed=seed,
        agents=dict(DEFAULT_AGENTS) if agents is None else read_agents(agents),
        attacks_at_once=attacks_at_once,
    )
    simulation = Simulation(setup)
    finished = _run(simulation, episodes)
    report = simulation.report()
    if not finished:
        output.warn(f"stopped after {report.episodes} of {episodes} episodes", style="")
    content = json.dumps(report.as_dict(), indent=2)
    if out is not None:
        from heretix.report.charts.output import write_file

        write_file(out, f"{content}\n".encode())
    if plot is not None and report.wealth:
        _draw(report, plot)
    if as_json:
        typer.echo(content)
        return
    _show(report, seed)


def _check_outputs(out: Path | None, plot: Path | None) -> None:
    """Refuse, before the work and not after it, what can't be written."""
    from heretix.core.errors import ConfigError
    from heretix.measurement.record import check_target

    if out is not None:
        check_target(out, lines=False)
    if plot is not None:
        from heretix.report.charts.output import FORMATS

        if plot.suffix.lower() not in FORMATS:
            endings = ", ".join(FORMATS)
            raise ConfigError(f"`--plot` must end in one of {endings}, got {plot.name!r}")


def _show(report: Report, seed: int) -> None:
    """Print who gained, and what the fund paid."""
    from heretix.economy.ledger import PLAY

    console = output.console()
    console.print(_table(report))
    ended = ", ".join(f"{count} {name}" for name, count in sorted(report.outcomes.items()))
    console.print(f"\n{report.episodes:,} episodes: {ended}")
    if report.episodes:
        mean = report.fund / report.episodes / 10**PLAY.exponent
        console.print(f"the fund of rewards: {mean:+,.2f} {PLAY.code} an episode, fees included")
    console.print(f"seed {seed}, {report.transfers:,} transfers, ledger {report.ledger_hash}")


def _search(seed: int, attacks: int, out: Path | None, *, as_json: bool) -> None:
    """Look for attacks that pay, and show the best found."""
    from dataclasses import asdict

    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    from heretix.economy.ledger import PLAY
    from heretix.economy.simulation.search import Plan, search

    plan = Plan(seed=seed, attacks=attacks)
    columns = ("searching", BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    with output.progress(*columns) as progress:
        task = progress.add_task("", total=attacks + min(attacks, plan.finalists))
        found = search(plan, tried=lambda: progress.advance(task))
    content = json.dumps({"plan": asdict(plan), "found": [asdict(one) for one in found]}, indent=2)
    if out is not None:
        from heretix.report.charts.output import write_file

        write_file(out, f"{content}\n".encode())
    if as_json:
        typer.echo(content)
        return
    unit = 10**PLAY.exponent
    for place, one in enumerate(found, 1):
        line = one.fresh
        assert line.mean is not None
        within = ""
        if line.lo99 is not None and line.hi99 is not None:
            within = f" ({line.lo99 / unit:+,.2f} to {line.hi99 / unit:+,.2f})"
        typer.echo(
            f"{place}. {line.mean / unit:+,.2f} {PLAY.code} an episode{within} in "
            f"{line.episodes:,} fresh episodes; {one.searched_mean / unit:+,.2f} where it was "
            f"found: {line.verdict.value}; stakes in {one.staked:.0%} of them"
        )
        genes = asdict(one.genes).items()
        typer.echo("   " + ", ".join(f"{name} {value:.2f}" for name, value in genes))
    typer.echo(f"{attacks:,} attacks searched, seed {seed}, 99% intervals")


def _run(simulation: Simulation, episodes: int) -> bool:
    """Play; False when the user has had enough."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    columns = ("simulating", BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with output.progress(*columns) as progress:
            for _ in progress.track(range(episodes)):
                simulation.play_next()
    except KeyboardInterrupt:
        return False
    return True


def _table(report: Report) -> Table:
    from heretix.economy.ledger import PLAY, format_amount
    from heretix.economy.simulation.play import Verdict
    from heretix.report.terminal import plain_table

    unit = 10**PLAY.exponent
    styles = {Verdict.GAINS: "green", Verdict.LOSES: "red"}
    table = plain_table(
        "strategy", "kind", ">n", ">episodes", ">mean", ">99% interval", ">total", ""
    )
    table.caption = f"in {PLAY.code}; the mean is for one agent and one episode"
    table.caption_justify = "left"
    for line in sorted(report.standings, key=lambda line: -(line.mean or 0.0)):
        known = line.lo99 is not None and line.hi99 is not None
        table.add_row(
            line.strategy,
            line.kind.value,
            str(line.agents),
            f"{line.episodes:,}",
            "—" if line.mean is None else f"{line.mean / unit:+,.2f}",
            f"{line.lo99 / unit:+,.2f} to {line.hi99 / unit:+,.2f}" if known else "—",
            format_amount(line.total, PLAY).removesuffix(f" {PLAY.code}"),
            line.verdict.value,
            style=styles.get(line.verdict),
        )
    return table


def _draw(report: Report, path: Path) -> None:
    from heretix.economy.ledger import PLAY
    from heretix.economy.simulation.agents import Kind
    from heretix.report.charts import WealthPoint, save_chart, wealth_by_strategy

    unit = 10**PLAY.exponent
    points = [
        WealthPoint(strategy=point.strategy, at=point.episode, wealth=point.wealth / unit)
        for point in report.wealth
    ]
    kinds = {kind: [s.strategy for s in report.standings if s.kind is kind] for kind in Kind}
    honest, bystanders = kinds[Kind.HONEST], kinds[Kind.BYSTANDER]
    chart = wealth_by_strategy(points, unit=PLAY.code, emphasised=honest, bystanders=bystanders)
    save_chart(chart, path)
