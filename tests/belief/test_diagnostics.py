"""What lies behind an estimate."""

import statistics

import numpy as np
import pytest
import scipy

from heretix.belief.diagnostics import diagnose, split_variance
from heretix.belief.estimator import estimate
from heretix.belief.logodds import sigmoid
from heretix.core.errors import ConfigError, NoEstimateError


def ragged(seed, sizes):
    """Logits under hashes in order, with clear template effects."""
    rng = np.random.default_rng(seed)
    return {
        f"t{i:02}": (rng.normal() + rng.normal(0, 0.5, size=size)).tolist()
        for i, size in enumerate(sizes)
    }


@pytest.mark.parametrize("sizes", [[3, 3, 3, 3], [1, 2, 5, 3, 1], [2] * 16])
def test_the_split_implies_the_f_of_scipy(sizes):
    """Between and within give back the F statistic of a one-way analysis of variance."""
    groups = list(ragged(5, sizes).values())
    split = split_variance(groups)
    N, T = sum(sizes), len(sizes)
    n0 = (N - sum(size**2 for size in sizes) / N) / (T - 1)
    assert not split.between_was_negative
    assert 1 + n0 * split.between / split.within == pytest.approx(scipy.stats.f_oneway(*groups)[0])
    assert split.between_share == pytest.approx(split.between / (split.between + split.within))


def test_the_split_is_unbiased_for_unequal_groups():
    """Over many draws, both components average to the variances they estimate."""
    rng = np.random.default_rng(9)
    between, within = [], []
    for _ in range(1500):
        groups = [(rng.normal(0, 5) + rng.normal(0, 1, size=n)).tolist() for n in (1, 1, 2, 9)]
        split = split_variance(groups)
        between.append(split.between)
        within.append(split.within)
    assert statistics.mean(between) == pytest.approx(25, rel=0.08)
    assert statistics.mean(within) == pytest.approx(1, rel=0.08)


def test_a_negative_component_is_zero_and_flagged():
    """Templates that differ less than their replicates have no variance of their own."""
    split = split_variance([[-1.0, 1.0], [-1.0, 1.0], [-1.0, 1.0]])
    assert (split.between, split.between_was_negative) == (0.0, True)
    assert split.within == pytest.approx(2.0)
    assert split.between_share == 0.0


def test_nothing_that_varies_has_no_share():
    """A share of nothing is None, not a number made by rounding."""
    diagnostics = diagnose({"a": [0.1] * 3, "b": [0.1] * 3, "c": [0.1]})
    assert diagnostics.variance.between == diagnostics.variance.within == 0.0
    assert not diagnostics.variance.between_was_negative
    assert diagnostics.variance.between_share is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"a": [0.1], "b": [0.2], "c": [0.3]}, "every template has a single sample"),
        ({"a": [0.1, 0.2, 0.3], "b": []}, "only one template has samples"),
    ],
)
def test_a_split_that_cannot_be_made_says_why(data, reason):
    """Missing numbers are None, with a reason."""
    diagnostics = diagnose(data)
    assert diagnostics.variance is None
    assert reason in diagnostics.variance_reason


def test_paraphrase_sensitivity_is_the_spread_of_template_probabilities():
    """Range and standard deviation are those of the sigmoids of template means."""
    data = ragged(6, [1, 3, 2, 4])
    probs = [sigmoid(statistics.fmean(logits)) for logits in data.values()]
    diagnostics = diagnose(data)
    assert diagnostics.paraphrase_range_prob == pytest.approx(max(probs) - min(probs))
    assert diagnostics.paraphrase_sd_prob == pytest.approx(np.std(probs, ddof=1))
    assert diagnostics.paraphrase_reason is None


def test_one_template_has_no_paraphrase_sensitivity_and_no_influence():
    """With a single wording nothing can be said about wordings."""
    diagnostics = diagnose({"a": [0.1, 0.2, 0.3]})
    assert diagnostics.paraphrase_range_prob is None
    assert diagnostics.paraphrase_sd_prob is None
    assert "one template" in diagnostics.paraphrase_reason
    [row] = diagnostics.templates
    assert (row.influence_logit, row.influence_prob, row.trimmed) == (None, None, False)


@pytest.mark.parametrize("sizes", [[2, 3, 1, 2, 4], [2] * 7, [1, 2]])
@pytest.mark.parametrize("center", ["trimmed", "mean"])
def test_influence_is_the_move_of_the_estimate_without_the_template(center, sizes):
    """Leaving a template out and estimating anew, with its own trim, gives the same move."""
    data = ragged(7, sizes)
    whole = estimate(data, seed=1, B=2, center=center)
    for row in diagnose(data, center=center).templates:
        others = {key: value for key, value in data.items() if key != row.template}
        without = estimate(others, seed=1, B=2, center=center, min_samples=1)
        assert row.influence_logit == without.center_logit - whole.center_logit
        assert row.influence_prob == without.prob_true - whole.prob_true


def test_rows_describe_their_templates():
    """Each row has the count, the mean, the spread and the range of its own samples."""
    data = {"b": [1.0, -1.0, 0.6], "a": [0.4]}
    first, second = diagnose(data).templates
    assert (first.template, first.n, first.mean_logit, first.sd_logit) == ("a", 1, 0.4, None)
    assert first.min_prob == first.max_prob == first.prob == sigmoid(0.4)
    assert (second.template, second.n) == ("b", 3)
    assert second.mean_logit == pytest.approx(0.2)
    assert second.sd_logit == pytest.approx(np.std(data["b"], ddof=1))
    assert (second.min_prob, second.max_prob) == (sigmoid(-1.0), sigmoid(1.0))


def test_trimmed_templates_are_flagged_and_ties_fall_by_hash():
    """Of equal means, the lower hash counts as the lower one."""
    tied = {"c": [0.5], "b": [0.1], "a": [0.1], "e": [0.9], "d": [0.9]}
    assert [row.template for row in diagnose(tied).templates if row.trimmed] == ["a", "e"]
    data = {"a": [0.0], "b": [9.0], "c": [0.1], "d": [-9.0], "e": [0.2]}
    assert [row.template for row in diagnose(data).templates if row.trimmed] == ["b", "d"]
    assert not any(row.trimmed for row in diagnose(data, center="mean").templates)


def test_arrival_order_changes_no_diagnostic():
    """The same samples in another order give the same record."""
    data = ragged(8, [2, 3, 4, 2, 6])
    turned = {key: data[key][::-1] for key in reversed(data)}
    assert repr(diagnose(data)) == repr(diagnose(turned))


def test_diagnostics_are_checked_at_the_door():
    """No samples and bad options are refused by name."""
    with pytest.raises(NoEstimateError, match="got 0"):
        diagnose({"a": []})
    with pytest.raises(ConfigError, match="`trim`"):
        diagnose({"a": [0.1]}, trim=0.7)
    with pytest.raises(ConfigError, match="`center`"):
        diagnose({"a": [0.1]}, center="median")
