"""What a notebook shows: tables, differences, and the gallery run by a real kernel."""

import json
from html import escape
from pathlib import Path

import pytest

import heretix
from heretix.core.errors import ConfigError, NoEstimateError, RecordError
from heretix.studies.study import read_study, verify_study

GALLERY = Path(__file__).parents[1] / "docs" / "gallery.ipynb"
SMALL = {"K": 8, "R": 1, "B": 500}


@pytest.fixture
def store(tmp_path):
    """A store of its own."""
    return str(tmp_path / "h.sqlite")


def test_many_beliefs_are_a_list_and_a_table(store):
    """A row a belief, with its claim escaped and its warning below; still a list."""
    claims = ["Tea <b>.", "Rum."]
    beliefs = heretix.measure_many(claims, models=["mock:m"], store=store, **SMALL)
    assert isinstance(beliefs, list)
    page = beliefs._repr_html_()
    assert page.count("<tr>") == 3
    assert "Tea &lt;b&gt;." in page
    assert "made-up" in page
    assert list(beliefs.to_frame()["prob"]) == [belief.prob for belief in beliefs]


def test_a_table_says_why_a_number_is_missing(store):
    """No estimate is no row of zeros."""
    beliefs = heretix.measure_many(["Tea."], models=["mock:m?not_json=1"], store=store, **SMALL)
    assert "<td>–</td>" in beliefs._repr_html_()


def test_a_difference_names_a_direction_only_where_the_intervals_do(store):
    """Two simulated models far apart differ; a model and itself don't."""
    low, high = (
        heretix.measure("Tea.", model=f"sim:x?prior={belief}", store=store, **SMALL)
        for belief in (0.2, 0.8)
    )
    difference = heretix.compare(low, high)
    lo, hi = difference.ci
    assert 0 < lo < difference.value < hi
    assert " above " in difference.sentence
    assert heretix.compare(high, low).value == pytest.approx(-difference.value)
    assert " below " in str(heretix.compare(high, low))
    assert "no difference can be shown" in heretix.compare(low, low).sentence.lower()
    page = difference._repr_html_()
    assert page.startswith("<strong>")
    assert "<div>paired t +" in page
    assert "placebo" not in page


def test_what_extreme_answers_decide_says_so_in_a_notebook(store):
    """A belief, a table of beliefs and a difference; by Student's t beside each."""
    sure, other = (
        heretix.measure("Tea.", model=f"sim:x?prior={prior}", store=store, **SMALL)
        for prior in (0.9995, 0.5)
    )
    assert sure.record.beside.clamp_sensitive
    assert "clamp-sensitive: " in sure._repr_html_()
    assert "beside it by Student" in sure._repr_html_()
    assert " clamp-sensitive</td>" in heretix.Beliefs([sure, other])._repr_html_()
    assert "A is clamp-sensitive: " in heretix.compare(sure, other)._repr_html_()


def test_only_beliefs_with_a_number_can_be_compared(store):
    """The mistake is named; a missing number stays missing."""
    belief = heretix.measure("Tea.", model="mock:m", store=store, **SMALL)
    none = heretix.measure("Tea.", model="mock:m?not_json=1", store=store, **SMALL)
    with pytest.raises(NoEstimateError):
        heretix.compare(belief, none)
    with pytest.raises(ConfigError, match="must be a Belief"):
        heretix.compare(belief, 0.5)


ROWS = [
    {"claim": "Tea is a plant.", "label": 1, "negation": "Tea is no plant."},
    {"claim": "Two is odd.", "label": 0, "negation": "Two is even."},
    {"claim": "Ice is <b>hot</b>.", "label": 0, "negation": "Ice is cold."},
]


@pytest.mark.parametrize("kind", ["calibration", "coherence", "variance", "card"])
def test_a_study_is_a_sentence_a_chart_and_its_tables(store, kind):
    """Each kind; the warning that its numbers are made up stands below."""
    options = {"K": 8, "R": 2, "B": 500, "store": store}
    study = heretix.study(kind, ROWS, models=["sim:x"], **options)
    page = study._repr_html_()
    assert str(study).startswith("Made-up answers, nobody's belief: sim:x")
    assert f"<strong>{escape(str(study))}</strong>" in page
    assert page.count("<svg") == len(study.results.subjects)
    assert "<table>" in page
    assert "made-up" in page
    assert "<b>hot" not in page
    assert len(study.to_frame()) == len(study.record.runs)


def test_a_study_is_saved_as_verify_reads_it(store, tmp_path):
    """What the library saves is a record like that of the command line."""
    study = heretix.study("calibration", ROWS, models=["sim:x"], store=store, **SMALL)
    study.save(tmp_path / "s.json")
    assert verify_study(read_study(tmp_path / "s.json")).ok


@pytest.mark.parametrize(
    ("prior", "said"),
    [(0.95, "can't be shown to tell true claims from false ones"), (None, "AUROC")],
)
def test_a_sentence_of_a_study_says_no_more_than_its_interval(store, prior, said):
    """A model that believes all claims alike isn't said to tell them apart."""
    model = "sim:x" if prior is None else f"sim:x?prior={prior}&template_sd=0&noise_sd=0"
    (sentence,) = heretix.study("calibration", ROWS, models=[model], store=store, **SMALL).sentences
    assert said in sentence


PANEL = """
name: tea
models: ["sim:x?drift=3&since=2"]
claims: ["Tea <b>.", "Rum."]
K: 8
T: 8
R: 1
"""


def test_a_panel_is_measured_and_shown_wave_by_wave(store, tmp_path):
    """A sentence, a chart a claim, a frame with a row a wave; by name as by its file."""
    (tmp_path / "p.yaml").write_text(PANEL)
    with pytest.raises(RecordError):
        heretix.panel(tmp_path / "p.yaml", store=store)
    for wave in range(1, 5):
        panel = heretix.panel(tmp_path / "p.yaml", run=True, store=store)
        assert len(panel.report.waves) == wave
    again = heretix.panel("tea", store=store)
    assert again == panel
    page = again._repr_html_()
    assert f"<strong>{escape(str(again))}</strong>" in page
    assert page.count("<svg") == 2
    assert "Tea &lt;b&gt;." in page
    assert list(again.to_frame()["wave"]) == [0, 1, 2, 3] * 2


@pytest.mark.interop
def test_the_gallery_runs_in_a_real_kernel(tmp_path, monkeypatch):
    """Every cell ends well, and the last value of each is shown as HTML."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient isn't installed (group interop)")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    notebook = nbformat.read(GALLERY, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            shown = [one.data for one in cell.outputs if "data" in one]
            assert any("text/html" in data for data in shown), cell.source
            if "heretix.measure" in cell.source or "heretix.study(" in cell.source:
                # The bar, by then what it took, and below it the result.
                assert "samples" in shown[0]["text/html"], cell.source
                assert "<progress" not in shown[0]["text/html"]
                assert len(shown) == 2


def test_the_gallery_is_kept_without_outputs():
    """What is kept are the cells; what they show is made when they run."""
    cells = json.loads(GALLERY.read_text())["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)
