"""Adaptive precision: larger only where needed, in the stated order, and every step on record."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes_support import BANK, PRICES, Keeping, Metered, Watching, plans, register, runner, stored
from sqlalchemy import text

from heretix.config import Claim, RunConfig
from heretix.core.errors import BudgetReachedError, ConfigError, RejectedError
from heretix.core.settings import Settings
from heretix.measurement.precision import (
    DEFAULT_MAX_SAMPLES,
    Escalation,
    Shape,
    find_unmet_gates,
    next_shape,
)
from heretix.measurement.service import prepare
from heretix.measurement.verify import verify_run
from heretix.plan import Precision
from heretix.store import Store

RULE = Precision(until_width=0.1, min_compliance=0.9, max_samples=100)
CLAIMS = [f"Claim {number}." for number in range(8)]


@pytest.fixture
def store(sqlite_template, tmp_path):
    """A store in a file."""
    path = tmp_path / "heretix.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    with Store.open(str(path)) as store:
        register(store)
        yield store


def asked(*claims, **options):
    """A measurement that was asked for, of the mock."""
    options.setdefault("B", 200)
    config = RunConfig.parse({"model": "mock:m", **options})
    return prepare(config, Settings(env={"OPENAI_API_KEY": "none"}), claims=claims or ("Claim.",))


async def measured(store, measurement):
    """Run it to its end; what was seen."""
    seen = Keeping()
    await measurement.run(store, observer=seen)
    return seen


async def escalated(measurement, running, provider):
    """The same with a provider of the test's own."""
    await measurement.run(running.store, runner=running, opener=lambda *_, **__: provider)


def table(store, statement):
    """Rows of a query."""
    with store.reading() as connection:
        return connection.execute(text(statement)).all()


def last(records):
    """The final record of each claim."""
    return {record.claim: record for record in records}


def shapes(record):
    """The sizes that were measured on the way."""
    return [(step.K, step.R, step.T) for step in record.precision.steps]


# Shapes and gates


def test_the_order_is_templates_then_slots_then_replicates():
    """From the default plan to the sixth step."""
    shape, seen = Shape(8, 2, 8), []
    for _ in range(5):
        shape = next_shape(shape, 16)
        seen.append((shape.K, shape.R, shape.T))
    assert seen == [(16, 2, 16), (32, 2, 16), (48, 2, 16), (48, 3, 16), (48, 4, 16)]


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 16), st.integers(1, 16))
def test_each_step_is_larger_and_none_goes_back(K, R, T, more):
    """Nothing shrinks, something grows, and more templates come before anything else."""
    templates = min(16, T + more - 1)
    before = Shape(K, R, T)
    after = next_shape(before, templates)
    assert after.N > before.N or after.T > before.T
    assert after.K >= before.K
    assert after.R >= before.R
    assert before.T <= after.T <= templates
    if templates > before.T:
        assert after.T > before.T
        assert after.R == before.R
    elif after.R > before.R:
        assert after.K == before.K
        assert after.K > 2 * after.T


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 16))
def test_a_larger_plan_holds_every_sample_of_the_smaller(K, R, T):
    """What was paid for is used again: no step throws a sample away."""
    shape = Shape(K, R, T)
    for _ in range(4):
        larger = next_shape(shape, BANK.T_bank)
        (small,), (large,) = (plans("x", K=s.K, R=s.R, T=s.T) for s in (shape, larger))
        assert {s.cache_key for s in small.samples} <= {s.cache_key for s in large.samples}
        shape = larger


@pytest.mark.parametrize(
    ("width", "compliance", "unmet"),
    [
        (0.1, 0.9, ()),
        (0.1001, 0.9, ("ci_width",)),
        (0.1, 0.89, ("rpl_compliance_rate",)),
        (0.3, 0.5, ("ci_width", "is_stable", "rpl_compliance_rate")),
        (None, 0.0, ("estimate",)),
    ],
)
def test_gates(width, compliance, unmet):
    """All of width, stability and compliance must pass; without an estimate nothing does."""
    assert find_unmet_gates(RULE, width, compliance) == unmet


def test_a_loose_target_is_still_held_to_stability():
    """An interval may be as narrow as was asked and too wide to be called stable."""
    assert find_unmet_gates(replace(RULE, until_width=0.5), 0.3, 1.0) == ("is_stable",)


# Escalation


