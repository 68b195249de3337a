"""Studies: claims with what is known of them, results, and the record that verifies."""

import asyncio
import json
import math
import random
import statistics
from collections import Counter
from dataclasses import replace

import pytest

from heretix.config import RunConfig
from heretix.core.errors import ClaimError, ConfigError
from heretix.core.settings import Settings
from heretix.measurement.service import Results, measure
from heretix.providers.mock import normal
from heretix.providers.sim import SimProvider
from heretix.report.studies import study_sections
from heretix.store import Store
from heretix.studies import study as s


def run_of(claim, logits, *, model="m:a", lens="RPL"):
    """What a study uses of a run, with the belief that its logits give."""
    run = s.StudyRun(
        claim=claim,
        model=model,
        provider="mock",
        lens=lens,
        demonstration=False,
        execution_id=f"exec-{claim}-{model}-{lens}",
        run_id="heretix-rpl-0",
        run_sha256="0",
        prob_true=0.5,
        ci95=(0.25, 0.75),
        logits=logits,
        calls=1,
        cost_usd=0.0,
    )
    return run.model_copy(update={"prob_true": s._center(logits)})


def scattered(center, *key, T=8, sd=0.3):
    """Template logits about a center, always the same ones."""
    return {f"{t:03d}": [center + sd * normal(*key, t)] for t in range(T)}


def record_of(kind, items, runs):
    """A record as `finish_study` makes it."""
    draft = s.StudyRecord(
        schema=s.SCHEMA,
        name="x",
        made_at="2026-01-01T00:00:00Z",
        heretix_version="0",
        plans=(
            s.StudyPlan(readout="sampled", prompt_version="v", sampling={"K": 8, "R": 1, "T": 8}),
        ),
        items=tuple(items),
        runs=tuple(runs),
        results=s.conclude(kind, items, runs),
        sha256="",
    )
    return draft.model_copy(update={"sha256": s.digest_study(draft)})


def labelled(n, slope, *, seed=5):
    """Claims whose truth follows a belief with a slope, and runs that say the belief."""
    rng = random.Random(seed)
    items, runs = [], []
    for number in range(n):
        center = rng.gauss(0, 2)
        true = rng.random() < 1 / (1 + math.exp(-slope * center))
        items.append(s.Item(claim=f"c{number}", label=true))
        runs.append(run_of(f"c{number}", scattered(center, "slope", number, sd=0.1)))
    return items, runs


@pytest.mark.parametrize("slope", [0.6, 1.0, 1.5])
def test_a_planted_slope_is_recovered(slope):
    """Outcomes drawn with a slope give that slope back within .1, on average over six studies.

    One study of 1,000 claims is itself .04 to .08 off.
    """
    found = [
        s.conclude("calibration", *labelled(1000, slope, seed=seed)).subjects[0].calibration
        for seed in range(6)
    ]
    assert sum(one.slope.value for one in found) / 6 == pytest.approx(slope, abs=0.1)
    assert sum(one.slope.lo <= slope <= one.slope.hi for one in found) >= 5


def test_subjects_are_compared_by_claim():
    """Two models and two lenses are four subjects and six pairs; each names its lens."""
    items, runs = labelled(30, 1.0)
    more = [
        run.model_copy(update={"model": model, "lens": lens})
        for run in runs
        for model in ("m:a", "m:b")
        for lens in ("RPL", "NUL")
    ]
    found = s.conclude("calibration", items, more)
    assert len(found.subjects) == 4
    assert len(found.comparisons) == 6
    assert found.comparisons[0].a == "m:a RPL"
    assert found.comparisons[0].comparison.brier.value == 0


