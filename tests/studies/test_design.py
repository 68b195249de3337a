"""Design: variance components, plans, widths."""

import math

import numpy as np
import pytest

from heretix.belief.diagnostics import split_variance
from heretix.belief.student import template_t
from heretix.core.errors import ConfigError, NoEstimateError
from heretix.studies.design import (
    Price,
    VarianceComponents,
    best_replicates,
    estimate_components,
    expected_widths,
    find_cheapest,
    plan_for,
)


def components(template=0.30, replicate=0.10):
    """Known ones."""
    return VarianceComponents(
        template=template,
        replicate=replicate,
        n_runs=1,
        template_interval=None,
        replicate_interval=None,
    )


def runs(seed, count, *, T=8, R=2, template=0.30, replicate=0.10):
    """Simulated runs with planted variances."""
    rng = np.random.default_rng(seed)
    return [
        {
            f"{t}": row
            for t, row in enumerate(
                (
                    rng.normal()
                    + rng.normal(0, math.sqrt(template), (T, 1))
                    + rng.normal(0, math.sqrt(replicate), (T, R))
                ).tolist()
            )
        }
        for _ in range(count)
    ]


def test_planted_components_come_back_within_five_percent():
    """Pooled over many claims."""
    found = estimate_components(runs(1, 1500))
    assert found.template == pytest.approx(0.30, rel=0.05)
    assert found.replicate == pytest.approx(0.10, rel=0.05)
    assert found.template_interval.lo < 0.30 < found.template_interval.hi
    assert found.replicate_interval.lo < 0.10 < found.replicate_interval.hi


def test_one_run_gives_the_split_of_its_diagnostics():
    """The same analysis of variance, also where counts differ."""
    (run,) = runs(2, 1, R=3)
    run["0"] = run["0"][:1]
    run["3"] = run["3"][:2]
    split, found = split_variance(list(run.values())), estimate_components([run])
    assert (found.template, found.replicate) == pytest.approx((split.between, split.within))
    assert found.template_interval is None


def test_the_jackknife_is_tukeys():
    """Written out over three runs."""
    three = runs(3, 3)
    found = estimate_components(three)
    left = [
        estimate_components([run for j, run in enumerate(three) if j != i]).replicate
        for i in range(3)
    ]
    se = math.sqrt(2 / 3 * sum((x - np.mean(left)) ** 2 for x in left))
    assert found.replicate_interval.se == pytest.approx(se)


def test_variance_of_the_designs_example():
    """16 calls: 16 x 1 gives .025, 8 x 2 .044, 4 x 4 .081."""
    got = [plan_for(components(), T=T, R=R).variance_logit for T, R in [(16, 1), (8, 2), (4, 4)]]
    assert [round(x, 3) for x in got] == [0.025, 0.044, 0.081]
    assert all(plan_for(components(), T=T, R=R).calls == 16 for T, R in [(16, 1), (8, 2), (4, 4)])


def test_the_best_number_of_replicates():
    """√(e/t · price of a template / price of a repeat)."""
    assert best_replicates(components()) == pytest.approx(math.sqrt(1 / 3))
    assert best_replicates(components(), Price(template=9, repeat=1)) == pytest.approx(math.sqrt(3))
    assert best_replicates(components(template=0)) == math.inf


@pytest.mark.parametrize(("T", "R"), [(4, 3), (8, 2), (16, 1)])
def test_expected_widths_are_what_runs_give(T, R):
    """Against the widths of simulated measurements, in log-odds where the mean is exact."""
    widths = [
        template_t(run).logit.hi - template_t(run).logit.lo for run in runs(4, 1500, T=T, R=R)
    ]
    plan = plan_for(components(), T=T, R=R, prob=0.5)
    half = math.log((0.5 + plan.expected_width / 2) / (0.5 - plan.expected_width / 2))
    assert 2 * half == pytest.approx(np.mean(widths), rel=0.04)


def test_the_cheapest_plan_by_looking_at_all():
    """Nothing that reaches the width costs less."""
    price = Price(template=3, repeat=1)
    best = find_cheapest(components(0.1, 0.4), width=0.25, price=price)
    assert best.expected_width <= 0.25
    for T in range(2, 17):
        for R in range(1, 30):
            other = plan_for(components(0.1, 0.4), T=T, R=R, price=price)
            assert other.expected_width > 0.25 or other.cost >= best.cost
    assert best.cost == best.T * (3 + (best.R - 1))


def test_wide_beats_default_at_the_same_price():
    """16 wordings once are better than 8 twice, whatever the components."""
    for template, replicate in [(0.3, 0.1), (0.01, 0.5), (0.0, 0.2)]:
        some = components(template, replicate)
        wide, default = plan_for(some, T=16, R=1), plan_for(some, T=8, R=2)
        assert (wide.cost, default.cost) == (16, 16)
        assert wide.expected_width < default.expected_width


def test_a_belief_near_the_edge_has_a_narrower_interval():
    """In probability."""
    middle, edge = (plan_for(components(), T=8, R=2, prob=p).expected_width for p in (0.5, 0.95))
    assert edge < middle / 2


def test_the_curve_falls_and_nothing_lies_below_it():
    """Each step costs more calls and is narrower."""
    curve = expected_widths(components(), max_calls=48)
    calls, widths = [p.calls for p in curve], [p.expected_width for p in curve]
    assert calls == sorted(set(calls))
    assert widths == sorted(widths, reverse=True)
    assert curve[-1].T == 16
    assert any((p.T, p.R) == (16, 1) for p in curve)


def test_a_width_out_of_reach_is_told_with_the_best_there_is():
    """16 wordings have a floor that replicates can't lower."""
    with pytest.raises(ConfigError, match=r"`width` can't be reached .* T=16, R=64"):
        find_cheapest(components(), width=0.01)


@pytest.mark.parametrize(
    "call",
    [
        lambda: find_cheapest(components(), width=0),
        lambda: plan_for(components(), T=1, R=1),
        lambda: plan_for(components(), T=8, R=1, prob=1.0),
        lambda: plan_for(components(), T=8, R=1, price=Price(template=0, repeat=1)),
    ],
)
def test_what_makes_no_sense_is_refused(call):
    """Each names its subject."""
    with pytest.raises(ConfigError, match=r"`\w+` must"):
        call()


@pytest.mark.parametrize("given", [[], [{}], [{"a": [1.0], "b": [0.5]}], [{"a": [1.0, 2.0]}]])
def test_components_need_templates_and_a_replicate(given):
    """With R=1 the two can't be told apart."""
    with pytest.raises(NoEstimateError, match="R=2"):
        estimate_components(given)
