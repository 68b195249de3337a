"""All lenses through one runner: what they share, what differs, and what lies between them."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import pytest

from heretix.belief.metrics import joint_bootstrap, movement
from heretix.belief.student import paired_template_t
from heretix.config import Claim, RunConfig
from heretix.core.canonical import sha256_text
from heretix.core.errors import ConfigError
from heretix.core.lenses import LENSES
from heretix.core.settings import Settings
from heretix.evidence.bundle import Bundle, InsufficientEvidenceError, dump_bundle
from heretix.evidence.demo import DEMO_POLICY, demo_claims
from heretix.evidence.document import Document
from heretix.evidence.sources.corpus import Corpus, corpus_path
from heretix.evidence.text.injection import screen
from heretix.measurement.anomalies import find_anomalies
from heretix.measurement.execution import evidence_record
from heretix.measurement.experiments import (
    CANARY_TEXT,
    Experiments,
    leave_out,
    list_irrelevant_documents,
    plan_experiments,
)
from heretix.measurement.gather import gather_bundles
from heretix.measurement.record import (
    Artifact,
    ExperimentRecord,
    RunRecord,
    artifact_json,
    digest_of,
)
from heretix.measurement.runner import NullObserver
from heretix.measurement.service import Measurement, assemble, prepare
from heretix.measurement.vector import logits_by_stem, metrics_by_model, select_unchanged_runs
from heretix.measurement.verify import parse_artifacts, verify_artifact
from heretix.plan import evidence_of, make_plan
from heretix.prompts.bank import QUOTE_CHARS
from heretix.report.words import feed_text, missing_reason, placebo_text
from heretix.store import Store
from heretix.store.bundles import save_bundle
from heretix.store.runs import count_runs

WALL = next(claim for claim in demo_claims() if "Wall" in claim)
DST = next(claim for claim in demo_claims() if "Daylight" in claim)
SIZE = {"K": 16, "R": 2, "T": 16, "B": 300}


class Records(NullObserver):
    """Keeps the records."""

    def __init__(self):
        self.runs = []

    def on_finished(self, record):
        self.runs.append(record)


@dataclass
class Desk:
    """A folder with corpora and a store, and a way to measure there."""

    folder: Path

    @property
    def settings(self):
        return Settings(
            db=str(self.folder / "heretix.sqlite"),
            env={"HERETIX_CORPORA_DIR": str(self.folder / "corpora")},
        )

    def prepared(
        self, claim=WALL, *, model="sim:m", lenses=tuple(LENSES), **options
    ) -> Measurement:
        """A measurement with its bundles."""
        evidence = {"documents": self.own_documents(), **options.pop("evidence", {})}
        config = RunConfig.parse(
            {**SIZE, "models": [model], "lenses": list(lenses), "evidence": evidence, **options}
        )
        measurement = prepare(config, self.settings, claims=[claim])
        bundles = asyncio.run(
            gather_bundles(measurement.claims, config.lenses, config.evidence, self.settings)
        )
        return replace(measurement, bundles=bundles)

    def own_documents(self) -> list[str]:
        """Files for SEL."""
        paths = []
        for number, text in enumerate(("The wall is long.", "The Moon is far.", "Eyes are small.")):
            path = self.folder / f"own-{number}.txt"
            path.write_text(f"{text} It was measured in 19{number}0, and again later.\n")
            paths.append(str(path))
        return paths

    def corpus(self, name, documents):
        """A corpus that holds these documents."""
        path = corpus_path(self.folder / "corpora", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with Corpus.open(path) as corpus:
            corpus.add(documents)

    def run(self, measurement) -> list[RunRecord]:
        """Measure, with the bundles stored as the command line stores them."""
        records = Records()
        with self.store() as store:
            for bundle in measurement.bundles.values():
                if isinstance(bundle, Bundle):
                    text = dump_bundle(bundle)
                    store.write(save_bundle, bundle.bundle_id, bundle.claim, bundle.lens, text)
            asyncio.run(measurement.run(store, observer=records))
        return records.runs

    def artifact(self, measurement) -> Artifact:
        """Measure and assemble, written and read again."""
        made = assemble(measurement, measurement.claims[0], self.run(measurement))
        return parse_artifacts(artifact_json(made), source="x")[0]

    @contextlib.contextmanager
    def store(self):
        with Store.open(self.settings.db) as store:
            yield store


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All lenses of the wall claim, measured once."""
    desk = Desk(tmp_path_factory.mktemp("whole"))
    measurement = desk.prepared()
    return desk, measurement, desk.artifact(measurement)