def test_read_outs_of_one_model_stand_apart():
    """Neither overwrites the other, and they are compared by claim."""
    items, runs = labelled(30, 1.0)
    other = [
        run.model_copy(update={"readout": "truth_token", "prob_true": 1 - run.prob_true})
        for run in runs
    ]
    found = s.conclude("calibration", items, [*runs, *other])
    assert [one.readout for one in found.subjects] == ["sampled", "truth_token"]
    said, denied = (one.calibration.auroc.value for one in found.subjects)
    assert said == pytest.approx(1 - denied)
    (between,) = found.comparisons
    assert (between.a, between.b) == ("m:a sampled", "m:a truth_token")
    assert between.comparison.auroc.value == pytest.approx(denied - said)


def test_coherence_holds_read_outs_against_sampled_answers():
    """As said and freed, each model against itself only."""
    items, runs = pairs_of(12, 1.0, 0.4)
    runs = [
        run.model_copy(update={"model": model, "readout": readout})
        for run in runs
        for model, readout in (("m:a", "sampled"), ("m:a", "truth_token"), ("m:b", "truth_token"))
    ]
    found = s.conclude("coherence", items, runs)
    assert len(found.subjects) == 3
    assert [(one.a, one.b) for one in found.comparisons] == [
        ("m:a sampled as said", "m:a truth_token as said"),
        ("m:a sampled freed", "m:a truth_token freed"),
    ]
    assert found.comparisons[1].comparison.auroc.value == 0


def test_log_probabilities_vary_between_wordings_alone():
    """The variance of one answer a wording is all between wordings, as its definition says."""
    items, runs = labelled(5, 1.0)
    runs = [run.model_copy(update={"readout": "truth_token"}) for run in runs]
    found = s.conclude("variance", items, runs).subjects[0].components
    spreads = [statistics.variance(v for (v,) in run.logits.values()) for run in runs]
    assert found.template == pytest.approx(statistics.mean(spreads))
    assert found.replicate == 0


def test_claims_without_an_estimate_are_left_out_and_counted():
    """No number is filled in for them."""
    items, runs = labelled(30, 1.0)
    runs[3] = runs[3].model_copy(update={"prob_true": None, "logits": {}})
    found = s.conclude("calibration", items, runs).subjects[0]
    assert (found.left_out, found.calibration.n_claims) == (1, 29)


def pairs_of(n, belief, acquiescence, *, seed=0):
    """Claims and negations of a model that leans to yes."""
    items, runs = [], []
    for number in range(n):
        claim, denied = f"c{number}", f"not c{number}"
        items.append(
            s.Item(claim=claim, label=number % 2 == 0, relation="negation", others=(denied,))
        )
        own = belief if number % 2 == 0 else -belief
        runs.append(run_of(claim, scattered(own + acquiescence, seed, claim)))
        runs.append(run_of(denied, scattered(acquiescence - own, seed, denied)))
    return items, runs


def test_planted_acquiescence_is_covered():
    """An acquiescence of .4 lies in at least 93 of 100 models' intervals."""
    held = 0
    for seed in range(100):
        found = s.conclude("coherence", *pairs_of(12, 1.0, 0.4, seed=seed)).subjects[0]
        held += found.summary.acquiescence.lo <= 0.4 <= found.summary.acquiescence.hi
    assert held >= 93


def test_beliefs_freed_of_acquiescence_are_scored_beside_those_said():
    """A model that says yes to everything separates better once that is taken off."""
    items, runs = pairs_of(30, 0.4, 0.0)
    # Half of the claims get a yes of their own, whatever they say.
    runs = [
        run.model_copy(
            update={
                "logits": {
                    k: [v[0] + 2 * normal("yes", run.claim[-2:])] for k, v in run.logits.items()
                }
            }
        )
        for run in runs
    ]
    found = s.conclude("coherence", items, runs).subjects[0]
    assert found.freed.auroc.value > found.as_said.auroc.value
    assert found.gain.auroc.value == pytest.approx(
        found.freed.auroc.value - found.as_said.auroc.value
    )


