"""Drift: the published formula, naive linear algebra, error rates, starts, sizes, anchors."""

import math

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from heretix.belief.logodds import logit
from heretix.core.errors import ConfigError, NoEstimateError
from heretix.studies.drift import (
    clip_cells,
    detect_drifts,
    match_anchors,
    measure_cell,
    rank_evidence,
    screen_anchors,
    select_by_e_values,
    start_set,
    weigh_evidence,
)


def panel(seed, *, C=20, m=12, T=16, noise=0.3, drifting=(), shift=0.4, start=6):
    """Claims with wordings of their own, scattered; `drifting` ones shift from `start` on."""
    rng = np.random.default_rng(seed)
    cells = rng.normal(0, 1, (C, 1, 1)) + rng.normal(0, 0.4, (C, 1, T))
    cells = cells + rng.normal(0, noise, (C, m, T))
    for i in drifting:
        cells[i, start:] += shift
    return cells


def detect(cells, *, anchors=None, **options):
    """What is found in one group."""
    return detect_drifts([(cells, anchors)], **options)[0]


def published(y, *, rho, g):
    """log E_s by the formula for complete cells, written out."""
    m, T = y.shape
    n = m - 1
    r = y - y.mean(axis=0)
    a = r.sum(axis=1)
    rss = (r**2).sum() - rho / (1 + rho) * (a**2).sum() / T
    out = []
    for s in range(1, m):
        U, v = a[s:].sum(), T * s * (m - s) / m
        G, SS = g * v / (1 + rho), U**2 / (v * (1 + rho))
        out.append(-0.5 * math.log(1 + G) - n * T / 2 * math.log(1 - SS * G / ((1 + G) * rss)))
    return np.array(out)


def by_matrices(y, *, rho, g):
    """log E_s from the covariance matrix of the cells that are there, with nothing simplified."""
    m, T = y.shape
    w, t = np.nonzero(~np.isnan(y))
    S = (w[:, None] == w[None]) * (np.eye(len(w)) + rho / T * (1 - np.eye(len(w)))) + (
        np.eye(len(w)) * rho / T
    )
    P = np.linalg.inv(S)
    D = (t[:, None] == np.unique(t)[None]).astype(float)
    P = P - P @ D @ np.linalg.inv(D.T @ P @ D) @ D.T @ P
    cells, out = y[w, t], []
    for s in range(1, m):
        x = (w >= s).astype(float)
        V, U, rss = x @ P @ x, x @ P @ cells, cells @ P @ cells
        df = len(w) - D.shape[1]
        out.append(
            -0.5 * math.log(1 + g * V)
            - df / 2 * math.log(1 - U**2 / V * g * V / ((1 + g * V) * rss))
        )
    return np.array(out)


