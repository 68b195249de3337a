"""Simulate how often the nominal 95% interval holds the true belief.

    python bench/coverage.py [--sims 2000] [--seed 1] [--template-sd 0.6] [--replicate-sd 0.4]

Each simulation draws template effects and replicate noise, normal in log-odds, about a known
center. Intervals of the coverage itself are Wilson's.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from heretix.belief.estimator import estimate
from heretix.belief.logodds import sigmoid
from heretix.studies.calibration import wilson

TEMPLATES = (5, 8, 16)
REPLICATES = (2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Parameters of the simulated model."""

    center_logit: float
    template_sd: float
    replicate_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Coverage of one design."""

    T: int
    R: int
    B: int
    sims: int
    covered: int
    coverage: float
    wilson_lo: float
    wilson_hi: float
    mean_width: float
    """Mean width of the intervals, in probability."""


def simulate(world: World, *, T: int, R: int, B: int, seed: int) -> tuple[bool, float]:
    """One measurement: whether its interval holds the truth, and its width."""
    rng = np.random.default_rng([T, R, seed])
    effects = rng.normal(0, world.template_sd, size=(T, 1))
    logits = world.center_logit + effects + rng.normal(0, world.replicate_sd, size=(T, R))
    data = {f"{t:02}": row for t, row in enumerate(logits.tolist())}
    got = estimate(data, seed=int(rng.integers(2**63)), B=B)
    return got.ci_lo <= sigmoid(world.center_logit) <= got.ci_hi, got.ci_width


def study(world: World, *, B: int, sims: int, seed: int, progress: Progress) -> list[Cell]:
    """Coverage of every design."""
    designs = list(product(TEMPLATES, REPLICATES))
    task = progress.add_task("simulating", total=sims * len(designs))
    cells = []
    for T, R in designs:
        covered, width = 0, 0.0
        for number in range(sims):
            hit, one_width = simulate(world, T=T, R=R, B=B, seed=seed * sims + number)
            covered += hit
            width += one_width
            progress.advance(task)
        lo, hi = wilson(covered / sims, sims)
        cells.append(
            Cell(
                T=T,
                R=R,
                B=B,
                sims=sims,
                covered=covered,
                coverage=covered / sims,
                wilson_lo=lo,
                wilson_hi=hi,
                mean_width=width / sims,
            )
        )
    return cells


def print_table(world: World, cells: list[Cell]) -> None:
    """Show the study to a person."""
    title = (
        f"coverage of the 95% interval; center {world.center_logit}, template SD "
        f"{world.template_sd}, replicate SD {world.replicate_sd} (log-odds)"
    )
    table = Table("T", "R", "B", "sims", "coverage", "95% Wilson", "mean width", title=title)
    for cell in cells:
        table.add_row(
            str(cell.T),
            str(cell.R),
            str(cell.B),
            str(cell.sims),
            f"{cell.coverage:.4f}",
            f"{cell.wilson_lo:.4f} to {cell.wilson_hi:.4f}",
            f"{cell.mean_width:.4f}",
        )
    Console().print(table)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sims", type=int, default=2000, help="simulations of each design")
    parser.add_argument("--B", type=int, default=2000, help="bootstrap replicas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--center-logit", type=float, default=0.3, help="the true belief")
    parser.add_argument("--template-sd", type=float, default=0.6, help="between templates")
    parser.add_argument("--replicate-sd", type=float, default=0.4, help="within a template")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.sims < 1:
        parser.error(f"`--sims` must be a positive integer, got {options.sims}")
    world = World(
        center_logit=options.center_logit,
        template_sd=options.template_sd,
        replicate_sd=options.replicate_sd,
    )
    # Progress goes to stderr, so that `--json` can be piped.
    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        cells = study(world, B=options.B, sims=options.sims, seed=options.seed, progress=progress)
    if options.json:
        print(json.dumps({"world": asdict(world), "cells": [asdict(c) for c in cells]}, indent=2))
    else:
        print_table(world, cells)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
