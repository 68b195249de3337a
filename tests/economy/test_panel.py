"""The panel: fresh samples through the lens engine, and what the rules are told of them."""

from __future__ import annotations

import asyncio
import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
from panel_bench import CLAIM, PAPER, REPLY, Bench, bundle_of
from playing import sha

from heretix.belief.logodds import logit
from heretix.config import RunConfig
from heretix.core.errors import ConfigError, NoEstimateError, ProviderError, RecordError
from heretix.core.settings import Settings
from heretix.economy.episode.challenges import find_gate_failure
from heretix.economy.episode.settlement import VoidReason, find_void_reason, target_belief
from heretix.economy.episode.state import Direction, Fate, Parameters
from heretix.economy.judging import inputs
from heretix.economy.sentences import sentence
from heretix.measurement.experiments import CANARY_TEXT
from heretix.measurement.record import RunRecord
from heretix.measurement.service import prepare
from heretix.measurement.verify import verify_run
from heretix.providers.catalog import cost_micros, load_prices, parse_model
from heretix.store import Store
from heretix.store.runs import find_record
from heretix.store.samples import select_answers

JUDGES = tuple(f"sim:judge{n}?hel={shift}" for n, shift in enumerate((0.7, 0.8, 0.9, 1.0, 0.85)))


@pytest.fixture
def bench(tmp_path, sqlite_template):
    path = tmp_path / "heretix.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    with Store.open(str(path)) as store:
        yield Bench(store)


def record_of(bench, execution):
    return RunRecord.model_validate_json(bench.store.read(find_record, execution).record_json)


def passes(inputs, direction=Direction.UP):
    return find_gate_failure(inputs.evidence.gate, direction, Parameters().gate) is None


def void(*measurements):
    return find_void_reason(measurements, parameters=Parameters())


def test_the_belief_at_open_is_what_was_planted(bench):
    """c₀ is measured in the frame of the lens without documents, on the terms' models."""
    episode = bench.episode(models=("sim:a?prior=0.3", "sim:b?prior=0.4", "sim:c?prior=0.5"))
    c0_ppm, executions = bench.open(episode)
    assert abs(logit(c0_ppm / 1e6) - logit(0.4)) < 0.25
    records = [record_of(bench, execution) for execution in executions]
    assert [record.lens for record in records] == ["NUL"] * 3
    assert {record.model for record in records} == set(episode.terms.models)


def test_a_belief_beyond_the_bounds_is_held_within_them(bench):
    """Money never depends on the last digits of a certainty."""
    assert bench.open(bench.episode(models=("sim:sure?prior=0.9999",)))[0] == 990_000


def test_upward_evidence_passes_the_gate(bench):
    """A planted move of one in log-odds is seen, with its direction and its size."""
    episode = bench.challenged(bench.episode(), bundle_of(PAPER))
    inputs = bench.measure_gate(episode)
    assert passes(inputs)
    assert not passes(inputs, Direction.DOWN)
    assert inputs.evidence.gate.slots == 16
    assert inputs.evidence.gate.ci_width_ppm < 200_000
    assert abs(logit(inputs.evidence.belief_ppm / 1e6) - (logit(0.7) + 1.0)) < 0.3
    sides = [record_of(bench, execution) for execution in inputs.executions]
    assert [record.lens for record in sides] == ["HEL", "NUL", "HEL"]
    # Irrelevant text of that length, which is no evidence.
    evidence, placebo = (sides[n].evidence.items[0].text for n in (0, 2))
    assert len(placebo) <= len(evidence)
    assert "whiskers" not in placebo
    assert sides[0].sampler.tpl_indices == sides[1].sampler.tpl_indices


def test_downward_evidence_passes_the_gate_only_downwards(bench):
    """The direction is what was declared, not what came out."""
    episode = bench.challenged(
        bench.episode(models=("sim:down?hel=-1&any_text=0",)), bundle_of(PAPER)
    )
    inputs = bench.measure_gate(episode)
    assert passes(inputs, Direction.DOWN)
    assert not passes(inputs, Direction.UP)


