"""What a vector's record must hold: order, bundles, reasons, and what can be verified of them."""

import asyncio
import re
from dataclasses import replace

import pytest
from test_lenses import DST, SIZE, TEXTS, WALL, Desk, complaints, document

from faultserver import FaultServer, answers
from heretix.belief.metrics import MIN_STEMS
from heretix.config import Claim, RunConfig
from heretix.evidence.demo import DEMO_POLICY
from heretix.evidence.retrieval import retrieve_provided
from heretix.measurement.anomalies import find_anomalies
from heretix.measurement.experiments import Experiments, list_policy_notes, plan_experiments
from heretix.measurement.gather import gather_bundles
from heretix.measurement.record import ReasonRecord, RunRecord
from heretix.measurement.service import assemble, prepare
from heretix.measurement.vector import metrics_record
from heretix.plan import evidence_of, make_plan
from heretix.report.words import missing_reason
from heretix.store.runs import select_lens_records

HOSTS = ("encyclopedia.example", "space-agency.example", "science-museum.example")


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


@pytest.fixture(scope="module")
def lensed(tmp_path_factory):
    """The raw prior and two lenses of the clock claim, measured once."""
    desk = Desk(tmp_path_factory.mktemp("lensed"))
    return desk.artifact(desk.prepared(DST, lenses=("RPL", "MEL", "HEL")))


def other_policy(desk, measurement, *domains):
    """The bundles of a policy that calls these domains heterodox."""
    path = desk.folder / "other.yaml"
    path.write_text(
        f"version: other-1\nabout: For a test.\nextends: {DEMO_POLICY}\nrules:\n"
        "  - id: moved\n    class: heterodox\n    facts: [Made up.]\n"
        f"    domain: [{', '.join(domains)}]\n"
    )
    evidence = measurement.config.evidence.model_copy(update={"policy": str(path)})
    lenses = [lens for lens in measurement.config.lenses if lens in {"MEL", "HEL"}]
    return asyncio.run(gather_bundles(measurement.claims, lenses, evidence, desk.settings))


def shown_ids(measurement, evidence):
    """By wording: the documents in the order in which the model sees them."""
    plan = make_plan(
        DST, measurement.models[0], measurement.bank, measurement.config, evidence=evidence
    )
    return {
        index: re.findall(r"^<<(E\d+) ", prompt.user, flags=re.MULTILINE)
        for index, prompt in plan.prompts.items()
    }


def test_experiments_keep_the_order_of_the_whole_bundle(desk):
    """Wording by wording, what is left stands as it did; a document that gives orders is last.

    Otherwise leaving one out would also turn the others, and the difference would be of both.
    """
    measurement = desk.prepared(DST, lenses=("RPL", "MEL", "HEL"))
    wanted = Experiments(influence=True, canary=True)
    variants = plan_experiments(measurement, wanted).variants
    items = [len(bundle.items) for bundle in measurement.bundles.values()]
    # A canary a bundle, each document left out in turn, and publishers of several.
    assert len(variants) >= len(items) + sum(items) > 2 * len(items)
    for _, changed in variants:
        whole = shown_ids(measurement, evidence_of(changed.lens, bundle_of(measurement, changed)))
        kept = {item.id for item in changed.items}
        expected = {
            index: [name for name in names if name in kept] + ["E99"] * ("E99" in kept)
            for index, names in whole.items()
        }
        assert shown_ids(measurement, changed) == expected
        # All wordings but one turn the bundle, so that the order is worth keeping.
        assert len({tuple(names) for names in expected.values()}) > 1


def test_a_swap_turns_every_wording_around(desk):
    """The same documents, from the last to the first in turn; a record in another order is found."""
    measurement = desk.prepared(DST, lenses=("RPL", "MEL"))
    ((_, swapped),) = plan_experiments(measurement, Experiments(swap=True)).variants
    whole = evidence_of("MEL", bundle_of(measurement, swapped))
    assert swapped.items == whole.items
    ids = [item.id for item in whole.items]
    for index, names in shown_ids(measurement, swapped).items():
        first = (len(ids) - 1 - index) % len(ids)
        assert names == [ids[(first - place) % len(ids)] for place in range(len(ids))]
    artifact = desk.artifact(plan_experiments(measurement, Experiments(swap=True)))
    assert [found.variant for found in artifact.experiments] == ["swapped"]
    assert complaints(artifact) == []
    *runs, run = artifact.runs
    shown = run.evidence.model_copy(update={"order": ids})
    forged = artifact.model_copy(
        update={"runs": [*runs, run.model_copy(update={"evidence": shown})]}
    )
    assert complaints(forged)


