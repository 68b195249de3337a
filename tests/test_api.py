"""The library, as a script, a coroutine and a notebook use it."""

import asyncio
import importlib.util
import math
import os
import pickle
import pkgutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import heretix
from faultserver import FaultServer, answer
from heretix.cli.app import app
from heretix.core import errors
from heretix.core.errors import ConfigError
from heretix.evidence.bundle import read_bundle
from heretix.measurement.record import digest_of
from heretix.measurement.verify import read_artifacts
from heretix.plan import Evidence
from heretix.prompts.bank import ShownItem, load_frame
from heretix.store import Store
from heretix.store.runs import select_runs


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_one_line_gives_a_belief():
    """`measure(...)` and then prob, ci, stability."""
    belief = heretix.measure("Coffee beans are seeds.", model="mock:gpt-5")
    lo, hi = belief.ci
    assert 0 < lo < belief.prob < hi < 1
    told = belief.record.aggregates
    assert (belief.prob, belief.ci) == (told.prob_true_rpl, told.ci95)
    assert belief.stability == told.stability_score < 1
    assert belief.model == "mock:gpt-5"
    assert heretix.verify_run(belief.record).ok
    assert "mock:gpt-5: p=" in str(belief)


async def test_it_works_inside_a_running_event_loop():
    """As in a notebook, whose loop already runs."""
    inside = heretix.measure("x", model="mock:m")
    awaited = await heretix.measure_async("x", model="mock:m")
    assert inside.prob == awaited.prob
    assert awaited.record.aggregates.cache_hit_rate == 1.0


def test_many_claims_and_models_come_in_order():
    """Claim by claim, model by model, a claim once."""
    beliefs = heretix.measure_many(["b", "a", "b"], models=["mock:x", "mock:y"], K=3, T=3, B=200)
    assert [(b.claim, b.model) for b in beliefs] == [
        ("b", "mock:x"),
        ("b", "mock:y"),
        ("a", "mock:x"),
        ("a", "mock:y"),
    ]
    with pytest.raises(heretix.UsageError, match="`claims` is empty"):
        heretix.measure_many([])


def test_a_belief_is_saved_and_loaded(tmp_path):
    """The artifact holds the belief."""
    belief = heretix.measure("x", model="mock:m")
    belief.save(tmp_path / "x.json")
    assert heretix.load(tmp_path / "x.json") == [belief]


def test_no_estimate_is_an_error_at_the_number_not_before():
    """The record can be looked at; asking for the number says why there is none."""
    belief = heretix.measure("x", model="mock:m?not_json=1")
    assert belief.record.usage.compliant == 0
    with pytest.raises(heretix.NoEstimateError, match="compliant"):
        _ = belief.prob
    assert "no estimate" in str(belief)
    assert "No estimate" in belief._repr_html_()


def test_a_notebook_shows_a_picture_and_no_markup_of_the_claim():
    """Rich HTML, with the claim as text."""
    html = heretix.measure("<script>alert(1)</script>", model="mock:m")._repr_html_()
    assert "<svg" in html
    assert "<script" not in html
    assert "95% CI" in html


def test_wrong_options_are_refused():
    """The keys are those of a configuration."""
    with pytest.raises(heretix.UsageError, match=r"`Temperature` \(did you mean `temperature`\?\)"):
        heretix.measure("x", model="mock:m", Temperature=1)


@pytest.mark.parametrize(
    "claims", [None, {"claim": "Tea."}, pd.DataFrame({"claim": ["Tea."]}), Path("c.csv")]
)
def test_what_is_no_list_of_claims_is_refused(claims):
    """Names of columns and keys are never measured in place of what stands below them."""
    with pytest.raises(ConfigError, match="`claims` must be a list of texts, got a "):
        heretix.measure_many(claims, models=["mock:m"])