def test_any_text_at_all_is_no_evidence(bench):
    """What irrelevant text of that length does as well doesn't pass, however far the lens moves."""
    models = ("sim:easily-impressed?hel=1",)
    inputs = bench.measure_gate(bench.challenged(bench.episode(models=models), bundle_of(PAPER)))
    assert inputs.evidence.gate.p_up_ppm > 990_000
    failure = find_gate_failure(inputs.evidence.gate, Direction.UP, Parameters().gate)
    assert failure.code == "placebo"


def test_paid_passages_stand_on_the_side_before(bench):
    """What an earlier episode of the claim paid for shows nothing new in this one."""
    paid = bundle_of(PAPER)
    bench.keep(paid)
    episode = bench.episode(paid=(paid.bundle_id,))
    again = bundle_of(PAPER, title="Another title")
    assert bench.measure_gate(bench.challenged(episode, again)).reason.code == "nothing_new"
    fresh = bench.measure_gate(bench.challenged(episode, bundle_of(REPLY)))
    before = record_of(bench, fresh.executions[1]).evidence.items
    assert ["tin whiskers" in item.text for item in before] == [True]


@pytest.mark.study
def test_evidence_without_effect_fails_the_gate_at_its_nominal_rate(bench):
    """Of 24 gates that measure nothing, chance lets 1 in 40 pass upwards."""
    bundle = bundle_of(PAPER)
    passed = 0
    for n in range(24):
        episode = bench.episode(models=(f"sim:idle{n}?hel=0",), name=f"ep-{n}", B=1000)
        passed += passes(bench.measure_gate(bench.challenged(episode, bundle)))
    assert passed <= 2


def test_a_model_that_never_moves_says_nothing_of_a_direction(bench):
    """The same answers on both sides: only the drawn repeats differ, about half of them upwards."""
    episode = bench.challenged(bench.episode(models=("mock:gpt-5",)), bundle_of(PAPER))
    assert 400_000 < bench.measure_gate(episode).evidence.gate.p_up_ppm < 600_000


def test_the_same_episode_and_stage_give_the_same_numbers(bench, tmp_path, sqlite_template):
    """Seeds follow from the episode and the stage, so a second store comes to the same reading."""
    first = bench.measure_gate(bench.challenged(bench.episode(), bundle_of(PAPER)))
    again = tmp_path / "again.sqlite"
    again.write_bytes(sqlite_template.read_bytes())
    with Store.open(str(again)) as store:
        other = Bench(store)
        second = other.measure_gate(other.challenged(other.episode(), bundle_of(PAPER)))
    assert first.evidence == second.evidence
    assert first.executions != second.executions


def test_every_number_can_be_shown_and_verified(bench):
    """Executions of an episode are records like any other."""
    episode = bench.accepted(bench.episode(judges=JUDGES[:3]), bundle_of(PAPER))
    executions = bench.judge(episode).executions
    # Three judges, without and with the evidence.
    assert len(set(executions)) == 6
    for execution in executions:
        record = record_of(bench, execution)
        assert record.evidence.variant.startswith("episode:ep-1:first:")
        assert verify_run(record).ok


def test_no_sample_is_taken_from_the_cache(bench):
    """The same stage again calls for everything again, and ordinary runs keep their samples."""
    settings = Settings()
    episode = bench.accepted(bench.episode(judges=JUDGES[:3]), bundle_of(PAPER))
    ordinary = prepare(
        RunConfig.parse({"models": (JUDGES[0],), "K": 16, "T": 16, "lenses": ("NUL",)}),
        settings,
        claims=[CLAIM],
    )
    asyncio.run(ordinary.run(bench.store))
    keys = [s.cache_key for plan in ordinary.plans(ordinary.models[0]) for s in plan.samples]
    kept = bench.store.read(select_answers, keys)
    for judged in (bench.judge(episode), bench.judge(episode)):
        assert [reading.from_cache for reading in judged.measurement.readings] == [0, 0, 0]
        assert void(judged.measurement) is None
    assert bench.store.read(select_answers, keys) == kept


