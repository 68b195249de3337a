"""Calibration: how well probabilities fit outcomes, with intervals that know about claims.

Rows of one claim (several wordings, lenses or replicates) aren't independent, so every interval
counts claims, not rows. Each score is linearised: how much a row moves it is added up by claim,
and the spread of these sums gives the standard error. The same sums of two models, claim by claim,
give the interval of their difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from heretix.belief.logodds import CLAMP
from heretix.belief.student import TInterval, t_interval
from heretix.core.errors import ConfigError, NoEstimateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from heretix.belief.estimator import Floats

SCORES: Final = ("brier", "log_score", "auroc", "ece", "slope", "intercept")
BINS: Final = 10
_SHARES: Final = ("brier", "auroc", "ece")
"""Scores that lie between 0 and 1."""
_SPLITS: Final = 200
_Z95: Final = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A probability for a claim whose truth is known."""

    claim: str
    """Rows of one claim go together; a claim and its negation may share a name here."""
    prob: float
    outcome: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A score with its 95% interval; None with the reason where there is none."""

    value: float | None
    lo: float | None
    hi: float | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """One bar of a reliability diagram; edges belong to the bin above, 1 to the last."""

    lo: float
    hi: float
    n: int
    mean_prob: float | None
    """None, as what follows, for an empty bin."""
    share_true: float | None
    share_lo: float | None
    """Wilson's interval, as if rows were as many as claims in the bin."""
    share_hi: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Fit of one model's probabilities to what is true."""

    n: int
    n_claims: int
    base_rate: float
    brier: Score
    """Mean squared error; .25 for always saying 1/2."""
    log_score: Score
    """Mean of -ln of the probability given to what was true; .693 for always saying 1/2."""
    auroc: Score
    """Chance that a true claim gets more than a false one; ties count half."""
    ece: Score
    """Mean distance of bins from the diagonal, without the part that chance alone gives."""
    ece_raw: float
    """The usual one, which is above 0 for a perfect model, too."""
    slope: Score
    """Of outcome ~ logit p: below 1 for too sure of itself, above for too timid."""
    intercept: Score
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Model b minus model a over the claims that both were asked; None where one has no score."""

    n_claims: int
    brier: TInterval
    log_score: TInterval
    auroc: TInterval | None
    """None, too, where both have all pairs in order (or none) and yet differ: neither scatters
    there, so what their difference could be on other claims isn't known."""
    ece: TInterval | None
    slope: TInterval | None
    intercept: TInterval | None


@dataclass(frozen=True, slots=True)
class _Linear:
    """A score and how much each row moves it."""

    value: float
    influence: Floats


@dataclass(frozen=True, slots=True)
class _Rows:
    probs: Floats
    outcomes: Floats
    claims: NDArray[np.int64]
    names: tuple[str, ...]


def calibrate(forecasts: Sequence[Forecast]) -> Calibration:
    """Score one model's forecasts."""
    rows = _make_rows(forecasts)
    scores, reasons = _score(rows)
    shown = {name: _interval(rows, name, scores.get(name), reasons.get(name)) for name in SCORES}
    return Calibration(
        n=len(rows.probs),
        n_claims=len(rows.names),
        base_rate=float(rows.outcomes.mean()),
        ece_raw=_raw_ece(rows),
        bins=_bins(rows),
        **shown,
    )


