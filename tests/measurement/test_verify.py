"""Verification: a true record passes, any change is found."""

import json
import random
import re
from dataclasses import replace

import pytest

from heretix.api import measure
from heretix.belief.diagnostics import weigh_extremes
from heretix.belief.student import template_t
from heretix.core.errors import RecordError
from heretix.measurement.record import (
    Artifact,
    RunRecord,
    artifact_json,
    digest_of,
    write_artifact,
    write_lines,
)
from heretix.measurement.verify import is_same_value, parse_artifacts, read_artifacts, verify_run
from heretix.sample import Noncompliance


def text_of(record):
    return artifact_json(Artifact.of([record]))


def resigned(record, **changes):
    """A forgery: changed, with a digest that fits."""
    forged = record.model_copy(update=changes)
    return forged.model_copy(update={"sha256": digest_of(forged)})


def found(text):
    """Paths that verification complains of; unreadable counts as found."""
    try:
        artifact = parse_artifacts(text, source="x")[0]
    except RecordError as exc:
        return [str(exc)]
    return [d.path for run in artifact.runs for d in verify_run(run).differences]


def test_a_true_record_verifies_with_every_value_derived_again(measured_record):
    """All kinds of samples are in it, and all of it follows from its inputs."""
    kinds = {sample.noncompliance for sample in measured_record.samples}
    assert len(kinds) == 5
    assert any(sample.error for sample in measured_record.samples)
    verification = verify_run(measured_record)
    assert verification.differences == ()
    assert verification.checked > 1_000
    assert found(text_of(measured_record)) == []


def test_a_flipped_digit_anywhere_is_found(measured_record):
    """Every digit of the file, sampled at random and changed to another, is noticed."""
    text = text_of(measured_record)
    digits = [match.start() for match in re.finditer(r"\d", text)]
    rng = random.Random(1)
    for position in rng.sample(digits, 200):
        other = rng.choice([d for d in "0123456789" if d != text[position]])
        changed = text[:position] + other + text[position + 1 :]
        assert found(changed), f"position {position}: {text[position - 40 : position + 20]!r}"


def test_the_last_digit_of_a_number_is_found_even_where_it_means_the_same_double(measured_record):
    """Two spellings of one double differ in the file, so they differ."""
    text = text_of(measured_record)
    number = max(re.findall(r"\d\.\d+", text), key=len)
    last = number[-1]
    for other in set("0123456789") - {last}:
        assert found(text.replace(number, number[:-1] + other, 1))


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (
            "aggregates.prob_true_rpl",
            lambda r: resigned(
                r, aggregates=r.aggregates.model_copy(update={"prob_true_rpl": 0.99})
            ),
        ),
        (
            "aggregates.ci95",
            lambda r: resigned(r, aggregates=r.aggregates.model_copy(update={"ci95": (0.4, 0.5)})),
        ),
        (
            "aggregates.rpl_compliance_rate",
            lambda r: resigned(
                r, aggregates=r.aggregates.model_copy(update={"rpl_compliance_rate": 1.0})
            ),
        ),
        ("run_id", lambda r: resigned(r, claim="Another claim.")),
        ("(plan)", lambda r: resigned(r, model="gpt-5")),
        (
            "samples",
            lambda r: resigned(
                r,
                samples=[
                    replace(r.samples[0], raw_answer='{"prob_true": 0.999}'),
                    *r.samples[1:],
                ],
            ),
        ),
        (
            "prompts.bank_sha256",
            lambda r: resigned(
                r,
                prompts=r.prompts.model_copy(
                    update={"paraphrases": ["Surely {CLAIM}?", *r.prompts.paraphrases[1:]]}
                ),
            ),
        ),
        (
            "aggregation.bootstrap_seed",
            lambda r: resigned(
                r, aggregation=r.aggregation.model_copy(update={"bootstrap_seed": 1})
            ),
        ),
        ("(plan)", lambda r: resigned(r, samples=r.samples[:-1])),
        ("usage.failed", lambda r: resigned(r, usage=r.usage.model_copy(update={"failed": 0}))),
    ],
)
def test_a_forgery_with_a_fitting_digest_is_found_where_it_was_made(measured_record, path, change):
    """The digest alone proves nothing: what follows from the samples is derived again."""
    differences = verify_run(change(measured_record)).differences
    assert any(difference.path.startswith(path) for difference in differences)
    assert not any(difference.path == "sha256" for difference in differences)


def test_a_dropped_sample_cannot_be_called_refused_without_trace(measured_record):
    """Marking a good answer as truncated is contradicted by its text."""
    index, row = next((i, s) for i, s in enumerate(measured_record.samples) if s.compliant)
    samples = list(measured_record.samples)
    samples[index] = replace(
        row,
        compliant=False,
        noncompliance=Noncompliance.TRUNCATED,
        prob_true=None,
        logit=None,
    )
    differences = verify_run(resigned(measured_record, samples=samples)).differences
    assert any(d.path.startswith(f"samples[{index}]") for d in differences)