@pytest.mark.parametrize("rho", [0.25, 0.5, 2.0])
@pytest.mark.parametrize(("m", "T"), [(2, 8), (7, 8), (12, 16)])
def test_evidence_is_that_of_the_published_formula(rho, m, T):
    """Complete cells, a claim that moves and one that doesn't."""
    cells = panel(1, C=2, m=m, T=T, drifting=[0], start=m // 2)
    got = weigh_evidence(cells, horizon=30, rho=rho)
    for i in range(2):
        want = published(clip_cells(cells)[i], rho=rho, g=1.0)
        assert got.log_e[i] == pytest.approx(want, abs=1e-9)
        n = m - 1
        assert got.e_value[i] == pytest.approx((np.exp(want).sum() + 30 - n) / 30)


def test_evidence_on_wave_means_is_the_formula_for_one_wording():
    """T = 1, g = 4, no wave noise."""
    cells = panel(2, C=3, drifting=[1])
    got = weigh_evidence(cells, horizon=20, variant="wave_means")
    clipped = clip_cells(cells)
    for i in range(3):
        want = published(clipped[i].mean(axis=1)[:, None], rho=0.0, g=4.0)
        # The waves' own shift is fitted with a prior that is wide, not endless.
        assert got.log_e[i] == pytest.approx(want, abs=1e-4)


def test_missing_cells_are_left_to_least_squares():
    """The same numbers as with full covariance matrices of what is there."""
    rng = np.random.default_rng(3)
    cells = panel(3, C=4, m=9, T=6, drifting=[0], start=4)
    cells[rng.random(cells.shape) < 0.2] = np.nan
    cells[1, :, 2] = np.nan
    cells[2, 5, :] = np.nan
    got = weigh_evidence(cells, horizon=30, rho=0.7)
    clipped = clip_cells(cells)
    for i in range(4):
        want = by_matrices(clipped[i], rho=0.7, g=1.0)
        assert got.log_e[i] == pytest.approx(want, abs=1e-8)


def test_a_start_with_nothing_before_it_has_no_evidence():
    """A claim that joined late can't have moved before it came."""
    cells = panel(4, C=3, m=8)
    cells[0, :3] = np.nan
    log_e = weigh_evidence(cells, horizon=30, rho=0.25).log_e[0]
    assert log_e[:3] == pytest.approx([0, 0, 0], abs=1e-9)
    assert abs(log_e[3]) > 0.01


@given(st.floats(-3, 3), st.floats(0.1, 10), st.integers(0, 10_000))
def test_level_scale_and_wordings_drop_out(level, scale, seed):
    """Only the shape of the movement counts."""
    cells = panel(seed, C=1, m=6, T=5, drifting=[0], start=3)
    moved = scale * cells + level + np.random.default_rng(seed).normal(0, 2, (1, 1, 5))
    one, other = (weigh_evidence(x, horizon=9, rho=0.25).log_e for x in (cells, moved))
    assert one == pytest.approx(other, abs=1e-6)


def test_a_model_that_answers_alike_for_ever_has_not_moved():
    """Rounding isn't evidence; and where it moves after all, that is seen."""
    cells = np.repeat(np.random.default_rng(5).normal(0, 1, (2, 1, 8)), 9, axis=1)
    cells[1, 5:] += 0.1
    got = weigh_evidence(cells, horizon=20)
    assert got.e_value[0] <= 1
    assert got.e_value[1] > 1e6


def test_wave_noise_is_estimated_from_all_claims():
    """The planted share comes back; little of it is taken as .25, and one difference says .5."""
    rng = np.random.default_rng(6)
    cells = panel(6, C=300, m=20, T=8, noise=0.3)
    wave_sd = math.sqrt(1.5) * 0.3 / math.sqrt(8)
    noisy = cells + rng.normal(0, wave_sd, (300, 20, 1))
    assert weigh_evidence(noisy, horizon=30).rho == pytest.approx(1.5, abs=0.25)
    assert weigh_evidence(cells, horizon=30).rho == 0.25
    assert weigh_evidence(cells[:, :2], horizon=30).rho == 0.5
    assert not weigh_evidence(noisy, horizon=30).rho_varies
    mixed = cells + np.where(np.arange(300) % 3 == 0, 0.5, 0)[:, None, None] * rng.normal(
        0, 1, (300, 20, 1)
    )
    assert weigh_evidence(mixed, horizon=30).rho_varies


def test_wave_noise_is_estimated_with_missing_cells_too():
    """Mean squares are adjusted for what isn't there."""
    rng = np.random.default_rng(7)
    cells = panel(7, C=300, m=15, T=8) + rng.normal(0, 0.3 / math.sqrt(8), (300, 15, 1))
    cells[rng.random(cells.shape) < 0.15] = np.nan
    assert weigh_evidence(cells, horizon=30).rho == pytest.approx(1.0, abs=0.2)


def test_glitches_are_pulled_in():
    """A wild cell comes back to four robust standard deviations; the others stay."""
    cells = panel(8, C=2, m=10, T=8)
    wild = cells.copy()
    wild[0, 4, 3] += 9
    clipped = clip_cells(wild)
    untouched = np.ones(cells.shape, bool)
    untouched[0, 4, 3] = False
    assert clipped[untouched] == pytest.approx(clip_cells(cells)[untouched], abs=0.3)
    assert abs(clipped[0, 4, 3] - cells[0, 4, 3]) < 2.2
    shifted = cells.copy()
    shifted[0, 4:] += 9
    assert clip_cells(shifted)[0] == pytest.approx(clip_cells(cells)[0] + (shifted - cells)[0])


def naive_e_bh(e_values, alpha):
    """Largest k with e_(k) ≥ C/(alpha·k), then the k largest."""
    order = sorted(range(len(e_values)), key=lambda i: -e_values[i])
    best = 0
    for k in range(1, len(order) + 1):
        if e_values[order[k - 1]] >= len(order) / (alpha * k):
            best = k
    return [i in order[:best] for i in range(len(order))]


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=30, unique=True))
def test_e_bh_by_its_definition(e_values):
    """The largest set whose members all have enough evidence for its size."""
    got = select_by_e_values(np.array(e_values), alpha=0.05)
    assert got.tolist() == naive_e_bh(e_values, 0.05)