def compare_models(a: Sequence[Forecast], b: Sequence[Forecast]) -> Comparison:
    """Compare two models on the claims that both were asked, paired by claim."""
    shared = {row.claim for row in a} & {row.claim for row in b}
    if len(shared) < 2:
        raise NoEstimateError(
            f"`forecasts`: a comparison needs at least 2 claims that both models were asked, got "
            f"{len(shared)}; measure both on the same claims"
        )
    sides = [_make_rows([row for row in side if row.claim in shared]) for side in (a, b)]
    (scores_a, _), (scores_b, _) = (_score(side) for side in sides)
    G = len(shared)
    found: dict[str, TInterval | None] = {}
    for name in SCORES:
        one, other = scores_a.get(name), scores_b.get(name)
        if (
            one is None
            or other is None
            or (name == "auroc" and _are_both_in_order(sides, one, other))
        ):
            found[name] = None
            continue
        # Claims are numbered by name on both sides, so the sums line up.
        moved = _sum_by_claim(sides[1], other) - _sum_by_claim(sides[0], one)
        difference = t_interval(other.value - one.value, _cluster_se(moved), G - 1)
        if name in _SHARES:  # no difference of shares is larger than 1
            lo, hi = max(difference.lo, -1.0), min(difference.hi, 1.0)
            difference = replace(difference, lo=lo, hi=hi)
        found[name] = difference
    brier, log_score = found["brier"], found["log_score"]
    assert brier is not None
    assert log_score is not None
    return Comparison(
        n_claims=G,
        brier=brier,
        log_score=log_score,
        auroc=found["auroc"],
        ece=found["ece"],
        slope=found["slope"],
        intercept=found["intercept"],
    )


def _are_both_in_order(sides: Sequence[_Rows], one: _Linear, other: _Linear) -> bool:
    """Say whether two AUROCs are 0 or 1, of different probabilities."""
    ends = not (one.influence.any() or other.influence.any())
    return ends and not np.array_equal(sides[0].probs, sides[1].probs)


def _make_rows(forecasts: Sequence[Forecast]) -> _Rows:
    for row in forecasts:
        if not 0 <= row.prob <= 1:  # NaN fails too
            raise ConfigError(
                f"`prob` must lie in [0, 1], got {row.prob} for {row.claim!r}; "
                "leave out claims without a belief"
            )
    names = tuple(sorted({row.claim for row in forecasts}))
    if len(names) < 2:
        raise NoEstimateError(
            f"`forecasts`: calibration needs at least 2 claims, got {len(names)}; label more claims"
        )
    number = {name: i for i, name in enumerate(names)}
    # One order for one set of rows, so that no sum depends on how they came.
    ordered = sorted(forecasts, key=lambda row: (row.claim, row.prob, row.outcome))
    return _Rows(
        np.array([row.prob for row in ordered]),
        np.array([float(row.outcome) for row in ordered]),
        np.array([number[row.claim] for row in ordered]),
        names,
    )


def _score(rows: _Rows) -> tuple[dict[str, _Linear], dict[str, str]]:
    """Every score that can be had, and why the others can't."""
    n = len(rows.probs)
    squared = (rows.probs - rows.outcomes) ** 2
    given = np.where(rows.outcomes == 1, rows.probs, 1 - rows.probs)
    logs = -np.log(np.maximum(given, CLAMP))
    scores = {
        "brier": _Linear(float(squared.mean()), (squared - squared.mean()) / n),
        "log_score": _Linear(float(logs.mean()), (logs - logs.mean()) / n),
    }
    reasons: dict[str, str] = {}
    placed = set(zip(_find_bins(rows.probs).tolist(), rows.claims.tolist(), strict=True))
    if len(placed) == len({place for place, _ in placed}):
        reasons["ece"] = "no bin of probabilities has two claims"
    else:
        scores["ece"] = _halves_ece(rows)
    if rows.outcomes.min() == rows.outcomes.max():
        reason = "all claims have the same outcome"
        return scores, reasons | dict.fromkeys(("auroc", "slope", "intercept"), reason)
    scores["auroc"] = _auroc(rows)
    fitted = _fit_logistic(rows)
    if isinstance(fitted, str):
        reasons |= {"slope": fitted, "intercept": fitted}
    else:
        scores["intercept"], scores["slope"] = fitted
    return scores, reasons


def _sum_by_claim(rows: _Rows, score: _Linear) -> Floats:
    sums = np.zeros(len(rows.names))
    np.add.at(sums, rows.claims, score.influence)
    return sums