def complaints(artifact):
    """Where verification finds something wrong."""
    return [d.path for found in verify_artifact(artifact) for d in found.differences]


def runs_by_lens(artifact):
    return {run.lens: run for run in artifact.runs}


def document(name, text, host, *, published=date(2020, 1, 1)):
    url = f"https://{host}/{name}"
    return Document(
        doc_id=sha256_text(url)[:16],
        url=url,
        title=f"On the wall: {name}",
        text=text,
        author=None,
        published=published,
        published_method="metadata",
        published_confidence=1.0,
        retrieved_at="2026-11-15T00:00:00Z",
        raw_sha256=sha256_text(text),
        text_sha256=sha256_text(text),
    )


TOPICS = ("optics of the eye", "width in metres", "reports by crews", "maps of the border")
TEXTS = [
    f"The Great Wall of China and the Moon, as to {topic}: "
    + " ".join(f"{topic} {n};" for n in "ab")
    for topic in TOPICS
]


def test_five_lenses_are_measured_and_the_artifact_verifies(whole):
    """One path through the runner for all; everything derived in the artifact is derived again."""
    _, measurement, artifact = whole
    assert [run.lens for run in artifact.runs] == list(LENSES)
    assert [line.lens for line in artifact.lenses] == list(LENSES)
    assert all(run.status == "ok" for run in artifact.runs)
    assert {bundle["lens"] for bundle in artifact.bundles} == {"MEL", "HEL", "SEL"}
    assert complaints(artifact) == []
    metrics = artifact.metrics["sim:m"]
    assert metrics.reason is None
    assert metrics.stems == 16
    assert set(metrics.movement) == {"NUL", "MEL", "HEL", "SEL"}
    assert set(metrics.evidence_effect) == {"MEL", "HEL", "SEL"}
    assert metrics.noise_floor > 0
    assert measurement.attempts == 5 * 32


def test_intervals_hold_what_was_planted(whole):
    """The simulated model moves up with MEL, down with HEL, and not with the frame alone."""
    metrics = whole[2].metrics["sim:m"]
    assert metrics.movement["NUL"].lo <= 0 <= metrics.movement["NUL"].hi
    assert metrics.amplification_gap.lo > 0
    assert metrics.directed_gap == metrics.amplification_gap
    assert metrics.movement["HEL"].hi < 0
    assert metrics.shock_index.value == -metrics.movement["HEL"].value
    assert metrics.information_gain["HEL"].hi < 0
    assert metrics.information_gain["HEL"].p_value < 0.001
    assert metrics.information_gain["NUL"].p_value > 0.01
    for lens, line in ((line.lens, line) for line in whole[2].lenses):
        if lens != "RPL":
            rpl = whole[2].lenses[0].prob_true
            assert metrics.movement[lens].value == pytest.approx(line.prob_true - rpl, abs=1e-12)


def test_samples_pair_by_stem(whole):
    """Every lens asked the same wordings, the same number of times, in the same slots."""
    runs = runs_by_lens(whole[2])
    plans = {
        lens: [(s.slot, s.paraphrase_idx, s.replicate_idx) for s in run.samples]
        for lens, run in runs.items()
    }
    assert all(plan == plans["RPL"] for plan in plans.values())
    stems = {
        lens: {s: len(x) for s, x in logits_by_stem(run).items()} for lens, run in runs.items()
    }
    assert all(found == stems["RPL"] for found in stems.values())
    assert set(stems["RPL"].values()) == {2}


def test_the_raw_prior_is_what_it_is_without_other_lenses(whole, desk):
    """RPL keeps run_id, cache keys, seed and belief when lenses are measured beside it."""
    plain = desk.run(
        prepare(RunConfig.parse({**SIZE, "models": ["sim:m"]}), desk.settings, claims=[WALL])
    )
    beside = runs_by_lens(whole[2])["RPL"]
    assert plain[0].run_id == beside.run_id
    assert plain[0].run_id.startswith("heretix-rpl-")
    assert [s.cache_key for s in plain[0].samples] == [s.cache_key for s in beside.samples]
    assert plain[0].aggregation == beside.aggregation
    assert replace_rates(plain[0]) == replace_rates(beside)


def replace_rates(run):
    return run.aggregates.model_copy(update={"cache_hit_rate": 0.0})