@pytest.mark.parametrize(
    ("row", "centers", "verdicts"),
    [
        ({"entails": "b"}, {"a": 2, "b": -2}, ["broken"]),
        ({"entails": "b"}, {"a": -2, "b": 2}, ["holds"]),
        ({"paraphrase": "b"}, {"a": 3, "b": -3}, ["broken"]),
        ({"other": "b", "both": "c"}, {"a": -3, "b": 0, "c": 3}, ["broken", "broken", "holds"]),
        ({"other": "b", "either": "c"}, {"a": 3, "b": 0, "c": -3}, ["broken", "broken", "holds"]),
    ],
)
def test_rules_of_probability_are_checked(row, centers, verdicts):
    """Each relation of a file leads to its rules."""
    item = s.make_item({"claim": "a", **row})
    runs = [run_of(name, scattered(center, name, sd=0.1)) for name, center in centers.items()]
    found = s.conclude("coherence", [item], runs).subjects[0]
    assert [rule.rule.verdict for rule in found.rules] == verdicts


def test_a_card_has_four_standards():
    """Use of evidence is missing, with the reason, where no documents were shown."""
    items, runs = pairs_of(20, 2.0, 0.1)
    runs = [
        run.model_copy(update={"logits": {k: [v[0], v[0] + 0.1] for k, v in run.logits.items()}})
        for run in runs
    ]
    found = {one.name: one for one in s.conclude("card", items, runs).subjects[0].standards}
    assert list(found) == ["accuracy", "coherence", "uniformity", "evidence"]
    assert found["accuracy"].value == 1
    assert found["uniformity"].value == pytest.approx(0.09, abs=0.03)
    assert found["evidence"].value is None
    assert "MEL" in found["evidence"].reason


def test_evidence_that_moves_towards_the_truth_counts_up():
    """A lens that adds .5 in the right direction against the empty frame scores .5."""
    items, runs = pairs_of(12, 1.0, 0.0)
    more = list(runs)
    for item in items:
        base = next(run for run in runs if run.claim == item.claim)
        more.append(base.model_copy(update={"lens": "NUL"}))
        shift = 0.5 if item.label else -0.5
        moved = {key: [values[0] + shift] for key, values in base.logits.items()}
        more.append(base.model_copy(update={"lens": "MEL", "logits": moved}))
    found = s.conclude("card", items, more).subjects[0].standards[3]
    assert (found.value, found.n_claims) == (pytest.approx(0.5), 12)


@pytest.mark.parametrize(
    ("by_documents", "by_any_text", "placebo"),
    [
        (0.5, 0.0, "evidence_driven"),
        (0.5, 0.5, "any_text"),
        (0.5, 0.9, "any_text"),
        (0.0, 0.0, "unmoved"),
        (0.5, None, "unchecked"),
    ],
)
def test_use_of_evidence_is_told_with_its_placebo(by_documents, by_any_text, placebo):
    """Beliefs that irrelevant text moves as far, or further, weren't moved by evidence."""
    items, runs = pairs_of(12, 1.0, 0.0)
    more = list(runs)
    for number, item in enumerate(items):
        base = next(run for run in runs if run.claim == item.claim)
        more.append(base.model_copy(update={"lens": "NUL"}))
        for variant, size in ((None, by_documents), ("sham", by_any_text)):
            if size is None:
                continue
            scatter = (number % 2 - 0.5 if variant else number % 3 - 1) / 50
            shift = (size + scatter) * (1 if item.label else -1)
            moved = {key: [values[0] + shift] for key, values in base.logits.items()}
            update = {"lens": "MEL", "logits": moved, "variant": variant}
            more.append(base.model_copy(update=update))
    card = s.conclude("card", items, more).subjects[0]
    assert card.placebo == placebo
    assert card.standards[3].value == pytest.approx(by_documents, abs=0.03)
    if by_any_text is not None:
        beyond = by_documents - by_any_text
        assert card.standards[4].value == pytest.approx(beyond, abs=0.03)