def _cluster_se(sums: Floats) -> float:
    """Standard error from influences summed by claim."""
    G = len(sums)
    return math.sqrt(G / (G - 1) * float(((sums - sums.mean()) ** 2).sum()))


def _interval(rows: _Rows, name: str, score: _Linear | None, reason: str | None) -> Score:
    if score is None:
        return Score(value=None, lo=None, hi=None, reason=reason)
    G = len(rows.names)
    found = t_interval(score.value, _cluster_se(_sum_by_claim(rows, score)), G - 1)
    lo, hi = found.lo, found.hi
    if name == "auroc":
        lo, hi = _auroc_interval(rows, found)
    elif name in ("brier", "ece", "log_score"):
        lo = max(lo, 0.0)
        hi = hi if name == "log_score" else min(hi, 1.0)
    # Half of the time chance alone gives an error below 0, where there is none to find.
    value = max(score.value, 0.0) if name == "ece" else score.value
    return Score(value=value, lo=lo, hi=max(hi, lo))


def _auroc(rows: _Rows) -> _Linear:
    """Mann–Whitney, with the placements of each row (DeLong 1988; by claim, Obuchowski 1997)."""
    true, false = rows.probs[rows.outcomes == 1], rows.probs[rows.outcomes == 0]
    placed = _placements(rows.probs, np.sort(false)), _placements(rows.probs, np.sort(true))
    value = float(placed[0][rows.outcomes == 1].mean())
    influence = np.where(
        rows.outcomes == 1,
        (placed[0] - value) / len(true),
        (1 - placed[1] - value) / len(false),
    )
    return _Linear(value, influence)


def _placements(probs: Floats, ordered: Floats) -> Floats:
    """Share of `ordered` below each probability, ties half."""
    below = np.searchsorted(ordered, probs, side="left")
    upto = np.searchsorted(ordered, probs, side="right")
    shares: Floats = (below + upto) / (2 * len(ordered))
    return shares


def _auroc_interval(rows: _Rows, found: TInterval) -> tuple[float, float]:
    """Interval on the logit scale; where all pairs are in order, by Newcombe's (2006) score method.

    There the standard error is 0, and an interval of a point would promise too much.
    """
    A = found.value
    if 0 < A < 1:
        half = (found.hi - A) / (A * (1 - A))
        middle = math.log(A / (1 - A))
        return 1 / (1 + math.exp(half - middle)), 1 / (1 + math.exp(-half - middle))
    true = len(set(rows.claims[rows.outcomes == 1].tolist()))
    false = len(set(rows.claims[rows.outcomes == 0].tolist()))
    extra = (true + false) / 2 - 1

    def within(theta: float) -> bool:
        spread = 1 + extra * (1 - theta) / (2 - theta) + extra * theta / (1 + theta)
        return 1 - theta <= _Z95 * math.sqrt(theta * (1 - theta) * spread / (true * false))

    lo, hi = 0.0, 1.0
    for _ in range(60):
        middle = (lo + hi) / 2
        lo, hi = (lo, middle) if within(middle) else (middle, hi)
    return (hi, 1.0) if A == 1 else (0.0, 1 - hi)


