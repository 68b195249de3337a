"""The wheel by itself: installed by pip beside what it requires and nothing else, and used elsewhere.

No index is asked. What this environment has of the wheel's requirements, and of theirs, is linked into
an empty one: whatever the wheel forgot to require, or to bring, isn't there.
"""

import json
import os
import re
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.study
REPOSITORY = Path(__file__).parents[1]

# What each extra is for, and a module that can't be imported without it.
EXTRAS = {
    "charts": "import vl_convert, heretix.report.charts",
    "economy": "import cryptography, heretix.economy.heads",
    "evidence": "import trafilatura, pypdf, tldextract, htmldate, heretix.evidence",
    "inspect": "import heretix.evals, heretix.providers.inspect_ai",
    "lake": "import duckdb, heretix.lake.write, heretix.lake.query",
    "local": "import pip, xllamacpp, heretix.providers.gguf",
    "otel": "from heretix.observability import PrometheusMetrics; PrometheusMetrics().page()",
    "parquet": "import pyarrow.parquet, heretix.report.export",
    "postgres": "import psycopg, sqlalchemy.dialects.postgresql.psycopg, heretix.store",
    "ray": "import ray.util.client, heretix.cluster.engine",
    "rerank": "import tokenizers, threadpoolctl, heretix.evidence.embedding",
    "web": "import heretix.cli.serve, heretix.web.publish, heretix.web.app as a; a._routes()",
}


def closure(extra=""):
    """Distributions that the wheel requires with an extra, and all that those require."""
    waiting, found, seen = [("heretix", {extra})], {}, set()
    while waiting:
        name, extras = waiting.pop()
        name = re.sub(r"[-_.]+", "-", name).lower()
        if (name, *extras) in seen:
            continue
        seen.add((name, *extras))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        for line in found[name].requires or ():
            needed = Requirement(line)
            wanted = [{"extra": one} for one in extras or {""}]
            if needed.marker is None or any(map(needed.marker.evaluate, wanted)):
                waiting.append((needed.name, needed.extras or {""}))
    del found["heretix"]
    return found.values()


def link(distributions, folder):
    """Link the top of all that these installed into a folder."""
    folder.mkdir(exist_ok=True)
    for one in distributions:
        for path in one.files or ():
            top, there = path.parts[0], folder / path.parts[0]
            if top not in {"..", "__pycache__"} and not there.exists():
                there.symlink_to(Path(one.locate_file(top)))
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(built, cwd=REPOSITORY, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheel):
    """The `bin` of an environment with the wheel and its requirements."""
    place = tmp_path_factory.mktemp("empty") / "env"
    venv.create(place, with_pip=False, symlinks=True)
    packages = next(place.glob("lib/python3.*/site-packages"))
    link(closure(), packages)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
    options = ["--no-index", "--no-deps", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *options, str(wheel)], check=True)
    return place / "bin"


@pytest.fixture
def run(installed, tmp_path):
    """Run a program of that environment in an empty folder; it sees nothing of this one."""

    def run(*args, path=None):
        env = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        env |= {"HOME": str(tmp_path), "COLUMNS": "100"}
        env |= {"PYTHONPATH": str(path)} if path else {}
        words = [str(installed / args[0]), *args[1:]]
        return subprocess.run(
            words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False
        )

    return run


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    """No test, no study, no local file; all that is tracked of the package."""
    import zipfile

    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert len(tops) == 2
    assert "heretix" in tops
    listed = subprocess.run(
        ["git", "ls-files", "src/heretix"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    tracked = {name.removeprefix("src/") for name in listed.stdout.splitlines()}
    assert tracked <= set(names)


def test_it_measures_verifies_and_exports_far_from_the_repository(run, tmp_path):
    """What a newcomer does first, with what the wheel alone requires."""
    said = run("heretix", "--version")
    assert said.stdout.startswith("heretix "), said.stderr
    assert "without charts, economy, evidence" in said.stdout
    where = run("python", "-c", "import heretix; print(heretix.__file__)").stdout
    assert str(REPOSITORY) not in where
    for line in (
        "run Tea. --mock -K 4 -R 1 --out a.json",
        "verify a.json",
        "show a.json",
        "runs",
        "describe Tea. --mock",
        "claims --help",
        "export runs --out runs.csv",
        "schema",
        "resume",
        "market --help",
        "simulate --help",
        "panel --help",
        "doctor --offline --json",
    ):
        done = run("heretix", *line.split())
        # A doctor finds what is missing.
        assert done.returncode in ({0, 1} if "doctor" in line else {0}), (
            f"{line}\n{done.stdout}\n{done.stderr}"
        )
        assert "Traceback" not in done.stderr, f"{line}\n{done.stderr}"
    for line in ("serve", "publish site"):
        lacking = run("heretix", *line.split())
        assert (lacking.returncode, "--extra web" in lacking.stderr) == (2, True), lacking.stderr
        assert "Traceback" not in lacking.stderr
    lens = run("heretix", "lens", "Tea.", "--mock", "--corpus", "demo")
    assert (lens.returncode, "--extra evidence" in lens.stderr) == (2, True)
    assert json.loads((tmp_path / "a.json").read_text())["runs"][0]["claim"] == "Tea."
    assert (tmp_path / "runs.csv").read_text().count("\n") >= 2


def test_every_module_says_what_it_lacks_or_is_imported(run):
    """Without any extra, all of the package loads but three rooms that are an extra's own."""
    code = """
import importlib, pkgutil, heretix
for found in pkgutil.walk_packages(heretix.__path__, "heretix.", onerror=str):
    if "__main__" in found.name or "migrations" in found.name:
        continue
    try:
        importlib.import_module(found.name)
    except (ModuleNotFoundError, heretix.HeretixError) as exc:
        lacking = exc if isinstance(exc, ModuleNotFoundError) else exc.__cause__
        print(found.name.split(".")[1], isinstance(lacking, ModuleNotFoundError))
"""
    done = run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == {"cluster True", "evals True", "web True"}


def test_every_extra_is_tried():
    """None is declared that no test imports."""
    declared = distribution("heretix").metadata.get_all("Provides-Extra")
    assert EXTRAS.keys() == set(declared)


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_alone_is_enough(run, tmp_path, extra):
    """What it is for imports with it, and doesn't without."""
    path = link(closure(extra), tmp_path / "extra")
    alone = run("python", "-c", EXTRAS[extra], path=path)
    if "No module named 'inspect_ai'" in alone.stderr:
        pytest.skip("the group `interop` isn't installed")
    assert alone.returncode == 0, alone.stderr
    assert re.search(
        rf"^with .*\b{extra}\b", run("heretix", "--version", path=path).stdout, re.MULTILINE
    )
    without = run("python", "-c", EXTRAS[extra])
    assert without.returncode == 1
    assert re.search("ModuleNotFoundError|ConfigError", without.stderr)
