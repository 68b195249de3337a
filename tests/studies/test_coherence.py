"""Coherence: acquiescence, belief free of it, rules of probability."""

import math

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from heretix.belief.logodds import logit, sigmoid
from heretix.core.errors import ConfigError, NoEstimateError
from heretix.studies.coherence import (
    check_conjunction,
    check_disjunction,
    check_entailment,
    check_paraphrase,
    compare_negation,
    expect_violation,
    summarise_pairs,
    violation,
)

PROB = st.floats(0.001, 0.999)


def spread(rng, center, *, T=8, R=2, template=0.4, noise=0.2, wording=None):
    """Logits by template about a center."""
    shift = rng.normal(0, template, (T, 1)) if wording is None else wording
    return {
        f"{t}": row
        for t, row in enumerate((center + shift + rng.normal(0, noise, (T, R))).tolist())
    }


def flat(prob, T=8):
    """Every wording says the same, almost."""
    return {f"{t}": [logit(prob) + 1e-6 * (-1) ** t] for t in range(T)}


def pair(rng, *, belief, b, **options):
    """A claim and its negation with planted acquiescence."""
    wording = rng.normal(0, 0.4, (8, 1))
    return (
        spread(rng, belief + b, wording=wording, **options),
        spread(rng, b - belief, wording=0.5 * wording, **options),
    )


def test_violation_of_the_designs_example():
    """0 where the two add up to 1, .041 where both are .6."""
    assert violation(0.7, 0.3) == pytest.approx(0, abs=1e-12)
    assert round(violation(0.6, 0.6), 3) == 0.041
    assert violation(1.0, 1.0) == math.inf


@given(PROB, PROB)
def test_violation_is_symmetric_and_never_below_0(p, q):
    """Swapping claim and negation, or saying no for yes, changes nothing."""
    assert violation(p, q) >= 0
    assert violation(p, q) == pytest.approx(violation(q, p), abs=1e-9)
    assert violation(p, q) == pytest.approx(violation(1 - p, 1 - q), abs=1e-9)


@given(PROB, PROB)
def test_belief_and_acquiescence_give_both_back(p, q):
    """Sum and difference are another way to write the pair."""
    found = compare_negation(flat(p), flat(q))
    assert found.acquiescence.value == pytest.approx((logit(p) + logit(q)) / 2, abs=1e-5)
    assert found.belief.value == pytest.approx((logit(p) - logit(q)) / 2, abs=1e-5)
    assert (found.prob_claim, found.prob_negation) == pytest.approx((p, q), abs=1e-5)
    assert found.violation == pytest.approx(violation(p, q), abs=1e-4)
    assert found.violation_lo <= found.violation <= found.violation_hi


def test_an_interval_that_holds_no_acquiescence_holds_no_violation():
    """The violation's interval starts at 0 exactly then."""
    rng = np.random.default_rng(1)
    honest = compare_negation(*pair(rng, belief=1.0, b=0.0))
    assert honest.acquiescence.lo < 0 < honest.acquiescence.hi
    assert honest.violation_lo == 0
    yes_man = compare_negation(*pair(rng, belief=1.0, b=2.0))
    assert yes_man.acquiescence.lo > 0
    assert yes_man.violation_lo > 0


@pytest.mark.parametrize("sims", [300, pytest.param(10_000, marks=pytest.mark.study)])
def test_planted_acquiescence_of_one_claim_is_covered(sims):
    """.4 log-odds, 8 wordings: at least 93% in the study."""
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(sims):
        found = compare_negation(*pair(rng, belief=rng.normal(0, 1.5), b=0.4)).acquiescence
        held += found.lo <= 0.4 <= found.hi
    assert held / sims >= 0.93 - (0.04 if sims < 1000 else 0)


