"""Drift of beliefs over waves, by a test that may be looked at after every wave.

A panel measures the same claims with the same wordings in waves 0, 1, … n. For each claim and each
possible start s a Bayes factor compares "shifted from wave s on" with "never shifted"; what
wordings do to answers, and how much answers scatter, drop out of it. Their average over all starts
up to the planned horizon H is an e-value: without drift its mean is at most 1 whenever one looks,
so reaching 1/alpha has a chance of at most alpha. Across claims, e-BH holds the false discovery
rate (Wang and Ramdas 2022).

Cells are template means in log-odds, an array claims x waves x wordings; NaN is a missing cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from heretix.belief.logodds import logit
from heretix.belief.student import TInterval, f_quantile, t_interval
from heretix.core.errors import ConfigError, NoEstimateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from heretix.belief.estimator import Floats

Variant = Literal["cells", "wave_means", "ranks"]
"""`cells` is the test. `wave_means` is for panels whose claims differ a lot in how much they move
as a whole from wave to wave. `ranks` looks at the order of answers only, as an audit."""

ALPHA: Final = 0.05
_G: Final = 1.0
_G_WAVE_MEANS: Final = 4.0
_MIN_RHO: Final = 0.25
_FIRST_RHO: Final = 0.5
_FREE: Final = math.inf
"""The rho with which each wave's own shift is fitted: least squares by waves and wordings."""
_RIDGE: Final = 1e-9
"""Keeps a panel solvable whose waves share no wording."""
_ROUNDING: Final = 1e-12
"""Share of a sum of squares below which what is left of it is rounding."""
_CLIP_SDS: Final = 4.0
_SWEEPS: Final = 4
_NOTHING: Final = 1e-16
"""Mean squares below this, in log-odds, are nothing."""
_SET_MASS: Final = 0.9
_NEAR_NOISE: Final = 2.5
"""Shifts of less than this many standard deviations of a wave come out too large on average: by 5
to 15% in simulation, because those that chance made smaller aren't found."""
_MIN_ANCHORS: Final = 5
_MIN_FOR_SPREAD: Final = 20
_SPREAD_FACTOR: Final = 1.5


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence for a shift from each wave on; arrays, a row a claim."""

    log_e: Floats
    """By claim and start s = 1 … n: log of the Bayes factor."""
    e_value: Floats
    rho: float
    """Noise that a claim has as a whole in a wave, relative to its squared standard error."""
    rho_varies: bool
    """Claims differ in it by more than chance: `wave_means` is the safer variant."""
    shift: Floats
    """By claim and start: least-squares shift in log-odds; NaN with cells on one side only."""
    shift_se: Floats
    shift_df: Floats
    """By claim."""
    wave_sd: Floats
    """By claim and start: standard deviation of one wave about a belief that shifted then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """Beginning of a shift."""

    wave: int
    """The likeliest."""
    waves: tuple[int, ...]
    """The 90% set: the likeliest waves whose probabilities add up to that."""
    prob: float
    """Chance that the moment is in the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Findings on one series."""

    e_value: float
    audit_e_value: float
    """By ranks, whatever the distribution of the noise."""
    drifted: bool
    since: Since | None
    """None, as `size`, where nothing is found."""
    size: TInterval | None
    """In log-odds, averaged over the starts in the 90% set."""
    overstated: bool
    """The shift is near the noise of a wave; those found there are smaller than they seem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelDrift:
    """Findings on a panel until now."""

    variant: Variant
    n_waves: int
    horizon: int
    alpha: float
    rho: float
    rho_varies: bool
    claims: tuple[Drift, ...]
    model: Drift | None
    """The anchors' common movement; None without anchors."""
    anchors_dropped: tuple[int, ...]
    """Anchors that drifted themselves, and were left out."""


def measure_cell(probs: Sequence[float]) -> float:
    """Mean log-odds of the answers to one wording in one wave; NaN where none is left.

    Answers of exactly 0 or 1 count as missing, in every wave alike: at 13.8 log-odds, one more or
    less of them would look like drift.
    """
    logits = [logit(prob) for prob in probs if 0 < prob < 1]
    return math.fsum(logits) / len(logits) if logits else math.nan