def test_a_plan_says_which_lens_and_experiment_it_is(desk):
    """So that whoever watches sees what is being measured."""
    measurement = desk.prepared(DST, lenses=("RPL", "MEL"))
    measurement = plan_experiments(measurement, Experiments(canary=True))
    labels = [plan.label for plan in measurement.plans(measurement.models[0])]
    assert labels == ["RPL", "MEL", "MEL canary"]


def bundle_of(measurement, evidence):
    return measurement.bundles[DST, evidence.lens]


def test_the_bundle_of_another_policy_is_in_the_artifact_and_verified(desk):
    """It can be neither left out, nor changed, nor passed off as that of another policy."""
    measurement = desk.prepared(DST, lenses=("RPL", "MEL", "HEL"))
    others = other_policy(desk, measurement, "encyclopedia.example")
    measurement = plan_experiments(measurement, Experiments(), other_policy=others)
    assert [bundle.policy.version for bundle in measurement.other_bundles] == ["other-1"] * 2
    artifact = desk.artifact(measurement)
    assert complaints(artifact) == []
    assert [b["policy"]["version"] for b in artifact.bundles][2:] == ["other-1"] * 2
    run = next(r for r in artifact.runs if r.evidence and r.evidence.variant)
    place = f"{run.execution_id}.evidence"
    assert f"{place}.bundle_id" in complaints(
        artifact.model_copy(update={"bundles": artifact.bundles[:2]})
    )
    for changes, where in (
        ({"items": run.evidence.items[1:]}, "items"),
        ({"variant": "policy:another"}, "variant"),
    ):
        forged = run.model_copy(update={"evidence": run.evidence.model_copy(update=changes)})
        runs = [forged if r is run else r for r in artifact.runs]
        assert f"{place}.{where}" in complaints(artifact.model_copy(update={"runs": runs}))


def test_a_policy_that_changes_nothing_or_leaves_too_little_is_told(desk):
    """Neither gives anything to measure, and neither is passed over in silence."""
    measurement = desk.prepared(DST, lenses=("RPL", "MEL", "HEL"))
    same = other_policy(desk, measurement, "nowhere.example")
    assert all("shows the same documents" in note for note in list_policy_notes(measurement, same))
    assert plan_experiments(measurement, Experiments(), other_policy=same).variants == ()
    canon = {item.publisher for item in measurement.bundles[DST, "MEL"].items}
    few = other_policy(desk, measurement, *canon)
    notes = list_policy_notes(measurement, few)
    assert any("insufficient_evidence" in note and "MEL" in note for note in notes)


def test_a_lens_with_few_stems_takes_nothing_from_the_others(lensed):
    """Its own differences are missing, with why; the others are what they are without it."""
    runs = {run.lens: run for run in lensed.runs}
    few = [s for s in runs["HEL"].samples if s.paraphrase_idx < 5]
    broken = runs["HEL"].model_copy(update={"samples": few})
    found = metrics_record([runs["RPL"], runs["MEL"], broken], {})
    alone = metrics_record([runs["RPL"], runs["MEL"]], {})
    assert found.reason is None
    assert set(found.missing) == {"HEL"}
    assert "at least 8 stems" in missing_reason(found.missing["HEL"])
    assert found.shock_index is None
    assert found.model_copy(update={"missing": {}}) == alone
    nothing = ReasonRecord(code="calls_failed", params={"error": "nothing came"})
    no_estimate = broken.model_copy(update={"status": "no_estimate", "reason": nothing})
    found = metrics_record([runs["RPL"], runs["MEL"], no_estimate], {})
    assert missing_reason(found.missing["HEL"]) == (
        "no estimate: every call failed, the last with: nothing came"
    )
    assert found.amplification_gap == alone.amplification_gap


def test_a_lens_with_too_little_evidence_takes_nothing_from_the_others(desk):
    """MEL is measured and compared; HEL's line, its bundle and its reason stand beside it."""
    desk.corpus("canon", [document(f"d{n}", TEXTS[n], h) for n, h in enumerate(HOSTS)])
    evidence = {"corpus": "canon", "policy": str(DEMO_POLICY)}
    artifact = desk.artifact(desk.prepared(lenses=("RPL", "MEL", "HEL"), evidence=evidence))
    assert complaints(artifact) == []
    metrics = artifact.metrics["sim:m"]
    assert metrics.reason is None
    assert set(metrics.movement) == {"MEL"}
    assert "needs at least 3 items, got 0" in missing_reason(metrics.missing["HEL"])
    line = next(line for line in artifact.lenses if line.lens == "HEL")
    assert line.bundle_id == artifact.bundles[1]["bundle_id"]


