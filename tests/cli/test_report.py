"""`heretix report`, as people type it."""

import json

import pytest

BEGINNINGS = {"svg": b"<svg ", "png": b"\x89PNG\r\n", "pdf": b"%PDF-", "html": b"<!doctype html>"}


@pytest.fixture
def measured(heretix):
    """A stored run and its file."""
    result = heretix("run", "Tea is <b>a</b> leaf.", "--mock", "-K", 4, "-T", 4, "--out", "a.json")
    assert result.code == 0, result.err
    return json.loads(heretix("runs", "--json").out)[0]


@pytest.mark.parametrize("suffix", sorted(BEGINNINGS))
def test_a_file_becomes_a_report(heretix, measured, folder, suffix):
    """Whatever the ending asks for."""
    result = heretix("report", "a.json", "--out", f"out/r.{suffix}")
    assert result.code == 0, result.err
    assert "1 run, written to" in result.out
    assert (folder / "out" / f"r.{suffix}").read_bytes().startswith(BEGINNINGS[suffix])


def test_ids_are_found_in_the_store(heretix, measured, folder):
    """A part of a run's or an execution's id will do; several stand together."""
    again = heretix("run", "Tea is a leaf.", "-m", "mock:claude-sonnet-5-5", "-K", 4, "-T", 4)
    assert again.code == 0, again.err
    other = json.loads(heretix("runs", "--json").out)[0]
    result = heretix(
        "report", measured["run_id"], other["execution_id"], "-o", "both.html", "--json"
    )
    assert result.code == 0, result.err
    assert json.loads(result.out)["runs"] == 2
    html = (folder / "both.html").read_text()
    assert "Side by side" in html
    assert "Tea is &lt;b&gt;a&lt;/b&gt; leaf." in html
    assert "<b>a</b>" not in html


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing-like-it", "--out", "r.html"), "names no run"),
        (("missing.json", "--out", "r.html"), "missing.json"),
        (("a.json", "--out", "r.gif"), ".html, .png, .svg or .pdf"),
        (("a.json", "--out", "a.json/r.html"), "r.html"),
        (("a.json", "--out", "runs"), ".html, .png, .svg or .pdf"),
        (("a.json",), "--out"),
    ],
)
def test_mistakes_end_with_2_and_write_nothing(heretix, measured, folder, arguments, said):
    """An unknown id, a missing file, an ending that can't be, a place that can't be written."""
    before = {path.name for path in folder.iterdir()}
    result = heretix("report", *arguments)
    assert result.code == 2
    assert said in result.err
    assert {path.name for path in folder.iterdir()} == before