def test_a_sample_served_from_the_cache_voids(bench):
    """Two panels at once on one stage share what one of them paid for; that one is not fresh."""
    episode = bench.accepted(bench.episode(judges=JUDGES[:3]), bundle_of(PAPER))

    async def both():
        return await asyncio.gather(
            bench.panel.judge(episode, "first"), bench.panel.judge(episode, "first")
        )

    found = [judged.measurement for judged in asyncio.run(both())]
    assert VoidReason.CACHED_SAMPLE in {void(measurement) for measurement in found}


def test_judges_recover_the_durable_belief(bench):
    """q lies where the judges' planted median shift leads from c₀, wherever they start from."""
    planted = [0.7, 0.8, 0.9, 1.0, 0.85]
    judges = tuple(
        f"sim:j{n}?prior={0.2 + 0.15 * n}&hel={shift}" for n, shift in enumerate(planted)
    )
    episode = bench.accepted(bench.episode(judges=judges), bundle_of(PAPER))
    first, second = (bench.judge(episode, stage).measurement for stage in ("first", "second"))
    for measurement in (first, second):
        assert measurement.p_up_ppm > 990_000
        q = target_belief(400_000, measurement.shifts)
        assert abs(logit(q / 1e6) - (logit(0.4) + 0.85)) < 0.25
        assert float(measurement.shift_lo) < 0.85 < float(measurement.shift_hi)
    assert first != second, "each stage has samples of its own"
    assert void(first, second) is None


@pytest.mark.parametrize("value", [-8.0, 0.0, 8.0])
def test_one_colluding_judge_moves_q_no_further_than_the_others_spread(bench, value):
    """Whatever one of five says, the median stays among the other four."""
    honest = JUDGES[:4]
    liar = f"sim:liar?prior=0.5&hel={value}"
    episode = bench.accepted(bench.episode(judges=(*honest, liar)), bundle_of(PAPER))
    measurement = bench.judge(episode).measurement
    shifts = sorted(s.after - s.before for s in measurement.shifts if s.model in honest)
    q = logit(target_belief(400_000, measurement.shifts) / 1e6) - logit(0.4)
    assert float(shifts[0]) - 1e-4 <= q <= float(shifts[-1]) + 1e-4
    assert measurement.p_up_ppm > 975_000


def test_a_changed_model_voids(bench):
    """A judge that answers under another name at the second measurement is another model."""
    episode = bench.accepted(bench.episode(judges=JUDGES[:3]), bundle_of(PAPER))
    first = bench.judge(episode).measurement
    second = bench.judge(episode, "second").measurement
    assert void(first, second) is None
    changed = replace(second.readings[0], provider_model_ids=("judge0-2027",))
    second = replace(second, readings=(changed, *second.readings[1:]))
    assert void(first, second) is VoidReason.MODEL_CHANGED


def test_answers_that_break_the_contract_void(bench):
    """Below the terms' compliance there is no reading, for the gate as for the judges."""
    spoilt = tuple(f"mock:m{n}?fenced=0.4" for n in range(3))
    episode = bench.accepted(bench.episode(judges=spoilt), bundle_of(PAPER))
    assert void(bench.judge(episode).measurement) is VoidReason.LOW_COMPLIANCE
    gate = bench.measure_gate(bench.challenged(bench.episode(models=spoilt[:1]), bundle_of(PAPER)))
    assert gate.evidence is None
    assert gate.reason.code == "low_compliance"
    assert "compliance" in sentence(gate.reason)


def test_failed_calls_decide_nothing_unless_final(bench):
    """An outage is nobody's fault: measure again. As final it counts, and the quorum is missed."""
    judges = (JUDGES[0], JUDGES[1], "mock:down?rejected=1")
    episode = bench.accepted(bench.episode(judges=judges), bundle_of(PAPER))
    with pytest.raises((NoEstimateError, ProviderError)):
        bench.judge(episode)
    measurement = bench.judge(episode, final=True).measurement
    assert len(measurement.readings) == 3
    assert len(measurement.shifts) == 2
    assert void(measurement) is VoidReason.LOW_COMPLIANCE


