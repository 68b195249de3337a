"""Do the intervals between lenses hold what was planted, does pairing pay, does the test keep its
level? By simulation, with the formula of the `sim` provider.

    python bench/lenses.py [--claims 1000] [--B 2000] [--seed 1] [--defaults] [--json]
                           [--template-sd 0.6] [--response-sd 0.25] [--noise-sd 0.15]

Every simulated claim has a prior and responses to evidence of its own, unless `--defaults` gives
all of them those of `sim`. The planted value of a metric is that of the planted centers: what
endless wordings and replicates would give. Intervals of rates are Wilson's.

How wide the intervals are for what they promise depends on where the scatter comes from. Noise
within a wording is counted in the spread of the wordings' means and again when replicates are
drawn, so intervals are too wide where noise is all there is (`--response-sd 0 --noise-sd 0.3`), and
right where wordings respond to evidence each in their own way.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from heretix.belief.metrics import (
    BeliefVector,
    InformationGain,
    Metric,
    amplification_gap,
    directed_gap,
    dispersion,
    exchange_test,
    information_gain,
    joint_bootstrap,
    movement,
    noise_floor,
    shock_index,
    signed_bits,
)
from heretix.belief.paired import unpaired_difference
from heretix.providers.sim import Planted
from heretix.studies.calibration import wilson

if TYPE_CHECKING:
    from collections.abc import Iterator

T, R = 16, 2
LENSES = ("RPL", "NUL", "MEL", "HEL", "SEL")
BELIEFS = ("RPL", "MEL", "HEL", "SEL")
LEVEL = 0.05

STUDIED = Planted(template_sd=0.6, response_sd=0.25, noise_sd=0.15)
"""Wordings differ more in what they give than in how they respond, and more in that than by chance.
"""

Logits = dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Rate of an event, with its 95% interval."""

    name: str
    count: int
    trials: int
    rate: float
    wilson_lo: float
    wilson_hi: float

    @classmethod
    def of(cls, name: str, hits: list[bool]) -> Rate:
        """The rate of `hits`."""
        count, trials = sum(hits), len(hits)
        rate = count / trials
        lo, hi = wilson(rate, trials)
        return cls(name=name, count=count, trials=trials, rate=rate, wilson_lo=lo, wilson_hi=hi)


