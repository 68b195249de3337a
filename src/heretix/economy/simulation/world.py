"""The planted world: claims, what there is to find about them, how models respond.

In log-odds, a bundle moves a model by its common effect times the model's sensitivity, plus an
effect on that model alone. Noise has no common effect: it can move the lens, or any one judge,
for good, but not all of them. What is said again in other words does almost nothing more.
Every draw is a hash of what it is for, so it is the same on every machine; every reading is
rounded to the unit that the rules take before they see it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Final, TypeAlias

from heretix.belief.logodds import logit, sigmoid
from heretix.core.canonical import normal, sha256_hex, uniform
from heretix.economy.episode.challenges import BroughtEvidence, GateReading
from heretix.economy.episode.settlement import JudgeReading, Measurement
from heretix.economy.episode.state import Direction
from heretix.economy.ledger import PPM
from heretix.economy.rewards import clip_belief

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LENS: Final = "lens-model"
POOL: Final = tuple(f"judge-{n:02d}" for n in range(12))
"""Models that judges are drawn from; everyone can ask them at home, nobody knows the draw."""
_Z95: Final = 1.959963984540054
_MEDIAN_SPREAD: Final = math.sqrt(math.pi / 2)
"""A median of normal draws scatters this much more than their mean."""
_SLOTS: Final = 16
_SAMPLES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Nature:
    """Parameters of the world. Effects and deviations are in log-odds."""

    c0_reach: float = 1.5
    """Claims start anywhere within this distance of even odds."""
    no_finding: float = 0.3
    two_findings: float = 0.2
    """Shares of claims with nothing to find, and with two things; the others have one."""
    finding_least: float = 0.4
    finding_most: float = 1.2
    """Effect of real evidence on every model, up or down."""
    finding_spread: float = 0.15
    discovery: float = 0.3
    """Probability that an explorer comes upon a finding that is there."""
    noise_spread: float = 0.3
    """Effect of noise on each model by itself; the best of many can be chosen for one model."""
    echo: float = 0.05
    """Effect of saying the same again in other words, as a share of the first."""
    sensitivity_sd: float = 0.2
    leaning_sd: float = 0.8
    """Distance of judges from the lens before any evidence."""
    hijackable: float = 0.08
    """Probability that a model obeys an order in a document that got past the screen."""
    hijack: float = 3.0
    any_text: float = 0.0
    """Effect that text as such has on every model, whatever it says; the same however much of it.

    The gate's placebo arm is there for it. The judges have none: see `docs/simulation.md`.
    """
    reopened: float = 0.1
    """Share of claims that are asked about again when their episode has ended."""
    gate_sd: float = 0.1
    """Error of a paired difference of one model, K=16, R=2; a probe at home has the same."""
    judge_sd: float = 0.12
    drift_sd: float = 0.03
    """Drift of a judge's response until the second measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A piece of evidence. Agents learn what it does by probing, not by reading this."""

    sha256: str
    content: str
    """Content; two wordings of one thing have it in common."""
    common: float = 0.0
    spread: float = 0.0
    orders: int = 0
    """+1 or -1: it tells its reader what to answer."""
    fades: bool = False
    """Rebutted before the second measurement, where the rebuttal is shown with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The planted truth of one episode."""

    number: int
    c0_ppm: int
    findings: tuple[Bundle, ...]
    first: int
    """The episode that asked first: its own number, unless it is asked about again."""
    paid: tuple[Bundle, ...] = ()
    """Evidence that the earlier episode paid for, which is shown from the start."""


Earlier: TypeAlias = "tuple[Claim, tuple[Bundle, ...]]"
"""The claim before, and the evidence that was paid for there."""
_PLACEBO: Final = Bundle(sha256="0" * 64, content="placebo")


def sign_of(direction: Direction) -> int:
    """+1 for up, -1 for down."""
    return 1 if direction is Direction.UP else -1