def detect_drifts(
    groups: Sequence[tuple[Floats, Floats | None]],
    *,
    horizon: int,
    variant: Variant = "cells",
    alpha: float = ALPHA,
) -> tuple[PanelDrift, ...]:
    """Find the claims that moved, and whether the model did, in groups with anchors of their own.

    A group is what one model answers. Noise is estimated in each by itself; claims are selected
    over all groups together, and so are models, so that `alpha` holds for the panel. Anchors are
    claims of known truth in the same waves and wordings: with them, a claim is tested against their
    common movement, and that movement for itself. `horizon` is the number of waves after the first
    that were planned; it stays the same from look to look.
    """
    _check_options(horizon=horizon, variant=variant, alpha=alpha)
    tested: list[Floats] = []
    commons: list[Floats] = []
    dropped: list[tuple[int, ...]] = []
    for given, known in groups:
        cells = _check_cells("cells", given)
        dropped.append(())
        if known is not None:
            anchors = _check_cells("anchors", known)
            if anchors.shape[1:] != cells.shape[1:]:
                raise ConfigError(
                    "`anchors` must have the waves and wordings of the claims, "
                    f"{cells.shape[1:]}, got {anchors.shape[1:]}; measure both in the same waves"
                )
            dropped[-1] = screen_anchors(anchors, horizon=horizon, alpha=alpha)
            kept = [a for a in range(len(anchors)) if a not in dropped[-1]]
            common = match_anchors(anchors[kept])
            commons.append(common[np.newaxis])
            cells = cells - common
        tested.append(cells)
    moved = iter(_describe_all(commons, horizon=horizon, variant="wave_means", alpha=alpha))
    found = _describe_all(tested, horizon=horizon, variant=variant, alpha=alpha)
    return tuple(
        PanelDrift(
            variant=variant,
            n_waves=cells.shape[1],
            horizon=horizon,
            alpha=alpha,
            rho=evidence.rho,
            rho_varies=evidence.rho_varies,
            claims=claims,
            model=None if known is None else next(moved)[0][0],
            anchors_dropped=left_out,
        )
        for (_, known), cells, (claims, evidence), left_out in zip(
            groups, tested, found, dropped, strict=True
        )
    )


def weigh_evidence(
    cells: Floats, *, horizon: int, variant: Variant = "cells", rho: float | None = None
) -> Evidence:
    """Evidence about each claim from the waves so far; `rho` None is estimated from all claims.

    Wild cells are pulled in first. Vectorised over claims.
    """
    clipped = clip_cells(cells)
    _, m, T = cells.shape
    found, varies = _estimate_rho(clipped) if T > 1 else (0.0, False)
    rho = found if rho is None else rho
    if variant == "wave_means" or T == 1:
        series = _wave_effects(clipped)[:, :, np.newaxis]
        fit, g, rho_used, width = _fit(series, 0.0), _G_WAVE_MEANS, 0.0, 1
    else:
        fit, g, rho_used, width = _fit(clipped, rho), _G, rho, T
    log_e = rank_evidence(cells, rho) if variant == "ranks" else fit.log_evidence(g)
    n = m - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.where(fit.known, fit.U / fit.V, np.nan)
        left = np.maximum(fit.RSS[:, np.newaxis] - fit.explained, 0)
        variance = left / np.maximum(fit.df - 1, 1)[:, np.newaxis]
        se = np.where(fit.known, np.sqrt(variance / fit.V), np.nan)
    return Evidence(
        log_e=log_e,
        e_value=_average(log_e, n=n, horizon=horizon),
        rho=rho,
        rho_varies=varies,
        shift=shift,
        shift_se=se,
        shift_df=fit.df - 1,
        wave_sd=np.sqrt(variance * (1 + rho_used) / width),
    )


