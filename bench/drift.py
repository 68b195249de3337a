"""False alarms, false discoveries, power and delay of the test for drift, looked at every wave.

    python bench/drift.py [--panels 40] [--quiet-panels 100] [--seed 1] [--json] [--out FILE]

A simulated panel has 200 claims over 30 waves after the first; `--quiet-panels` panels have no
drift, `--panels` panels have 10 claims that shift from a random wave (6 to 15) on. Claims are
correlated .3: in each wave and wording that share of the noise is common to all (`shared wave`: to
all wordings, too). Scatter is in log-odds: noise of one answer, and how a wording goes astray in a
wave (interaction .1). Glitches are cells off by 4; missing cells are left out at random.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from heretix.studies.drift import (
    ALPHA,
    detect_drifts,
    match_anchors,
    select_by_e_values,
    weigh_evidence,
)

CLAIMS, DRIFTING, HORIZON, ANCHORS = 200, 10, 30, 20
SHIFTS = (0.2, 0.4, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Scatter of a panel."""

    name: str
    T: int
    R: int = 1
    noise: float = 0.3
    interaction: float = 0.1
    glitches: float = 0.0
    missing: float = 0.0
    shared_wave: bool = False
    common_shift: float = 0.0
    """Of all claims and anchors, from wave 12 on."""
    anchors: bool = False


WORLDS = (
    World(name="noise .3", T=8),
    World(name="noise .3", T=8, R=2),
    World(name="noise .3", T=16),
    World(name="noise .5", T=8, noise=0.5),
    World(name="noise .5", T=16, noise=0.5),
    World(name="noise .3, 1% glitches", T=16, glitches=0.01),
    World(name="noise .3, 1% glitches, 10% missing", T=16, glitches=0.01, missing=0.1),
    World(name="noise .3, shared wave", T=16, shared_wave=True),
    World(name="common shift .3, 20 anchors", T=16, common_shift=0.3, anchors=True),
)


@dataclass(slots=True)
class Tally:
    """Counts of one world, at one size of shift."""

    panels: int = 0
    claims: int = 0
    claim_alarms: int = 0
    """Claims without drift that ever reached 1/alpha."""
    panel_alarms: int = 0
    """Panels in which e-BH ever named a claim without drift."""
    false_shares: list[float] = field(default_factory=list)
    """Of the claims that e-BH ever named, by panel."""
    found: int = 0
    drifting: int = 0
    delays: list[int] = field(default_factory=list)
    starts_held: list[bool] = field(default_factory=list)
    set_sizes: list[int] = field(default_factory=list)
    sizes_held: list[bool] = field(default_factory=list)
    overstated: list[tuple[bool, float]] = field(default_factory=list)
    """Whether it was called so, and size found over size planted, at the horizon."""
    model_found: int = 0
    model_alarms_before: int = 0
    audit_alarms: int = 0
    audit_found: int = 0


def simulate(
    world: World, rng: np.random.Generator, *, shift: float
) -> tuple[np.ndarray, np.ndarray]:
    """Cells of one panel, anchors first where there are any, and the start of each claim or 0."""
    C = CLAIMS + (ANCHORS if world.anchors else 0)
    shape = (C, HORIZON + 1, world.T)
    sd = math.sqrt(world.noise**2 / world.R + world.interaction**2)
    shared_shape = (1, HORIZON + 1, 1 if world.shared_wave else world.T)
    scale = sd / math.sqrt(world.T) if world.shared_wave else sd
    noise = math.sqrt(0.7) * sd * rng.normal(size=shape)
    noise += math.sqrt(0.3) * scale * rng.normal(size=shared_shape)
    cells = rng.normal(0, 1, (C, 1, 1)) + rng.normal(0, 0.4, (C, 1, world.T)) + noise
    cells[:, 12:] += world.common_shift
    starts = np.zeros(C, dtype=np.int64)
    if shift:
        starts[-DRIFTING:] = rng.integers(6, 16, DRIFTING)
        signs = rng.choice([-1.0, 1.0], DRIFTING)
        for i, start, sign in zip(range(C - DRIFTING, C), starts[-DRIFTING:], signs, strict=True):
            cells[i, start:] += sign * shift
    glitch = rng.random(shape) < world.glitches
    cells[glitch] += 4 * rng.choice([-1.0, 1.0], int(glitch.sum()))
    cells[rng.random(shape) < world.missing] = np.nan
    return cells, starts


def look_every_wave(world: World, rng: np.random.Generator, *, shift: float, tally: Tally) -> None:
    """Run one panel to its horizon, and count."""
    everything, every_start = simulate(world, rng, shift=shift)
    first = ANCHORS if world.anchors else 0
    anchors, cells, starts = everything[:first], everything[first:], every_start[first:]
    still = starts == 0
    ever, named = np.zeros(len(cells), dtype=bool), np.zeros(len(cells), dtype=bool)
    model_found = model_before = False
    for m in range(2, HORIZON + 2):
        now = cells[:, :m]
        if world.anchors:
            common = match_anchors(anchors[:, :m])
            now = now - common
            moved = weigh_evidence(common[np.newaxis], horizon=HORIZON, variant="wave_means")
            model_found |= bool(moved.e_value[0] >= 1 / ALPHA)
            model_before |= model_found and m <= 12
        evidence = weigh_evidence(now, horizon=HORIZON)
        ever |= evidence.e_value >= 1 / ALPHA
        chosen = select_by_e_values(evidence.e_value)
        for i in np.flatnonzero(chosen & ~named & ~still & (m > starts)):
            tally.delays.append(m - 1 - int(starts[i]))
        named |= chosen
    tally.panels += 1
    tally.claims += int(still.sum())
    tally.claim_alarms += int(ever[still].sum())
    tally.panel_alarms += bool(named[still].any())
    tally.model_found += model_found
    tally.model_alarms_before += model_before
    audit = weigh_evidence(now, horizon=HORIZON, variant="ranks").e_value
    tally.audit_alarms += int((audit[still] >= 1 / ALPHA).sum())
    if shift:
        tally.false_shares.append(float(named[still].sum() / max(1, named.sum())))
        tally.found += int(named[~still].sum())
        tally.drifting += DRIFTING
        tally.audit_found += int(select_by_e_values(audit)[~still].sum())
        _count_ends(now, starts, tally, shift=shift)