def test_accepted_evidence_is_shown_before_what_comes_next(bench):
    """The gate of a later challenge compares with what was accepted, not with nothing."""
    first, second = bundle_of(PAPER), bundle_of(REPLY)
    episode = bench.accepted(bench.episode(), first)
    later = replace(bench.challenged(episode, first, second), steps=episode.steps)
    inputs = bench.measure_gate(later, 1)
    after, before, placebo = (record_of(bench, execution) for execution in inputs.executions)
    assert placebo.evidence.items[:1] == before.evidence.items
    assert [item.id for item in before.evidence.items] == ["E01"]
    assert [item.id for item in after.evidence.items] == ["E01", "E02"]
    assert before.lens == after.lens == "HEL"
    assert "four out of ninety" in after.evidence.items[1].text


def test_redundant_evidence_flood_has_nothing_to_show(bench):
    """The same passage in another bundle isn't shown twice, so it isn't even measured."""
    first, again = bundle_of(PAPER), bundle_of(PAPER, PAPER.upper(), title="Another title")
    episode = bench.accepted(bench.episode(), first)
    later = replace(bench.challenged(episode, first, again), steps=episode.steps)
    inputs = bench.measure_gate(later, 1)
    assert (inputs.evidence, inputs.executions) == (None, ())
    assert sentence(inputs.reason) == "it shows nothing new"
    assert {sentence(item.reason) for item in inputs.left_out} == {"it was shown before"}


def test_prompt_injection_in_evidence_is_flagged_and_never_shown(bench):
    """A document that gives orders doesn't reach a model, and alone it can't pass the gate."""
    canary = bundle_of(CANARY_TEXT)
    inputs = bench.measure_gate(bench.challenged(bench.episode(), canary))
    assert inputs.evidence is None
    assert "looks like an instruction" in sentence(inputs.left_out[0].reason)
    mixed = bundle_of(PAPER, CANARY_TEXT)
    inputs = bench.measure_gate(bench.challenged(bench.episode(name="ep-2"), mixed))
    shown = record_of(bench, inputs.executions[0]).evidence.items
    assert ["tin whiskers" in item.text for item in shown] == [True]
    assert CANARY_TEXT not in record_of(bench, inputs.executions[0]).model_dump_json()


def test_flags_that_were_left_off_a_bundle_help_nobody(bench):
    """The text itself is screened: what a bundle says of its documents is its maker's word."""
    flagged = bundle_of(PAPER, CANARY_TEXT)
    items = tuple(replace(item, flags=()) for item in flagged.items)
    inputs = bench.measure_gate(bench.challenged(bench.episode(), replace(flagged, items=items)))
    assert len(inputs.left_out) == 1


def test_unrevealed_copied_and_misplaced_evidence_is_not_measured(bench):
    """Whatever can't count makes no calls, and says why."""
    bundle = bundle_of(PAPER)
    episode = bench.challenged(bench.episode(), bundle, bundle)
    assert (
        sentence(bench.measure_gate(episode, 1).reason)
        == "an earlier challenge brought the same evidence"
    )
    hidden = replace(episode.challenges[0], bundle_sha256=None, fate=Fate.COMMITTED)
    assert (
        sentence(bench.measure_gate(replace(episode, challenges=(hidden,))).reason)
        == "it was never revealed"
    )
    other = bundle_of(PAPER, claim="Copper whiskers do.")
    assert "another claim" in sentence(
        bench.measure_gate(bench.challenged(bench.episode(), other)).reason
    )
    flood = bundle_of(*(f"{PAPER} Number {n}." for n in range(8)))
    nine = replace(flood, items=(*flood.items, replace(flood.items[0], id="E09")))
    assert "at most 8" in sentence(
        bench.measure_gate(bench.challenged(bench.episode(), nine)).reason
    )


def test_evidence_that_was_never_handed_in_holds_nobody_up(bench):
    """A revealed hash without its bundle can be waited for, or be failed for good."""
    episode = bench.challenged(bench.episode(), bundle_of(PAPER))
    missing = replace(episode.challenges[0], bundle_sha256=sha("nowhere"))
    episode = replace(episode, challenges=(missing,))
    with pytest.raises(RecordError, match="names no stored bundle"):
        bench.measure_gate(episode)
    assert (
        sentence(bench.measure_gate(episode, final=True).reason)
        == "its evidence was never handed in"
    )