async def test_a_target_that_is_met_at_once_takes_one_step(store):
    """Nothing more is asked for, and the record says that the gates passed."""
    seen = await measured(store, asked(until_width=0.19))
    (record,) = seen.records
    assert shapes(record) == [(8, 2, 8)]
    assert record.precision.stopped == "gates_passed"
    assert record.precision.steps[0].unmet == ()
    assert len(seen.samples) == 16


async def test_samples_of_earlier_steps_are_used_again(store):
    """However many steps it took, the calls are those of the last plan."""
    seen = await measured(store, asked(*CLAIMS, until_width=0.06, max_samples=200))
    final = last(seen.records)
    assert len(seen.records) == len(CLAIMS)
    assert len(seen.samples) == sum(record.sampling.N for record in final.values())
    assert len(stored(store)) == len(seen.samples)


async def test_claims_escalate_each_for_itself(store):
    """Those whose gates passed are left alone; the others go on."""
    seen = await measured(store, asked(*CLAIMS, until_width=0.06, max_samples=200))
    final = last(seen.records)
    steps = {claim: len(record.precision.steps) for claim, record in final.items()}
    assert len(set(steps.values())) > 1
    for record in final.values():
        passed = record.aggregates.ci_width <= 0.06
        assert record.precision.stopped == ("gates_passed" if passed else "max_samples")


async def test_the_record_tells_every_step_and_why_it_stopped(store):
    """Sizes, widths and what was lacking, as measuring that size alone would give them."""
    seen = await measured(store, asked(until_width=0.001, max_samples=150))
    (final,) = seen.records
    expected = [(8, 2, 8), (16, 2, 16), (32, 2, 16), (48, 2, 16), (48, 3, 16)]
    assert shapes(final) == expected
    assert final.precision.stopped == "max_samples"
    assert (final.precision.until_width, final.precision.max_samples) == (0.001, 150)
    for step, (K, R, T) in zip(final.precision.steps, expected, strict=True):
        (alone,) = (await measured(store, asked(K=K, R=R, T=T))).records
        assert step.ci_width == alone.aggregates.ci_width
        assert step.rpl_compliance_rate == alone.aggregates.rpl_compliance_rate
        assert "ci_width" in step.unmet


async def test_one_invocation_is_one_execution_with_one_account(store):
    """All calls, tokens and dollars of all steps; as cached counts only what was there before."""
    measurement = asked(until_width=0.001, max_samples=64, model="gpt-5")
    first, seen = Metered(), Keeping()
    await runner(store, "gpt-5", prices=PRICES).run([(first, plans("Claim.", model="gpt-5", K=4))])
    running = runner(store, "gpt-5", prices=PRICES, observer=seen)
    await escalated(measurement, running, provider := Metered())
    (record,) = seen.records
    before, made = len(first.asked), len(provider.asked)
    assert (before, made) == (8, 56)
    assert (record.usage.attempted, record.usage.called) == (64, made)
    assert record.usage.from_cache == before
    assert record.aggregates.cache_hit_rate == before / 64
    assert record.usage.tokens_in == 1000 * made
    assert record.usage.cost_usd == pytest.approx(0.00225 * made)
    assert running.spending.spent_usd == pytest.approx(0.00225 * made)
    assert seen.total == 64
    assert seen.cached == before
    mine = f"execution_id = '{record.execution_id}'"
    assert table(store, f"SELECT run_id FROM executions WHERE {mine}") == [(record.run_id,)]
    used = f"SELECT count(*), sum(from_cache) FROM execution_samples WHERE {mine}"
    assert table(store, used) == [(64, before)]
    of_run = f"SELECT count(*) FROM samples WHERE run_id = '{record.run_id}'"
    assert table(store, of_run) == [(64,)]
    assert verify_run(record).differences == ()


async def test_smaller_recipes_leave_no_empty_run_behind(store):
    """One row for what was measured; a run that somebody measured on its own stays."""
    await measured(store, asked())
    seen = await measured(store, asked(until_width=0.001, max_samples=64))
    sizes = table(store, "SELECT K, R, T FROM runs WHERE prob_true_rpl IS NOT NULL")
    assert sorted(sizes) == [(8, 2, 8), (32, 2, 16)]
    assert len(table(store, "SELECT run_id FROM runs")) == 2
    assert len(table(store, "SELECT * FROM executions")) == 2
    assert len(seen.records) == 1


async def test_without_the_cache_no_step_pays_for_a_sample_twice(store):
    """What an earlier step of the same invocation asked for is used, whatever the cache is."""
    await measured(store, asked())
    measurement, seen = asked(until_width=0.001, max_samples=64), Keeping()
    running = runner(store, observer=seen, use_cache=False)
    await escalated(measurement, running, provider := Watching())
    assert len(provider.asked) == 64
    assert seen.records[0].usage.called == 64
    assert seen.records[0].aggregates.cache_hit_rate == 0