def test_the_start_set_holds_nine_tenths():
    """Likeliest first, until their probabilities add up."""
    since = start_set(np.log([1.0, 60.0, 31.0, 8.0]))
    assert (since.wave, since.waves) == (2, (2, 3))
    assert since.prob == pytest.approx(0.91)
    assert start_set(np.log([1.0, 59.0, 30.0, 10.0])).waves == (2, 3, 4)


def test_what_moved_is_found_with_its_start_and_size():
    """Ten of sixty claims, .4 log-odds, noise .3."""
    moved = range(10)
    cells = panel(9, C=60, m=20, drifting=moved, start=8)
    found = detect(cells, horizon=30)
    assert [i for i, claim in enumerate(found.claims) if claim.drifted] == list(moved)
    for claim in found.claims[:10]:
        assert 8 in claim.since.waves
        assert claim.size.lo < 0.4 < claim.size.hi or abs(claim.size.value - 0.4) < 0.1
        assert claim.audit_e_value > 20
        assert not claim.overstated
    assert found.claims[30].since is None
    assert found.claims[30].size is None
    assert (found.n_waves, found.model, found.anchors_dropped) == (20, None, ())


def test_a_shift_near_the_noise_is_called_overstated():
    """A quarter of what one wave scatters can only be found when chance helps."""
    cells = panel(10, C=2, m=31, T=8, noise=0.9, drifting=[0], start=10, shift=0.6)
    claim = detect(cells, horizon=30).claims[0]
    assert claim.drifted
    assert claim.overstated


def test_a_common_shift_is_the_models():
    """With anchors, no claim is blamed; without them, all are."""
    cells = panel(11, C=60, m=20)
    cells[:, 9:] += 0.3
    with_anchors = detect(cells[20:], anchors=cells[:20], horizon=30)
    assert with_anchors.model.drifted
    assert 9 in with_anchors.model.since.waves
    assert with_anchors.model.size.value == pytest.approx(0.3, abs=0.05)
    assert not any(claim.drifted for claim in with_anchors.claims)
    assert sum(claim.drifted for claim in detect(cells[20:], horizon=30).claims) > 5


def test_a_claim_that_moves_with_the_model_and_more_is_found():
    """Movement counts against the anchors."""
    cells = panel(12, C=40, m=20, drifting=[30], start=12)
    cells[:, 9:] += 0.3
    found = detect(cells[20:], anchors=cells[:20], horizon=30)
    assert [i for i, claim in enumerate(found.claims) if claim.drifted] == [10]


def test_anchors_that_drift_are_left_out():
    """A bad anchor is screened against the others, and the rest still serve."""
    cells = panel(13, C=40, m=20, drifting=[3], shift=1.0)
    assert screen_anchors(cells[:20], horizon=30) == (3,)
    found = detect(cells[20:], anchors=cells[:20], horizon=30)
    assert found.anchors_dropped == (3,)
    assert not found.model.drifted


def test_anchors_with_gaps_shift_nothing():
    """Their common movement is a fit, not a mean of whoever happened to answer."""
    rng = np.random.default_rng(14)
    movement = rng.normal(0, 0.2, (1, 9, 1)) + np.zeros((1, 9, 8))
    anchors = rng.normal(0, 3, (12, 1, 1)) + movement
    anchors[rng.random(anchors.shape) < 0.2] = np.nan
    left = match_anchors(anchors) - movement[0]
    assert left - left.mean(axis=0) == pytest.approx(np.zeros((9, 8)), abs=1e-8)