def test_a_card_tells_violations_from_scatter(tmp_path):
    """A model that obeys probability lies near what scatter gives; one that says yes far above."""
    for acquiescence, broken in ((0.0, False), (1.0, True)):
        items, runs = pairs_of(40, 1.0, acquiescence)
        record = record_of("card", items, runs)
        coherent = record.results.subjects[0].standards[1]
        assert coherent.name == "coherence"
        assert (coherent.lo > coherent.scatter_alone) == broken
        assert coherent.lo > 0
        ((_, _, rows),) = study_sections(record)
        assert f"scatter of wordings alone gives {coherent.scatter_alone:.3f}" in rows[1][-1]
        assert not any("scatter" in row[-1] for row in (rows[0], *rows[2:]))
        (tmp_path / "card.json").write_text(record.to_json())
        assert s.verify_study(s.read_study(tmp_path / "card.json")).ok


def test_a_card_shows_documents_of_one_lens():
    """Use of evidence is one number: of two lenses neither is taken unasked."""
    items, _ = pairs_of(2, 1.0, 0.0)
    config = RunConfig(models=("sim:a",), lenses=("RPL", "NUL", "MEL", "HEL"))
    request = s.Request(kind="card", items=tuple(items), config=config)
    with pytest.raises(ConfigError, match=r"`lenses` of a card must hold one .* got MEL, HEL"):
        s.prepare_study(request, Settings.from_env({}))


def test_a_run_without_a_variant_is_written_as_before():
    """Records from before there were shams keep their hash; a sham says what it is."""
    run = run_of("a", scattered(1.0, "a"))
    assert "variant" not in run.model_dump(mode="json")
    assert run.model_copy(update={"variant": "sham"}).model_dump()["variant"] == "sham"


@pytest.mark.parametrize("kind", ["calibration", "coherence", "variance", "card"])
def test_a_record_verifies_and_a_change_shows(kind, tmp_path):
    """Written and read again it verifies; any number changed doesn't."""
    items, runs = pairs_of(12, 1.0, 0.4)
    runs = [
        run.model_copy(update={"logits": {k: [v[0], v[0] + 0.1] for k, v in run.logits.items()}})
        for run in runs
    ]
    runs = [run.model_copy(update={"prob_true": s._center(run.logits)}) for run in runs]
    path = tmp_path / "study.json"
    path.write_text(record_of(kind, items, runs).to_json())
    record = s.read_study(path)
    assert s.is_study(path)
    assert s.verify_study(record).ok
    other = {key: [value, value + 0.1] for key, (value,) in scattered(3.0, "changed").items()}
    for changes, path in (
        ({"logits": other}, "runs[0].prob_true"),
        ({"logits": other, "prob_true": s._center(other)}, "results.subjects[0]"),
    ):
        first = runs[0].model_copy(update=changes)
        forged = record.model_copy(update={"runs": (first, *runs[1:])})
        forged = forged.model_copy(update={"sha256": s.digest_study(forged)})
        found = s.verify_study(forged).differences
        assert any(one.path.startswith(path) for one in found)
    unsigned = record.model_copy(update={"name": "another"})
    assert [one.path for one in s.verify_study(unsigned).differences] == ["sha256"]


def test_claims_are_read_from_any_file_of_claims(tmp_path):
    """Labels are 1, 0, true and false in any case; the same row twice counts once."""
    jsonl, table = tmp_path / "c.jsonl", tmp_path / "c.csv"
    rows = [
        {"claim": "A.", "label": 1},
        {"claim": "B.", "label": False},
        {"claim": "A.", "label": 1},
    ]
    jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table.write_text("claim,label\nA.,TRUE\nB.,0\n")
    expected = (s.Item(claim="A.", label=True), s.Item(claim="B.", label=False))
    lists, tabbed = tmp_path / "c.json", tmp_path / "c.tsv"
    lists.write_text(json.dumps(rows))
    tabbed.write_text(table.read_text().replace(",", "\t"))
    for path in (jsonl, table, lists, tabbed):
        assert s.read_items(path, "calibration") == expected