def test_files_of_one_and_of_many_are_read(measured_record, tmp_path):
    """JSON holds one artifact, JSONL one a line."""
    artifact = Artifact.of([measured_record])
    write_artifact(tmp_path / "one.json", artifact)
    write_lines(tmp_path / "many.jsonl", [artifact, artifact])
    assert read_artifacts(tmp_path / "one.json") == [artifact]
    assert read_artifacts(tmp_path / "many.jsonl") == [artifact, artifact]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"{", "ends too early"),
        (b"no", "isn't JSON"),
        (b"[]", "heretix-artifact/1"),
        (b'{"schema": "other"}', "'other'"),
        (b'{"schema": "heretix-artifact/1", "runs": []}', "runs"),
        (b'{"schema": "heretix-artifact/1", "runs": [{}]}', "runs.0"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"a": NaN}', "NaN"),
    ],
)
def test_what_is_no_artifact_is_refused(tmp_path, content, said):
    """The message says what was wrong."""
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=said):
        read_artifacts(path)


def test_the_published_schema_is_the_one_that_records_follow(measured_record):
    """The packaged JSON schema is current, and an independent validator accepts a record."""
    import jsonschema

    from heretix.measurement.record import artifact_schema, packaged_schema

    assert packaged_schema() == artifact_schema()
    content = json.loads(text_of(measured_record))
    jsonschema.Draft202012Validator(packaged_schema()).validate(content)
    content["runs"][0]["sampling"]["K"] = "16"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(packaged_schema()).validate(content)


def test_a_record_survives_its_own_json(measured_record):
    """Reading back what was written gives the same record."""
    again = RunRecord.model_validate_json(measured_record.model_dump_json())
    assert again == measured_record


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (
            lambda run: run["aggregates"].update(is_stable=int(run["aggregates"]["is_stable"])),
            "is_stable",
        ),
        (lambda run: run["sampling"].update(K=float(run["sampling"]["K"])), "sampling.K"),
        (lambda run: run["usage"].update(failed=False), "usage.failed"),
    ],
)
def test_another_type_of_the_same_value_is_found(measured_record, change, place):
    """`1` is not `true`, `8.0` is not `8`: a reader in another language tells them apart."""
    artifact = json.loads(text_of(measured_record))
    change(artifact["runs"][0])
    assert any(place in str(mismatch) for mismatch in found(json.dumps(artifact)))


def test_the_block_beside_follows_from_the_answers(measured_record):
    """The interval by Student's t and the clamped center are what their functions give."""
    logits, probs = {}, {}
    for sample in measured_record.samples:
        if sample.compliant:
            logits.setdefault(sample.prompt_sha256, []).append(sample.logit)
            probs.setdefault(sample.prompt_sha256, []).append(sample.prob_true)
    belief, beside = measured_record.aggregates, measured_record.beside
    expected = template_t(logits)
    assert beside.template_t.ci95 == (expected.ci_lo, expected.ci_hi)
    assert expected.prob_true == pytest.approx(belief.prob_true_rpl, abs=1e-12)
    extremes = weigh_extremes(probs, prob_true=belief.prob_true_rpl, ci_width=belief.ci_width)
    assert (beside.n_extreme, beside.center_clamped, beside.clamp_sensitive) == (
        extremes.n_extreme,
        extremes.center_clamped,
        extremes.clamp_sensitive,
    )


@pytest.mark.parametrize("change", [{"center_clamped": 0.5}, {"clamp_sensitive": True}])
def test_a_forged_block_beside_is_found(measured_record, change):
    """What stands beside the estimate is derived again as the estimate is."""
    forged = resigned(measured_record, beside=measured_record.beside.model_copy(update=change))
    assert found(text_of(forged)) == [f"beside.{name}" for name in change]


def test_a_record_of_an_older_version_keeps_its_digest_and_verifies(measured_record):
    """It has nothing beside, and neither reading nor verifying puts something there."""
    older = resigned(measured_record, beside=None)
    text = text_of(older)
    assert '"beside"' not in text
    assert parse_artifacts(text, source="x")[0].runs[0] == older
    assert found(text) == []


def test_the_legacy_aggregation_and_a_lone_wording_have_no_t_interval(tmp_path):
    """Where Student's t has nothing to go by, the block says null, and extremes still stand."""
    for options in ({"agg": "simple"}, {"T": 1, "K": 4}, {"T": 3, "K": 3, "trim": 0.4}):
        belief = measure("A claim.", model="mock:m", store=str(tmp_path / "s"), B=200, **options)
        assert belief.record.beside.template_t is None
        assert belief.record.beside.extreme_share == 0
        assert verify_run(belief.record).ok


@pytest.mark.parametrize(("recorded", "derived"), [(1, True), (0, False), (8, 8.0), ("1", 1)])
def test_values_of_another_type_differ_where_no_schema_says_which(recorded, derived):
    """Parameters of reasons and bundles hold anything, so the comparison itself must tell."""
    assert not is_same_value(recorded, derived)
    assert not is_same_value(derived, recorded)
    assert is_same_value(recorded, recorded)