def test_cache_keys_and_run_ids_hold_the_bundle(whole):
    """No two lenses share a key, and the same lens with another bundle has others."""
    _, measurement, artifact = whole
    keys = [sample.cache_key for run in artifact.runs for sample in run.samples]
    assert len(set(keys)) == len(keys)
    assert len({run.run_id for run in artifact.runs}) == 5
    evidence = evidence_of("MEL", measurement.bundles[WALL, "MEL"])
    model, bank = measurement.models[0], measurement.bank

    def plan(shown):
        return make_plan(WALL, model, bank, measurement.config, evidence=shown)

    # A bundle's id also changes with the time of retrieval, which changes no answer.
    as_is = plan(evidence)
    assert plan(replace(evidence, bundle_id="0" * 64)).run_id == as_is.run_id
    for other in (replace(evidence, items=evidence.items[1:]), replace(evidence, variant="x")):
        changed = plan(other)
        assert changed.run_id != as_is.run_id
        assert not {s.cache_key for s in changed.samples} & {s.cache_key for s in as_is.samples}


def test_a_rerun_is_served_from_the_cache(desk):
    """The same request asks nothing again and says the same."""
    lenses = ("RPL", "NUL", "MEL", "HEL", "SEL")
    first, again = (desk.artifact(desk.prepared(lenses=lenses)) for _ in range(2))
    assert all(run.usage.called == 0 for run in again.runs)
    assert again.metrics == first.metrics
    # A bundle says when its documents were read; for the user's own that is now.
    searched = [[b for b in a.bundles if b["lens"] != "SEL"] for a in (first, again)]
    assert searched[0] == searched[1]


def test_forgeries_are_found(whole):
    """A changed metric, vector, bundle item or shown text contradicts the rest."""
    artifact = whole[2]
    metrics = artifact.metrics["sim:m"]
    shock = metrics.shock_index.model_copy(update={"lo": metrics.shock_index.lo + 0.01})
    forged = {"sim:m": metrics.model_copy(update={"shock_index": shock})}
    assert "metrics.sim:m.shock_index.lo" in complaints(
        artifact.model_copy(update={"metrics": forged})
    )
    assert complaints(artifact.model_copy(update={"metrics": {}}))
    line = artifact.lenses[2].model_copy(update={"prob_true": 0.5})
    lines = [*artifact.lenses[:2], line, *artifact.lenses[3:]]
    assert "lenses[2].prob_true" in complaints(artifact.model_copy(update={"lenses": lines}))
    for key, value in (("publisher", "another.example"), ("text", "Other words."), ("title", "T")):
        bundles = json.loads(json.dumps(artifact.bundles))
        bundles[0]["items"][0][key] = value
        found = complaints(artifact.model_copy(update={"bundles": bundles}))
        assert "bundles[0]" in found


def test_what_lies_between_cannot_be_taken_away_unseen(whole):
    """Several lenses without their bundles, or experiments or a claim of nobody's: found."""
    artifact = whole[2]
    bare = {"lenses": None, "metrics": None, "bundles": None, "experiments": None}
    assert complaints(artifact.model_copy(update=bare))
    alone = artifact.model_copy(update={**bare, "runs": artifact.runs[:1], "claim": None})
    assert complaints(alone) == []
    assert complaints(alone.model_copy(update={"claim": "Another claim."})) == ["claim"]
    invented = ExperimentRecord(
        variant="canary",
        model="sim:m",
        lens="RPL",
        execution_id="exec-0",
        prob_whole=0.5,
        prob_changed=0.5,
        difference=None,
        reason=None,
    )
    assert complaints(alone.model_copy(update={"experiments": [invented]}))


def test_a_swapped_item_text_is_found(whole):
    """Two items that trade their texts change every prompt of the run."""
    artifact = whole[2]
    place = [run.lens for run in artifact.runs].index("HEL")
    run = artifact.runs[place]
    one, other, *rest = run.evidence.items
    items = [
        replace(one, text=other.text),
        replace(other, text=one.text),
        *rest,
    ]
    forged = run.model_copy(update={"evidence": run.evidence.model_copy(update={"items": items})})
    runs = [*artifact.runs[:place], forged, *artifact.runs[place + 1 :]]
    found = complaints(artifact.model_copy(update={"runs": runs}))
    assert f"{run.execution_id}.evidence.items" in found
    assert any("prompt_sha256" in path for path in found)


def test_an_empty_corpus_gives_no_belief(desk):
    """`insufficient_evidence`, with a message and an exit code; nothing is measured or stored."""
    desk.corpus("empty", [])
    measurement = desk.prepared(lenses=("RPL", "MEL", "HEL"), evidence={"corpus": "empty"})
    for lens in ("MEL", "HEL"):
        lacking = measurement.bundles[WALL, lens]
        assert isinstance(lacking, InsufficientEvidenceError)
        assert "insufficient_evidence" in str(lacking)
        assert lacking.exit_code == 1
    artifact = desk.artifact(measurement)
    assert [run.lens for run in artifact.runs] == ["RPL"]
    assert [bundle["items"] for bundle in artifact.bundles] == [[], []]
    for line in artifact.lenses[1:]:
        assert (line.status, line.prob_true, line.ci95) == ("insufficient_evidence", None, None)
        assert "nothing was found" in missing_reason(line.reason)
    assert artifact.metrics["sim:m"].reason is not None
    assert artifact.metrics["sim:m"].movement == {}
    assert complaints(artifact) == []
    with desk.store() as store:
        assert store.read(count_runs) == 1