async def test_calls_that_failed_are_made_again_in_the_next_step(store):
    """They count as asked for once more; the total that a watcher sees grows with them."""
    broken = set()

    def fail(request, attempt):
        key = (request.paraphrase_idx, request.replicate_idx)
        if request.replicate_idx == 0 and key not in broken and len(broken) < 3:
            broken.add(key)
            return RejectedError("no", status=400)
        return None

    seen = Keeping()
    running = runner(store, observer=seen)
    measurement = asked(until_width=0.001, max_samples=32)
    await escalated(measurement, running, provider := Watching(fail=fail))
    assert len(provider.asked) == 32 + 3 == seen.total == len(seen.samples)
    assert seen.records[0].usage.failed == 0


@pytest.mark.parametrize("steps", [1, 2])
async def test_what_is_stopped_in_a_larger_step_ends_with_the_one_before(store, steps):
    """Its number is had, and says that it was stopped; the same command goes on."""
    measurement = asked(until_width=0.001, max_samples=64)
    ends = RejectedError("account is empty", status=402)
    limit = {1: 20, 2: 40}[steps]
    seen, provider = Keeping(), Watching()
    provider._fail = lambda *_: ends if len(provider.asked) > limit else None
    with pytest.raises(RejectedError):
        await escalated(measurement, runner(store, observer=seen, concurrency=1), provider)
    (record,) = seen.records
    assert len(record.precision.steps) == steps
    assert len(record.samples) == 16 * steps
    assert record.precision.stopped == "interrupted"
    assert verify_run(record).differences == ()
    (row,) = table(store, "SELECT execution_id, run_id FROM executions")
    assert row == (record.execution_id, record.run_id)
    seen = Keeping()
    await escalated(measurement, runner(store, observer=seen), again := Watching())
    assert len(again.asked) == 64 - limit
    assert seen.records[0].precision.stopped == "max_samples"


async def test_records_of_all_steps_can_be_verified(store):
    """The rule and the gates are derived again with everything else."""
    seen = await measured(store, asked(*CLAIMS[:3], until_width=0.03, max_samples=100))
    assert max(len(record.precision.steps) for record in seen.records) > 1
    for record in seen.records:
        assert verify_run(record).differences == ()


async def test_a_changed_reason_does_not_verify(store):
    """Why it stopped is as much a finding as the number."""
    seen = await measured(store, asked(until_width=0.001, max_samples=20))
    record = seen.records[-1]
    forged = record.precision.model_copy(update={"stopped": "gates_passed"})
    paths = [
        d.path for d in verify_run(record.model_copy(update={"precision": forged})).differences
    ]
    assert "precision.stopped" in paths


@pytest.mark.parametrize("cap", [16, 31, 32, 63, 64, 100, 144, 145])
async def test_the_cap_is_never_exceeded_and_is_used(store, cap):
    """The largest plan of the series that the cap allows, and not a sample more."""
    seen = await measured(store, asked(until_width=0.001, max_samples=cap))
    series = [16, 32, 64, 96, 144, 192]
    assert len(seen.samples) == max(n for n in series if n <= cap)
    assert all(cap >= record.sampling.N for record in seen.records)
    assert seen.records[-1].precision.stopped == "max_samples"


async def test_a_cap_below_the_first_plan_is_refused_before_any_call(store):
    """What can't be kept is said at once."""
    with pytest.raises(ConfigError, match=r"max_samples.*16.*got 15"):
        await measured(store, asked(until_width=0.1, max_samples=15))
    assert not stored(store)


async def test_a_first_plan_above_the_default_cap_is_its_own_cap(store):
    """Nobody set a cap, so none is broken: one step, and the record says its size."""
    seen = await measured(store, asked(until_width=0.001, K=16, R=20, T=16))
    assert DEFAULT_MAX_SAMPLES < 320
    assert seen.records[-1].precision.max_samples == 320
    assert len(seen.samples) == 320


async def test_too_few_answers_are_asked_for_more(store):
    """No estimate is a gate that isn't passed; the cap ends it."""
    measurement = asked(until_width=0.19, max_samples=40, model="mock:m?not_json=1")
    seen = await measured(store, measurement)
    assert [step.unmet for step in seen.records[-1].precision.steps] == [("estimate",)] * 2
    assert seen.records[-1].precision.stopped == "max_samples"


