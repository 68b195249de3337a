"""Studies: claims with what is known of them, results, and the record that verifies."""

import json
import math
import random

import pytest

from heretix.core.errors import ClaimError, ConfigError
from heretix.providers.mock import normal
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
        prompt_version="v",
        sampling={"K": 8, "R": 1, "T": 8},
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


def test_claims_are_read_from_jsonl_and_csv(tmp_path):
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
    assert s.read_items(jsonl, "calibration") == expected
    assert s.read_items(table, "calibration") == expected


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
        ("[1]\n", "variance", "line 1: must be an object"),
        ("{\n", "variance", "line 1: not JSON"),
        ("", "variance", "`claims` is empty"),
    ],
)
def test_mistakes_in_claims_are_named(tmp_path, text, kind, said):
    """With the line, or the claim."""
    path = tmp_path / "c.jsonl"
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
