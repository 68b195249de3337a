"""The guide to the API: what it shows works as shown."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from apiserver import served
from fastapi import FastAPI

from heretix.client import Client
from heretix.jobs import BackgroundWorker
from heretix.web.api import describe, router

GUIDE = Path(__file__).parents[2] / "docs" / "api.md"
HERE = "http://127.0.0.1:8765"


def blocks(kind: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def api(tmp_path, sqlite_template):
    with (
        served(tmp_path, sqlite_template, claims=()) as found,
        BackgroundWorker(found.store, found.state.settings),
    ):
        yield found


def test_the_python_examples_run(api, capsys):
    """One after the other, as a reader would."""
    names: dict = {}
    for text in blocks("python"):
        exec(compile(text.replace(HERE, api.url), str(GUIDE), "exec"), names)
    printed = capsys.readouterr().out
    assert "done 16 16" in printed
    assert "was used for another request" in printed
    assert printed.rstrip().endswith("True")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl isn't installed")
def test_the_curl_examples_run(api, tmp_path):
    """Each ends well, and answers with what it says."""

    def answer(text: str) -> str:
        command = text.replace(HERE, api.url).replace("curl ", "curl --fail ")
        return subprocess.run(
            ["bash", "-ec", command], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    answers = [answer(text) for text in blocks("sh")]
    assert json.loads(answers[0])["title"] == "Coffee beans are seeds."
    assert "items" in json.loads(answers[1])
    assert json.loads(answers[2])["estimate"]["attempts"] == 32
    # Once the job is done, every sample of it is in the table.
    Client(api.url).wait(json.loads(answers[0])["id"])
    (export,) = (text for text in blocks("sh") if "samples.jsonl" in text)
    answer(export)
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert len({json.loads(line)["cache_key"] for line in lines}) == 16


def test_the_guide_names_addresses_that_exist():
    """Every address in the table is one of the API's."""
    app = FastAPI()
    app.include_router(router)
    describe(app)
    known = {re.sub(r"\{\w+\}", "{}", path) for path in app.openapi()["paths"]}
    text = GUIDE.read_text(encoding="utf-8")
    table = text[text.index("| what |") :]
    for line in table.splitlines():
        base = ""
        for name in re.findall(r"`(?:GET |POST )?([/…][^`?]*)", line):
            path = name.replace("…", base)
            if not name.startswith("…"):
                base = re.sub(r"^(/\w+(?:/\{\w+\}|/me)?).*", r"\1", name)
            if path.startswith("/export/"):
                continue
            if line.startswith("| for operators") and path.startswith("/episodes/"):
                path = path.replace("/episodes/", "/episodes/{id}/")
            assert "/api/v1" + re.sub(r"\{\w+\}", "{}", path) in known, (line, path)