@dataclass
class Tally:
    """Results of all claims so far."""

    covered: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    rejected: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    ratios: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Width of the unpaired interval over that of the paired one."""
    errors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """How much larger than planted an information gain came out, as it is and corrected."""


def plant_claim(rng: np.random.Generator, spread: Planted) -> Planted:
    """A claim with a belief and responses of its own. What moves nothing is a case by itself."""
    shifts = rng.normal(0, 0.8, size=3)
    return replace(
        spread,
        prior=float(rng.uniform(0.1, 0.9)),
        wrapper=float(rng.normal(0, 0.15)),
        mel=float(shifts[0]),
        hel=float(shifts[1]),
        sel=float(shifts[2]),
    )


def draw_logits(planted: Planted, lens: str, stems: np.ndarray, rng: np.random.Generator) -> Logits:
    """The log-odds of one lens by stem, as `SimProvider` answers."""
    center = planted.center(lens) + planted.template_sd * stems
    if lens != "RPL":
        center = center + planted.response_sd * rng.normal(size=T)
    logits = center[:, None] + planted.noise_sd * rng.normal(size=(T, R))
    return {f"{stem:03d}": row for stem, row in enumerate(logits.tolist())}


def pair_with_truth(vector: BeliefVector, planted: Planted) -> Iterator[tuple[str, Metric, float]]:
    """Every metric with what was planted."""
    p = {lens: planted.prob(lens) for lens in LENSES}
    for lens in LENSES[1:]:
        yield f"movement {lens}", movement(vector, lens), p[lens] - p["RPL"]
    for lens in LENSES[2:]:
        yield f"evidence effect {lens}", movement(vector, lens, "NUL"), p[lens] - p["NUL"]
    yield "Shock Index", shock_index(vector), abs(p["RPL"] - p["HEL"])
    yield "Amplification Gap", amplification_gap(vector), p["MEL"] - p["RPL"]
    directed = directed_gap(vector)
    if directed is not None:
        sign = math.copysign(1.0, p["RPL"] - 0.5)
        yield "directed gap (where defined)", directed, sign * (p["MEL"] - p["RPL"])
    for lens in ("MEL", "HEL"):
        gain = information_gain(vector, lens)
        yield f"Information Gain {lens}", gain, signed_bits(p[lens], p["RPL"])
    yield "dispersion", dispersion(vector, BELIEFS), divergence([p[lens] for lens in BELIEFS])


def divergence(probs: list[float]) -> float:
    """Planted Jensen–Shannon divergence in bits."""
    return entropy(math.fsum(probs) / len(probs)) - math.fsum(map(entropy, probs)) / len(probs)


def entropy(p: float) -> float:
    """Entropy of a coin, in bits."""
    return -p * math.log2(p) - (1 - p) * math.log2(1 - p)


def simulate(planted: Planted, rng: np.random.Generator, *, B: int, tally: Tally) -> None:
    """Measure one claim and add to the tally."""
    stems = rng.normal(size=T)
    logits = {lens: draw_logits(planted, lens, stems, rng) for lens in LENSES}
    seed = int(rng.integers(2**63))
    vector = joint_bootstrap(logits, seed=seed, B=B)
    for name, metric, truth in pair_with_truth(vector, planted):
        tally.covered[name].append(metric.lo <= truth <= metric.hi)
        if isinstance(metric, InformationGain) and truth != 0:
            sign = math.copysign(1.0, truth)
            tally.errors[f"{name} as it is"].append(sign * (metric.value - truth))
            tally.errors[f"{name} corrected"].append(sign * (metric.corrected - truth))
    for lens in LENSES[1:]:
        paired = movement(vector, lens)
        apart = unpaired_difference(logits["RPL"], logits[lens], seed=seed, B=B)
        width = apart.diff_prob_hi - apart.diff_prob_lo
        tally.ratios[lens].append(width / (paired.hi - paired.lo))
    again = draw_logits(planted, "RPL", stems, rng)
    level(logits["RPL"], again, seed=seed, B=B, tally=tally)


def level(once: Logits, again: Logits, *, seed: int, B: int, tally: Tally) -> None:
    """The raw prior against itself: nothing should be found, but for chance."""
    null = joint_bootstrap({"RPL": once, "HEL": again}, seed=seed, B=B)
    found = movement(null, "HEL")
    floor = noise_floor(once, seed=seed, B=B)
    assert floor is not None
    tally.rejected["IG test, RPL against RPL"].append(exchange_test(null, "HEL") <= LEVEL)
    tally.rejected["movement's interval leaves 0 out"].append(not found.lo <= 0 <= found.hi)
    tally.rejected["distance above the noise floor"].append(abs(found.value) > floor)


def study(options: argparse.Namespace, progress: Progress) -> Tally:
    """All claims."""
    tally = Tally()
    spread = Planted(
        template_sd=options.template_sd,
        response_sd=options.response_sd,
        noise_sd=options.noise_sd,
    )
    for number in progress.track(range(options.claims), description="simulating"):
        rng = np.random.default_rng([options.seed, number])
        planted = spread if options.defaults else plant_claim(rng, spread)
        simulate(planted, rng, B=options.B, tally=tally)
        no_response(planted, rng, B=options.B, tally=tally)
    return tally


def no_response(planted: Planted, rng: np.random.Generator, *, B: int, tally: Tally) -> None:
    """A lens that moves nothing on average, though each wording responds in its own way."""
    still = replace(planted, wrapper=0.0, mel=0.0)
    stems = rng.normal(size=T)
    logits = {lens: draw_logits(still, lens, stems, rng) for lens in ("RPL", "MEL")}
    vector = joint_bootstrap(logits, seed=int(rng.integers(2**63)), B=B)
    tally.rejected["IG test, no mean movement"].append(exchange_test(vector, "MEL") <= LEVEL)


def print_tables(tally: Tally, options: argparse.Namespace) -> None:
    """Show the study to a person."""
    console = Console()
    title = f"T={T}, R={R}, B={options.B}, {options.claims} claims"
    for what, groups in (("coverage", tally.covered), ("rate", tally.rejected)):
        table = Table("", what, "95% Wilson", "n", title=title)
        for rate in (Rate.of(*group) for group in groups.items()):
            span = f"{rate.wilson_lo:.4f} to {rate.wilson_hi:.4f}"
            table.add_row(rate.name, f"{rate.rate:.4f}", span, str(rate.trials))
        console.print(table)
    table = Table("unpaired width / paired", "median", "10th", "90th percentile")
    for lens, ratios in tally.ratios.items():
        low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
        table.add_row(lens, f"{middle:.2f}", f"{low:.2f}", f"{high:.2f}")
    console.print(table)
    table = Table("too large by, in bits", "mean", "standard error")
    for name, errors in tally.errors.items():
        spread = np.std(errors, ddof=1) / math.sqrt(len(errors)) if len(errors) > 1 else math.nan
        table.add_row(name, f"{np.mean(errors):+.5f}", f"{spread:.5f}")
    console.print(table)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--claims", type=int, default=1000)
    parser.add_argument("--B", type=int, default=2000, help="bootstrap replicas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--defaults", action="store_true", help="plant sim's defaults every time")
    for name in ("template", "response", "noise"):
        planted = getattr(STUDIED, f"{name}_sd")
        parser.add_argument(f"--{name}-sd", type=float, default=planted, help="in log-odds")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.claims < 1:
        parser.error(f"`--claims` must be a positive integer, got {options.claims}")
    # Progress goes to stderr, so that `--json` can be piped.
    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        tally = study(options, progress)
    if not options.json:
        print_tables(tally, options)
        return 0
    content = {
        "options": vars(options),
        "coverage": [asdict(Rate.of(*group)) for group in tally.covered.items()],
        "rejection": [asdict(Rate.of(*group)) for group in tally.rejected.items()],
        "width_ratio_median": {k: float(np.median(v)) for k, v in tally.ratios.items()},
        "information_error_bits": {k: float(np.mean(v)) for k, v in tally.errors.items()},
    }
    print(json.dumps(content, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