def test_a_lens_with_documents_shows_them_on_both_sides(bench):
    """The terms' own bundle is there before and after; only the evidence differs."""
    base = bundle_of(REPLY)
    bench.keep(base)
    lens = f"MEL@{base.bundle_id}"
    episode = bench.challenged(bench.episode(lens=lens), bundle_of(PAPER))
    _, executions = bench.open(episode)
    assert record_of(bench, executions[0]).lens == "MEL"
    after, before, _ = (record_of(bench, e) for e in bench.measure_gate(episode).executions)
    assert (len(before.evidence.items), len(after.evidence.items)) == (1, 2)


def test_what_cannot_be_measured_is_refused_at_once(bench):
    """The raw prior, an unknown bundle, another bank, twins and too many templates."""
    with pytest.raises(ConfigError, match="`lens`"):
        bench.open(bench.episode(lens="RPL"))
    with pytest.raises(RecordError, match="names no stored bundle"):
        bench.open(bench.episode(lens=f"MEL@{sha('nothing')}"))
    with pytest.raises(ConfigError, match="`bank`"):
        bench.open(bench.episode(bank_sha256=sha("other")))
    with pytest.raises(ConfigError, match="same model"):
        bench.open(bench.episode(models=("gpt-5", "openai:gpt-5")))
    with pytest.raises(ConfigError, match="`T`"):
        bench.open(bench.episode(T=17, K=17))


def test_fewer_templates_are_the_same_for_every_model(bench):
    """With T below the bank's size, judges still answer the same wordings."""
    episode = bench.accepted(bench.episode(judges=JUDGES[:3], T=8), bundle_of(PAPER))
    judged = bench.judge(episode)
    chosen = {
        tuple(sorted(record_of(bench, execution).sampler.tpl_indices))
        for execution in judged.executions
    }
    assert len(chosen) == 1
    assert judged.measurement.p_up_ppm is not None


def test_too_few_shared_wordings_give_no_interval(bench):
    """Seven wordings give each judge no paired belief: missing numbers, never made-up ones."""
    episode = bench.accepted(bench.episode(judges=JUDGES[:3], T=7), bundle_of(PAPER))
    measurement = bench.judge(episode).measurement
    assert (measurement.p_up_ppm, measurement.shift_lo, measurement.shift_hi) == (None,) * 3
    assert measurement.shifts == ()
    assert void(measurement) is VoidReason.MISSING_QUORUM


def test_the_compute_cost_is_counted_where_prices_are_known(bench):
    """A dollar of calls is a unit of play money; an unknown price is None, not nothing."""
    terms = bench.episode(models=("gpt-5",)).terms
    cost = bench.panel.compute_cost(terms)
    # Both sides and the placebo are asked K × R times, with the frame, the claim and eight full documents.
    calls, chars = 3 * terms.K * terms.R, 2_000 + len(terms.claim) + 8 * (600 + 300)
    price = load_prices(Settings()).find(parse_model("gpt-5"))
    usd = cost_micros(price, calls * chars // 4, calls * 64) / 1e6
    assert cost == math.ceil(100 * usd)
    assert bench.panel.compute_cost(replace(terms, models=("gpt-5", "gpt-5-mini"))) > cost
    assert bench.panel.compute_cost(replace(terms, models=("openai:unheard-of",))) is None


@pytest.mark.parametrize(
    ("differences", "share"),
    [
        ([1.0, 1.0, -1.0], 666_666),
        ([1.0, -1.0, -1.0], 333_334),
        ([1.0, 0.0, -1.0], 500_000),
        ([1.0, 1.0, 1.0], 1_000_000),
        ([-1.0, -1.0, -1.0], 0),
    ],
)
def test_a_share_of_replicas_is_rounded_towards_one_half(differences, share):
    """A threshold is never reached by rounding, from either side."""
    assert inputs._share_up(np.array(differences)) == share


def test_every_stage_of_every_episode_has_its_own_seed():
    """The first eight bytes of the hash of both names."""
    seeds = {inputs.seed_of(e, s) for e in ("ep-1", "ep-2") for s in ("open", "close")}
    assert len(seeds) == 4
    digest = hashlib.sha256(b"ep-1|open").digest()
    assert inputs.seed_of("ep-1", "open") == int.from_bytes(digest[:8], "big")