def test_noise_that_claims_share_in_a_wording_goes_with_the_anchors():
    """The common movement is matched template by template."""
    rng = np.random.default_rng(24)
    shared = rng.uniform(-0.3, 0.3, (1, 9, 8))
    anchors = rng.normal(0, 3, (12, 1, 8)) + shared
    left = match_anchors(anchors) - shared[0]
    assert left - left.mean(axis=0) == pytest.approx(np.zeros((9, 8)), abs=1e-8)


def test_ranks_do_not_see_the_distribution():
    """Any rising function of the cells leaves the audit as it is; a shift is found by it."""
    cells = panel(15, C=3, m=14, drifting=[0], start=7)
    one, other = (rank_evidence(x, 0.25) for x in (cells, np.exp(2 * cells)))
    assert one == pytest.approx(other)
    found = weigh_evidence(cells, horizon=20, variant="ranks").e_value
    assert found[0] > 20 > max(found[1:])


def test_rank_scores_are_standard_normal_without_drift():
    """Their evidence has a mean near 1 under heavy tails."""
    rng = np.random.default_rng(16)
    cells = rng.standard_t(1.5, (4000, 10, 8))
    e_values = weigh_evidence(cells, horizon=9, variant="ranks", rho=0.0).e_value
    assert np.mean(e_values) < 1.1
    assert np.mean(e_values >= 20) < 0.02


def test_answers_of_exactly_0_or_1_are_missing():
    """The others are averaged in log-odds."""
    assert measure_cell([1.0, 0.8, 0.6]) == pytest.approx((logit(0.8) + logit(0.6)) / 2)
    assert math.isnan(measure_cell([0.0, 1.0]))
    assert math.isnan(measure_cell([]))


def test_one_wave_or_one_wording_is_enough_to_ask():
    """The first wave says nothing; a single wording is a series of its own."""
    found = detect(panel(17, C=3, m=1), horizon=30)
    assert [claim.e_value for claim in found.claims] == [1.0, 1.0, 1.0]
    single = panel(18, C=3, m=15, T=1, drifting=[0], shift=4.0)
    assert [claim.drifted for claim in detect(single, horizon=30).claims] == [
        True,
        False,
        False,
    ]


def test_waves_beyond_the_horizon_add_no_starts():
    """The weights of the starts that were planned stay."""
    cells = panel(19, C=2, m=12, drifting=[0])
    got = weigh_evidence(cells, horizon=4, rho=0.25)
    want = np.exp(got.log_e[:, :4]).sum(axis=1) / 4
    assert got.e_value == pytest.approx(want)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"horizon": 0}, "`horizon`"),
        ({"horizon": 9, "alpha": 1.0}, "`alpha`"),
        ({"horizon": 9, "variant": "means"}, "`variant`"),
        ({"horizon": 9, "anchors": np.zeros((5, 3, 2))}, "`anchors` must have the waves"),
    ],
)
def test_what_makes_no_sense_is_refused(options, match):
    """Each message names what is wrong."""
    with pytest.raises(ConfigError, match=match):
        detect(panel(20, C=2, m=4), **options)


def test_cells_that_are_not_cells_are_refused():
    """Two axes, or infinite log-odds."""
    with pytest.raises(ConfigError, match="claims x waves x wordings"):
        detect(np.zeros((3, 3)), horizon=9)
    with pytest.raises(ConfigError, match="infinite"):
        detect(np.full((1, 3, 3), np.inf), horizon=9)
    with pytest.raises(NoEstimateError, match="at least 2"):
        match_anchors(np.zeros((1, 3, 3)))


def test_looking_every_wave_keeps_the_error_rate():
    """Claims without drift: the share that ever reaches 1/alpha stays far below alpha."""
    cells = panel(21, C=400, m=21, T=8)
    ever = np.zeros(400, bool)
    for m in range(2, 22):
        ever |= weigh_evidence(cells[:, :m], horizon=30).e_value >= 20
    assert ever.mean() <= 0.02


