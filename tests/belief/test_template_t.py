"""Intervals by Student's t over templates: naive definitions, limits, coverage."""

import math

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from heretix.belief.diagnostics import weigh_extremes
from heretix.belief.estimator import estimate
from heretix.belief.logodds import logit, sigmoid
from heretix.belief.student import (
    combine_probs,
    paired_template_t,
    paired_template_t_trimmed,
    template_t,
)
from heretix.core.errors import ConfigError, NoEstimateError


def keyed(rows):
    """Logits by template, from a table."""
    return {f"{t:02}": list(np.atleast_1d(row)) for t, row in enumerate(np.asarray(rows))}


def two_sides(seed=1, *, T=16, R=2, shift=0.5, template=0.4, response=0.15, noise=0.2):
    """Two measurements that share what each template does to an answer."""
    rng = np.random.default_rng(seed)
    wording = rng.normal(0, template, (T, 1))
    a = 0.4 + wording + rng.normal(0, noise, (T, R))
    b = 0.4 + shift + wording + rng.normal(0, response, (T, 1)) + rng.normal(0, noise, (T, R))
    return a, b


def naive_winsorised(values, k):
    """The k lowest and highest replaced by the next, one by one."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    out = list(values)
    for i in order[:k]:
        out[i] = values[order[k]]
    for i in order[len(values) - k :]:
        out[i] = values[order[len(values) - k - 1]]
    return np.array(out)


def v(x):
    """Slope of the sigmoid."""
    return sigmoid(x) * (1 - sigmoid(x))


@pytest.mark.parametrize("T", [2, 4, 5, 8, 16])
def test_one_belief_by_its_definition(T):
    """c ± t(h-1)·sqrt(Σ(w - w̄)² / (h(h-1))) about the frozen center."""
    a, _ = two_sides(T=T, R=3)
    k = int(0.2 * T)
    h = T - 2 * k
    means = a.mean(axis=1)
    w = naive_winsorised(means, k)
    half = scipy.stats.t.ppf(0.975, h - 1) * math.sqrt(((w - w.mean()) ** 2).sum() / (h * (h - 1)))
    center = scipy.stats.trim_mean(means, 0.2)
    got = template_t(keyed(a))
    assert (got.logit.lo, got.logit.hi) == pytest.approx((center - half, center + half))
    assert (got.ci_lo, got.ci_hi) == pytest.approx((sigmoid(center - half), sigmoid(center + half)))
    assert got.prob_true == estimate(keyed(a), seed=1, B=10).prob_true


@pytest.mark.parametrize("T", [2, 5, 8, 16])
def test_the_paired_difference_by_its_definition(T):
    """Both scales, with the p-values of the same statistics."""
    a, b = two_sides(T=T, R=2)
    x, y = a.mean(axis=1), b.mean(axis=1)
    theirs = scipy.stats.ttest_rel(y, x)
    got = paired_template_t(keyed(a), keyed(b))
    assert (got.diff_logit.lo, got.diff_logit.hi) == pytest.approx(
        tuple(theirs.confidence_interval())
    )
    assert got.diff_logit.p_value == pytest.approx(theirs.pvalue)
    g = v(y.mean()) * (y - y.mean()) - v(x.mean()) * (x - x.mean())
    se = math.sqrt((g**2).sum() / (T * (T - 1)))
    diff = sigmoid(y.mean()) - sigmoid(x.mean())
    half = scipy.stats.t.ppf(0.975, T - 1) * se
    assert (got.diff_prob.value, got.diff_prob.lo, got.diff_prob.hi) == pytest.approx(
        (diff, diff - half, diff + half)
    )
    assert got.diff_prob.p_value == pytest.approx(2 * scipy.stats.t.sf(abs(diff / se), T - 1))


@pytest.mark.parametrize("T", [4, 5, 8, 16])
def test_the_trimmed_twin_by_its_definition(T):
    """Trimmed mean of differences at the published center, with winsorised influences."""
    a, b = two_sides(T=T)
    x, y = a.mean(axis=1), b.mean(axis=1)
    k = int(0.2 * T)
    h = T - 2 * k
    d, c = scipy.stats.trim_mean(y - x, 0.2), scipy.stats.trim_mean(x, 0.2)
    wd, wx = naive_winsorised(y - x, k), naive_winsorised(x, k)
    g = v(c + d) * (wd - wd.mean()) + (v(c + d) - v(c)) * (wx - wx.mean())
    got = paired_template_t_trimmed(keyed(a), keyed(b))
    assert got.prob_a == pytest.approx(estimate(keyed(a), seed=1, B=10).prob_true)
    assert got.diff_prob.value == pytest.approx(sigmoid(c + d) - sigmoid(c))
    assert got.diff_prob.se == pytest.approx(math.sqrt((g**2).sum() / (h * (h - 1))))
    assert got.diff_logit.se == pytest.approx(
        math.sqrt(((wd - wd.mean()) ** 2).sum() / (h * (h - 1)))
    )
    assert got.diff_logit.df == got.diff_prob.df == h - 1


def test_the_published_center_can_be_given():
    """Where the base was published from more templates, its center counts."""
    a, b = two_sides()
    got = paired_template_t_trimmed(keyed(a), keyed(b), center_logit=-1.0)
    assert got.prob_a == sigmoid(-1.0)
    assert got.prob_b == sigmoid(-1.0 + got.diff_logit.value)


def test_a_wild_wording_moves_the_twin_little():
    """The plain statistic goes with it, the trimmed one stays."""
    a, b = two_sides(T=16)
    wild = b.copy()
    wild[3] += 40
    before, after = (paired_template_t_trimmed(keyed(a), keyed(x)) for x in (b, wild))
    assert abs(after.diff_logit.value - before.diff_logit.value) < 0.1
    assert paired_template_t(keyed(a), keyed(wild)).diff_logit.value > 2


def test_only_templates_of_both_sides_count():
    """What had no partner is named."""
    a, b = keyed(two_sides()[0]), keyed(two_sides()[1])
    got = paired_template_t({k: a[k] for k in list(a)[:10]}, {k: b[k] for k in list(b)[2:]})
    assert (got.n_pairs, got.only_a) == (8, ("00", "01"))
    assert got.only_b == tuple(f"{t:02}" for t in range(10, 16))


@given(
    st.lists(st.tuples(st.floats(-6, 6), st.floats(-6, 6)), min_size=5, max_size=16),
    st.randoms(use_true_random=False),
)
def test_order_and_side_make_no_difference(pairs, random):
    """Any order of arrival gives the same bits; swapped sides the opposite sign."""
    a = {f"{t}": [x] for t, (x, _) in enumerate(pairs)}
    b = {f"{t}": [y] for t, (_, y) in enumerate(pairs)}
    keys = list(a)
    random.shuffle(keys)
    one = paired_template_t(a, b)
    assert one == paired_template_t({k: a[k] for k in keys}, {k: b[k] for k in keys})
    back = paired_template_t(b, a)
    assert back.diff_logit.value == pytest.approx(-one.diff_logit.value, abs=1e-12)
    assert back.diff_prob.lo == pytest.approx(-one.diff_prob.hi, abs=1e-12)


def test_a_difference_is_a_combination_of_two():
    """Other rules of probability use the same statistic."""
    a, b = (keyed(side) for side in two_sides())
    assert combine_probs([a, b], [-1, 1]) == paired_template_t(a, b).diff_prob
    assert combine_probs([a], [1.0], constant=-0.25).value == pytest.approx(
        sigmoid(np.mean([np.mean(x) for x in a.values()])) - 0.25
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: template_t({"a": [0.1, 0.2]}),
        lambda: template_t({"a": [0.1], "b": [0.2], "c": [1.0]}, trim=0.4),
        lambda: paired_template_t({"a": [0.1], "b": [1.0]}, {"b": [0.2], "c": [1.0]}),
        lambda: paired_template_t_trimmed({}, {}),
    ],
)
def test_too_few_templates_have_no_interval(call):
    """The message says how many there are."""
    with pytest.raises(NoEstimateError, match=r"at least 2 .*got [01]"):
        call()


def test_bad_options_are_refused():
    """As by the frozen estimator."""
    with pytest.raises(ConfigError, match="`trim`"):
        template_t({"a": [0.1], "b": [0.2]}, trim=0.5)


@pytest.mark.parametrize("sims", [400, pytest.param(20_000, marks=pytest.mark.study)])
@pytest.mark.parametrize(("T", "R"), [(8, 1), (16, 2)])
def test_intervals_hold_what_was_planted(sims, T, R):
    """Nominal 95%: within 94 to 96 in the study, within four standard errors in the small run."""
    slack = max(0.01, 4 * math.sqrt(0.05 * 0.95 / sims))

    def draw(rng):
        wording = rng.normal(0, 0.4, (T, 1))
        a = 0.5 + wording + rng.normal(0, 0.2, (T, R))
        b = 1.0 + wording + rng.normal(0, 0.15, (T, 1)) + rng.normal(0, 0.2, (T, R))
        one, diff = template_t(keyed(a)), paired_template_t(keyed(a), keyed(b)).diff_prob
        twin = paired_template_t_trimmed(keyed(a), keyed(b)).diff_logit
        planted = sigmoid(1.0) - sigmoid(0.5)
        return [
            one.ci_lo <= sigmoid(0.5) <= one.ci_hi,
            diff.lo <= planted <= diff.hi,
            twin.lo <= 0.5 <= twin.hi,
        ]

    rng = np.random.default_rng(11)
    shares = np.mean([draw(rng) for _ in range(sims)], axis=0)
    assert np.all(np.abs(shares - 0.95) <= slack), shares


def test_extreme_answers_are_weighed():
    """The example of the design: .928 published, .757 clamped."""
    answers = {str(t): [p] for t, p in enumerate([1, 0.5, 0, 0.85, 0.6, 0.35, 1, 0.5])}
    logits = {key: [logit(p) for p in probs] for key, probs in answers.items()}
    published = estimate(logits, seed=1)
    assert round(published.prob_true, 3) == 0.928
    found = weigh_extremes(answers, prob_true=published.prob_true, ci_width=0.2)
    assert (found.n, found.n_extreme, found.share) == (8, 3, 0.375)
    assert round(found.center_clamped, 3) == 0.757
    assert found.clamp_sensitive
    assert not weigh_extremes(answers, prob_true=published.prob_true, ci_width=0.4).clamp_sensitive


def test_answers_inside_the_clamp_change_nothing():
    """Without extremes the two centers are the same number."""
    answers = {str(t): [0.1 + 0.05 * t, 0.3] for t in range(8)}
    logits = {key: [logit(p) for p in probs] for key, probs in answers.items()}
    for agg in ("clustered", "simple"):
        published = estimate(logits, seed=1, agg=agg)
        found = weigh_extremes(answers, prob_true=published.prob_true, ci_width=0.0, agg=agg)
        assert (found.n_extreme, found.shift, found.clamp_sensitive) == (0, 0.0, False)


def test_no_answers_have_no_extremes():
    """It is refused, not 0."""
    with pytest.raises(NoEstimateError):
        weigh_extremes({"a": []}, prob_true=0.5, ci_width=0.1)