async def test_poor_compliance_alone_is_asked_for_more(store):
    """A narrow interval of the answers that happened to fit isn't enough."""
    measurement = asked(until_width=0.19, max_samples=64, model="mock:m?not_json=0.4")
    seen = await measured(store, measurement)
    assert "rpl_compliance_rate" in seen.records[0].precision.steps[0].unmet
    assert len(seen.records[0].precision.steps) == 3


async def test_templates_that_are_left_out_stay_out(store):
    """Escalation draws on the templates that the configuration allows."""
    measurement = asked(until_width=0.001, max_samples=100, template_exclude=list(range(6)))
    seen = await measured(store, measurement)
    assert shapes(seen.records[-1])[:2] == [(8, 2, 8), (10, 2, 10)]
    assert {s.paraphrase_idx for s in seen.records[-1].samples} == set(range(6, 16))
    assert verify_run(seen.records[-1]).differences == ()


async def test_two_claims_of_one_text_keep_their_own_ids(store):
    """A file may list a statement twice, under two names: each gets its own series."""
    measurement = asked(until_width=0.001, max_samples=64)
    claims = (Claim("Same.", "one"), Claim("Same.", "two"))
    seen = await measured(store, replace(measurement, claims=claims))
    for name in ("one", "two"):
        (mine,) = [record for record in seen.records if record.claim_id == name]
        assert [K * R for K, R, _ in shapes(mine)] == [16, 32, 64]
    assert len(seen.samples) == 64


async def test_a_negation_is_escalated_on_the_templates_of_its_claim(store):
    """It has templates of its own to draw on, fewer than the bank has."""
    measurement = asked("Tea is good.", until_width=0.001, max_samples=64)
    seen = await measured(store, replace(measurement, negation=Claim("Tea isn't good.")))
    final = last(seen.records)
    assert shapes(final["Tea is good."]) == [(8, 2, 8), (16, 2, 16), (32, 2, 16)]
    assert shapes(final["Tea isn't good."]) == [(8, 2, 8), (16, 2, 8), (24, 2, 8)]
    for record in seen.records:
        assert verify_run(record).differences == ()


async def test_models_escalate_each_for_itself(store):
    """Two models, two series."""
    config = {"models": ["mock:a", "mock:b"], "model": None}
    seen = await measured(store, asked(*CLAIMS, until_width=0.06, max_samples=200, **config))
    for model in ("mock:a", "mock:b"):
        assert {record.claim for record in seen.records if record.model == model} == set(CLAIMS)
    finals = {(record.model, record.claim): record.sampling.N for record in seen.records}
    assert len(seen.samples) == sum(finals.values())


async def test_the_next_round_is_planned_as_it_is_needed(store):
    """Thousands of claims may need a larger plan; their prompts aren't all held at once."""
    measurement = asked(*CLAIMS, until_width=0.001, max_samples=32)
    running = runner(store, observer=Keeping())
    escalation = Escalation(measurement, running.observer)
    running.observer = escalation
    (model,) = measurement.models
    await running.run([(Watching(), escalation.plan_first(model))])
    plans_of_round = escalation.plan_next_round()[model]
    assert iter(plans_of_round) is plans_of_round
    assert [plan.claim for plan in plans_of_round] == CLAIMS


async def test_a_budget_that_ends_in_the_middle_is_continued_where_it_ended(store):
    """What was measured is kept; the same command with more money pays for the rest only."""
    measurement = asked(*CLAIMS[:3], until_width=0.001, max_samples=64, model="gpt-5")
    provider, seen = Metered(), Keeping()
    poor = runner(
        store, "gpt-5", budget_usd=0.00225 * 70, prices=PRICES, observer=seen, concurrency=4
    )
    with pytest.raises(BudgetReachedError):
        await escalated(measurement, poor, provider)
    assert 63 <= len(provider.asked) <= 70
    assert all(len(record.samples) in {16, 32} for record in seen.records)
    assert len(seen.records) == 3
    assert {record.precision.stopped for record in seen.records} == {"interrupted"}
    again, seen = Metered(), Keeping()
    rich = runner(store, "gpt-5", budget_usd=10.0, prices=PRICES, observer=seen)
    await escalated(measurement, rich, again)
    assert len(provider.asked) + len(again.asked) == 3 * 64
    assert {record.sampling.N for record in last(seen.records).values()} == {64}
    assert rich.spending.spent_usd == pytest.approx(0.00225 * len(again.asked))
