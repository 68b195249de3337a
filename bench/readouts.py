"""Compare the read-out `distribution` with sampling, by belief and time, on an embedded model.

    python bench/readouts.py [--model local:qwen2.5-coder-1.5b] [--replicates 100] [--db FILE]
                             [--json] [--out FILE]

Three claims in eight wordings are sampled `--replicates` times each, and walked once. A wording's
mean log-odds by the walk must lie within sampling error of the samples' mean: z is their difference
in standard errors, and over all wordings the sum of its squares is held against chi-squared.

Times are CPU seconds of one copy on one thread, since those hardly depend on what else a machine
does: each wording is asked by one read-out after the other, so that every call reads its prompt
anew but for the system message; then once more, walked right after it was sampled.

With `--db` the samples are kept, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from scipy.stats import chi2

from heretix.config import RunConfig
from heretix.core.settings import Settings
from heretix.measurement.runner import NullObserver
from heretix.measurement.service import Measurement, Results, measure, prepare
from heretix.providers.local import LocalProvider
from heretix.readouts import DISTRIBUTION, SAMPLED, missing_mass
from heretix.store import Store
from heretix.studies.study import read_run

CLAIMS = ("Maple trees shed their leaves.", "Glue is a fruit.", "A donkey is heavier than a bus.")


class Showing(NullObserver):
    """An observer that shows how far it is."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("sampling", total=total)

    def on_planned(self, plan: Any, cached: int) -> None:
        self._progress.advance(self._task, cached)

    def on_sampled(self, plan: Any, sample: Any) -> None:
        self._progress.advance(self._task)


def plan_both(model: str, replicates: int, settings: Settings) -> tuple[Measurement, Measurement]:
    """The same wordings, sampled and walked."""
    plan = {"models": (model,), "K": 8}
    configs = (
        RunConfig.parse({**plan, "R": replicates}),
        RunConfig.parse({**plan, "readout": DISTRIBUTION}),
    )
    sampled, walked = (prepare(config, settings, claims=CLAIMS) for config in configs)
    return sampled, walked


def compare(both: tuple[Measurement, Measurement], store: Store, err: Console) -> dict[str, Any]:
    """Hold each wording's mean by the walk against its samples."""
    found: dict[str, dict[str, list[float]]] = {}
    for measurement in both:
        with Progress(console=err, transient=True) as progress:
            results = Results(Showing(progress, measurement.attempts))
            asyncio.run(measure(measurement, store, results))
        runs = [read_run(store, ref) for ref in results.executions.values()]
        found[measurement.config.readout] = {
            f"{run.claim} {stem}": values for run in runs for stem, values in run.logits.items()
        }
    rows: list[dict[str, Any]] = []
    for name, (walked,) in sorted(found[DISTRIBUTION].items()):
        values = found[SAMPLED][name]
        error = statistics.stdev(values) / math.sqrt(len(values))
        mean = statistics.fmean(values)
        row = {"wording": name, "n": len(values), "sampled": mean, "error": error, "walked": walked}
        rows.append({**row, "z": (walked - mean) / error if error else None})
    z = [row["z"] for row in rows if row["z"] is not None]
    return {
        "wordings": rows,
        "within_2_errors": sum(abs(one) <= 2 for one in z) / len(z),
        "mean_z": statistics.fmean(z),
        "chi_squared": sum(one * one for one in z),
        "df": len(z),
        "p": float(chi2.sf(sum(one * one for one in z), len(z))),
    }


async def measure_times(
    both: tuple[Measurement, Measurement], settings: Settings
) -> dict[str, Any]:
    """CPU seconds a call: sampled, walked, and walked right after it was sampled."""
    model = both[0].models[0]
    provider = LocalProvider(model.file or model.name, settings=settings, servers=1)
    pairs = []
    for plans in zip(*(one.plans(model) for one in both), strict=True):
        first = {planned.paraphrase_idx: planned for planned in reversed(plans[0].samples)}
        for walked in plans[1].samples:
            sampled = first[walked.paraphrase_idx]
            pairs.append((plans[0].request(sampled), plans[1].request(walked)))
    times: dict[str, list[float]] = {SAMPLED: [], DISTRIBUTION: [], "beside": []}
    masses: list[float] = []
    readings: list[int] = []

    async def ask(kind: str, request: Any) -> Any:
        start = time.process_time()
        reply = await provider.ask(request)
        times[kind].append(time.process_time() - start)
        return reply

    try:
        await provider.ask(pairs[-1][0])  # Loads the model and reads the system message.
        for sampled, _ in pairs:
            await ask(SAMPLED, sampled)
        for _, walked in pairs:
            reply = await ask(DISTRIBUTION, walked)
            masses.append(missing_mass(DISTRIBUTION, reply.text) or 0.0)
            readings.append(reply.tokens_out)
        for sampled, walked in pairs[:8]:
            await provider.ask(sampled)
            await ask("beside", walked)
    finally:
        await provider.aclose()
    mean = {kind: statistics.fmean(found) for kind, found in times.items()}
    return {
        "cpu_s": mean,
        "ratio": mean[DISTRIBUTION] / mean[SAMPLED],
        "ratio_beside": mean["beside"] / statistics.fmean(times[SAMPLED][:8]),
        "calls": len(pairs),
        "tokens_walked": statistics.fmean(readings),
        "missing_mean": statistics.fmean(masses),
        "missing_most": max(masses),
    }


def show(found: dict[str, Any], console: Console) -> None:
    """Print what was found."""
    table = Table("wording", "samples", "sampled ± error", "walked", "z", box=None)
    for row in found["agreement"]["wordings"]:
        z = "-" if row["z"] is None else f"{row['z']:+.2f}"
        said = f"{row['sampled']:+.2f} ± {row['error']:.2f}"
        table.add_row(row["wording"], str(row["n"]), said, f"{row['walked']:+.2f}", z)
    console.print(table)
    agreement = found["agreement"]
    console.print(
        f"within 2 errors {agreement['within_2_errors']:.0%}, mean z {agreement['mean_z']:+.2f}, "
        f"chi-squared {agreement['chi_squared']:.1f} on {agreement['df']}, p {agreement['p']:.2f}"
    )


def show_times(times: dict[str, Any], console: Console) -> None:
    """Print what a call takes."""
    console.print(
        f"CPU seconds: sampled {times['cpu_s'][SAMPLED]:.2f}, walked "
        f"{times['cpu_s'][DISTRIBUTION]:.2f} ({times['ratio']:.2f} ×), right after a sample "
        f"{times['cpu_s']['beside']:.2f} ({times['ratio_beside']:.2f} ×); "
        f"{times['tokens_walked']:.0f} tokens a walk; mass left out {times['missing_mean']:.2%}, "
        f"at most {times['missing_most']:.2%}"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="local:qwen2.5-coder-1.5b")
    parser.add_argument("--replicates", type=int, default=100)
    parser.add_argument("--db", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.replicates < 2:
        parser.error(f"--replicates must be at least 2, got {args.replicates}")
    settings = Settings.from_env()
    both = plan_both(args.model, args.replicates, settings)
    times = asyncio.run(measure_times(both, settings))
    err = Console(stderr=True)
    # What follows takes much longer: whoever stops it has this.
    show_times(times, err)
    with (
        tempfile.TemporaryDirectory() as scratch,
        Store.open(str(args.db or Path(scratch, "readouts.sqlite"))) as store,
    ):
        agreement = compare(both, store, err)
    found = {"model": args.model, "times": times, "agreement": agreement}
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        show(found, Console())
        show_times(times, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