def test_a_corpus_that_isnt_there_is_named(desk):
    """A typing mistake isn't an empty corpus."""
    with pytest.raises(ConfigError, match="nowhere"):
        desk.prepared(lenses=("MEL",), evidence={"corpus": "nowhere"})


def test_two_items_are_too_few_and_three_enough(desk):
    """No number stands on fewer than three items."""
    policy = {"policy": str(DEMO_POLICY)}
    hosts = ("encyclopedia.example", "space-agency.example", "science-museum.example")
    documents = [document(f"d{n}", TEXTS[n], host) for n, host in enumerate(hosts)]
    desk.corpus("two", documents[:2])
    desk.corpus("three", documents)
    two = desk.prepared(lenses=("RPL", "MEL"), evidence={"corpus": "two", **policy})
    assert "needs at least 3 items, got 2" in str(two.bundles[WALL, "MEL"])
    assert [lens for _, lens in two.pairs()] == ["RPL"]
    three = desk.prepared(lenses=("RPL", "MEL"), evidence={"corpus": "three", **policy})
    assert len(three.bundles[WALL, "MEL"].items) == 3


def test_five_copies_of_an_item_are_one_source(desk):
    """Near-duplicates collapse before anything is counted."""
    hosts = ("encyclopedia.example", "space-agency.example", "science-museum.example")
    documents = [document(f"d{n}", TEXTS[n], host) for n, host in enumerate(hosts)]
    copies = [
        document(f"copy{n}", f"{TEXTS[0]} Copied {n}.", hosts[1], published=date(2021, 1, 1))
        for n in range(5)
    ]
    desk.corpus("once", documents)
    desk.corpus("often", [*documents, *copies])
    counts = {}
    for corpus in ("once", "often"):
        evidence = {"corpus": corpus, "policy": str(DEMO_POLICY)}
        artifact = desk.artifact(desk.prepared(lenses=("RPL", "MEL"), evidence=evidence))
        counts[corpus] = artifact.metrics["sim:m"].source_concentration["MEL"]
        assert complaints(artifact) == []
    assert counts["once"] == counts["often"]
    assert counts["often"].effective_sources == 3.0


def test_the_same_bundle_in_two_lenses_moves_nothing(desk):
    """With one bundle and one response, the interval of MEL minus HEL holds 0 at its rate."""
    measurement = desk.prepared(lenses=("RPL", "MEL", "HEL"), model="sim:m?mel=0.5&hel=0.5")
    bundle = measurement.bundles[WALL, "MEL"]
    prompts = {
        lens: make_plan(
            WALL,
            measurement.models[0],
            measurement.bank,
            measurement.config,
            evidence=evidence_of(lens, bundle),
        ).prompts
        for lens in ("MEL", "HEL")
    }
    assert prompts["MEL"] == prompts["HEL"]
    claims = tuple(Claim(f"{WALL} ({number})") for number in range(8))
    same = {(claim.text, lens): bundle for claim in claims for lens in ("MEL", "HEL")}
    runs = desk.run(replace(measurement, claims=claims, bundles=same))
    held = 0
    for claim in claims:
        logits = {run.lens: logits_by_stem(run) for run in runs if run.claim == claim.text}
        found = movement(joint_bootstrap(logits, seed=1, B=500), "MEL", "HEL")
        held += found.lo <= 0 <= found.hi
    assert held >= 7


class Liar:
    """Answers whose quotes turn a number around."""

    @staticmethod
    def say(text, name="E01"):
        return json.dumps(
            {"prob_true": 0.5, "used": [name], "quotes": [{"id": name, "text": text}]}
        )


@pytest.fixture
def shown(whole):
    """What MEL showed, with a sentence of our own in its first item."""
    evidence = evidence_of("MEL", whole[1].bundles[WALL, "MEL"])
    first, *rest = evidence.items
    return replace(evidence, items=(replace(first, text="Title\nSales rose by 12% in May."), *rest))


