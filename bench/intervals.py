"""Simulate how often intervals hold the truth: Student's t over templates, the frozen bootstrap.

    python bench/intervals.py [--claims 10000] [--frozen-claims 1500] [--B 1000] [--seed 1]
                              [--json] [--out FILE]

Every simulated claim has a belief and a response to evidence of its own; wordings shift both
sides alike (template SD), respond each in their own way (response SD), and answers scatter
(noise SD), all in log-odds. Both kinds of interval see the same claims; the bootstrap, which takes
most of the time, sees the first `--frozen-claims` of them. In the fifth setting wordings are skewed
(a shifted exponential); it is reported apart. There a trimmed center estimates another number than
a mean does, and each interval is asked to hold what its own center comes to in the long run.
Intervals of a coverage are Wilson's.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from heretix.belief.estimator import estimate
from heretix.belief.logodds import sigmoid
from heretix.belief.paired import paired_difference
from heretix.belief.student import paired_template_t, paired_template_t_trimmed, template_t
from heretix.studies.calibration import wilson

TEMPLATES = (8, 16)
REPLICATES = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Sources of the scatter of answers; standard deviations in log-odds."""

    template: float
    response: float
    noise: float
    skewed: bool = False

    @property
    def name(self) -> str:
        """Name that the tables give it."""
        numbers = f"{self.template:g}/{self.response:g}/{self.noise:g}"
        return f"{numbers} skewed" if self.skewed else numbers