def select_by_e_values(e_values: Floats, *, alpha: float = ALPHA) -> NDArray[np.bool_]:
    """Select the claims that stand when at most `alpha` may be false on average (e-BH)."""
    ordered = np.sort(e_values)[::-1]
    ranks = np.arange(1, len(ordered) + 1)
    passing = np.flatnonzero(ordered * ranks * alpha >= len(ordered))
    if not len(passing):
        return np.zeros(len(e_values), dtype=np.bool_)
    chosen: NDArray[np.bool_] = e_values >= ordered[passing[-1]]
    return chosen


def start_set(log_e: Floats) -> Since:
    """The likeliest starts of one series, p(s) in proportion to E_s, until they hold 90%."""
    probs = np.exp(log_e - np.max(log_e))
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    size = int(np.searchsorted(np.cumsum(probs[order]), _SET_MASS)) + 1
    kept = order[:size]
    return Since(
        wave=int(order[0]) + 1,
        waves=tuple(sorted(int(s) + 1 for s in kept)),
        prob=float(probs[kept].sum()),
    )


def screen_anchors(anchors: Floats, *, horizon: int, alpha: float = ALPHA) -> tuple[int, ...]:
    """Anchors that moved against the others: the clearest is dropped, then all are looked at again.

    Each is tested against the common movement of the others, so that it doesn't hide in it.
    """
    kept = list(range(len(anchors)))
    dropped: list[int] = []
    while len(kept) > _MIN_ANCHORS:
        rest = anchors[kept]
        against = np.stack(
            [rest[i] - match_anchors(np.delete(rest, i, axis=0)) for i in range(len(kept))]
        )
        e_values = weigh_evidence(against, horizon=horizon).e_value
        if not select_by_e_values(e_values, alpha=alpha).any():
            break
        dropped.append(kept.pop(int(np.argmax(e_values))))
    return tuple(sorted(dropped))


def match_anchors(anchors: Floats) -> Floats:
    """The anchors' common movement, waves x wordings: wave by wave in each wording by itself.

    Noise that all claims share in a wording goes away with it. By least squares over anchors and
    waves, so that a missing cell shifts nothing.
    """
    if len(anchors) < 2:
        raise NoEstimateError(
            f"`anchors`: a common movement needs at least 2, got {len(anchors)}; "
            f"take about 20 claims of known truth"
        )
    common: Floats = _wave_effects(np.moveaxis(clip_cells(anchors), 0, 2).swapaxes(0, 1)).T
    return common


def clip_cells(cells: Floats) -> Floats:
    """Pull cells in that lie over 4 robust standard deviations off wave and wording together."""
    _, m, T = cells.shape
    if m < 2 or T < 2:
        return cells
    residuals = cells.copy()
    for _ in range(_SWEEPS):
        # Wordings come first, so that what they do to answers leaves no trace.
        residuals -= _medians(np.ascontiguousarray(residuals.swapaxes(1, 2)))[:, np.newaxis, :]
        residuals -= _medians(residuals)[..., np.newaxis]
    spread = _medians(np.abs(residuals).reshape(len(cells), -1)) * 1.4826
    # Residuals of a fit are smaller than the noise, markedly so with two waves.
    spread /= math.sqrt((m - 1) * (T - 1) / (m * T))
    limit = np.where(spread > 1e-9, _CLIP_SDS * spread, np.inf)[:, np.newaxis, np.newaxis]
    held = np.clip(residuals, -limit, limit)
    clipped: Floats = np.where(held == residuals, cells, cells - residuals + held)
    return clipped