def test_quotes_that_turn_a_number_around_make_a_lens_untrusted(shown):
    """ "21%" isn't "12%", however alike they look."""
    true, false = Liar.say("rose by 12% in May"), Liar.say("rose by 21% in May")
    assert evidence_record(shown, [true] * 10).trusted is True
    assert evidence_record(shown, [true] * 9 + [false]).trusted is True
    found = evidence_record(shown, [true] * 8 + [false] * 2)
    assert (found.quotes_given, found.quotes_verified) == (10, 8)
    assert found.verified_quote_rate == 0.8
    assert found.trusted is False


def test_quotes_count_only_in_the_item_they_name(shown):
    """A true quote under a wrong or unknown id isn't verified, nor is an empty one."""
    for answer in (
        Liar.say("rose by 12% in May", "E02"),
        Liar.say("rose by 12% in May", "E77"),
        Liar.say("  "),
        Liar.say("rose by 2% in May"),
    ):
        assert evidence_record(shown, [answer]).quotes_verified == 0
    assert evidence_record(shown, [Liar.say("Sales  rose by\n12% in May")]).quotes_verified == 1


def test_answers_without_quotes_are_neither_trusted_nor_not(shown):
    """Nothing to check is no verdict."""
    found = evidence_record(shown, ['{"prob_true": 0.5}', '{"quotes": [], "used": "E01"}'])
    assert (found.quotes_given, found.verified_quote_rate, found.trusted) == (0, None, None)
    assert set(found.used.values()) == {0}
    assert evidence_record(None, []) is None


def test_quotes_that_a_limit_cut_short_are_cut_and_not_made_up(shown):
    """At 200 characters a quote may end inside a word; what stands before it must be true."""
    first, *rest = shown.items
    text = "Sales of large umbrellas rose by 12% in May. " * 12
    long = replace(shown, items=(replace(first, text=text), *rest))
    cut, wrong = text[:QUOTE_CHARS], text.replace("12%", "21%")[:QUOTE_CHARS]
    assert text[QUOTE_CHARS - 1 : QUOTE_CHARS + 1].isalpha()
    found = evidence_record(long, [Liar.say(cut)] * 3 + [Liar.say("rose by 12% in May")])
    assert (found.quotes_given, found.quotes_cut, found.quotes_verified) == (4, 3, 1)
    assert (found.verified_quote_rate, found.trusted) == (1.0, True)
    alone = evidence_record(long, [Liar.say(cut)])
    assert (alone.verified_quote_rate, alone.trusted) == (None, True)
    for answer in (
        wrong,
        cut[:-1],
        cut[:-1] + "x",
        f"{cut[:150]} and what nobody wrote there " * 2,
    ):
        made_up = evidence_record(long, [Liar.say(answer)])
        assert (made_up.quotes_cut, made_up.trusted) == (0, False), answer
    elsewhere = evidence_record(long, [Liar.say(cut, "E02")])
    assert (elsewhere.quotes_cut, elsewhere.trusted) == (0, False)


def test_malformed_quotes_are_unverified(shown):
    """What isn't an id and a text was given all the same, and stands in no document."""
    for quotes, count in (("3", 1), ('[1, {"id": 2}, {"id": "E01"}]', 3), ('"all of E01"', 1)):
        found = evidence_record(shown, [f'{{"quotes": {quotes}}}'])
        assert (found.quotes_given, found.quotes_verified, found.trusted) == (count, 0, False)


def test_a_word_or_two_are_no_quote(shown):
    """They stand in a document by chance, unless there is no more of it to quote."""
    for short in ("Sales", "12%", "in May.", "by 12%"):
        assert evidence_record(shown, [Liar.say(short)]).quotes_verified == 0
    assert evidence_record(shown, [Liar.say("by 12% in")]).quotes_verified == 1
    first, *rest = shown.items
    brief = replace(shown, items=(replace(first, text="Title\n12%"), *rest))
    assert evidence_record(brief, [Liar.say("12%")]).quotes_verified == 1
    unspaced = replace(
        shown, items=(replace(first, text="夏时制可以减少用电量这一说法有争议"), *rest)
    )
    assert evidence_record(unspaced, [Liar.say("夏时制可以减少用电量这一")]).quotes_verified == 1
    assert evidence_record(unspaced, [Liar.say("夏时制")]).quotes_verified == 0


def test_a_document_is_counted_once_an_answer(shown):
    """Naming an item twice, or one that wasn't shown, adds nothing."""
    found = evidence_record(shown, ['{"used": ["E01", "E01", "E99", 4]}', '{"used": ["E01"]}'])
    assert found.used["E01"] == 2
    assert "E99" not in found.used