def _fit_logistic(rows: _Rows) -> tuple[_Linear, _Linear] | str:
    """Intercept and slope of outcome ~ logit p by maximum likelihood, or why there are none."""
    x = np.clip(rows.probs, CLAMP, 1 - CLAMP)
    x = np.log(x / (1 - x))
    true, false = x[rows.outcomes == 1], x[rows.outcomes == 0]
    if x.min() == x.max():
        return "all probabilities are the same"
    if true.min() >= false.max() or false.min() >= true.max():
        return "probabilities separate true from false claims: no finite slope fits best"
    X = np.stack([np.ones_like(x), x], axis=1)
    beta = np.zeros(2)
    for _ in range(100):
        mu = 0.5 + 0.5 * np.tanh(0.5 * (X @ beta))
        information = X.T @ (X * (mu * (1 - mu))[:, np.newaxis])
        step = np.linalg.solve(information, X.T @ (rows.outcomes - mu))
        before = _log_likelihood(X, beta, rows.outcomes)
        # A full step may overshoot; the likelihood has one top, so shorter ones reach it.
        while _log_likelihood(X, beta + step, rows.outcomes) < before - 1e-12:
            step = step / 2
        beta = beta + step
        if np.abs(step).max() < 1e-10:
            break
    mu = 0.5 + 0.5 * np.tanh(0.5 * (X @ beta))
    information = X.T @ (X * (mu * (1 - mu))[:, np.newaxis])
    influence = np.linalg.solve(information, (X * (rows.outcomes - mu)[:, np.newaxis]).T)
    return _Linear(float(beta[0]), influence[0]), _Linear(float(beta[1]), influence[1])


def _log_likelihood(X: Floats, beta: Floats, outcomes: Floats) -> float:
    eta = X @ beta
    return float((outcomes * eta - np.logaddexp(0, eta)).sum())


def _find_bins(probs: Floats) -> NDArray[np.int64]:
    """Bin of each probability."""
    places: NDArray[np.int64] = np.minimum((probs * BINS).astype(np.int64), BINS - 1)
    return places


def _raw_ece(rows: _Rows) -> float:
    gaps = np.bincount(_find_bins(rows.probs), weights=rows.probs - rows.outcomes, minlength=BINS)
    return float(np.abs(gaps).sum() / len(rows.probs))


def _halves_ece(rows: _Rows) -> _Linear:
    """Expected calibration error without its bias: one half of the claims says on which side of
    the diagonal a bin lies, the other half by how much, and the other way round.

    A bin on the diagonal then gives 0 on average, where its absolute gap would give its noise; one
    clearly off gives its gap. Averaged over 200 ways to halve the claims, always the same ones.
    """
    n, G = len(rows.probs), len(rows.names)
    gaps = rows.probs - rows.outcomes
    table = np.zeros((G, BINS))
    np.add.at(table, (rows.claims, _find_bins(rows.probs)), gaps)
    rng = np.random.default_rng(G)
    halves = (np.argsort(rng.random((_SPLITS, G)), axis=1) < G // 2).astype(np.float64)
    first, second = halves @ table, (1 - halves) @ table
    value = float((np.sign(first) * second + np.sign(second) * first).sum() / (_SPLITS * n))
    # How often a claim's gap counted upwards, as the other half saw its bin.
    up = (halves.T @ np.sign(second) + (1 - halves).T @ np.sign(first)) / _SPLITS
    signs = up[rows.claims, _find_bins(rows.probs)]
    return _Linear(value, (signs * gaps - value) / n)


def _bins(rows: _Rows) -> tuple[Bin, ...]:
    places = _find_bins(rows.probs)
    return tuple(_bin(rows, place, places == place) for place in range(BINS))


def _bin(rows: _Rows, place: int, here: NDArray[np.bool_]) -> Bin:
    n = int(here.sum())
    share = float(rows.outcomes[here].mean()) if n else None
    ends = (None, None) if share is None else wilson(share, len(set(rows.claims[here].tolist())))
    return Bin(
        lo=place / BINS,
        hi=(place + 1) / BINS,
        n=n,
        mean_prob=float(rows.probs[here].mean()) if n else None,
        share_true=share,
        share_lo=ends[0],
        share_hi=ends[1],
    )


def wilson(share: float, trials: int) -> tuple[float, float]:
    """95% interval of a share (Wilson 1927)."""
    spread = _Z95**2 / trials
    middle = (share + spread / 2) / (1 + spread)
    half = _Z95 / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return max(0.0, middle - half), min(1.0, middle + half)
