"""Beliefs measured inside evals of inspect_ai, with the real package and its mock model."""

import pytest

from heretix.api import measure
from heretix.measurement.verify import verify_run

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def answers(*texts):
    """A model that answers with these texts, over and over."""
    from inspect_ai.model import get_model

    return get_model(
        "mockllm/model",
        memoize=False,
        custom_outputs=(answer(texts[i % len(texts)]) for i in range(10_000)),
    )


def answer(text):
    """An output that says how many tokens it took: counting them would need a download."""
    from inspect_ai.model import ModelOutput, ModelUsage

    output = ModelOutput.from_content("mockllm/model", text)
    output.usage = ModelUsage(input_tokens=7, output_tokens=3, total_tokens=10)
    return output


@pytest.fixture(autouse=True, scope="module")
def installed():
    """Skip all of it where the package isn't; it is heavy, so that only who runs these loads it."""
    pytest.importorskip("inspect_ai", reason="inspect_ai isn't installed (group interop)")


@pytest.fixture
def claims(tmp_path, monkeypatch):
    """A file of labelled claims, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.csv").write_text(
        "id,claim,label\na,Tea is a plant.,1\nb,Two is odd.,0\nc,Who?,\n"
    )
    return str(tmp_path / "c.csv")


def run_eval(claims, model, folder):
    """Evaluate, quietly."""
    import inspect_ai

    from heretix.evals import beliefs

    task = beliefs(claims, store=str(folder / "h.sqlite"), K=4, R=1)
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(folder / "logs"), display="none")
    return log


def test_an_eval_measures_beliefs_and_scores_them(claims, tmp_path):
    """Every claim is asked in four wordings; the Brier score is that of the belief."""
    log = run_eval(claims, answers('{"prob_true": 0.8}'), tmp_path)
    assert log.status == "success", log.error
    found = {sample.id: sample for sample in log.samples}
    assert [found[name].metadata["heretix"]["prob"] for name in "abc"] == pytest.approx([0.8] * 3)
    scores = {name: found[name].scores["brier"].value for name in "ab"}
    assert scores == pytest.approx({"a": 0.04, "b": 0.64})
    assert not found["c"].scores
    (score,) = log.results.scores
    assert score.metrics["mean"].value == pytest.approx(0.34)
    assert found["a"].metadata["heretix"]["calls"] == 4


def test_a_belief_that_could_not_be_measured_has_no_score(claims, tmp_path):
    """Answers that break the contract are dropped; nothing is made up for them."""
    log = run_eval(claims, answers("I would say so."), tmp_path)
    assert log.status == "success", log.error
    assert [sample.metadata["heretix"]["prob"] for sample in log.samples] == [None] * 3
    assert not any(sample.scores for sample in log.samples)


def test_a_run_becomes_a_log_that_inspect_reads(tmp_path):
    """An answer is a sample, and the belief a metric, in both of inspect's formats."""
    from inspect_ai.log import read_eval_log

    from heretix.evals import write_log

    belief = measure("Tea.", model="mock:m?error=0.2", K=4, R=2, store=str(tmp_path / "h.sqlite"))
    assert verify_run(belief.record).ok
    for name in ("run.eval", "run.json"):
        write_log(belief.record, tmp_path / name)
        log = read_eval_log(str(tmp_path / name))
        assert len(log.samples) == 8
        (score,) = log.results.scores
        assert score.metrics["prob_true_rpl"].value == belief.prob
        given = {
            (sample.id, sample.epoch): sample.scores["prob_true"].value if sample.scores else None
            for sample in log.samples
        }
        assert given == {
            (f"wording-{row.paraphrase_idx:02d}", row.replicate_idx + 1): row.prob_true
            for row in belief.record.samples
        }


def test_a_log_tells_no_number_that_there_is_not(tmp_path):
    """Without an estimate the metrics are left out; slots that wrap around stay apart."""
    from inspect_ai.log import read_eval_log

    from heretix.evals import write_log

    store = str(tmp_path / "h.sqlite")
    none = measure("Tea.", model="mock:m?not_json=1", K=4, R=1, store=store)
    write_log(none.record, tmp_path / "none.json")
    assert "NaN" not in (tmp_path / "none.json").read_text()
    assert read_eval_log(str(tmp_path / "none.json")).results.scores[0].metrics == {}
    twice = measure("Tea.", model="mock:m", K=16, T=8, R=1, store=store)
    write_log(twice.record, tmp_path / "twice.json")
    log = read_eval_log(str(tmp_path / "twice.json"))
    assert len({(sample.id, sample.epoch) for sample in log.samples}) == 16
    assert log.eval.config.epochs == 2


def test_rows_that_share_an_id_and_labels_as_numbers_are_measured(tmp_path, monkeypatch):
    """Samples of an eval need ids of their own; a label may come as 1.0, or be missing."""
    monkeypatch.chdir(tmp_path)
    rows = [
        '{"id": "a", "claim": "Tea is a plant.", "label": 1.0}',
        '{"id": "a", "claim": "Two is odd.", "label": null}',
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(rows))
    log = run_eval(str(tmp_path / "c.jsonl"), answers('{"prob_true": 0.8}'), tmp_path)
    assert log.status == "success", log.error
    assert [sample.id for sample in log.samples] == ["row 1", "row 2"]
    assert [bool(sample.scores) for sample in log.samples] == [True, False]


def test_any_model_of_inspect_can_be_measured(tmp_path):
    """`inspect:` is a provider like any other, outside of evals too."""
    from inspect_ai.model import ModelAPI, modelapi

    class Sure(ModelAPI):
        async def generate(self, input, tools, tool_choice, config):  # noqa: A002
            return answer('{"prob_true": 0.9}')

    modelapi("sure")(lambda: Sure)
    belief = measure("Tea.", model="inspect:sure/m", K=4, R=1, store=str(tmp_path / "h.sqlite"))
    assert (belief.model, belief.prob) == ("inspect:sure/m", pytest.approx(0.9))
    assert belief.record.usage.called == 4
    assert belief.record.usage.tokens_in == 28