@pytest.fixture(scope="module")
def experiments(tmp_path_factory):
    """Everything that can be done to bundles, measured once."""
    desk = Desk(tmp_path_factory.mktemp("experiments"))
    measurement = desk.prepared(DST, lenses=("RPL", "MEL", "HEL"))
    policy = desk.folder / "other.yaml"
    policy.write_text(
        "version: other-1\nabout: One site fewer.\nextends: " + str(DEMO_POLICY) + "\nrules:\n"
        "  - id: not-canonical\n    class: heterodox\n    facts: [Made up.]\n"
        "    domain: [encyclopedia.example]\n"
    )
    config = measurement.config
    other = asyncio.run(
        gather_bundles(
            measurement.claims,
            config.lenses,
            config.evidence.model_copy(update={"policy": str(policy)}),
            desk.settings,
        )
    )
    wanted = Experiments(influence=True, canary=True, sham=True)
    measurement = replace(
        plan_experiments(measurement, wanted, other_policy=other),
        negation=Claim("Daylight saving time doesn't reduce electricity consumption."),
    )
    return desk, measurement, desk.artifact(measurement)


def test_every_variant_has_a_difference_with_an_interval_and_verifies(experiments):
    """Canary, sham, one out at a time, publishers out, another policy, the negation."""
    _, measurement, artifact = experiments
    found = {(e.lens, e.variant): e for e in artifact.experiments}
    names = {variant for _, variant in found}
    assert {"canary", "sham", "negation", "policy:other-1", "without:E01"} <= names
    assert len(found) == len(measurement.variants) + 1
    for record in found.values():
        assert record.reason is None
        assert record.difference.lo <= record.difference.value <= record.difference.hi
    items = len(measurement.bundles[DST, "MEL"].items)
    assert {f"without:E{n:02d}" for n in range(1, items + 1)} <= {
        variant for lens, variant in found if lens == "MEL"
    }
    assert complaints(artifact) == []
    # Experiments are no lenses: the vector is that of the bundles as they are.
    assert [line.lens for line in artifact.lenses] == ["RPL", "MEL", "HEL"]


def test_a_forged_experiment_is_found(experiments):
    """A difference that doesn't follow from the samples contradicts them."""
    artifact = experiments[2]
    first = artifact.experiments[0]
    forged = first.model_copy(
        update={"difference": first.difference.model_copy(update={"value": 0.0})}
    )
    changed = artifact.model_copy(update={"experiments": [forged, *artifact.experiments[1:]]})
    assert "experiments[0].difference.value" in complaints(changed)


def test_metrics_have_the_paired_t_of_their_lenses_beside_them(experiments):
    """Movement, index, gap and bits are one statistic: one p-value, and 0 in or out together."""
    artifact = experiments[2]
    by_lens = {run.lens: logits_by_stem(run) for run in select_unchanged_runs(artifact.runs, DST)}
    metrics = artifact.metrics[artifact.runs[0].model]
    expected = paired_template_t(by_lens["RPL"], by_lens["HEL"]).diff_prob
    moved = metrics.beside.movement["HEL"].paired_template_t
    assert (moved.lo, moved.value, moved.hi, moved.p_value) == pytest.approx(
        (expected.lo, expected.value, expected.hi, expected.p_value), abs=1e-12
    )
    shock = metrics.beside.shock_index.paired_template_t
    bits = metrics.beside.information_gain["HEL"].paired_template_t
    assert shock.value == abs(moved.value)
    assert shock.p_value == bits.p_value == moved.p_value
    for found in (moved, bits):
        assert found.lo <= found.value <= found.hi
        assert (found.lo <= 0 <= found.hi) == (found.p_value >= 0.05)
    assert metrics.beside.amplification_gap == metrics.beside.movement["MEL"]
    for record in artifact.experiments:
        for found in (record.beside.paired_template_t, record.beside.paired_template_t_trimmed):
            assert (found.lo <= 0 <= found.hi) == (found.p_value >= 0.05)


def test_what_stands_beside_a_vector_is_verified_and_not_taken_away(experiments):
    """A forged p-value and a block that is gone are found; older artifacts had none at all."""
    artifact = experiments[2]
    model, metrics = next(iter(artifact.metrics.items()))
    bare = metrics.model_copy(update={"beside": None})
    stripped = artifact.model_copy(update={"metrics": {model: bare}})
    assert any(path.startswith("metrics") for path in complaints(stripped))
    none = {"beside": None}
    runs = [run.model_copy(update=none) for run in artifact.runs]
    older = artifact.model_copy(
        update={
            "runs": [run.model_copy(update={"sha256": digest_of(run)}) for run in runs],
            "metrics": {model: bare},
            "lenses": [line.model_copy(update=none) for line in artifact.lenses],
            "experiments": [record.model_copy(update=none) for record in artifact.experiments],
        }
    )
    assert complaints(older) == []
    first = artifact.experiments[0]
    t = first.beside.paired_template_t.model_copy(update={"p_value": 0.5})
    forged = first.model_copy(
        update={"beside": first.beside.model_copy(update={"paired_template_t": t})}
    )
    changed = artifact.model_copy(update={"experiments": [forged, *artifact.experiments[1:]]})
    assert "experiments[0].beside.paired_template_t.p_value" in complaints(changed)