def _count_ends(cells: np.ndarray, starts: np.ndarray, tally: Tally, *, shift: float) -> None:
    """Starts and sizes of what is found at the horizon."""
    (result,) = detect_drifts([(cells, None)], horizon=HORIZON)
    for claim, start in zip(result.claims, starts, strict=True):
        if claim.drifted and start and claim.since is not None and claim.size is not None:
            tally.starts_held.append(int(start) in claim.since.waves)
            tally.set_sizes.append(len(claim.since.waves))
            size = abs(claim.size.value)
            half = (claim.size.hi - claim.size.lo) / 2
            tally.sizes_held.append(abs(size - shift) <= half)
            tally.overstated.append((claim.overstated, size / shift))


def summarise(world: World, shift: float, tally: Tally) -> dict[str, Any]:
    """One row of the report."""

    def mean(values: list[Any]) -> float | None:
        return float(np.mean(values)) if values else None

    return {
        "world": world.name,
        "T": world.T,
        "R": world.R,
        "shift": shift,
        "panels": tally.panels,
        "false_alarms_per_claim": tally.claim_alarms / tally.claims,
        "false_alarms_per_panel": tally.panel_alarms / tally.panels,
        "fdr": mean(tally.false_shares),
        "power": tally.found / tally.drifting if tally.drifting else None,
        "median_delay": float(np.median(tally.delays)) if tally.delays else None,
        "start_coverage": mean(tally.starts_held),
        "start_set_size": mean(tally.set_sizes),
        "size_coverage": mean(tally.sizes_held),
        "size_found_over_planted": mean([ratio for _, ratio in tally.overstated]),
        "called_overstated": mean([called for called, _ in tally.overstated]),
        "model_found": tally.model_found / tally.panels if world.anchors else None,
        "model_alarms_before": tally.model_alarms_before / tally.panels if world.anchors else None,
        "audit_false_alarms_per_claim_at_end": tally.audit_alarms / tally.claims,
        "audit_power": tally.audit_found / tally.drifting if tally.drifting else None,
    }


def study(*, panels: int, quiet: int, seed: int, progress: Progress) -> list[dict[str, Any]]:
    """Every world without drift and with each shift."""
    worlds = (*WORLDS, replace(WORLDS[-1], name="common shift .3, no anchors", anchors=False))
    plan = [(world, shift) for world in worlds for shift in (0.0, *SHIFTS)]
    plan = [
        (world, shift) for world, shift in plan if not (world.common_shift and shift in (0.2, 0.8))
    ]
    counts = [panels if shift else quiet for _, shift in plan]
    counts = [
        max(1, count // 4) if world.common_shift else count
        for count, (world, _) in zip(counts, plan, strict=True)
    ]
    task = progress.add_task("simulating", total=sum(counts))
    rows = []
    for number, ((world, shift), count) in enumerate(zip(plan, counts, strict=True)):
        tally = Tally()
        for panel in range(count):
            rng = np.random.default_rng([seed, number, panel])
            look_every_wave(world, rng, shift=shift, tally=tally)
            progress.advance(task)
        rows.append(summarise(world, shift, tally))
    return rows


def print_table(rows: list[dict[str, Any]], seconds: float) -> None:
    """Show the study to a person."""

    def show(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")

    columns = [key for key in rows[0] if key not in ("R", "panels")]
    table = Table(*(key.replace("_", " ") for key in columns), title=f"{seconds:.0f} s")
    for row in rows:
        texts = {key: show(row[key]) for key in columns if key not in ("world", "T")}
        texts |= {"world": row["world"], "T": f"{row['T']} x {row['R']}"}
        table.add_row(*(texts[key] for key in columns))
    Console(width=220).print(table)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--panels", type=int, default=40, help="with drift, of each size")
    parser.add_argument("--quiet-panels", type=int, default=100, help="without drift")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="write JSON to this file")
    options = parser.parse_args()
    if min(options.panels, options.quiet_panels) < 1:
        parser.error("`--panels` and `--quiet-panels` must be positive integers")
    began = time.perf_counter()
    # Progress goes to stderr, so that `--json` can be piped.
    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        rows = study(
            panels=options.panels,
            quiet=options.quiet_panels,
            seed=options.seed,
            progress=progress,
        )
    text = json.dumps(rows, indent=2)
    if options.out is not None:
        options.out.write_text(text + "\n")
    if options.json:
        print(text)
    else:
        print_table(rows, time.perf_counter() - began)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