def test_the_evidence_has_mean_1_without_drift():
    """An e-value by theory: exactly 1 on average where wave noise is what it is taken for."""
    rng = np.random.default_rng(22)
    rho, T = 0.5, 8
    cells = rng.normal(0, 1, (20_000, 4, T)) + rng.normal(0, math.sqrt(rho / T), (20_000, 4, 1))
    log_e = np.array(
        weigh_evidence(cells, horizon=3, rho=rho).log_e,
    )
    means = np.exp(log_e).mean(axis=0)
    errors = np.exp(log_e).std(axis=0) / math.sqrt(len(cells))
    assert np.all(means < 1 + 5 * errors)
    assert np.all(means > 0.7)


def test_sizes_agree_with_the_t_test_where_the_start_is_known():
    """With one start alone in question, the shift is the difference of means."""
    cells = panel(23, C=1, m=2, T=12, drifting=[0], start=1, shift=2.0)
    got = weigh_evidence(cells, horizon=1, rho=0.0)
    y = clip_cells(cells)[0]
    theirs = scipy.stats.ttest_rel(y[1], y[0])
    assert got.shift[0, 0] == pytest.approx(y[1].mean() - y[0].mean())
    assert got.shift[0, 0] / got.shift_se[0, 0] == pytest.approx(theirs.statistic)


def test_claims_and_waves_without_any_cell_say_nothing():
    """A claim that was never answered, and a wave in which nobody was."""
    cells = panel(25, C=30, m=20, drifting=[1], shift=1.0, start=10)
    cells[0] = np.nan
    cells[:, 14] = np.nan
    for variant in ("cells", "wave_means", "ranks"):
        found = detect(cells, horizon=20, variant=variant)
        assert found.claims[0].e_value == pytest.approx(1.0)
        assert [i for i, claim in enumerate(found.claims) if claim.drifted] == [1]
        assert 10 in found.claims[1].since.waves


@pytest.mark.study
def test_panels_looked_at_every_wave_keep_their_word():
    """Glitches and gaps, 16 x 1, noise .3: few false alarms, all of .4 log-odds found in time."""
    rng = np.random.default_rng(26)
    alarms, named_still, found, false, held = [], [], [], [], []
    for number in range(24):
        moved = range(10) if number % 2 else ()
        cells = panel(rng.integers(2**60), C=200, m=31, drifting=moved, start=10)
        cells += math.sqrt(0.3) * 0.3 * rng.normal(size=(1, 31, 16))
        glitch = rng.random(cells.shape) < 0.01
        cells[glitch] += 4 * rng.choice([-1, 1], glitch.sum())
        cells[rng.random(cells.shape) < 0.05] = np.nan
        ever, named = np.zeros(200, bool), np.zeros(200, bool)
        for m in range(2, 32):
            e_values = weigh_evidence(cells[:, :m], horizon=30).e_value
            ever |= e_values >= 20
            named |= select_by_e_values(e_values)
        alarms.append(ever[10:].mean())
        if moved:
            found.append(named[:10].mean())
            false.append(named[10:].sum() / max(1, named.sum()))
            claims = detect(cells, horizon=30).claims[:10]
            held += [10 in claim.since.waves for claim in claims if claim.drifted]
        else:
            named_still.append(named.any())
    assert np.mean(alarms) <= 0.02
    assert np.mean(named_still) <= 0.05
    assert np.mean(false) <= 0.05
    assert np.mean(found) >= 0.95
    assert np.mean(held) >= 0.88


def test_groups_are_weighed_apart_and_selected_together():
    """Each model has its own noise; e-BH sees the claims of all of them, and all models."""
    groups = [
        (panel(1, drifting=[2], noise=0.2), panel(11, C=8, noise=0.2)),
        (panel(2, noise=0.9), panel(12, C=8, noise=0.9, drifting=range(8), shift=2.0)),
    ]
    alone = [detect(cells, anchors=known, horizon=20) for cells, known in groups]
    together = detect_drifts(groups, horizon=20)
    for one, other in zip(alone, together, strict=True):
        assert [d.e_value for d in one.claims] == [d.e_value for d in other.claims]
        assert (one.rho, one.anchors_dropped) == (other.rho, other.anchors_dropped)
    e_values = np.array([d.e_value for found in together for d in found.claims])
    chosen = [d.drifted for found in together for d in found.claims]
    assert chosen == select_by_e_values(e_values).tolist()
    assert [found.model.drifted for found in together] == [False, True]