def test_a_negation_is_read_as_its_complement(experiments):
    """The simulated model says 0.7 to anything: it acquiesces by about 0.4."""
    found = next(e for e in experiments[2].experiments if e.variant == "negation")
    assert found.difference.value == pytest.approx(found.prob_whole + found.prob_changed - 1)
    assert found.difference.lo > 0.2


def test_variants_show_what_they_say(experiments):
    """One document more, one fewer, none of a publisher, or as many of the same length."""
    _, measurement, _ = experiments
    for lens in ("MEL", "HEL"):
        bundle = measurement.bundles[DST, lens]
        whole = evidence_of(lens, bundle)
        made = {e.variant: e for _, e in measurement.variants if e.lens == lens}
        assert made["canary"].items[:-1] == whole.items
        assert made["canary"].items[-1].text == CANARY_TEXT
        assert [i.id for i in made["without:E02"].items] == [
            i.id for i in whole.items if i.id != "E02"
        ]
        for item, sham in zip(whole.items, made["sham"].items, strict=True):
            assert item.id == sham.id
            assert len(item.text) - 40 < len(sham.text) <= len(item.text)
            assert not screen(sham.text)
        first, second, *others = bundle.items
        of_one = replace(bundle, items=(first, replace(second, publisher=first.publisher), *others))
        left = {i.id for i in leave_out(of_one, first.publisher).items}
        assert left == {i.id for i in others if i.publisher != first.publisher} != set()


def test_sham_documents_give_no_orders_and_are_off_the_subject():
    """The demonstration's injection stays out, and the claim's own documents come last."""
    for claim in demo_claims():
        documents = list_irrelevant_documents(claim)
        assert not any(screen(d.text) or screen(d.title) for d in documents)
        assert len(documents) > 30
    first = {d.url for d in list_irrelevant_documents(DST)[:8]}
    assert not any("dst" in url or "daylight" in url for url in first)


def test_too_few_stems_give_a_reason_and_no_number(desk):
    """Four wordings give beliefs, and say why there is nothing between them."""
    artifact = desk.artifact(desk.prepared(lenses=("RPL", "MEL"), K=4, T=4))
    metrics = artifact.metrics["sim:m"]
    assert "at least 8 stems" in missing_reason(metrics.reason)
    assert metrics.movement == {}
    assert metrics.shock_index is None
    assert metrics.source_concentration["MEL"].effective_sources > 1
    assert complaints(artifact) == []


def test_anomalies_are_gated_controlled_and_ranked(desk):
    """Strong movements are listed by what they are at least; gates and chance keep others out."""
    lenses = ("RPL", "MEL", "HEL")
    models = {
        "strong": "sim:strong?hel=-2&mel=0.8&any_text=0",
        "weaker": "sim:weaker?hel=-1&mel=0.8&any_text=0",
        "still": "sim:still?hel=0&mel=0&response_sd=0",
        "unstable": "sim:unstable?hel=-2&template_sd=2.5&prior=0.5&any_text=0",
    }
    gullible, untried = "sim:gullible?hel=-2&mel=0.8", "sim:untried?hel=-2&mel=0.8&any_text=0"

    def with_sham(**options):
        return plan_experiments(desk.prepared(lenses=lenses, **options), Experiments(sham=True))

    for model in models.values():
        desk.run(with_sham(model=model))
    desk.run(desk.prepared(model="sim:few?hel=-2", lenses=lenses, K=4, T=4))
    desk.run(with_sham(model=gullible))
    desk.run(desk.prepared(model=untried, lenses=lenses))
    with desk.store() as store:
        found = {anomaly.model: anomaly for anomaly in find_anomalies(store)}
        order = list(found)
    listed = [model for model in order if found[model].listed]
    assert listed == [models["strong"], models["weaker"]]
    assert order[:2] == listed
    assert found[models["strong"]].rank > found[models["weaker"]].rank
    assert found[models["strong"]].rank[0] == found[models["strong"]].shock_index.lo
    assert found[models["still"]].gates_failed == ("placebo",)
    assert found[models["still"]].p_value > 0.1
    assert found[models["unstable"]].gates_failed == ("stable",)
    assert "differences" in found["sim:few?hel=-2"].gates_failed
    assert set(found[models["strong"]].placebo.values()) == {"evidence_driven"}
    assert feed_text(found[models["strong"]]) == "evidence-driven (mainstream, heterodox)"
    # Any text moves the one, nobody tried it on the other: far as they move, neither is listed.
    assert found[gullible].gates_failed == found[untried].gates_failed == ("placebo",)
    assert found[gullible].placebo["HEL"] == "any_text"
    assert feed_text(found[untried]) == "not checked against a placebo"
    assert found[gullible].rank == found[untried].rank == (0.0, 0.0)