def test_the_packaged_claims_are_balanced():
    """Half are true, and each has a negation."""
    items = s.read_items("plain", "card")
    assert len(items) == 40
    assert sum(item.label for item in items) == 20
    assert all(item.relation == "negation" for item in items)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ('{"claim": "A."}\n', "calibration", "`label` is missing for 'A.'"),
        ('{"claim": "A.", "label": 2}\n', "calibration", "line 1: `label` must be 1, 0"),
        ('{"claim": "A.", "label": 1}\n', "coherence", "`negation` is missing"),
        ('{"claim": "A.", "both": "B."}\n', "coherence", "`both` needs `other`"),
        ('{"claim": "A.", "negation": "B.", "entails": "C."}\n', "coherence", "one relation"),
        ('{"claim": "A.", "negation": "A."}\n', "coherence", "'A.' twice"),
        ('{"claim": "A.", "label": 1}\n{"claim": "A.", "label": 0}\n', "calibration", "twice"),
        ('{"claim": ""}\n', "variance", "line 1: `claim` is empty"),
        ("[1]\n", "variance", "line 1: needs an object"),
        ("{\n", "variance", "line 1: not JSON"),
        ("", "variance", "`claims` is empty"),
        ('{"claim": NaN}\n', "variance", "line 1: `claim` must be text, got NaN"),
        ('{"claim": ["A."]}\n', "variance", "line 1: `claim` must be text, got ['A.']"),
        ('{"claim": "A.", "negation": 0}\n', "coherence", "`negation` must be text, got 0"),
        ('{"claim": "A.", "label": NaN}\n', "calibration", "line 1: `label` must be 1, 0"),
        ("[" * 100_000, "variance", "line 1: not JSON"),
        ("claim,label\nA.,nan\n", "calibration", "line 2: `label` must be 1, 0"),
        (
            "label,claim\n1,Oslo, a city.\n",
            "calibration",
            "line 2: has 3 cells, and the header has 2",
        ),
        ("claim,claim\nA.,B.\n", "variance", "the column `claim` stands twice"),
    ],
)
def test_mistakes_in_claims_are_named(tmp_path, text, kind, said):
    """With the line, or the claim."""
    path = tmp_path / ("c.csv" if "claim," in text or ",claim" in text else "c.jsonl")
    path.write_text(text)
    with pytest.raises((ClaimError, ConfigError)) as refused:
        s.read_items(path, kind)
    assert said in str(refused.value)


def test_a_study_file_names_the_nearest_key(tmp_path):
    """A misspelt key is told with its line and what was probably meant."""
    path = tmp_path / "study.yaml"
    path.write_text("study: calibration\nclaims: plain\nmodles: [mock:a]\n")
    with pytest.raises(ConfigError) as refused:
        s.read_request(path)
    assert "line 3: unknown key `modles` (did you mean `models`?)" in str(refused.value)
    path.write_text("study: calibration\nclaims: plain\nmodels: [mock:a]\nplan: {prest: wide}\n")
    with pytest.raises(ConfigError, match=r"`plan.prest` \(did you mean `preset`\?\)"):
        s.read_request(path)


def test_a_study_file_names_the_engine_that_measures(tmp_path):
    """`local` is this process; what isn't an engine here is refused."""
    path = tmp_path / "study.yaml"
    path.write_text("study: coherence\nclaims: plain\nmodels: [sim:a]\non: local\n")
    here = s.read_request(path)
    path.write_text(path.read_text().replace("on: local\n", ""))
    assert s.read_request(path) == here
    path.write_text(path.read_text() + "on: local\n")
    path.write_text(path.read_text().replace("local", "ray"))
    assert s.read_request(path).config.on == "ray"
    path.write_text(path.read_text().replace("ray", "nowhere"))
    with pytest.raises(ConfigError, match="`on` must be local, ray, ray://HOST:PORT or HOST:PORT"):
        s.read_request(path)