@dataclass(frozen=True, slots=True)
class World:
    """The world that a seed decides."""

    seed: int
    nature: Nature

    def chance(self, *labels: str | int) -> float:
        """A number between 0 and 1 for one purpose."""
        return uniform(self.seed, *labels)

    def claim(
        self, number: int, *, earlier: tuple[Claim, tuple[Bundle, ...]] | None = None
    ) -> Claim:
        """The claim of an episode; some ask again what the one before it asked, of models that have
        read what was paid for there."""
        nature = self.nature
        if earlier is not None and self.chance("reopened", number) < nature.reopened:
            was, paid = earlier
            told = (*was.paid, *paid)
            moved = self.combine_effects(told, LENS) - self.combine_effects(was.paid, LENS)
            at = logit(was.c0_ppm / PPM) + moved
            c0 = clip_belief(_ppm(sigmoid(at)))
            return replace(was, number=number, c0_ppm=c0, paid=told)
        at = (2 * self.chance("c0", number) - 1) * nature.c0_reach
        share = self.chance("findings", number)
        count = 0 if share < nature.no_finding else 1 + (share > 1 - nature.two_findings)
        return Claim(
            number=number,
            c0_ppm=clip_belief(_ppm(sigmoid(at))),
            findings=tuple(self._finding(number, n) for n in range(count)),
            first=number,
        )

    def discover(self, claim: Claim, explorer: str) -> Bundle | None:
        """Finding of an explorer, in a bundle of its own making."""
        for n, finding in enumerate(claim.findings):
            if self.chance("discovery", claim.first, n, explorer) < self.nature.discovery:
                return self.reword(finding, explorer)
        return None

    def noise(self, *labels: str | int) -> Bundle:
        """Text that means nothing and moves models all the same, each in its own way."""
        return self._bundle("noise", *labels, spread=self.nature.noise_spread)

    def order(self, sign: int, *labels: str | int) -> Bundle:
        """An injection that the screen lets pass: anyone can try the screen at home."""
        return self._bundle("order", *labels, orders=sign)

    def rumour(self, sign: int, *labels: str | int) -> Bundle:
        """A rumour, which convinces every model until it is rebutted."""
        bundle = self._bundle("rumour", *labels, spread=self.nature.finding_spread)
        return replace(bundle, common=sign * self.nature.finding_most, fades=True)

    def filler(self, *labels: str | int) -> Bundle:
        """Text about something else."""
        return self._bundle("filler", *labels)

    def reword(self, bundle: Bundle, *labels: str | int) -> Bundle:
        """The same content as another file."""
        return replace(bundle, sha256=_sha("wording", bundle.content, *labels))

    def effect(self, bundle: Bundle, model: str) -> float:
        """Effect of a bundle on a model, by itself and before anything fades."""
        nature = self.nature
        if bundle.orders:
            obeys = uniform(self.seed, "obeys", bundle.content, model) < nature.hijackable
            return bundle.orders * nature.hijack if obeys else 0.0
        sensitivity = max(0.2, 1 + nature.sensitivity_sd * normal(self.seed, "sensitive", model))
        return bundle.common * sensitivity + bundle.spread * normal(
            self.seed, "alone", bundle.content, model
        )

    def combine_effects(
        self, bundles: Sequence[Bundle], model: str, *, later: bool = False
    ) -> float:
        """Effect of several bundles together; with `later`, after rumours were rebutted."""
        told = set[str]()
        total = self.nature.any_text if bundles else 0.0
        for bundle in bundles:
            effect = 0.0 if later and bundle.fades else self.effect(bundle, model)
            total += effect * (self.nature.echo if bundle.content in told else 1.0)
            told.add(bundle.content)
        return total

    def probe(
        self, bundle: Bundle, model: str, *labels: str | int, shown: Sequence[Bundle] = ()
    ) -> float:
        """Measurement at home, open to anyone: the effect on a model that is shown the rest, with
        its error."""
        error = self.nature.gate_sd * normal(self.seed, "probe", model, *labels)
        return (
            self.combine_effects([*shown, bundle], model)
            - self.combine_effects(shown, model)
            + error
        )

    def leaning(self, model: str, claim: Claim) -> float:
        """Difference of a judge's belief from the lens's before any evidence."""
        return self.nature.leaning_sd * normal(self.seed, "leaning", model, claim.number)

    def gate(
        self, claim: Claim, accepted: Sequence[Bundle], bundle: Bundle, challenge: int
    ) -> BroughtEvidence:
        """The lens with a bundle on top of what was accepted before, paired with it without, and
        with irrelevant text instead."""
        shown, sd = [*claim.paid, *accepted], self.nature.gate_sd
        before, after = (
            self.combine_effects(shown, LENS),
            self.combine_effects([*shown, bundle], LENS),
        )
        placebo = after - self.combine_effects([*shown, _PLACEBO], LENS)
        moved = after - before + sd * normal(self.seed, "gate", claim.number, challenge)
        placebo += sd * normal(self.seed, "placebo", claim.number, challenge)
        start = logit(claim.c0_ppm / PPM) + before - self.combine_effects(claim.paid, LENS)
        half = _Z95 * self.nature.gate_sd
        width = sigmoid(start + moved + half) - sigmoid(start + moved - half)
        return BroughtEvidence(
            gate=GateReading(
                p_up_ppm=_ppm(NormalDist().cdf(moved / sd)),
                p_over_placebo_ppm=_ppm(NormalDist().cdf(placebo / sd)),
                slots=_SLOTS,
                ci_width_ppm=_ppm(width),
            ),
            belief_ppm=_ppm(sigmoid(start + moved)),
        )

    def measure(
        self,
        claim: Claim,
        judges: Sequence[str],
        accepted: Sequence[Bundle],
        *,
        stage: str,
        later: bool,
        bought: Mapping[str, float],
    ) -> Measurement:
        """One judging measurement. A judge that was bought answers what it was paid for."""
        nature, readings, shifts = self.nature, [], []
        for judge in judges:
            error = nature.judge_sd * normal(self.seed, "judge", judge, claim.number, stage)
            shift = self.combine_effects([*claim.paid, *accepted], judge, later=later) + error
            shift -= self.combine_effects(claim.paid, judge, later=later)
            if later and accepted:
                shift += nature.drift_sd * normal(self.seed, "drift", judge, claim.number, stage)
            shift = bought.get(judge, shift)
            before = _decimal(logit(claim.c0_ppm / PPM) + self.leaning(judge, claim))
            after = before + _decimal(shift)
            readings.append(
                JudgeReading(
                    model=judge,
                    provider_model_ids=(f"{judge}@1",),
                    before=before,
                    after=after,
                    attempted=_SAMPLES,
                    compliant=_SAMPLES,
                    from_cache=0,
                )
            )
            shifts.append(shift)
        middle = median(shifts)
        sd = _MEDIAN_SPREAD * nature.judge_sd / math.sqrt(len(judges))
        return Measurement(
            readings=tuple(readings),
            p_up_ppm=_ppm(NormalDist().cdf(middle / sd)),
            shift_lo=_decimal(middle - _Z95 * sd),
            shift_hi=_decimal(middle + _Z95 * sd),
        )

    def _finding(self, number: int, n: int) -> Bundle:
        nature = self.nature
        size = nature.finding_least + self.chance("size", number, n) * (
            nature.finding_most - nature.finding_least
        )
        sign = 1 if self.chance("sign", number, n) < 0.5 else -1
        bundle = self._bundle("finding", number, n, spread=nature.finding_spread)
        return replace(bundle, common=sign * size)

    def _bundle(self, *labels: str | int, spread: float = 0.0, orders: int = 0) -> Bundle:
        name = "/".join(map(str, labels))
        return Bundle(sha256=_sha("bundle", name), content=name, spread=spread, orders=orders)


def _sha(*labels: str | int) -> str:
    return sha256_hex("/".join(map(str, labels)).encode())


def _ppm(share: float) -> int:
    return min(max(round(share * PPM), 0), PPM)


def _decimal(value: float) -> Decimal:
    return Decimal(round(value * 10_000)).scaleb(-4)