def test_a_placebo_counts_for_its_own_bundle_only(desk):
    """The sham of other documents, or too few of its answers, check nothing."""
    lenses = ("RPL", "HEL")
    prepared = desk.prepared(model="sim:m?any_text=0", lenses=lenses)
    artifact = desk.artifact(plan_experiments(prepared, Experiments(sham=True)))
    runs, (model, metrics) = artifact.runs, next(iter(artifact.metrics.items()))
    placebo = metrics.beside.placebo["HEL"]
    assert placebo.verdict == "evidence_driven"
    assert artifact.experiments[0].beside == placebo.minus_sham
    assert complaints(artifact) == []
    sham = next(run for run in runs if run.evidence and run.evidence.variant == "sham")
    plain = [run for run in runs if run is not sham]
    other = sham.evidence.model_copy(update={"bundle_id": "0" * 64})
    few = [sample for sample in sham.samples if sample.paraphrase_idx < 7]
    for update in ({"evidence": other}, {"samples": few}):
        changed = [*plain, sham.model_copy(update=update)]
        found = metrics_by_model(changed, runs[0].claim, {})[model]
        assert found.beside.placebo["HEL"].verdict == "unchecked"
        assert found.beside.placebo["HEL"].minus_sham is None
    forged = placebo.model_copy(update={"verdict": "any_text"})
    beside = metrics.beside.model_copy(update={"placebo": {"HEL": forged}})
    lied = artifact.model_copy(
        update={"metrics": {model: metrics.model_copy(update={"beside": beside})}}
    )
    assert complaints(lied) == [f"metrics.{model}.beside.placebo.HEL.verdict"]


def test_a_lens_that_moves_nothing_is_not_said_to_be_moved(desk):
    """Neither lens nor sham differs from anything: there is no movement to explain."""
    prepared = desk.prepared(model="sim:m?hel=0&response_sd=0", lenses=("RPL", "HEL"))
    artifact = desk.artifact(plan_experiments(prepared, Experiments(sham=True)))
    (metrics,) = artifact.metrics.values()
    assert metrics.beside.placebo["HEL"].verdict == "unmoved"


def test_what_irrelevant_text_moves_further_was_not_moved_by_evidence(desk):
    """Lens minus sham leaves 0 out, but on the other side: the feed doesn't list the claim."""
    model = "sim:m?prior=0.5&hel=0.8&any_text=2.5"
    prepared = desk.prepared(model=model, lenses=("RPL", "HEL"))
    artifact = desk.artifact(plan_experiments(prepared, Experiments(sham=True)))
    beside = artifact.metrics[model].beside
    assert beside.placebo["HEL"].verdict == "evidence_driven"
    assert beside.placebo["HEL"].minus_sham.paired_template_t.hi < 0
    assert beside.find_cause("HEL") == "any_text"
    assert placebo_text(beside, "HEL").startswith("moved by any text")
    with desk.store() as store:
        (found,) = find_anomalies(store)
    assert "placebo" in found.gates_failed
    assert found.rank == (0.0, 0.0)
    assert "moved by any text" in feed_text(found)


def test_a_model_that_quotes_nothing_is_not_listed(desk):
    """Nothing to verify isn't verified: the gate asks for quotes that stand in their documents."""
    runs = desk.run(desk.prepared(model="mock:m", lenses=("RPL", "HEL")))
    assert runs[1].evidence.trusted is None
    with desk.store() as store:
        (found,) = find_anomalies(store)
    assert "quotes" in found.gates_failed
    assert not found.listed


def test_runs_without_company_are_no_anomalies(desk):
    """A raw prior alone, or a lens alone, says nothing about movement."""
    desk.run(desk.prepared(lenses=("RPL",)))
    desk.run(desk.prepared(DST, lenses=("HEL",)))
    with desk.store() as store:
        assert find_anomalies(store) == []