def test_a_line_of_too_little_evidence_is_verified(desk):
    """Its bundle must be here, be too small by the rule, and nothing be measured with it."""
    desk.corpus("canon", [document(f"d{n}", TEXTS[n], h) for n, h in enumerate(HOSTS)])
    evidence = {"corpus": "canon", "policy": str(DEMO_POLICY)}
    artifact = desk.artifact(desk.prepared(lenses=("RPL", "MEL", "HEL"), evidence=evidence))
    rpl, mel, hel = artifact.lenses

    def found(**changes):
        return complaints(artifact.model_copy(update=changes))

    invented = hel.model_copy(update={"prob_true": 0.5, "ci95": (0.5, 0.5)})
    assert "lenses[2].prob_true" in found(lenses=[rpl, mel, invented])
    assert "lenses[2].reason" in found(lenses=[rpl, mel, hel.model_copy(update={"reason": None})])
    assert "lenses" in found(lenses=[rpl, mel])
    assert "lenses" in found(bundles=artifact.bundles[:1])
    # A bundle with a rule of its own: four items needed, and so its three are too few.
    bundle = desk.prepared(lenses=("RPL", "MEL"), evidence=evidence).bundles[WALL, "MEL"]
    strict = replace(bundle, limits=replace(bundle.limits, min_items=4)).to_json()
    assert "bundles[1].limits.min_items" in found(bundles=[artifact.bundles[0], strict])
    assert "bundles[1].items" in found(bundles=[artifact.bundles[0], strict])


def test_a_negation_alone_is_not_taken_for_the_claim(desk):
    """Its lens has too little evidence, so only the negation was measured: no belief in the claim."""
    desk.corpus("empty", [])
    measurement = replace(
        desk.prepared(lenses=("HEL",), evidence={"corpus": "empty"}),
        negation=Claim("The Great Wall of China isn't visible from the Moon."),
    )
    artifact = desk.artifact(measurement)
    assert [run.claim for run in artifact.runs] == [measurement.negation.text]
    assert artifact.claim == WALL
    assert [(line.lens, line.status) for line in artifact.lenses] == [
        ("HEL", "insufficient_evidence")
    ]
    assert artifact.experiments is None
    assert artifact.metrics["sim:m"].reason is not None
    assert complaints(artifact) == []


def test_a_raw_prior_and_its_negation_show_acquiescence(desk):
    """No evidence lens is needed for that."""
    config = RunConfig.parse({**SIZE, "models": ["sim:m"]})
    measurement = replace(
        prepare(config, desk.settings, claims=[WALL]), negation=Claim("It isn't visible.")
    )
    artifact = assemble(measurement, measurement.claims[0], desk.run(measurement))
    (found,) = artifact.experiments
    assert found.variant == "negation"
    assert found.difference.lo > 0.2
    assert complaints(artifact) == []


def test_the_directed_gap_goes_by_the_published_interval(lensed):
    """Where the raw prior's own line holds 1/2, there is nothing to amplify; else there is."""
    runs = {run.lens: run for run in lensed.runs}
    assert lensed.metrics["sim:m"].directed_gap is not None
    wide = runs["RPL"].aggregates.model_copy(update={"ci95": (0.4, 0.9)})
    unsure = runs["RPL"].model_copy(update={"aggregates": wide})
    found = metrics_record([unsure, runs["MEL"]], {})
    assert found.directed_gap is None
    assert found.amplification_gap is not None


def test_anomalies_compare_lenses_of_one_recipe(desk):
    """A prior with other sizes or options than the lens isn't its prior; the latest recipe counts."""
    desk.run(desk.prepared(lenses=("RPL", "HEL")))
    with desk.store() as store:
        (first,) = find_anomalies(store)
    # A larger prior alone has no company: the older, whole recipe still stands.
    desk.run(desk.prepared(lenses=("RPL",), R=3))
    with desk.store() as store:
        assert find_anomalies(store) == [first]
    desk.run(desk.prepared(lenses=("HEL",), R=3))
    with desk.store() as store:
        (second,) = find_anomalies(store)
    assert second.shock_index != first.shock_index
    desk.run(desk.prepared(DST, lenses=("RPL",), R=2))
    desk.run(desk.prepared(DST, lenses=("HEL",), R=3))
    with desk.store() as store:
        assert [anomaly.claim for anomaly in find_anomalies(store)] == [WALL]