@pytest.mark.parametrize("sims", [100, pytest.param(2_000, marks=pytest.mark.study)])
def test_planted_acquiescence_of_a_model_is_covered(sims):
    """30 claims that differ in it, .4 on average."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(sims):
        pairs = [
            compare_negation(*pair(rng, belief=rng.normal(0, 1.5), b=rng.normal(0.4, 0.5)))
            for _ in range(30)
        ]
        found = summarise_pairs(pairs).acquiescence
        held += found.lo <= 0.4 <= found.hi
    assert held / sims >= 0.93 - (0.06 if sims < 1000 else 0)


def test_a_model_is_the_mean_of_its_claims():
    """Student's t over claims."""
    rng = np.random.default_rng(4)
    pairs = [compare_negation(*pair(rng, belief=1, b=b)) for b in (0.1, 0.5, 0.9, 0.3)]
    found = summarise_pairs(pairs)
    theirs = scipy.stats.ttest_1samp([p.acquiescence.value for p in pairs], 0)
    assert found.acquiescence.p_value == pytest.approx(theirs.pvalue)
    assert found.violation.value == pytest.approx(np.mean([p.violation for p in pairs]))
    assert found.n_pairs == 4
    with pytest.raises(NoEstimateError):
        summarise_pairs(pairs[:1])


def verdicts(rules):
    """By name."""
    return {rule.name: rule.verdict for rule in rules}


@given(PROB, PROB, st.floats(0.001, 0.999))
def test_clear_cases_are_judged_by_the_rules_of_probability(a, b, c):
    """Without noise every verdict is that of the inequality."""
    near = 1e-3
    for rules, bounds in (
        (check_conjunction(flat(a), flat(b), flat(c)), (c - a, c - b, a + b - 1 - c)),
        (check_disjunction(flat(a), flat(b), flat(c)), (a - c, b - c, c - a - b)),
        ([check_entailment(flat(a), flat(c))], (a - c,)),
    ):
        for rule, excess in zip(rules, bounds, strict=True):
            assert rule.excess.value == pytest.approx(excess, abs=1e-5)
            if abs(excess) > near:
                assert rule.verdict == ("broken" if excess > 0 else "holds")


def test_what_noise_hides_is_undecided():
    """The interval holds 0."""
    rng = np.random.default_rng(5)
    a, b = spread(rng, 0.5, noise=1.0), spread(rng, 0.52, noise=1.0)
    assert check_entailment(a, b).verdict == "undecided"
    assert check_paraphrase(a, b).verdict == "undecided"


def test_paraphrases_are_the_same_within_a_margin():
    """Close ones hold, even where the difference is sure; far ones don't."""
    assert check_paraphrase(flat(0.60), flat(0.62)).verdict == "holds"
    assert check_paraphrase(flat(0.60), flat(0.70)).verdict == "broken"
    assert check_paraphrase(flat(0.60), flat(0.70), within=0.2).verdict == "holds"
    assert check_paraphrase(flat(0.60), flat(0.70)).excess.value == pytest.approx(0.1, abs=1e-6)


def test_wordings_that_shift_all_sides_cancel_out():
    """Entailment judged over the same wordings is sharper than its sides."""
    rng = np.random.default_rng(6)
    wording = rng.normal(0, 1.0, (8, 1))
    a = spread(rng, 0.5, wording=wording, noise=0.05)
    b = spread(rng, 0.8, wording=wording, noise=0.05)
    found = check_entailment(a, b)
    assert found.verdict == "holds"
    assert found.excess.value == pytest.approx(sigmoid(0.5) - sigmoid(0.8), abs=0.03)


def test_what_makes_no_sense_is_refused():
    """Each names its subject."""
    with pytest.raises(ConfigError, match="`prob`"):
        violation(1.2, 0.1)
    with pytest.raises(ConfigError, match="`within`"):
        check_paraphrase(flat(0.5), flat(0.5), within=0)
    with pytest.raises(NoEstimateError, match="same templates"):
        compare_negation({"a": [0.1], "b": [0.2]}, {"c": [0.1], "d": [0.2]})


def test_scatter_alone_gives_a_violation():
    """A model that obeys probability has a mean violation above 0: that of its scatter."""
    rng = np.random.default_rng(3)
    pairs = []
    for belief in rng.normal(0, 1.5, 400):
        noise = rng.normal(0, 0.8, (2, 8))
        sides = (belief + noise[0], noise[1] - belief)
        pairs.append(compare_negation(*({str(i): [x] for i, x in enumerate(s)} for s in sides)))
    found = summarise_pairs(pairs).violation
    assert found.lo > 0
    assert found.lo < expect_violation(pairs) < found.hi