SETTINGS = (
    Setting(template=0.4, response=0.15, noise=0.2),
    Setting(template=0.3, response=0.05, noise=0.4),
    Setting(template=0.8, response=0.4, noise=0.1),
    Setting(template=0.6, response=0.0, noise=0.3),
    Setting(template=0.8, response=0.4, noise=0.1, skewed=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """One kind of interval in one design."""

    setting: str
    T: int
    R: int
    interval: str
    """`belief` or `difference`, and the method."""
    claims: int
    coverage: float
    wilson_lo: float
    wilson_hi: float
    mean_width: float
    """In probability."""


def scatter(rng: np.random.Generator, setting: Setting, sd: float, T: int) -> np.ndarray:
    """Effects of T wordings, with mean 0."""
    if setting.skewed:
        return sd * (rng.exponential(1, (T, 1)) - 1)
    return rng.normal(0, sd, (T, 1))


@cache
def trimmed_bias(setting: Setting, *, T: int, R: int) -> tuple[float, float, float]:
    """Distance of trimmed centers from means, in the long run: of base, lens and differences."""
    if not setting.skewed:
        return 0.0, 0.0, 0.0
    rng = np.random.default_rng([T, R])
    size, cut = (100_000, T), int(0.2 * T)
    wording = setting.template * (rng.exponential(1, size) - 1)
    noise = setting.noise / math.sqrt(R)
    base = wording + rng.normal(0, noise, size)
    lens = wording + setting.response * (rng.exponential(1, size) - 1) + rng.normal(0, noise, size)
    base_off, lens_off, diff_off = (
        float(np.sort(means)[:, cut : T - cut].mean()) for means in (base, lens, lens - base)
    )
    return base_off, lens_off, diff_off


def key_by_template(rows: np.ndarray) -> dict[str, list[float]]:
    """Logits by template."""
    return {f"{t:02}": row for t, row in enumerate(rows.tolist())}


def measure_claim(
    setting: Setting, *, T: int, R: int, B: int, seed: int, frozen: bool
) -> dict[str, tuple[bool, float]]:
    """Measure one claim: by interval, whether it holds the truth, and its width."""
    rng = np.random.default_rng([T, R, seed, *map(ord, setting.name)])
    center, shift = rng.normal(0, 1), rng.normal(0.3, 0.3)
    wording = scatter(rng, setting, setting.template, T)
    a = key_by_template(center + wording + rng.normal(0, setting.noise, (T, R)))
    response = scatter(rng, setting, setting.response, T)
    b = key_by_template(center + shift + wording + response + rng.normal(0, setting.noise, (T, R)))
    moved = sigmoid(center + shift) - sigmoid(center)
    base_off, lens_off, diff_off = trimmed_bias(setting, T=T, R=R)
    prob = sigmoid(center + base_off)
    moved_twin = sigmoid(center + base_off + shift + diff_off) - prob
    moved_frozen = sigmoid(center + shift + lens_off) - prob
    one = template_t(a)
    pair, twin = paired_template_t(a, b).diff_prob, paired_template_t_trimmed(a, b).diff_prob
    found = {
        "belief: template_t": (one.ci_lo <= prob <= one.ci_hi, one.ci_width),
        "difference: paired_template_t": (pair.lo <= moved <= pair.hi, pair.hi - pair.lo),
        "difference: paired_template_t_trimmed": (
            twin.lo <= moved_twin <= twin.hi,
            twin.hi - twin.lo,
        ),
    }
    if frozen:
        est = estimate(a, seed=seed, B=B)
        diff = paired_difference(a, b, seed=seed, B=B)
        found["belief: frozen"] = (est.ci_lo <= prob <= est.ci_hi, est.ci_width)
        found["difference: frozen"] = (
            diff.diff_prob_lo <= moved_frozen <= diff.diff_prob_hi,
            diff.diff_prob_hi - diff.diff_prob_lo,
        )
    return found


def study(
    *, claims: int, frozen_claims: int, B: int, seed: int, progress: Progress
) -> list[Coverage]:
    """Coverage of every interval in every design."""
    designs = list(product(SETTINGS, TEMPLATES, REPLICATES))
    task = progress.add_task("simulating", total=claims * len(designs))
    rows = []
    for setting, T, R in designs:
        seen: dict[str, list[tuple[bool, float]]] = {}
        for number in range(claims):
            found = measure_claim(
                setting, T=T, R=R, B=B, seed=seed * claims + number, frozen=number < frozen_claims
            )
            for name, result in found.items():
                seen.setdefault(name, []).append(result)
            progress.advance(task)
        for name, results in seen.items():
            hits = sum(hit for hit, _ in results)
            lo, hi = wilson(hits / len(results), len(results))
            rows.append(
                Coverage(
                    setting=setting.name,
                    T=T,
                    R=R,
                    interval=name,
                    claims=len(results),
                    coverage=hits / len(results),
                    wilson_lo=lo,
                    wilson_hi=hi,
                    mean_width=sum(width for _, width in results) / len(results),
                )
            )
    return rows


def print_tables(rows: list[Coverage]) -> None:
    """Show coverage and mean width to a person, beliefs and differences apart."""
    designs = sorted({(row.setting.endswith("skewed"), row.setting, row.T, row.R) for row in rows})
    by_key = {(row.setting, row.T, row.R, row.interval): row for row in rows}
    for kind in ("belief", "difference"):
        names = [name for name in dict.fromkeys(row.interval for row in rows) if kind in name]
        heads = [name.split(": ")[1] for name in names]
        table = Table("setting", "T", "R", *heads, title=f"{kind}: coverage, mean width")
        for _, setting, T, R in designs:
            cells = [by_key[setting, T, R, name] for name in names]
            shown = [f"{cell.coverage:.3f}  {cell.mean_width:.3f}" for cell in cells]
            table.add_row(setting, str(T), str(R), *shown)
        Console(width=120).print(table)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--claims", type=int, default=10_000, help="simulated claims a design")
    parser.add_argument("--frozen-claims", type=int, default=1_500, help="of these, bootstrapped")
    parser.add_argument("--B", type=int, default=1_000, help="bootstrap replicas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="write JSON to this file")
    options = parser.parse_args()
    if not 1 <= options.frozen_claims <= options.claims:
        parser.error(
            "`--frozen-claims` must be from 1 to `--claims`, "
            f"got {options.frozen_claims} of {options.claims}"
        )
    # Progress goes to stderr, so that `--json` can be piped.
    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        rows = study(
            claims=options.claims,
            frozen_claims=options.frozen_claims,
            B=options.B,
            seed=options.seed,
            progress=progress,
        )
    text = json.dumps([asdict(row) for row in rows], indent=2)
    if options.out is not None:
        options.out.write_text(text + "\n")
    if options.json:
        print(text)
    else:
        print_tables(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
