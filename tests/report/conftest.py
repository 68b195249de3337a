"""Records to draw, measured once: a run with every kind of sample, and a whole belief vector."""

import pytest
from drawn import MARKUP, measured
from typer.testing import CliRunner

from heretix.measurement.record import Artifact, RunRecord
from heretix.measurement.verify import read_artifacts


@pytest.fixture(scope="session")
def faulty_run(tmp_path_factory) -> RunRecord:
    """A run in which some answers don't count."""
    faults = "not_json=0.3&refused=0.2&error=0.1"
    folder = tmp_path_factory.mktemp("faulty")
    return measured(
        folder, "Tin whiskers short circuits.", f"mock:m?{faults}", K=16, R=2, T=16, B=400
    )


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory) -> RunRecord:
    """A run in which every answer counts."""
    folder = tmp_path_factory.mktemp("clean")
    return measured(folder, "Coffee beans are seeds.", "mock:gpt-5", K=16, R=3, T=16, B=400)


@pytest.fixture(scope="session")
def lost_run(tmp_path_factory) -> RunRecord:
    """A run without an estimate."""
    folder = tmp_path_factory.mktemp("lost")
    run = measured(folder, "Tea is a leaf.", "mock:m?not_json=1", K=8, R=1, T=8, B=200)
    assert run.status == "no_estimate"
    return run


@pytest.fixture(scope="session")
def markup_run(tmp_path_factory) -> RunRecord:
    """A claim that tries to be a page."""
    return measured(tmp_path_factory.mktemp("markup"), MARKUP, "mock:gpt-5", K=4, R=1, T=4, B=200)


@pytest.fixture(scope="session")
def vector_artifact(tmp_path_factory) -> Artifact:
    """Four lenses and their experiments, as `heretix lens` leaves them."""
    from heretix.cli.app import app

    folder = tmp_path_factory.mktemp("vector")
    out = folder / "v.json"
    arguments = [
        *("lens", "Daylight saving time reduces electricity consumption."),
        *("-m", "sim:planted?mel=0.6&hel=-1.5", "-K", "8", "-R", "1", "-B", "200"),
        *("--influence", "--canary", "--sham"),
        *("--out", str(out), "--db", str(folder / "heretix.sqlite")),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERETIX_CORPORA_DIR", str(folder / "corpora"))
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return read_artifacts(out)[0]