def rank_evidence(cells: Floats, rho: float) -> Floats:
    """Log of the Bayes factors from sequential ranks, which no distribution of noise can mislead.

    Each cell is ranked among those of its wording until then. Such ranks are independent of one
    another while nothing moves; their normal scores are averaged over wordings. A shift from s on
    lifts the score of wave w by its size times the share of earlier waves that lie before s.
    """
    C, m, T = cells.shape
    scores = np.zeros((C, m))
    weight = np.zeros((C, m))
    for w in range(1, m):
        now, until = cells[:, w : w + 1], cells[:, : w + 1]
        count = np.sum(~np.isnan(until), axis=1)
        below = np.sum(until < now, axis=1) + 0.5 * np.sum(until == now, axis=1)
        ranked = ~np.isnan(cells[:, w]) & (count > 1)
        z = np.where(ranked, _normal_scores(np.where(ranked, below, 0.5), np.maximum(count, 2)), 0)
        n_w = np.sum(ranked, axis=1)
        variance = np.maximum(n_w, 1) * (1 + rho * n_w / T)
        scores[:, w] = z.sum(axis=1) / np.sqrt(variance)
        weight[:, w] = n_w / np.sqrt(variance)
    log_e = np.zeros((C, m - 1))
    for s in range(1, m):
        x = weight[:, s:] * (s / np.arange(s + 1, m + 1))
        G = _G * np.sum(x * x, axis=1)
        log_e[:, s - 1] = -0.5 * np.log1p(G) + 0.5 * _G * np.sum(x * scores[:, s:], axis=1) ** 2 / (
            1 + G
        )
    return log_e


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Generalised least squares of each claim: wordings fitted, then a shift from each start."""

    U: Floats
    """By claim and start: the shift's product with the residuals, and below, with itself."""
    V: Floats
    RSS: Floats
    df: Floats
    """Cells less wordings."""
    wordings: Floats
    n_wordings: Floats
    """Of those that have cells."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """Starts with cells on both sides of them."""
        known: NDArray[np.bool_] = self.V > 1e-9
        return known

    @property
    def explained(self) -> Floats:
        """Sum of squares that a shift takes up, by claim and start."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.known, self.U**2 / self.V, 0.0)

    def log_evidence(self, g: float) -> Floats:
        """Log Bayes factors with a shift ~ N(0, g) in units of the noise, flat in all else."""
        G = g * np.maximum(self.V, 0)
        spread = _NOTHING * np.maximum(self.df, 1) < self.RSS
        total = np.where(spread, self.RSS, 1.0)[:, np.newaxis]
        share = np.where(spread[:, np.newaxis], np.clip(self.explained / total, 0, 1), 0)
        log_e: Floats = -0.5 * np.log1p(G) - self.df[:, np.newaxis] / 2 * np.log1p(
            -share * G / (1 + G)
        )
        return log_e


def _fit(cells: Floats, rho: float) -> _Fit:
    """Fit wordings by least squares on the cells that are there.

    Within a wave, cells covary by rho/T besides their own variance of 1, so the inverse takes off
    c = (rho/T) / (1 + rho·(cells there)/T) times the wave's sum; with an endless rho, its mean.
    """
    _, _, T = cells.shape
    seen = ~np.isnan(cells)
    M = seen.astype(np.float64)
    n_t = M.sum(axis=1)
    # Wordings are fitted anyway; taking their means off first keeps rounding small.
    with np.errstate(invalid="ignore"):
        level = np.where(n_t > 0, np.where(seen, cells, 0).sum(axis=1) / np.maximum(n_t, 1), 0)
    y = np.where(seen, cells - level[:, np.newaxis, :], 0)
    n_w, y_w = M.sum(axis=2), y.sum(axis=2)
    c = 1 / np.maximum(n_w, 1) if rho == _FREE else (rho / T) / (1 + rho * n_w / T)
    kept = 1 - c * n_w
    normal = -np.matmul((M * c[..., np.newaxis]).swapaxes(1, 2), M)
    diagonal = np.arange(T)
    normal[:, diagonal, diagonal] += np.where(n_t > 0, n_t, 1)
    if rho == _FREE:
        # Waves take any level, so that of the wordings is free: it is set to 0.
        normal += 1 / T
        normal[:, diagonal, diagonal] += _RIDGE
    by_y = (y - (c * y_w)[..., np.newaxis] * M).sum(axis=1)
    by_shift = _sum_from_each(M * kept[..., np.newaxis])
    sides = np.concatenate([by_y[:, np.newaxis], by_shift], axis=1)
    solved = np.linalg.solve(normal, sides.swapaxes(1, 2)).swapaxes(1, 2)
    wordings, shifted = solved[:, 0], solved[:, 1:]
    n_wordings = (n_t > 0).sum(axis=1).astype(np.float64)
    squares = (y * y).sum(axis=(1, 2))
    RSS = squares - (c * y_w**2).sum(axis=1) - (by_y * wordings).sum(axis=1)
    return _Fit(
        U=_sum_from_each(kept * y_w) - np.einsum("cst,ct->cs", by_shift, wordings),
        V=_sum_from_each(kept * n_w) - np.einsum("cst,cst->cs", by_shift, shifted),
        RSS=np.where(_ROUNDING * squares < RSS, RSS, 0),
        df=M.sum(axis=(1, 2)) - n_wordings,
        wordings=wordings + level,
        n_wordings=n_wordings,
    )