def test_a_study_refuses_what_it_cannot_be_made_of():
    """A kind that is none, one text for a list of models, tables and bare texts for rows."""
    rows = [{"claim": "Tea is a drink.", "label": 1.0}, {"claim": "Tea is a rock.", "label": "0.0"}]
    for kind, claims, models, said in (
        ("nope", rows, ["mock:m"], "`kind` must be one of calibration, "),
        ("calibration", rows, "mock:m", "`models` must be a list of texts, got one text"),
        ("calibration", pd.DataFrame(rows), ["mock:m"], r'table.to_dict\("records"\)'),
        ("calibration", None, ["mock:m"], "`claims` must be a list of rows, got a NoneType"),
    ):
        with pytest.raises(ConfigError, match=said):
            heretix.study(kind, claims, models=models)
    with pytest.raises(errors.ClaimError, match="a row must have columns"):
        heretix.study("calibration", ["Tea is a drink."], models=["mock:m"])
    found = heretix.study("calibration", rows, models=["mock:m"])
    assert [item.label for item in found.record.items] == [True, False]


@pytest.mark.parametrize("what", [None, 3, [3], pd.DataFrame({"claim": ["Tea."]})])
def test_a_frame_of_what_is_no_belief_is_refused(what):
    """An empty list is an empty frame, and nothing else is."""
    assert len(heretix.frame([])) == 0
    with pytest.raises(ConfigError, match="`what` must be a table's name or beliefs"):
        heretix.frame(what)


def test_a_slice_of_beliefs_is_a_table_as_well():
    """`beliefs[:5]` is what people look at first."""
    beliefs = heretix.measure_many(["Tea.", "Rum."], models=["mock:m"], K=4, R=1)
    assert "<table" in beliefs[1:]._repr_html_()
    assert [one.claim for one in beliefs[::-1]] == ["Rum.", "Tea."]
    assert beliefs[0].claim == "Tea."


def test_no_lenses_are_the_raw_prior():
    """As the signature has it."""
    assert heretix.measure("Tea.", model="mock:m", lenses=None).record.lens == "RPL"


@pytest.mark.parametrize("claim", [None, 3, math.nan, b"Tea.", ["Tea."]])
def test_a_claim_that_is_no_text_is_refused(claim):
    """A table's empty cell comes as NaN or None."""
    for measure in (heretix.measure, lambda one, **rest: heretix.measure_many([one], **rest)):
        with pytest.raises(errors.ClaimError, match="`claim` must be text, got "):
            measure(claim)


def test_documents_that_no_lens_would_show_are_refused():
    """Nobody takes a belief for one with documents that the model never saw."""
    with pytest.raises(ConfigError, match="`documents` are shown under SEL"):
        heretix.measure("Tea.", model="mock:m", documents=["a.txt"])
    with pytest.raises(ConfigError, match="`corpus`, `policy`: nothing is shown under NUL"):
        heretix.measure("Tea.", model="mock:m", corpus="demo", policy="default", lenses="NUL")


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    """A folder that isn't there is no traceback of a temporary file."""
    belief = heretix.measure("Tea.", model="mock:m", K=4, R=1)
    with pytest.raises(errors.RecordError, match=r"absent/a.json` can't be written: No such file"):
        belief.save(tmp_path / "absent" / "a.json")


def test_the_public_names_are_complete_and_load():
    """`__all__` is sorted, and every name in it exists."""
    assert heretix.__all__ == sorted(heretix.__all__)
    for name in heretix.__all__:
        assert getattr(heretix, name) is not None
    assert dir(heretix) == heretix.__all__
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = heretix.nothing_like_it


def test_every_module_says_what_it_gives():
    """`__all__` of every module names things that are there."""
    for module in pkgutil.walk_packages(heretix.__path__, "heretix."):
        if ".migrations." in module.name:
            continue
        # The extra `inspect` is in the group `interop`, which CI installs.
        if module.name == "heretix.evals" and importlib.util.find_spec("inspect_ai") is None:
            continue
        loaded = importlib.import_module(module.name)
        for name in getattr(loaded, "__all__", ()):
            assert hasattr(loaded, name), f"{module.name}.{name}"


