"""Charts as files and inside pages: the right bytes, and nothing that could run."""

import json
import re
import sys
from xml.etree import ElementTree as ET

import pytest

from heretix.core.errors import ConfigError
from heretix.report.charts import (
    chart_html,
    chart_json,
    chart_svg,
    embed_script,
    save_chart,
    template_forest,
)

BEGINNINGS = {
    "svg": b"<svg ",
    "png": b"\x89PNG\r\n",
    "pdf": b"%PDF-",
    "html": b"<!doctype html>",
    "json": b"{",
}


@pytest.mark.parametrize("suffix", sorted(BEGINNINGS))
def test_a_chart_is_saved_as_its_name_says(clean_run, tmp_path, suffix):
    """Folders are made; the bytes are those of the format."""
    path = tmp_path / "new" / f"chart.{suffix}"
    save_chart(template_forest(clean_run), path)
    assert path.read_bytes().startswith(BEGINNINGS[suffix])


def test_other_endings_and_closed_places_are_refused(clean_run, tmp_path):
    """The message names what can be written, or why it can't be."""
    chart = template_forest(clean_run)
    with pytest.raises(ConfigError, match=r"\.svg"):
        save_chart(chart, tmp_path / "chart.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be written"):
        save_chart(chart, tmp_path / "file" / "chart.json")


def test_markup_in_a_claim_is_text_in_a_drawing(markup_run):
    """The drawing is well-formed, and holds no element that the claim asked for."""
    svg = ET.fromstring(chart_svg(template_forest(markup_run)))
    names = {element.tag.rpartition("}")[2] for element in svg.iter()}
    assert not names & {"script", "foreignObject", "a", "image", "use"}
    assert not [name for e in svg.iter() for name in e.attrib if name.startswith("on")]
    shown = "".join(svg.itertext())
    assert "<script>alert(1)</script>" in shown


def test_json_in_a_page_cannot_end_its_element(markup_run):
    """It means the same to a parser, without any sign that means something to HTML."""
    chart = template_forest(markup_run)
    text = chart_json(chart)
    assert not set("<>&") & set(text)
    assert json.loads(text) == json.loads(json.dumps(chart))


def test_a_chart_page_runs_one_script_that_it_names(markup_run):
    """The policy holds the hash of the bundle: no other script can run."""
    page = chart_html(template_forest(markup_run))
    assert "script-src 'sha256-" in page
    scripts = re.findall(r"<script(?: [^>]*)?>", page)
    assert scripts == ['<script type="application/json" id="chart">', "<script>"]


def test_the_bundle_is_made_once_and_draws_by_itself():
    """It holds vegaEmbed and our mount, and asks for no evaluation."""
    assert embed_script() is embed_script()
    assert "heretixCharts" in embed_script()
    assert re.search(r"ast:\s*(true|!0)", embed_script())


def test_without_the_engine_the_message_says_how_to_get_it(clean_run, monkeypatch):
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ConfigError, match=r"uv sync --extra charts"):
        chart_svg(template_forest(clean_run))