def test_a_study_file_says_what_is_measured(tmp_path):
    """Claims beside the file, models, lenses and plan reach the configuration."""
    (tmp_path / "mine.jsonl").write_text(
        '{"claim": "A.", "label": 1}\n{"claim": "B.", "label": 0}\n'
    )
    path = tmp_path / "study.yaml"
    path.write_text(
        "study: calibration\nclaims: mine.jsonl\nmodels: [mock:a, mock:b]\n"
        "lenses: [RPL, NUL]\nplan:\n  preset: wide\n"
    )
    request = s.read_request(path)
    assert [item.claim for item in request.items] == ["A.", "B."]
    assert (request.config.K, request.config.R, request.config.T) == (16, 1, 16)
    assert request.config.lenses == ("RPL", "NUL")
    assert request.name == "study"


def test_a_prompt_is_asked_by_both_of_its_read_outs_at_a_time(tmp_path):
    """`distribution` stands beside `sampled`, claim by claim; `truth_token` asks other prompts."""
    readouts = ("truth_token", "distribution", "sampled")
    config = RunConfig(models=("sim:a",), K=8, R=2)
    claims = [{"claim": "Ice floats.", "label": 1}, {"claim": "Iron floats.", "label": 0}]
    items = s.check_items([s.make_item(row) for row in claims], "calibration")
    request = s.Request(kind="calibration", items=items, config=config, readouts=readouts)
    elsewhere = replace(request, config=config.override(on="ray"))
    assert len(s.prepare_study(elsewhere, Settings.from_env({}))) == 3
    token, both = s.prepare_study(request, Settings.from_env({}))
    assert token.beside is None
    assert both.beside is not None
    plans = [(plan.claim, plan.readout) for plan in both.plans(both.models[0])]
    assert plans == [(row["claim"], way) for row in claims for way in ("sampled", "distribution")]
    assert both.attempts == 2 * 16 + 2 * 8
    asked = []

    class OneAtATime(SimProvider):
        max_concurrency = 1

        async def ask(self, request):
            asked.append((request.user, request.readout))
            return await super().ask(request)

    with Store.open(str(tmp_path / "s.db")) as store:
        results = Results()
        opener = lambda model, *_, **__: OneAtATime(model.name)  # noqa: E731
        asyncio.run(measure(both, store, results, opener=opener))
        record = s.finish_study(request, [(both, results.executions)], store)
        assert s.verify_study(record, store).ok
    assert [plan.readout for plan in record.plans] == ["sampled", "distribution"]
    assert len(record.runs) == 4
    # Whoever holds a prompt is asked everything about it before the next.
    prompts = [user for user, _ in asked]
    assert prompts == sorted(prompts, key=prompts.index)
    assert set(Counter(prompts).values()) == {3}


def test_read_outs_share_a_plan_but_for_its_repeats(tmp_path):
    """Repeats and temperature are of sampled answers; the wordings are of both."""
    path = tmp_path / "study.yaml"
    path.write_text(
        "study: coherence\nclaims: plain\nmodels: [sim:a]\nreadouts: [sampled, truth_token]\n"
        "plan: {K: 8, R: 2, temperature: 1.0}\n"
    )
    sampled, token = s.read_request(path).configs()
    assert (sampled.K, sampled.R, sampled.temperature) == (8, 2, 1.0)
    assert (token.readout, token.K, token.R, token.temperature) == ("truth_token", 8, 1, None)
    path.write_text(path.read_text().replace("{K: 8, R: 2,", "{"))
    sampled, token = s.read_request(path).configs()
    assert (sampled.K, sampled.R, token.K) == (8, 2, 8)
    path.write_text(path.read_text().replace("plan: {", "plan: {budget_usd: 1.0,"))
    with pytest.raises(ConfigError, match="`budget_usd` is for one read-out at a time"):
        s.read_request(path).configs()
    path.write_text(path.read_text().replace("truth_token", "truth_tokens"))
    with pytest.raises(ConfigError, match="line 4"):
        s.read_request(path)
