"""Measure how near live sampling comes to what the network allows, against a local server.

    python bench/sampling.py [--scenario small large] [--full] [--repeat N] [--json] [--out FILE]

Every measurement is a whole `heretix run` in a process of its own, from an empty store, against
`bench/server.py` in another. The floor of the same run is bare aiohttp making as many calls and
keeping nothing (for a warm rerun: the bootstrap alone); both suffer alike when the machine is
busy elsewhere, and how busy it was is told. The exit code says whether the goals were met.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

K, R, B = 8, 2, 5000
PER_CLAIM: Final = K * R
MODEL: Final = "openai-compatible:sim"
HERETIX: Final = (sys.executable, "-c", "from heretix.cli import main; main()")
HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One situation to measure in."""

    name: str
    claims: int
    concurrency: int
    server: Mapping[str, float] = field(default_factory=dict)
    """Options of `bench/server.py`."""
    warm: bool = False
    """Measure the second run, which finds every sample in the store."""
    floor: bool = True
    limits: Mapping[str, float] = field(default_factory=dict)
    """The most that a figure may be."""

    @property
    def group(self) -> str:
        """Name that it is chosen by: `memory` means both of its sizes."""
        return self.name.partition("-")[0]

    @property
    def samples(self) -> int:
        """Samples that are wanted."""
        return self.claims * PER_CLAIM

    @property
    def ideal_s(self) -> float | None:
        """Calls × latency ÷ concurrency, or what the rate limit takes if that is longer.

        Calls that meet a fault have to be made again, so there are a few more than samples.
        """
        if self.warm:
            return None
        faults = self.server.get("error_share", 0.0)
        calls = self.samples / (1.0 - faults)
        ideal_s = calls * self.server["latency_ms"] / 1000 / self.concurrency
        rpm = self.server.get("rpm")
        return max(ideal_s, (calls / rpm * 60) if rpm else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one client. Ratios to the ideal are None where no call is needed."""

    scenario: str
    client: str
    """heretix, or floor."""
    samples: int
    exit_code: int
    wall_s: float
    """Of the whole process, start-up included."""
    ideal_s: float | None
    startup_s: float | None
    """Until the first request arrived."""
    span_s: float | None
    """From the first request's arrival to the last reply."""
    wall_per_ideal: float | None
    after_startup_per_ideal: float | None
    span_per_ideal: float | None
    cpu_ms_per_sample: float
    wall_ms_per_claim: float
    peak_rss_mb: float
    requests: int
    requests_per_needed: float
    """Requests made ÷ samples wanted."""
    limited_share: float
    """Part of the requests that were answered with 429."""
    max_in_flight: int
    stored: int | None
    failed: int | None
    noncompliant: int | None
    finished: int | None
    """Claims that have a record."""
    others_cores: float | None
    """Cores that were busy with something else meanwhile, on average; Linux tells."""
    server_late_ms: float
    """How late the server was on average: what the machine, not the client, added."""
    server_cpu_us: float
    """The server's own work for a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A figure and the most it may be."""

    scenario: str
    figure: str
    value: float | None
    limit: float

    @property
    def met(self) -> bool:
        """Holds; a figure that couldn't be had doesn't."""
        return self.value is not None and self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Usage:
    """Time and memory of a process."""

    exit_code: int
    begun_s: float
    ended_s: float
    cpu_s: float
    peak_rss_mb: float
    machine_cpu_s: float | None
    """Of all processes meanwhile."""


class BenchError(Exception):
    """A benchmark that measured nothing."""


def scenarios(*, full: bool) -> list[Scenario]:
    """All of them, in the order of their length; `full` gives their whole size."""
    most, huge = (640, 6250) if full else (64, 1280)
    quick = {"latency_ms": 200.0}
    faults = {**quick, "error_share": 0.10, "malformed_share": 0.05, "rpm": 3000.0}
    return [
        _scenario("small", 32, 64, quick, after_startup_per_ideal=1.10, wall_per_ideal=1.9),
        _scenario("large", 640, 256, quick, wall_per_ideal=1.25, peak_rss_mb=300),
        _scenario("faults", most, 64, faults, requests_per_needed=1.25, limited_share=0.02),
        _scenario("memory-small", 160, 256, quick),
        _scenario("memory-large", huge, 256, quick, peak_rss_mb=300, growth=1.10),
        _scenario("warm", 1000, 64, {"latency_ms": 0}, requests=0, wall_ms_per_claim=10),
    ]


def _scenario(
    name: str, claims: int, concurrency: int, server: Mapping[str, float], **limits: float
) -> Scenario:
    return Scenario(
        name=name,
        claims=claims,
        concurrency=concurrency,
        server=server,
        warm=name == "warm",
        floor=name in {"small", "large", "warm"},
        limits=limits,
    )


@contextlib.contextmanager
def serving(
    options: Mapping[str, float], port: int = 0
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A server in a process of its own, and its port. It ends with this block or this process."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    with subprocess.Popen(
        [sys.executable, str(HERE / "server.py"), "--until-eof", f"--port={port}", *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        first_line = process.stdout.readline().strip()
        if not first_line:
            raise BenchError("the server didn't start; its message is above")
        try:
            yield int(first_line), process
        finally:
            process.stdin.close()


def stop_server(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Stop the server; what it saw."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    statistics: dict[str, Any] = json.loads(process.stdout.readline())
    return statistics


def run_process(argv: Sequence[str], log: IO[bytes]) -> Usage:
    """Run a command to its end. It inherits no setting of Heretix and no key."""
    ours = [name for name in os.environ if name.startswith("HERETIX_") or name.endswith("_API_KEY")]
    env = {name: value for name, value in os.environ.items() if name not in ours}
    begun_s, busy_s = time.monotonic(), machine_cpu_s()
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=env
    )
    try:
        # Of this child alone. Its peak is at least what this process had when it started it, so
        # nothing big is imported here.
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    ended_s, busy_after_s = time.monotonic(), machine_cpu_s()
    process.returncode = os.waitstatus_to_exitcode(status)
    # Linux counts in KiB, macOS in bytes.
    rss_mb = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    cpu_s = usage.ru_utime + usage.ru_stime
    meanwhile_s = None if busy_s is None or busy_after_s is None else busy_after_s - busy_s
    return Usage(process.returncode, begun_s, ended_s, cpu_s, rss_mb, meanwhile_s)


def machine_cpu_s() -> float | None:
    """Seconds that all cores together have worked since the machine started."""
    try:
        first_line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, *interrupts = map(int, first_line.split()[1:8])
    return (user + nice + system + sum(interrupts)) / float(os.sysconf("SC_CLK_TCK"))


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """Compile everything for child processes, as where Heretix is installed."""
    with tempfile.TemporaryDirectory(prefix="heretix-bench-") as cache:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = cache
        once = Scenario(name="once", claims=1, concurrency=1, server={"latency_ms": 0})
        for client in ("floor", "heretix"):
            measure(once, client)
        yield


def claim_text(number: int) -> str:
    """A claim like any other, and unlike all others."""
    return f"Raising tariffs by {number} percent lowers the price of imported goods within a year."


def store_counts(path: Path) -> dict[str, int]:
    """Count what the store really holds, without Heretix."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        stored, failed, noncompliant = connection.execute(
            "SELECT count(*), count(error), count(noncompliance) FROM samples"
        ).fetchone()
        (finished,) = connection.execute(
            "SELECT count(DISTINCT run_id) FROM results JOIN executions USING (execution_id)"
        ).fetchone()
    names = ("stored", "failed", "noncompliant", "finished")
    return dict(zip(names, (stored, failed, noncompliant, finished), strict=True))


def measure(scenario: Scenario, client: str) -> Figures:
    """One client in one scenario, from nothing."""
    ours = client == "heretix"
    with tempfile.TemporaryDirectory(prefix="heretix-bench-") as name:
        directory, port = Path(name), 0
        with (directory / "stderr.txt").open("w+b") as log:
            if scenario.warm and ours:
                with serving(scenario.server) as (port, _):
                    run_process(heretix_command(scenario, port, directory), log)
            # A server's address is part of what samples are filed under, so the rerun has the
            # same; but it counts from zero.
            with serving(scenario.server, port) as (port, process):
                command = heretix_command(scenario, port, directory)
                usage = run_process(command if ours else floor_command(scenario, port), log)
                statistics = stop_server(process)
            if usage.exit_code not in {0, 1} or (not statistics["requests"] and not scenario.warm):
                log.seek(0)
                told = log.read().decode("utf-8", "replace")[-2000:]
                raise BenchError(
                    f"`{scenario.name}`: {client} ended with {usage.exit_code}\n{told}"
                )
        counts = store_counts(directory / "heretix.sqlite") if ours else {}
        return figures_of(scenario, client, usage, statistics, counts)


def heretix_command(scenario: Scenario, port: int, directory: Path) -> list[str]:
    """A measurement, with its configuration and claims written down. JSON is YAML."""
    claims, config = directory / "claims.txt", directory / "config.yaml"
    claims.write_text("".join(f"{claim_text(n)}\n" for n in range(scenario.claims)))
    values = {
        "claims_file": str(claims),
        "model": MODEL,
        "base_url": f"http://127.0.0.1:{port}/v1",
        "concurrency": scenario.concurrency,
        "K": K,
        "R": R,
        "B": B,
    }
    config.write_text(json.dumps(values))
    return [*HERETIX, "run", "--config", str(config), "--db", str(directory / "heretix.sqlite")]


def floor_command(scenario: Scenario, port: int) -> list[str]:
    """The least that the scenario's work takes."""
    floor = [sys.executable, str(HERE / "floor.py")]
    if scenario.warm:
        return [*floor, "bootstraps", str(scenario.claims)]
    size = (str(scenario.samples), str(scenario.concurrency))
    return [*floor, "calls", f"http://127.0.0.1:{port}/v1", *size]


def figures_of(
    scenario: Scenario,
    client: str,
    usage: Usage,
    statistics: Mapping[str, Any],
    counts: Mapping[str, int],
) -> Figures:
    """Put together what the process, the server and the store say."""
    wall_s, ideal_s = usage.ended_s - usage.begun_s, scenario.ideal_s
    first_s, last_s, requests = (statistics[k] for k in ("first_at_s", "last_at_s", "requests"))
    startup_s = None if first_s is None else first_s - usage.begun_s
    span_s = None if first_s is None else last_s - first_s
    after_s = None if startup_s is None else wall_s - startup_s
    outcomes = statistics["outcomes"]
    limited = outcomes.get("limited", 0) + outcomes.get("crowded", 0)
    others_cores = None
    if usage.machine_cpu_s is not None:
        others_cores = (usage.machine_cpu_s - usage.cpu_s - statistics["cpu_s"]) / wall_s
    return Figures(
        scenario=scenario.name,
        client=client,
        samples=scenario.samples,
        exit_code=usage.exit_code,
        wall_s=wall_s,
        ideal_s=ideal_s,
        startup_s=startup_s,
        span_s=span_s,
        wall_per_ideal=_ratio(wall_s, ideal_s),
        after_startup_per_ideal=_ratio(after_s, ideal_s),
        span_per_ideal=_ratio(span_s, ideal_s),
        cpu_ms_per_sample=usage.cpu_s * 1000 / scenario.samples,
        wall_ms_per_claim=wall_s * 1000 / scenario.claims,
        peak_rss_mb=usage.peak_rss_mb,
        requests=requests,
        requests_per_needed=requests / scenario.samples,
        limited_share=limited / max(1, requests),
        max_in_flight=statistics["max_in_flight"],
        stored=counts.get("stored"),
        failed=counts.get("failed"),
        noncompliant=counts.get("noncompliant"),
        finished=counts.get("finished"),
        others_cores=others_cores,
        server_late_ms=statistics["late_s"] * 1000 / max(1, requests),
        server_cpu_us=statistics["cpu_s"] * 1e6 / max(1, requests),
    )


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def goals_of(scenario: Scenario, figures: Figures, before: Sequence[Figures]) -> list[Goal]:
    """List what must hold of a scenario; `before` has the ones already measured."""
    smaller = next((f for f in before if f.scenario == "memory-small"), None)
    values = asdict(figures) | {
        "growth": _ratio(figures.peak_rss_mb, smaller.peak_rss_mb if smaller else None),
        "failed_share": _ratio(figures.failed, scenario.samples),
        "not_stored": None if figures.stored is None else scenario.samples - figures.stored,
        "not_finished": None if figures.finished is None else scenario.claims - figures.finished,
    }
    # Giving up is quick; a hundredth may be lost to faults that came again and again.
    limits = {**scenario.limits, "failed_share": 0.01, "not_stored": 0.0, "not_finished": 0.0}
    return [
        Goal(scenario=scenario.name, figure=name, value=values[name], limit=limit)
        for name, limit in limits.items()
    ]


def best_of(scenario: Scenario, client: str, repeat: int) -> Figures:
    """The shortest of several tries: the one least disturbed by others."""
    return min((measure(scenario, client) for _ in range(repeat)), key=lambda f: f.wall_s)


def study(
    chosen: Sequence[Scenario], repeat: int, progress: Progress
) -> tuple[list[Figures], list[Goal]]:
    """Measure all of them, each beside its floor."""
    task = progress.add_task("compiling", total=None)
    figures: list[Figures] = []
    goals: list[Goal] = []
    with compiled():
        for scenario in chosen:
            for client in ("floor", "heretix") if scenario.floor else ("heretix",):
                progress.update(task, description=f"{scenario.name}: {client}")
                got = best_of(scenario, client, repeat)
                if client == "heretix":
                    goals += goals_of(scenario, got, figures)
                figures.append(got)
    return figures, goals


def print_tables(figures: Sequence[Figures], goals: Sequence[Goal]) -> None:
    """Show a person what was found."""
    floors = {f.scenario: f for f in figures if f.client == "floor"}
    table = Table(
        *("scenario", "client", "samples", "wall s", "÷ ideal", "÷ floor", "start-up s"),
        *("span ÷ ideal", "CPU ms a sample", "RSS MB", "requests ÷ needed", "429", "stored"),
        *("failed", "others' cores"),
    )
    for f in figures:
        floor = floors.get(f.scenario)
        table.add_row(
            *(f.scenario, f.client, f"{f.samples:,}", f"{f.wall_s:.2f}"),
            *(
                _write_value(f.wall_per_ideal),
                _write_value(_ratio(f.wall_s, floor.wall_s if floor else None)),
            ),
            *(
                _write_value(f.startup_s),
                _write_value(f.span_per_ideal),
                f"{f.cpu_ms_per_sample:.3f}",
            ),
            *(f"{f.peak_rss_mb:.0f}", f"{f.requests_per_needed:.3f}", f"{f.limited_share:.1%}"),
            *(
                _write_value(f.stored, "{:,}"),
                _write_value(f.failed, "{:,}"),
                _write_value(f.others_cores),
            ),
        )
    verdicts = Table("goal", "is", "at most", "")
    for g in goals:
        verdict = "met" if g.met else "[bold red]MISSED"
        verdicts.add_row(
            f"{g.scenario}: {g.figure}", _write_value(g.value, "{:.4g}"), f"{g.limit:g}", verdict
        )
    console = Console()
    console.print(table)
    console.print(verdicts)


def _write_value(value: float | None, form: str = "{:.2f}") -> str:
    return "—" if value is None else form.format(value)


def as_json(figures: Sequence[Figures], goals: Sequence[Goal]) -> str:
    """Write everything as JSON, with what is needed to judge it."""
    machine = {"cores": os.cpu_count(), "python": sys.version.split()[0]}
    found = [asdict(goal) | {"met": goal.met} for goal in goals]
    values = {"machine": machine, "figures": [asdict(f) for f in figures], "goals": found}
    return json.dumps(values, indent=2)


def main() -> int:
    """Run from the command line; 1 when a goal is missed."""
    groups = list(dict.fromkeys(scenario.group for scenario in scenarios(full=False)))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scenario", nargs="+", choices=groups, help="only these")
    parser.add_argument("--full", action="store_true", help="whole sizes, up to 100,000 samples")
    parser.add_argument("--repeat", type=int, default=1, help="tries of each; the best counts")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="write JSON to this file")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error(f"`--repeat` must be a positive integer, got {options.repeat}")
    chosen = [s for s in scenarios(full=options.full) if s.group in (options.scenario or groups)]
    return report(chosen, options)


def report(chosen: Sequence[Scenario], options: argparse.Namespace) -> int:
    """Measure, and tell."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    # Drawn seldom: what draws takes the cores from what is measured.
    with Progress(*columns, console=console, refresh_per_second=2, transient=True) as progress:
        try:
            figures, goals = study(chosen, options.repeat, progress)
        except BenchError as exc:
            progress.stop()
            console.print(f"error: {exc}", style="red", markup=False)
            return 2
    text = as_json(figures, goals)
    if options.out is not None:
        options.out.write_text(text + "\n")
    if options.json:
        print(text)
    else:
        print_tables(figures, goals)
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    raise SystemExit(main())