def test_errors_survive_a_process_boundary():
    """Every error of the tree can be pickled, with what it carries."""
    for name in errors.__all__:
        error = getattr(errors, name)("what went wrong")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), "what went wrong")
    limited = errors.RateLimitedError("slow down", retry_after_s=2.5)
    assert pickle.loads(pickle.dumps(limited)).retry_after_s == 2.5


def test_the_tree_of_errors_is_drawn_as_it_is():
    """The docstring names every error, and every error has its exit code."""
    drawing = errors.__doc__
    for name in errors.__all__:
        assert f" {name}" in drawing
        codes = {130} if name == "StoppedError" else {1, 2, 3}
        assert getattr(errors, name).exit_code in codes


def test_cancelling_a_measurement_from_a_coroutine_is_possible():
    """A task can be cancelled without leaving threads waiting."""

    async def main():
        task = asyncio.create_task(heretix.measure_async("x", model="mock:m?latency_ms=60000"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


DST = "Daylight saving time reduces electricity consumption."
NOWHERE = "Zebrafish glaciers whistle quarterly."
SIM = {"model": "sim:x?hel=-1.5", "seed": 1}


@pytest.fixture
def corpora(tmp_path, monkeypatch):
    """Corpora of this test alone; the packaged one is written there on first use."""
    monkeypatch.setenv("HERETIX_CORPORA_DIR", str(tmp_path / "corpora"))


@pytest.fixture
def note(tmp_path):
    """A document of the user's own."""
    path = tmp_path / "note.txt"
    path.write_text("A trial found that clocks changed in spring saved no electricity at all.")
    return path


def test_several_lenses_give_the_belief_vector(corpora, tmp_path):
    """Documents are shown, every lens has its number, and the differences have intervals."""
    vector = heretix.measure(DST, lenses=("RPL", "MEL", "HEL"), **SIM)
    assert isinstance(vector, heretix.BeliefVector)
    assert list(vector.beliefs) == ["RPL", "MEL", "HEL"]
    assert all(len(vector[lens].record.evidence.items) >= 3 for lens in ("MEL", "HEL"))
    assert vector["HEL"].prob < vector["RPL"].prob < vector["MEL"].prob
    assert vector.metrics.shock_index.value == pytest.approx(
        vector["RPL"].prob - vector["HEL"].prob
    )
    assert (vector.missing, vector.claim, vector.model) == ({}, DST, SIM["model"])
    assert DST in vector._repr_html_()
    assert "what moved HEL: not checked against a placebo" in vector._repr_html_()
    moved = heretix.compare(vector["RPL"], vector["HEL"])._repr_html_()
    assert "not checked against a placebo: irrelevant text may move the model as far" in moved
    assert str(vector).startswith("RPL sim:x?hel=-1.5: p=")
    vector.save(tmp_path / "vector.json")
    assert heretix.load(tmp_path / "vector.json") == list(vector.beliefs.values())
    with pytest.raises(heretix.UsageError, match="one that was measured"):
        vector["SEL"]


def test_the_vector_is_what_the_command_measures(corpora, tmp_path):
    """Library and command line show the same documents and share their samples."""
    vector = heretix.measure(DST, lenses="all", **SIM)
    command = ["lens", DST, "-m", SIM["model"], "--seed", "1", "--out", "lens.json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (artifact,) = read_artifacts("lens.json")
    assert [run.run_id for run in artifact.runs] == [
        b.record.run_id for b in vector.beliefs.values()
    ]
    assert {run.aggregates.cache_hit_rate for run in artifact.runs} == {1.0}
    assert artifact.metrics[SIM["model"]] == vector.metrics
    assert artifact.bundles == vector.artifact.bundles


def test_without_enough_evidence_there_is_no_number(corpora):
    """Nothing is asked, and nothing is stored as a belief; what was found is kept."""
    for lenses in ("MEL", ("RPL", "MEL", "HEL")):
        with pytest.raises(heretix.InsufficientEvidenceError, match="`insufficient_evidence`: MEL"):
            heretix.measure(NOWHERE, lenses=lenses, **SIM)
    with Store.open("runs/heretix.sqlite") as store:
        assert store.read(select_runs) == []


def test_a_lens_without_evidence_is_missing_beside_those_that_have_it(corpora, note):
    """The vector says why; asking for the number raises the same."""
    vector = heretix.measure(NOWHERE, lenses=("RPL", "MEL", "SEL"), documents=[note], **SIM)
    assert list(vector.beliefs) == ["RPL", "SEL"]
    assert list(vector.missing) == ["MEL"]
    assert "MEL needs at least 3 items" in vector.missing["MEL"]
    assert vector.missing["MEL"] in str(vector)
    with pytest.raises(heretix.InsufficientEvidenceError, match="MEL needs"):
        vector["MEL"]


def test_checks_of_your_documents_are_no_beliefs_of_the_vector(corpora, note):
    """The planted order is measured beside SEL and never stands for it; `checks=False` saves it."""
    vector = heretix.measure(NOWHERE, lenses=("RPL", "SEL"), documents=[note], **SIM)
    assert [found.variant for found in vector.artifact.experiments] == ["canary"]
    assert vector["SEL"].record.evidence.variant is None
    plain = heretix.measure(NOWHERE, lenses=("RPL", "SEL"), documents=[note], checks=False, **SIM)
    assert plain.artifact.experiments is None
    assert plain["SEL"].prob == vector["SEL"].prob


def test_options_of_evidence_are_those_of_the_command_line(corpora, note):
    """By themselves or under `evidence`; a corpus that isn't there is refused, and SEL needs files."""
    flat = heretix.measure(NOWHERE, lenses="sel", documents=note, **SIM)
    nested = heretix.measure(NOWHERE, lenses=["SEL"], evidence={"documents": [str(note)]}, **SIM)
    assert flat["SEL"].prob == nested["SEL"].prob
    with pytest.raises(heretix.UsageError, match="`corpus` 'mine' doesn't exist"):
        heretix.measure(DST, lenses="MEL", corpus="mine", **SIM)
    with pytest.raises(heretix.UsageError, match="`SEL` needs documents"):
        heretix.measure(DST, lenses="SEL", **SIM)
    bundle = read_bundle(flat.artifact.bundles[0])
    again = heretix.measure(NOWHERE, lenses="SEL", bundles=[bundle], **SIM)
    assert again["SEL"].record.aggregates.cache_hit_rate == 1.0


def test_many_claims_keep_those_that_have_evidence(corpora):
    """One claim without documents doesn't take the others with it."""
    some, none = heretix.measure_many([DST, NOWHERE], models=["sim:x"], lenses=("RPL", "MEL"))
    assert list(some.beliefs) == ["RPL", "MEL"]
    assert list(none.beliefs) == ["RPL"]
    assert list(none.missing) == ["MEL"]


def test_a_lens_that_needs_documents_cannot_be_planned_without_them():
    frame = load_frame()
    for lens in ("MEL", "HEL", "SEL"):
        with pytest.raises(heretix.InsufficientEvidenceError, match="must be shown documents"):
            Evidence(lens=lens, frame=frame, bundle_id=None, items=())
    with pytest.raises(heretix.InsufficientEvidenceError, match="must be shown no documents"):
        Evidence(lens="NUL", frame=frame, bundle_id=None, items=(ShownItem("E01", "text"),))


def test_verify_refuses_a_record_of_a_lens_that_showed_nothing(corpora):
    """As the library once stored them: `ok`, with a number, and no documents."""
    run = heretix.measure(DST, lenses="MEL", **SIM)["MEL"].record
    empty = run.model_copy(update={"evidence": run.evidence.model_copy(update={"items": []})})
    empty = empty.model_copy(update={"sha256": digest_of(empty)})
    found = heretix.verify_run(empty)
    assert not found.ok
    assert "must be shown documents, got none" in str(found.differences[0].derived)


_CELL = """
import asyncio, os, sys
import heretix

async def cell():
    # What a notebook does: a loop runs in the thread that calls.
    return heretix.measure_many(
        ["One.", "Two."], models=["openai-compatible:m"], base_url=sys.argv[1],
        store="s.sqlite", K=4, R=2, B=100, concurrency=3,
    )

try:
    if sys.argv[2] == "notebook":
        asyncio.new_event_loop().run_until_complete(cell())
    else:
        asyncio.run(cell())
except KeyboardInterrupt as exc:
    print("interrupted:", exc, flush=True)
print("finished:", [belief.claim for belief in heretix.resume(calls=False)], flush=True)
sys.stdin.readline()
print("resumed:", [belief.claim for belief in heretix.resume()], flush=True)
"""


@pytest.mark.parametrize("where", ["notebook", "script"])
def test_an_interrupt_stops_the_calls_and_resume_goes_on(tmp_path, where):
    """Calls in flight come home and none is made after; what is finished can be had, the rest is
    measured with exactly the missing calls."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HERETIX_")}
    with FaultServer() as server:
        held, release = server.held(answer())
        # The first claim is finished, and some of the second is in flight.
        server.script(*[answer() for _ in range(9)])
        server.always(held)
        cell = [sys.executable, "-c", _CELL, server.url("openai-compatible"), where]
        with subprocess.Popen(
            cell,
            cwd=tmp_path,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            while len(server.calls) < 12:
                assert process.poll() is None, process.communicate()
                signal.sigtimedwait([], 0.02)
            process.send_signal(signal.SIGINT)
            while "3 in flight are waited for" not in (said := process.stderr.readline()):
                assert said, "it ended"
            server.always(answer())
            release()
            assert "heretix.resume()" in process.stdout.readline()
            assert process.stdout.readline() == "finished: ['One.']\n"
            assert len(server.calls) == 12
            out, err = process.communicate("go on\n", timeout=120)
        assert (out, process.returncode) == ("resumed: ['One.', 'Two.']\n", 0), err
        assert len(server.calls) == 16


_STUDY = """
import sys
import heretix

rows = [{"claim": f"Claim {n}.", "label": n % 2} for n in range(2)]
try:
    heretix.study(
        "calibration", rows, models=["openai-compatible:m"], base_url=sys.argv[1],
        store="s.sqlite", K=4, R=2, B=100, concurrency=3,
    )
except KeyboardInterrupt as exc:
    print("interrupted:", exc, flush=True)
"""


def test_an_interrupt_of_a_study_lets_calls_come_home(tmp_path):
    """None is made after it, and the same call makes exactly the missing ones."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HERETIX_")}
    with FaultServer() as server:
        held, release = server.held(answer())
        server.always(held)
        study = [sys.executable, "-c", _STUDY, server.url("openai-compatible")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(study, cwd=tmp_path, env=env, **pipes) as process:
            while len(server.calls) < 3:
                assert process.poll() is None, process.communicate()
                signal.sigtimedwait([], 0.02)
            process.send_signal(signal.SIGINT)
            while "3 in flight are waited for" not in (said := process.stderr.readline()):
                assert said, "it ended"
            server.always(answer())
            release()
            out, err = process.communicate(timeout=120)
        assert "interrupted: stopped; everything that was answered is stored" in out, err
        assert len(server.calls) == 3
        subprocess.run(study, cwd=tmp_path, env=env, capture_output=True, check=True)
        assert len(server.calls) == 16


def test_nothing_interrupted_is_nothing_to_resume(monkeypatch):
    """It says where else to look."""
    monkeypatch.setattr("heretix.api._interrupted", None)
    with pytest.raises(ConfigError, match="heretix resume"):
        heretix.resume()