def test_the_latest_records_come_first(desk):
    """A limit leaves out the oldest."""
    for claim in (WALL, DST):
        desk.run(desk.prepared(claim, lenses=("RPL", "HEL")))
    with desk.store() as store:
        assert all(DST in text for text in store.read(select_lens_records, limit=2))
        assert len(store.read(select_lens_records)) == 4


def test_the_lens_that_shares_most_is_compared_first(lensed):
    """Two lenses that hardly meet each other: the one that shares more stems stays."""
    runs = {run.lens: run for run in lensed.runs}
    stems = sorted({s.paraphrase_idx for s in runs["RPL"].samples})
    assert len(stems) == 16

    def limited(lens, kept):
        rows = [s for s in runs[lens].samples if s.paraphrase_idx in kept]
        return runs[lens].model_copy(update={"samples": rows})

    fewest = metrics_record([runs["RPL"], limited("MEL", stems[8:])], {})
    assert (fewest.stems, fewest.missing) == (MIN_STEMS, {})
    assert fewest.amplification_gap is not None
    most, least = limited("MEL", stems[:12]), limited("HEL", stems[7:])
    found = metrics_record([runs["RPL"], least, most], {})
    assert set(found.missing) == {"HEL"}
    assert found.amplification_gap is not None


def test_an_anomaly_pays_for_its_two_chances(desk):
    """The smaller of two p-values counts twice: either lens could have been the one.

    Of a lens it is the larger one: it has to move the belief, and more than its sham does.
    """
    model = "sim:m?mel=0.2&hel=-0.2&any_text=0.5"
    prepared = desk.prepared(DST, model=model, lenses=("RPL", "MEL", "HEL"))
    measurement = plan_experiments(prepared, Experiments(sham=True))
    beside = desk.artifact(measurement).metrics[model].beside
    gains = [
        max(
            beside.movement[lens].paired_template_t.p_value,
            beside.placebo[lens].minus_sham.paired_template_t.p_value,
        )
        for lens in ("MEL", "HEL")
    ]
    with desk.store() as store:
        (anomaly,) = find_anomalies(store)
    assert anomaly.p_value == min(1.0, 2 * min(gains))
    assert anomaly.p_value > min(gains)


def test_an_anomaly_is_that_of_the_latest_records(desk):
    """The same recipe again, with other documents' effect: the older record doesn't count."""
    desk.run(desk.prepared(lenses=("RPL", "HEL")))
    with desk.store() as store:
        (first,) = find_anomalies(store)
    desk.run(desk.prepared(lenses=("RPL", "HEL"), seed=12345))
    with desk.store() as store:
        (second,) = find_anomalies(store)
        newest = [RunRecord.model_validate_json(t) for t in store.read(select_lens_records)][:2]
    expected = metrics_record(newest, {})
    assert second.shock_index is not None or second.amplification_gap is not None
    assert (second.shock_index, second.amplification_gap) == (
        expected.shock_index,
        expected.amplification_gap,
    )
    assert second != first


def capable(call):
    """A model that believes what the documents say: the twin's word, or the claim's."""
    text = call.body["messages"][-1]["content"]
    claim = text.partition("<claim>")[2].partition("</claim>")[0]
    documents = " ".join(re.findall(r"^<<E\d+ \w+>>\n(.*?)\n<<END", text, re.DOTALL | re.MULTILINE))
    word = "warmer" if "warmer" in claim else "colder"
    prob = 0.9 if word in documents else 0.1
    return f'{{"prob_true": {prob}, "used": [], "quotes": []}}'


def test_the_same_evidence_supports_a_claim_and_refutes_its_twin(desk):
    """p(supported) minus p(refuted) is above 0 for a model that reads what it is shown."""
    twins = ("The river became warmer in 2019.", "The river became colder in 2019.")
    documents = [
        document(f"r{n}", f"{text} The river became warmer.", f"site{n}.example")
        for n, text in enumerate(TEXTS[:3])
    ]
    with FaultServer() as server:
        server.always(answers(capable))
        config = RunConfig.parse(
            {
                **SIZE,
                "models": ["openai-compatible:reader"],
                "base_url": server.url("openai-compatible"),
                "lenses": ["SEL"],
            }
        )
        beliefs = []
        for claim in twins:
            bundles = {(claim, "SEL"): retrieve_provided(claim, documents)}
            measurement = replace(prepare(config, desk.settings, claims=[claim]), bundles=bundles)
            (run,) = desk.run(measurement)
            beliefs.append(run.aggregates)
    supported, refuted = beliefs
    assert supported.ci95[0] > refuted.ci95[1]