def _sum_from_each(by_wave: Floats) -> Floats:
    """Sums over the waves from s on, for s = 1 … n."""
    sums: Floats = np.flip(np.cumsum(np.flip(by_wave, axis=1), axis=1), axis=1)[:, 1:]
    return sums


def _wave_effects(cells: Floats) -> Floats:
    """Effects by claim and wave: what is left of the wave's mean when wordings are taken off."""
    fit = _fit(cells, _FREE)
    left = cells - fit.wordings[:, np.newaxis, :]
    seen = ~np.isnan(left)
    count = seen.sum(axis=2)
    effects: Floats = np.where(
        count > 0, np.where(seen, left, 0).sum(axis=2) / np.maximum(count, 1), np.nan
    )
    return effects


def _estimate_rho(cells: Floats) -> tuple[float, bool]:
    """Wave noise of a typical claim, and whether claims differ in it by more than chance.

    Mean squares between waves over those within are (1 + rho) times an F.
    """
    _, m, T = cells.shape
    if m <= 2:
        return _FIRST_RHO, False
    wordings, both = _fit(cells, 0.0), _fit(cells, _FREE)
    waves = (~np.isnan(cells)).any(axis=2).sum(axis=1) - 1
    df = wordings.df - waves
    usable = (waves > 0) & (df > 0) & (_NOTHING * np.maximum(df, 1) < both.RSS)
    if not usable.any():
        return _FIRST_RHO, False
    between = np.maximum(wordings.RSS - both.RSS, 0)[usable] / waves[usable]
    ratios = between / (both.RSS[usable] / df[usable])
    pairs = list(zip(waves[usable].tolist(), df[usable].tolist(), strict=True))
    medians = np.array([f_quantile(0.5, *pair) for pair in pairs])
    # A wave with missing cells has that much less of what its cells share.
    filled = wordings.df[usable] + wordings.n_wordings[usable]
    filled /= (waves[usable] + 1) * T
    found = max(_MIN_RHO, float(np.median((ratios / medians - 1) / filled)))
    if len(ratios) < _MIN_FOR_SPREAD:
        return found, False
    quartiles = np.quantile(np.log(np.maximum(ratios, 1e-9)), (0.25, 0.75))
    typical = sorted(pairs)[len(pairs) // 2]
    chance = math.log(f_quantile(0.75, *typical) / f_quantile(0.25, *typical))
    return found, bool(quartiles[1] - quartiles[0] > _SPREAD_FACTOR * chance)


def _average(log_e: Floats, *, n: int, horizon: int) -> Floats:
    """Evidence over all starts that were planned; those to come have said nothing yet: 1 each."""
    counted = log_e[:, :horizon]
    # Beyond e^700 a float has no more room; nothing depends on how far beyond.
    e_values: Floats = (
        np.exp(np.minimum(counted, 700)).sum(axis=1) + max(0, horizon - n)
    ) / horizon
    return e_values


def _describe_all(
    groups: Sequence[Floats], *, horizon: int, variant: Variant, alpha: float
) -> list[tuple[tuple[Drift, ...], Evidence]]:
    """Every series of one family, tested together: noise by group, selection over all."""
    weighed = [weigh_evidence(cells, horizon=horizon, variant=variant) for cells in groups]
    if not weighed:
        return []
    chosen = select_by_e_values(np.concatenate([one.e_value for one in weighed]), alpha=alpha)
    described = []
    first = 0
    for cells, evidence in zip(groups, weighed, strict=True):
        audit = _average(rank_evidence(cells, evidence.rho), n=cells.shape[1] - 1, horizon=horizon)
        own = tuple(
            _describe(evidence, i, drifted=bool(chosen[first + i]), audit=float(audit[i]))
            for i in range(len(cells))
        )
        described.append((own, evidence))
        first += len(cells)
    return described


def _describe(evidence: Evidence, i: int, *, drifted: bool, audit: float) -> Drift:
    since = size = None
    overstated = False
    if drifted:
        since = start_set(evidence.log_e[i])
        starts = np.array(since.waves) - 1
        probs = np.exp(evidence.log_e[i, starts] - evidence.log_e[i, starts].max())
        probs /= probs.sum()
        shifts, errors = evidence.shift[i, starts], evidence.shift_se[i, starts]
        middle = float(probs @ shifts)
        # What isn't known about the start is part of what isn't known about the size.
        se = math.sqrt(float(probs @ (errors**2 + (shifts - middle) ** 2)))
        size = t_interval(middle, se, max(1.0, float(evidence.shift_df[i])))
        wave_sd = float(evidence.wave_sd[i, since.wave - 1])
        overstated = abs(middle) < _NEAR_NOISE * wave_sd
    return Drift(
        e_value=float(evidence.e_value[i]),
        audit_e_value=audit,
        drifted=drifted,
        since=since,
        size=size,
        overstated=overstated,
    )


def _medians(rows: Floats) -> Floats:
    """Medians along the last axis, of what isn't NaN; faster than NumPy's by a factor of ten."""
    ordered = np.sort(rows, axis=-1)  # NaN comes last
    count = np.sum(~np.isnan(rows), axis=-1)
    lower = np.maximum(count - 1, 0) // 2
    upper = np.minimum(count // 2, rows.shape[-1] - 1)
    low = np.take_along_axis(ordered, lower[..., np.newaxis], axis=-1)[..., 0]
    high = np.take_along_axis(ordered, upper[..., np.newaxis], axis=-1)[..., 0]
    medians: Floats = (low + high) / 2
    return medians


def _normal_scores(below: Floats, count: NDArray[np.int64]) -> Floats:
    """Normal scores, with variance 1, of ranks among `count`.

    `below` counts what is lower, and half of what ties, itself included.
    """
    scores = np.empty(below.shape)
    for k in np.unique(count):
        here = count == k
        values, places = np.unique(below[here], return_inverse=True)
        table = np.array([NormalDist().inv_cdf(value / k) for value in values])
        scores[here] = table[places] / _score_sd(int(k))
    return scores


@cache
def _score_sd(k: int) -> float:
    """Standard deviation of the normal scores of k untied ranks."""
    return math.sqrt(sum(NormalDist().inv_cdf((i + 0.5) / k) ** 2 for i in range(k)) / k)


def _check_cells(name: str, cells: Floats) -> Floats:
    cells = np.asarray(cells, dtype=np.float64)
    if cells.ndim != 3 or 0 in cells.shape:
        raise ConfigError(
            f"`{name}` must be an array of claims x waves x wordings, got shape {cells.shape}"
        )
    if np.isinf(cells).any():
        raise ConfigError(
            f"`{name}` must hold finite log-odds or NaN for missing cells, got an infinite one; "
            "drop answers of exactly 0 or 1 first"
        )
    return cells


def _check_options(*, horizon: int, variant: str, alpha: float) -> None:
    if horizon < 1:
        raise ConfigError(f"`horizon` must be a positive number of waves, got {horizon}")
    if variant not in ("cells", "wave_means", "ranks"):
        raise ConfigError(f"`variant` must be cells, wave_means or ranks; got {variant!r}")
    if not 0 < alpha < 1:
        raise ConfigError(f"`alpha` must lie between 0 and 1, got {alpha}")
