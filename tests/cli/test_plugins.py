"""Plug-ins, end to end: a package on the path adds one of each, and a broken one harms nothing."""

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from heretix.core import plugins
from heretix.evidence.demo import DEMO_POLICY

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS / "plugin_package"
CLAIM = "Regular moderate exercise lowers resting heart rate."
ACME = {"package": "heretix-acme", "version": "1.2"}


@pytest.fixture
def acme(monkeypatch):
    """The package, installed as far as an import system can tell."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    yield
    for name in [name for name in sys.modules if name.startswith("heretix_acme")]:
        del sys.modules[name]


@pytest.fixture
def wreck(monkeypatch):
    """The package in which everything is broken."""
    monkeypatch.syspath_prepend(str(TESTS / "plugin_broken"))


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        """Answer as Acme does, by the length of the prompt."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append((self.path, self.headers["Authorization"], body))
        prob = 0.5 + (len(body["prompt"]) % 40) / 100
        reply = {"output": json.dumps({"prob_true": prob}), "model": body["model"]}
        payload = json.dumps({**reply, "usage": {"in": 7, "out": 3}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture
def server():
    """A server that speaks Acme's protocol."""
    found = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    found.bodies = []
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def measured(acme, server, folder, heretix, monkeypatch):
    """A run with the package's provider and bank."""
    monkeypatch.setenv("ACME_API_KEY", "k-1")
    (folder / "c.yaml").write_text("claim: Tea is hot.\nprompt_version: acme_v1\nK: 10\nR: 1\n")
    url = f"http://127.0.0.1:{server.server_port}"
    arguments = ("run", "-c", "c.yaml", "-m", "acme:small", "--base-url", url, "--out", "a.json")
    result = heretix(*arguments)
    assert result.code == 0, result.err
    return json.loads((folder / "a.json").read_text())


def test_a_run_with_a_provider_and_a_bank_of_a_package(measured, server, heretix):
    """The provider is asked in the bank's wordings, and the record names both."""
    assert {path for path, _, _ in server.bodies} == {"/complete"}
    assert {key for _, key, _ in server.bodies} == {"Bearer k-1"}
    (run,) = measured["runs"]
    assert run["model"] == "acme:small"
    assert run["prompt_version"] == "acme_v1_2026-11-18"
    assert run["sampler"]["T_bank"] == run["sampling"]["T"] == 5
    assert len({body["prompt"] for _, _, body in server.bodies}) == 5
    assert run["plugins"] == [
        {"kind": "providers", "name": "acme", **ACME},
        {"kind": "banks", "name": "acme_v1", **ACME},
    ]
    assert run["usage"]["tokens_in"] == 70


def test_a_record_verifies_without_the_package(measured, heretix, monkeypatch):
    """The answers and the bank's text stand in it; a changed name shows."""
    assert heretix("verify", "a.json").code == 0
    monkeypatch.setenv("HERETIX_PLUGINS", "0")
    verified = heretix("verify", "a.json")
    assert verified.code == 0, verified.out
    assert "its text is the record's own" in verified.out
    assert heretix("show", "a.json").code == 0
    assert "acme" in heretix("run", CLAIM, "-m", "acme:small").err
    text = Path("a.json").read_text()
    Path("a.json").write_text(text.replace("heretix-acme", "heretix-acne"))
    assert heretix("verify", "a.json").code == 1


def test_a_lens_with_a_search_and_a_metric_of_a_package(acme, heretix, monkeypatch):
    """The search finds the documents; the metric stands beside ours, and is recomputed."""
    lens = ("lens", CLAIM, "-m", "sim:m?mel=0.4&hel=-1", "--search", "acme", "-K", 8)
    result = heretix(*lens, "--policy", DEMO_POLICY, "--out", "v.json")
    assert result.code == 0, result.err
    artifact = json.loads(Path("v.json").read_text())
    assert artifact["plugins"] == [
        {"kind": "search", "name": "acme", **ACME},
        {"kind": "metrics", "name": "spread", **ACME},
    ]
    (metrics,) = artifact["metrics"].values()
    spread = metrics["plugins"]["spread"]
    assert {name: spread[name] for name in ACME} == ACME
    probs = [line["prob_true"] for line in artifact["lenses"]]
    assert spread["value"] == pytest.approx(max(probs) - min(probs), abs=0.05)
    assert spread["lo"] <= spread["value"] <= spread["hi"]
    assert re.search(rf"spread +{spread['value']:.3f} .*heretix-acme 1\.2", result.out)
    assert heretix("verify", "v.json").code == 0

    spread["value"] += 0.01
    Path("w.json").write_text(json.dumps(artifact))
    assert "plugins.spread.value" in heretix("verify", "w.json").out
    monkeypatch.setenv("HERETIX_PLUGINS", "0")
    without = heretix("verify", "v.json")
    assert without.code == 0, without.out
    assert "not recomputed: plug-in heretix-acme 1.2 isn't installed" in without.out


def test_a_command_of_a_package(acme, heretix, monkeypatch):
    """It is listed with its package, and called like ours."""
    assert "greet      (plug-in heretix-acme 1.2)" in heretix("--help").out
    assert heretix("greet", "Tea.").out == "Hello, Tea.\n"
    monkeypatch.setenv("HERETIX_PLUGINS", "0")
    assert "greet" not in heretix("--help").out
    assert heretix("greet", "Tea.").code == 2
    assert heretix("plugins").out == "plug-ins are turned off by HERETIX_PLUGINS=0\n"


def test_plugins_are_listed(acme, heretix):
    """Kind, name, package, version and status, for people and for programs."""
    rows = json.loads(heretix("plugins", "--json").out)
    assert {row["kind"] for row in rows} == set(plugins.KINDS)
    expected = {**ACME, "status": "ok", "error": None}
    assert all({name: row[name] for name in expected} == expected for row in rows)
    assert re.search(r"providers +acme +heretix-acme +1.2 +ok", heretix("plugins").out)


def test_no_plugins_is_said(heretix):
    """With nothing installed there is nothing to show."""
    assert json.loads(heretix("plugins", "--json").out) == []
    assert "docs/plugins.md" in heretix("plugins").out


def test_a_broken_package_is_told_and_harms_nothing(acme, wreck, heretix, monkeypatch):
    """Every fault is named where it is asked for; everything else works."""
    rows = json.loads(heretix("plugins", "--json").out)
    errors = {
        (row["kind"], row["name"]): row["error"] for row in rows if row["package"] != "heretix-acme"
    }
    assert "MISSING" in errors["providers", "wreck"]
    assert "built in" in errors["providers", "mock"]
    assert "from_env" in errors["search", "wreck"]
    assert "missing" in errors["banks", "wreck"]
    assert "heretix_wreck_that_is_not_there" in errors["commands", "wreck"]
    assert errors["metrics", "wreck"] is None

    asked = heretix("run", CLAIM, "-m", "wreck:m")
    assert asked.code == 2
    assert "heretix-wreck 0.1" in asked.err
    assert "HERETIX_PLUGINS=0" in asked.err
    assert "heretix-wreck 0.1" in heretix("wreck").err
    result = heretix("lens", CLAIM, "-m", "sim:m", "-K", 8, "--out", "v.json")
    assert result.code == 0, result.err
    (metrics,) = json.loads(Path("v.json").read_text())["metrics"].values()
    assert metrics["plugins"]["wreck"]["value"] is None
    assert metrics["plugins"]["wreck"]["reason"] == "ZeroDivisionError: wrecked"
    assert metrics["plugins"]["spread"]["value"] is not None
    assert "wreck" in result.out
    assert "ZeroDivisionError: wrecked" in result.out
    assert heretix("verify", "v.json").code == 0


def test_the_guide_shows_the_package_that_is_tested():
    """Every block in docs/plugins.md that names a file is that file, word for word."""
    guide = (TESTS.parent / "docs" / "plugins.md").read_text(encoding="utf-8")
    shown = re.findall(r"`(heretix_acme/[\w.]+)`:?\n+```\w+\n(.*?)```", guide, re.DOTALL)
    assert len(shown) == 6
    for name, text in shown:
        assert text == (PACKAGE / name).read_text(encoding="utf-8"), name
    provider = (PACKAGE / "heretix_acme" / "provider.py").read_text(encoding="utf-8")
    assert len(provider.splitlines()) <= 42
    declared = (PACKAGE / "heretix_acme-1.2.dist-info" / "entry_points.txt").read_text()
    targets = re.findall(r"^(\w+ = )(heretix_acme\.[\w:.]+)$", declared, re.MULTILINE)
    for name, target in targets:
        assert f'{name}"{target}"' in guide
