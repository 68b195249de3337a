"""`heretix doctor`: what is well is said, what isn't comes with what to do."""

import json
import sqlite3

import pytest

from faultserver import FaultServer, document, status
from heretix.core.settings import Settings
from heretix.providers import gguf


@pytest.fixture
def server():
    with FaultServer() as running:
        yield running


@pytest.fixture(autouse=True)
def without_the_model(monkeypatch):
    """Loading the embedded model takes a second; one test does, the others find no file."""
    monkeypatch.setattr(gguf, "find", lambda name, settings: None)


def checks(result):
    return {check["name"]: check for check in json.loads(result.out)}


def test_a_fresh_folder_is_well_but_for_what_is_missing(heretix):
    """No store yet is no fault; a missing model is, and the remedy is named."""
    result = heretix("doctor", "--offline", "--json")
    found = checks(result)
    assert found["store"]["state"] == "info"
    assert found["clock"]["state"] == "ok"
    assert found["default model"]["found"] == "local:smollm2-135m"
    assert found["embedded model"]["state"] == "bad"
    assert "models pull" in found["embedded model"]["remedy"]
    assert result.code == 1


def test_a_key_is_told_of_and_never_shown(heretix, monkeypatch, server):
    """Only whether it is set; the endpoint is asked for something free."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-value")
    server.always(document({"object": "list", "data": []}))
    result = heretix("doctor", "-m", "gpt-5", "--base-url", server.url("openai"), "--json")
    found = checks(result)
    assert found["key openai"]["state"] == "ok"
    assert found["endpoint openai"]["state"] == "ok"
    assert "sk-secret-value" not in result.out + result.err


def test_a_wrong_key_and_a_dead_address_are_told(heretix, monkeypatch, server):
    """The provider's own word, and which variable to look at."""
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    server.always(status(401, "bad key"))
    found = checks(heretix("doctor", "-m", "gpt-5", "--base-url", server.url("openai"), "--json"))
    assert found["endpoint openai"]["state"] == "bad"
    assert "OPENAI_API_KEY" in found["endpoint openai"]["found"]
    dead = checks(heretix("doctor", "-m", "vllm:m", "--base-url", "http://127.0.0.1:1", "--json"))
    assert dead["endpoint vllm"]["state"] == "bad"


def test_a_missing_key_of_a_named_model_is_bad(heretix):
    """Which variable to set."""
    found = checks(heretix("doctor", "-m", "claude-opus-5", "--json"))
    assert found["key anthropic"]["remedy"] == "set ANTHROPIC_API_KEY"


def test_a_broken_store_and_a_clock_in_the_past_are_told(heretix, folder):
    """A file that is no database; a sample from tomorrow."""
    (folder / "bad.sqlite").write_text("this is no database" * 100)
    found = checks(heretix("doctor", "--offline", "--db", "bad.sqlite", "--json"))
    assert found["store"]["state"] == "bad"
    heretix("run", "x", "-m", "mock:m")
    with sqlite3.connect("runs/heretix.sqlite") as connection:
        connection.execute("UPDATE samples SET created_at = '2999-01-01T00:00:00.000Z'")
    found = checks(heretix("doctor", "--offline", "--json"))
    assert found["clock"]["state"] == "bad"


@pytest.mark.embedded
def test_the_embedded_model_is_asked_for_real(heretix, monkeypatch):
    """It answers, and the answer is compliant."""
    monkeypatch.undo()
    if gguf.find("smollm2-135m", Settings()) is None:
        pytest.skip("the embedded model isn't installed: uv sync")
    found = checks(heretix("doctor", "--offline", "--json"))
    assert found["embedded model"]["state"] == "ok"
    assert "prob_true" in found["embedded model"]["found"]
